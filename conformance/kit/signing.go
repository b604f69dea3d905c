package kit

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// readSigner signs the reads of a run if the relay shows directed messages only to their parties (PROTOCOL §8). The
// checks need not sign reads themselves: the signer chooses the reader by the parameters of the read, see readerOf. It
// signs only for identities of the run.
type readSigner struct {
	Audience string // the aud of tokens; empty: the relay is open and reads are not signed. Set before the checks run

	mu      sync.Mutex
	keys    map[string]didkey.Key
	threads map[string][2]string // by thread id: the did of the client, and the did of the REQUEST's recipient
}

// addKey adds an identity that reads can be signed for.
func (s *readSigner) addKey(key didkey.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[string(key.DID())] = key
}

// sign adds a token to r if r is a read for an identity of the run. If r is a POST, it records the thread of its
// REQUEST.
func (s *readSigner) sign(now time.Time, r *http.Request, body []byte) error {
	if s.Audience == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		s.recordPost(body)
		return nil
	}
	key, ok := s.keys[s.readerOf(r.URL)]
	if r.Method != http.MethodGet || !ok {
		return nil
	}
	token, err := envelope.Read{Audience: s.Audience, Method: r.Method, Target: r.URL.RequestURI(), TS: now}.Sign(key)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Agora "+token)
	return nil
}

// recordPost records the thread of body if body is a REQUEST.
func (s *readSigner) recordPost(body []byte) {
	if m := summarize(body); m.Type == "REQUEST" {
		s.recordThread(m.threadID(), m.Sender.ID, m.Recipient.ID)
	}
}

// recordThread records the client of a thread and the recipient of its REQUEST. Only the first call for a thread
// counts.
func (s *readSigner) recordThread(thread, client, recipient string) {
	if _, known := s.threads[thread]; !known {
		s.threads[thread] = [2]string{client, recipient}
	}
}

// expectThread does the same as recordThread, for a REQUEST that is not posted yet, because a poll may already wait for
// it.
func (s *readSigner) expectThread(thread, client, recipient string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordThread(thread, client, recipient)
}

// messageSummary has the members of a message that readSigner needs.
type messageSummary struct {
	Type              string
	Sender, Recipient struct{ ID string }
	Thread            struct{ ID string }
	Payload           struct {
		RequestID string `json:"request_id"`
	}
}

// summarize returns the summary of a body. Members that are missing or malformed are empty.
func summarize(body []byte) (m messageSummary) {
	_ = json.Unmarshal(body, &m)
	return m
}

func (m messageSummary) threadID() string {
	if m.Thread.ID == "" {
		return m.Payload.RequestID
	}
	return m.Thread.ID
}

// allowNotFound returns want with 404 THREAD_NOT_FOUND as a second right answer, if the sender of the message is not a
// party of the thread. A relay with private reads must not reveal to such a sender that the thread exists (PROTOCOL
// §8).
func (s *readSigner) allowNotFound(want Refusal, body []byte) Refusal {
	if s.Audience == "" || want.status != http.StatusForbidden && want.status != http.StatusConflict {
		return want
	}
	m := summarize(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	parties, known := s.threads[m.threadID()]
	want.orNotFound = known && m.Sender.ID != parties[0] && m.Sender.ID != parties[1]
	return want
}

// readerOf returns the did that a read of target is signed for: the client of the thread for /threads/{id}, otherwise
// the parameter recipient or sender, or the client of the parameter thread.
func (s *readSigner) readerOf(target *url.URL) string {
	q := target.Query()
	if id, found := strings.CutPrefix(target.Path, "/threads/"); found {
		if client := q.Get("client"); client != "" {
			return client
		}
		return s.threads[id][0]
	}
	for _, name := range []string{"recipient", "sender"} {
		if did := q.Get(name); did != "" {
			return did
		}
	}
	return s.threads[q.Get("thread")][0]
}
