// Package replay decides, from the time alone, whether a message is fresh and how long it must be remembered.
//
// A message is known by its sender and id. A store recognizes a copy while it remembers that pair. After that, the
// timestamp of the copy is stale. Window.Validate checks that the memory is long enough for this, also if the relay's
// clock is set back by up to StepBack. The package is pure: the time is an argument, and the store remembers.
package replay

import (
	"fmt"
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

// StepBack is how far a relay's clock may be set back without any rule about time failing: no message and no signed
// read is taken twice, and no search by time misses an event (PROTOCOL §3, §8).
const StepBack = 15 * time.Minute

// The protocol's spans (Agora v1.0 "Replay Attack Prevention"; PROTOCOL §1, §3).
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

// MaxSpan is the longest time that a policy may name. A store keeps instants as nanoseconds in 64 bits, which end in
// the year 2262.
const MaxSpan = 100 * 365 * 24 * time.Hour

// Validate reports what is wrong with w, after WithDefaults, and how to correct it.
//
// A message may be dated almost Skew ahead of the clock on arrival, and is fresh until almost Skew after its date. The
// clock may then be set back by StepBack. So Memory must be at least 2*Skew + StepBack, or a copy could be accepted.
func (w Window) Validate() error {
	w = w.WithDefaults()
	for _, span := range []struct {
		name  string
		value time.Duration
		min   time.Duration
	}{{"Skew", w.Skew, 1}, {"Memory", w.Memory, 1}, {"MaxTTL", w.MaxTTL, time.Second}} {
		if span.value < span.min || span.value > MaxSpan {
			return fmt.Errorf("window: %s is %v; set it to at least %v and at most %v", span.name, span.value, span.min, MaxSpan)
		}
	}
	if needed := 2*w.Skew + StepBack; w.Memory < needed {
		return fmt.Errorf("window: Memory is %v, but a Skew of %v needs %v (2*Skew + %v for a clock that is set back); "+
			"raise Memory to %v or lower Skew", w.Memory, w.Skew, needed, StepBack, needed)
	}
	return nil
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
