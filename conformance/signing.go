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
	clients map[string]string // by thread, the first to post a REQUEST
}

// knows adds an identity.
func (s *signing) knows(key didkey.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys, s.clients = map[string]didkey.Key{}, map[string]string{}
	}
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

func (s *signing) note(body []byte) {
	var m struct {
		Type    string
		Sender  struct{ ID string }
		Thread  struct{ ID string }
		Payload struct {
			RequestID string `json:"request_id"`
		}
	}
	if json.Unmarshal(body, &m) != nil || m.Type != "REQUEST" {
		return // whatever it is, it opens no thread
	}
	if m.Thread.ID == "" {
		m.Thread.ID = m.Payload.RequestID
	}
	if _, known := s.clients[m.Thread.ID]; !known {
		s.clients[m.Thread.ID] = m.Sender.ID
	}
}

// reader returns who would ask for target.
func (s *signing) reader(target *url.URL) string {
	q := target.Query()
	if id, found := strings.CutPrefix(target.Path, "/threads/"); found {
		if client := q.Get("client"); client != "" {
			return client
		}
		return s.clients[id]
	}
	for _, name := range []string{"recipient", "sender"} {
		if did := q.Get(name); did != "" {
			return did
		}
	}
	return s.clients[q.Get("thread")]
}
