package conformance

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

// signing signs the reads of a run, where the relay shows directed messages to their parties only (PROTOCOL §8). Checks
// know nothing of it: a read is signed by whoever it is about, as far as it is one of the run's own identities.
type signing struct {
	audience string // of tokens; empty: reads are not signed here. Set before the first check

	mu      sync.Mutex
	keys    map[string]didkey.Key
	threads map[string][2]string // by id: who opens it, and whom that one names
}

// knows adds an identity.
func (s *signing) knows(key didkey.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[string(key.DID())] = key
}

// sign signs a request that is a read of somebody's, and remembers of one that opens a thread whose that is.
func (s *signing) sign(now time.Time, r *http.Request, body []byte) error {
	if s.audience == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		s.note(body)
		return nil
	}
	key, ok := s.keys[s.reader(r.URL)]
	if r.Method != http.MethodGet || !ok {
		return nil
	}
	token, err := envelope.Read{Audience: s.audience, Method: r.Method, Target: r.URL.RequestURI(), TS: now}.Sign(key)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Agora "+token)
	return nil
}

// note remembers who opens a thread, from what is posted.
func (s *signing) note(body []byte) {
	if m := sketchOf(body); m.Type == "REQUEST" {
		s.opens(m.thread(), m.Sender.ID, m.Recipient.ID)
	}
}

// opens remembers the client of a thread, and whom its REQUEST names; the first that opens it is meant.
func (s *signing) opens(thread, client, recipient string) {
	if _, known := s.threads[thread]; !known {
		s.threads[thread] = [2]string{client, recipient}
	}
}

// willOpen is opens for a REQUEST that is not posted yet: a poll may wait for it.
func (s *signing) willOpen(thread, client, recipient string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens(thread, client, recipient)
}

// sketch is what matters here of a message.
type sketch struct {
	Type              string
	Sender, Recipient struct{ ID string }
	Thread            struct{ ID string }
	Payload           struct {
		RequestID string `json:"request_id"`
	}
}

// sketchOf reads what may be anything; of what is no message little is filled.
func sketchOf(body []byte) (m sketch) {
	_ = json.Unmarshal(body, &m)
	return m
}

func (m sketch) thread() string {
	if m.Thread.ID == "" {
		return m.Payload.RequestID
	}
	return m.Thread.ID
}

// hidden adds to how a message is to be refused that its thread is not there: where messages are shown to their parties
// only, so are threads, and whoever has no part in one is not told more by posting.
func (s *signing) hidden(want refusal, body []byte) refusal {
	if s.audience == "" || want.status != http.StatusForbidden && want.status != http.StatusConflict {
		return want
	}
	m := sketchOf(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	parties, known := s.threads[m.thread()]
	want.hidden = known && m.Sender.ID != parties[0] && m.Sender.ID != parties[1]
	return want
}

// reader returns who would ask for target.
func (s *signing) reader(target *url.URL) string {
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
