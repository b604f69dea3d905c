package main

import (
	"fmt"
	"time"
)

// Times for people. Only this file formats them, because a time of day alone misleads: it may be that of another day, or
// of another time zone. TestTimesHaveDates checks that.

// shownTime returns a time with its date, in the local time zone, such as 2026-11-27 22:52:48 CET.
func shownTime(t time.Time) string { return t.Local().Format(time.DateTime + " MST") }

// shownDeadline returns a time as shownTime does, and how far away it is.
func shownDeadline(t, now time.Time) string { return shownTime(t) + " (" + shownLeft(t, now) + ")" }

// shownLeft returns how far away a time is, such as in 4m59s or 3h ago.
func shownLeft(t, now time.Time) string {
	left := t.Sub(now)
	if left < 0 {
		return age(-left) + " ago"
	}
	unit := time.Second
	switch {
	case left >= 2*day:
		unit = day
	case left >= time.Hour:
		unit = time.Minute
	}
	return "in " + formatDuration(left.Truncate(unit))
}

// shownDay returns the day of a time, with the time zone, for a line above lines that begin with shownClock.
func shownDay(t time.Time) string { return t.Local().Format("Mon 2 Jan 2006 MST") }

// shownClock returns the time of day. shownDay must stand above it.
func shownClock(t time.Time) string { return t.Local().Format(time.TimeOnly) }

// clockWidth is how many columns shownClock takes.
const clockWidth = len(time.TimeOnly)

// age returns how long ago something was, such as 45s, 12m, 3h or 5d.
func age(since time.Duration) string {
	switch since = max(since, 0); {
	case since < time.Minute:
		return fmt.Sprintf("%ds", since/time.Second)
	case since < time.Hour:
		return fmt.Sprintf("%dm", since/time.Minute)
	case since < 2*day:
		return fmt.Sprintf("%dh", since/time.Hour)
	}
	return fmt.Sprintf("%dd", since/day)
}
