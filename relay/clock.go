package relay

import "time"

// believedAfter is how long the wall clock must have been ahead before the relay does by it what cannot be undone.
const believedAfter = 5 * time.Minute

// clockJitter is how far the wall clock may run ahead of the monotonic one between two looks without having been set.
const clockJitter = time.Second

// horizon is the clock for what cannot be undone: removing what is past its time, ending threads. It follows the wall
// clock, but a step forward only once that has lasted: a clock set wrong for a minute must not cost a message that has
// an hour to live. A step back is followed at once, as being late removes nothing. The zero value starts at the first
// look.
type horizon struct {
	now    time.Time // at the last look
	looked time.Time // when that was, by the monotonic clock
	ahead  time.Time // since when, by the monotonic clock, the wall clock has been ahead; zero: it is not
}

// look returns the horizon for what both clocks show.
func (h *horizon) look(wall, monotonic time.Time) time.Time {
	// What time.Now returns shows both clocks, and comparing two such times would compare the monotonic one with itself.
	wall = wall.Round(0)
	passed := h.now.Add(monotonic.Sub(h.looked))
	switch {
	case h.looked.IsZero() || !wall.After(passed.Add(clockJitter)):
		h.now, h.ahead = wall, time.Time{}
	case h.ahead.IsZero():
		h.now, h.ahead = passed, monotonic
	case monotonic.Sub(h.ahead) < believedAfter:
		h.now = passed
	default:
		h.now, h.ahead = wall, time.Time{}
	}
	h.looked = monotonic
	return h.now
}
