// Package replay decides whether the timestamp of a message is acceptable, and how long a store must remember the
// message.
//
// A message is identified by its sender and its id. A store recognizes a copy as long as it remembers this pair. When
// the store forgets the pair, the timestamp of the copy is too old. Window.Validate checks that the pair is remembered
// long enough for this, even if the relay's clock is set back by up to StepBack. The package keeps no state: callers
// pass the time, and the store remembers the pairs.
package replay

import (
	"fmt"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Window has the limits for timestamps and for the memory of ids. The zero value means the values of the protocol.
type Window struct {
	Skew   time.Duration // ts must differ by less than this from the relay's clock, in both directions; 0: 5 minutes
	Memory time.Duration // an id is remembered at least this long after the arrival; 0: 30 minutes
	MaxTTL time.Duration // a message is delivered at most this long after its ts; 0: 30 days
}

// StepBack is how far a relay's clock may be set back without harm: no message and no signed read is accepted twice,
// and no search by time misses an event (PROTOCOL §3, §8).
const StepBack = 15 * time.Minute

// The protocol's values, which replace the zero fields of Window (Agora v1.0 "Replay Attack Prevention"; PROTOCOL §1,
// §3).
const (
	DefaultSkew   = 5 * time.Minute
	DefaultMemory = 30 * time.Minute
	DefaultMaxTTL = 30 * 24 * time.Hour
)

// WithDefaults returns w with its zero fields replaced by the defaults.
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

// MaxSpan is the longest duration that a policy may have: 100 times 365 days. A store keeps times as nanoseconds since
// 1970 in 64 bits, which last until the year 2262.
const MaxSpan = 100 * 365 * 24 * time.Hour

// Validate returns an error if w, after WithDefaults, is invalid. The error says how to correct it.
//
// On arrival, the ts of a message may be almost Skew ahead of the clock. It is accepted until almost Skew after the ts.
// The clock may also be set back by StepBack. So Memory must be at least 2*Skew + StepBack. Otherwise a copy could be
// accepted after the id was forgotten.
func (w Window) Validate() error {
	w = w.WithDefaults()
	for _, span := range []struct {
		name  string
		value time.Duration
		min   time.Duration
	}{{"Skew", w.Skew, 1}, {"Memory", w.Memory, 1}, {"MaxTTL", w.MaxTTL, time.Second}} {
		if span.value < span.min || span.value > MaxSpan {
			return fmt.Errorf("window: %s is %v; set it to at least %v and at most %v",
				span.name, span.value, span.min, MaxSpan)
		}
	}
	if needed := 2*w.Skew + StepBack; w.Memory < needed {
		return fmt.Errorf("window: Memory is %v, but a Skew of %v needs %v (2*Skew + %v for a clock that is set back); "+
			"raise Memory to %v or lower Skew", w.Memory, w.Skew, needed, StepBack, needed)
	}
	return nil
}

// Check returns an error if ts is not strictly within Skew of now, or if the message has already expired. The code
// compares times and never subtracts them: a difference of two times saturates, so a ts in the year 9999 would be
// accepted.
//
// Errors: CodeStaleTimestamp and CodeExpired, both with the relay's now in the details.
func (w Window) Check(ts time.Time, ttl time.Duration, now time.Time) error {
	w = w.WithDefaults()
	if !ts.After(now.Add(-w.Skew)) || !ts.Before(now.Add(w.Skew)) {
		return refuse(envelope.CodeStaleTimestamp, now,
			"ts is not within "+w.Skew.String()+" of the relay's clock; details.now has the relay's time: "+
				"correct your clock and sign the message again")
	}
	if !now.Before(w.Expires(ts, ttl)) {
		return refuse(envelope.CodeExpired, now,
			"the message had already expired when it arrived; it expires at ts + meta.ttl, or earlier if meta.ttl is above "+
				"the relay's maximum; send it sooner or sign it with a longer ttl")
	}
	return nil
}

// Limits of the time that is left to a copy of another relay's message until it expires (RELAYS R-21).
const (
	minCopied = StepBack + 5*time.Minute
	maxCopied = 24*time.Hour + 5*time.Minute
)

// CheckMirrored is like Check, for a message that is copied from another relay. It may be older than Skew, because it
// is remembered until it expires. It must have more than 20 minutes left until then. So, when it is forgotten, a copy
// is too old, also after the clock was set back by StepBack. It must have at most 24 hours and 5 minutes left, so
// that the memory is bounded.
//
// Errors: CodeStaleTimestamp and CodeExpired, both with the relay's now in the details.
func (w Window) CheckMirrored(ts time.Time, ttl time.Duration, now time.Time) error {
	w = w.WithDefaults()
	expires := w.Expires(ts, ttl)
	switch {
	case !ts.Before(now.Add(w.Skew)):
		return refuse(envelope.CodeStaleTimestamp, now, "ts is too far ahead of the relay's clock")
	case !now.Add(minCopied).Before(expires):
		return refuse(envelope.CodeExpired, now, "the message expires too soon to be copied")
	case expires.After(now.Add(maxCopied)):
		return refuse(envelope.CodeStaleTimestamp, now, "the message expires too late to be copied")
	}
	return nil
}

// refuse returns an error with the relay's time in the details.
func refuse(code envelope.Code, now time.Time, message string) error {
	return &envelope.Error{Code: code, Message: message, Details: map[string]any{"now": envelope.FormatTime(now)}}
}

// Expires returns the time until which a message is delivered: min(ts+ttl, ts+MaxTTL).
func (w Window) Expires(ts time.Time, ttl time.Duration) time.Time {
	return ts.Add(min(ttl, w.WithDefaults().MaxTTL))
}

// RememberUntil returns the time until which a store must remember a message that arrived at received: as long as the
// message is delivered, and at least Memory.
func (w Window) RememberUntil(received, expires time.Time) time.Time {
	remember := received.Add(w.WithDefaults().Memory)
	if expires.After(remember) {
		return expires
	}
	return remember
}
