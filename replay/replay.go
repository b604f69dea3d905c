// Package replay decides, from the time alone, whether a message is fresh and how long it must be remembered.
//
// A message is known by its sender and id. A copy is harmless while that pair is remembered, and refused by its
// timestamp once it is not; Window keeps the second span inside the first, also for a clock that is set back.
// The package is pure: the time is an argument, remembering is the store's.
package replay

import (
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Window says how far a timestamp may be off and how long an id is remembered. The zero value has the protocol's
// spans.
type Window struct {
	Skew   time.Duration // either side, exclusive; 0: 5 minutes
	Memory time.Duration // from arrival; 0: 30 minutes
	MaxTTL time.Duration // the longest a message is kept, from its ts; 0: 30 days
}

// The protocol's spans (Agora v1.0 "Replay Attack Prevention"; PROTOCOL §1, §3). 30 minutes cover the ten after which
// the farthest future ts has left the window, and a clock stepping back by 15.
const (
	DefaultSkew   = 5 * time.Minute
	DefaultMemory = 30 * time.Minute
	DefaultMaxTTL = 30 * 24 * time.Hour
)

// WithDefaults returns w with its zero spans replaced.
func (w Window) WithDefaults() Window {
	if w.Skew == 0 {
		w.Skew = DefaultSkew
	}
	if w.Memory == 0 {
		w.Memory = DefaultMemory
	}
	if w.MaxTTL == 0 {
		w.MaxTTL = DefaultMaxTTL
	}
	return w
}

// Check refuses a message whose ts is not strictly within the window around now, or that has already expired.
// Instants are compared, never subtracted: a difference saturates, and the year 9999 would pass.
// Errors: CodeStaleTimestamp with the relay's now in the details, CodeExpired.
func (w Window) Check(ts time.Time, ttl time.Duration, now time.Time) error {
	w = w.WithDefaults()
	if !ts.After(now.Add(-w.Skew)) || !ts.Before(now.Add(w.Skew)) {
		return refuse(envelope.CodeStaleTimestamp, now,
			"ts is not within "+w.Skew.String()+" of the relay's clock; set your clock by details.now and sign again")
	}
	if !now.Before(w.Expires(ts, ttl)) {
		return refuse(envelope.CodeExpired, now,
			"the message had expired (ts + meta.ttl, as far as the relay keeps messages) when it arrived; send it sooner or sign it with a longer ttl")
	}
	return nil
}

func refuse(code envelope.Code, now time.Time, message string) error {
	return &envelope.Error{Code: code, Message: message, Details: map[string]any{"now": envelope.FormatTime(now)}}
}

// Expires returns until when a message is delivered: min(ts+ttl, ts+MaxTTL).
func (w Window) Expires(ts time.Time, ttl time.Duration) time.Time {
	return ts.Add(min(ttl, w.WithDefaults().MaxTTL))
}

// RememberUntil returns until when a store keeps what it knows of a message that arrived at received: as long as it
// is delivered, and Memory at least.
func (w Window) RememberUntil(received, expires time.Time) time.Time {
	remember := received.Add(w.WithDefaults().Memory)
	if expires.After(remember) {
		return expires
	}
	return remember
}
