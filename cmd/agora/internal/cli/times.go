package cli

import (
	"fmt"
	"time"
)

// Times for people. Only this file formats them, because a time of day alone misleads: it may belong to another day or
// another time zone. TestTimesHaveDates checks that.

// ShownTime returns a time with its date, in the local time zone, such as 2026-11-27 22:52:48 CET.
func ShownTime(t time.Time) string { return t.Local().Format(time.DateTime + " MST") }

// ShownDeadline returns a time as ShownTime does, and how far away it is.
func ShownDeadline(t, now time.Time) string { return ShownTime(t) + " (" + ShownLeft(t, now) + ")" }

// ShownLeft returns how far away a time is, such as in 4m59s or 3h ago.
func ShownLeft(t, now time.Time) string {
	left := t.Sub(now)
	if left < 0 {
		return Age(-left) + " ago"
	}
	unit := time.Second
	switch {
	case left >= 2*Day:
		unit = Day
	case left >= time.Hour:
		unit = time.Minute
	}
	return "in " + FormatDuration(left.Truncate(unit))
}

// ShownDay returns the day of a time, with the time zone, for a line above lines that begin with ShownClock.
func ShownDay(t time.Time) string { return t.Local().Format("Mon 2 Jan 2006 MST") }

// ShownClock returns the time of day. ShownDay must stand above it.
func ShownClock(t time.Time) string { return t.Local().Format(time.TimeOnly) }

// ClockWidth is how many columns ShownClock takes.
const ClockWidth = len(time.TimeOnly)

// Age returns how long ago something was, such as 45s, 12m, 3h or 5d.
func Age(since time.Duration) string {
	switch since = max(since, 0); {
	case since < time.Minute:
		return fmt.Sprintf("%ds", since/time.Second)
	case since < time.Hour:
		return fmt.Sprintf("%dm", since/time.Minute)
	case since < 2*Day:
		return fmt.Sprintf("%dh", since/time.Hour)
	}
	return fmt.Sprintf("%dd", since/Day)
}
