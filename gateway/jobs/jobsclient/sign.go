package jobsclient

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Signed calls (GATEWAYS, "Signed calls").

const (
	tokenAttempts = 3               // how often a request is sent with a new token, if only the token was wrong
	maxCorrection = 5 * time.Minute // by how much the time of tokens is corrected at most
)

// clock is the time for tokens. It follows the gateway's clock if that differs from this machine's.
type clock struct {
	mu         sync.Mutex
	correction time.Duration // added to this machine's time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.correction)
}

// correct sets the clock by the gateway's. It returns false if the two differ too much.
func (c *clock) correct(gateway time.Time) bool {
	difference := time.Until(gateway)
	if difference.Abs() > maxCorrection {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.correction = difference
	return true
}

// authorize adds to a request who the caller is.
func (c *Client) authorize(r *http.Request, body []byte) error {
	switch {
	case c.Key != "":
		r.Header.Set("Authorization", "Bearer "+c.Key)
	case c.Signer != nil:
		origin := r.URL.Scheme + "://" + r.URL.Host
		token, err := envelope.Call{Body: sha256.Sum256(body), Read: envelope.Read{Audience: origin, Method: r.Method,
			Target: r.URL.RequestURI(), TS: c.clock.now()}}.Sign(c.Signer)
		if err != nil {
			return fmt.Errorf("signing the request failed: %w", err)
		}
		r.Header.Set("Authorization", "Agora "+token)
	}
	return nil
}

// renewable reports whether a refused call may succeed with a new token. If the time of the token was refused, it
// corrects the clock.
func (c *Client) renewable(refused *Error) bool {
	if refused.Status != http.StatusUnauthorized {
		return false
	}
	switch refused.Reason {
	case envelope.ReasonTime:
		return !refused.now.IsZero() && c.clock.correct(refused.now)
	case envelope.ReasonUsed:
		return true
	}
	return false
}
