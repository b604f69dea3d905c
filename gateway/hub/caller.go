package hub

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// caller says who sent a request, by its key. The zero caller is a request without a key.
type caller struct {
	operator bool
	agent    int64
	key      string
}

// The operations that an old key may still do, see gateway.Holder.Only.
const (
	onlyRotate = "rotate" // repeat the rotation that replaced it
	onlyDelete = "delete" // repeat the deletion of its agent, or register the address again
)

// caller returns who sent a request. If required is true, it refuses a request without a key. An old key counts as
// unknown.
func (h *Hub) caller(ctx context.Context, from relay.Peer, r *http.Request, required bool) (c caller, err error) {
	key, given := gateway.Bearer(r)
	if !given && !required {
		return caller{}, nil
	}
	rotated := false
	err = h.Relay.View(ctx, from, func(q relay.Querier) (err error) {
		c, rotated, err = findCaller(q, key, h.now())
		return err
	})
	if err != nil || !rotated {
		return c, err
	}
	// This is the first use of the new key. From now on the old key can do nothing.
	return c, h.update(context.WithoutCancel(ctx), from, func(o *op) error { return o.check(c) })
}

// findCaller returns to whom a key belongs. rotated means that the key has replaced another one, which still exists.
// Errors: 401.
func findCaller(q relay.Querier, key string, now time.Time) (c caller, rotated bool, err error) {
	holder, found, err := gateway.FindKey(q, key, now)
	if err != nil {
		return caller{}, false, err
	}
	c = caller{operator: holder.Kind == gateway.Operator, agent: holder.Owner, key: key}
	if !found || holder.Only != "" || !c.operator && holder.Kind != gateway.HubAgent {
		return caller{}, false, unauthorized()
	}
	if !c.operator {
		rotated, err = gateway.HasKey(q, gateway.HubAgent, c.agent, onlyRotate)
	}
	return c, rotated, err
}

// check checks again that the caller's key is valid, because the key may have been replaced since the request was
// admitted. If the key has replaced another one, check removes that one.
func (o *op) check(c caller) error {
	again, rotated, err := findCaller(o, c.key, o.hub.now())
	if err == nil && again != c {
		err = unauthorized()
	}
	if err == nil && rotated {
		err = gateway.DropKeys(o.ExtTx, gateway.HubAgent, c.agent, onlyRotate)
	}
	return err
}

// name is the caller's name for AdmitCaller and for Idempotency-Keys.
func (c caller) name() string {
	if c.operator {
		return "operator"
	}
	return "hub agent " + decimal(c.agent)
}

// admitChange returns who sent a request that changes something, and counts the request against the limit of that
// caller. It refuses a request without a key.
func (h *Hub) admitChange(ctx context.Context, from relay.Peer, r *http.Request) (caller, error) {
	c, err := h.caller(ctx, from, r, true)
	if err != nil {
		return c, err
	}
	return c, h.Relay.Gate().AdmitCaller(from, c.name())
}

// agentOnly refuses the operator, who has no inbox.
func (c caller) agentOnly() error {
	if c.operator {
		return refuse(http.StatusForbidden, codeForbidden, "this needs the key of an agent; the operator has no inbox")
	}
	return nil
}

// sessions are the session tokens. Each opens one inbox stream. They are only in memory.
type sessions struct {
	mu     sync.Mutex
	byHash map[[32]byte]session
}

type session struct {
	caller  // who asked for the token; the caller's key must still be valid when the stream opens
	expires time.Time
}

// add returns a new token for an agent. If the agent has maxSessions tokens, the oldest one ends.
func (s *sessions) add(c caller, now time.Time) (token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var own [][32]byte
	for hash, old := range s.byHash {
		if !now.Before(old.expires) {
			delete(s.byHash, hash)
		} else if old.agent == c.agent {
			own = append(own, hash)
		}
	}
	if len(own) >= maxSessions {
		delete(s.byHash, slices.MinFunc(own, func(a, b [32]byte) int {
			return s.byHash[a].expires.Compare(s.byHash[b].expires)
		}))
	}
	token = gateway.NewKey(gateway.HubStream)
	s.byHash[sha256.Sum256([]byte(token))] = session{c, now.Add(sessionTime)}
	return token
}

// has reports whether a token could be used now.
func (s *sessions) has(token string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.byHash[sha256.Sum256([]byte(token))]
	return ok && now.Before(found.expires)
}

// use returns who asked for a token, and ends the token. ok is false if the token is not valid.
func (s *sessions) use(token string, now time.Time) (c caller, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hash := sha256.Sum256([]byte(token))
	found, ok := s.byHash[hash]
	delete(s.byHash, hash)
	return found.caller, ok && now.Before(found.expires)
}

// drop ends all tokens of an agent.
func (s *sessions) drop(agent int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, old := range s.byHash {
		if old.agent == agent {
			delete(s.byHash, hash)
		}
	}
}

func (h *Hub) postSession(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.admitChange(r.Context(), from, r)
	if err != nil {
		return err
	}
	if err := c.agentOnly(); err != nil {
		return err
	}
	if _, err := httpapi.ReadBody(w, r, gateway.MaxBody); err != nil { // what it says does not matter
		return err
	}
	return h.answer(w, http.StatusOK, struct {
		Token   string  `json:"session_token"`
		Expires float64 `json:"expires_in_seconds"`
	}{h.sessions.add(c, h.now()), sessionTime.Seconds()})
}
