package relay

import "time"

// acceptStepAfter is how long the wall clock must be ahead before sweepClock follows it.
const acceptStepAfter = 5 * time.Minute

// clockJitter is how far the wall clock may gain on the monotonic clock between two calls of advance without counting
// as a step.
const clockJitter = time.Second

// sweepClock is the clock for operations that cannot be undone: deleting expired data and ending threads. It follows
// the wall clock, with one exception. It follows a step forward only after acceptStepAfter. So if the clock is wrong
// for a minute, no message is deleted an hour too early. It follows a step back at once, because deleting late loses
// nothing. The zero value starts at the first call of advance.
type sweepClock struct {
	now        time.Time // result of the last call of advance
	checkedAt  time.Time // when that call was, by the monotonic clock
	aheadSince time.Time // since when the wall clock has been ahead, by the monotonic clock; zero: it is not
}

// advance returns the time to use, given what both clocks show.
func (c *sweepClock) advance(wall, monotonic time.Time) time.Time {
	// A time from time.Now also has a monotonic reading. If both times have one, comparing them ignores the wall clock.
	// Round(0) removes it.
	wall = wall.Round(0)
	expected := c.now.Add(monotonic.Sub(c.checkedAt))
	switch {
	case c.checkedAt.IsZero() || !wall.After(expected.Add(clockJitter)):
		c.now, c.aheadSince = wall, time.Time{}
	case c.aheadSince.IsZero():
		c.now, c.aheadSince = expected, monotonic
	case monotonic.Sub(c.aheadSince) < acceptStepAfter:
		c.now = expected
	default:
		c.now, c.aheadSince = wall, time.Time{}
	}
	c.checkedAt = monotonic
	return c.now
}
