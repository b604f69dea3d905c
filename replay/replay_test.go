package replay_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
)

var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

const (
	stale   = envelope.CodeStaleTimestamp
	expired = envelope.CodeExpired
)

func codeOf(t testing.TB, err error) envelope.Code {
	t.Helper()
	if err == nil {
		return ""
	}
	var refusal *envelope.Error
	if !errors.As(err, &refusal) {
		t.Fatalf("not an *envelope.Error: %v", err)
	}
	return refusal.Code
}

func TestCheck(t *testing.T) {
	year := func(y int) time.Time { return time.Date(y, 12, 31, 23, 59, 59, 0, time.UTC) }
	const longest = math.MaxInt64 / int64(time.Second) * int64(time.Second)
	for _, c := range []struct {
		name string
		ts   time.Time
		ttl  time.Duration
		want envelope.Code
	}{
		{"now", noon, 5 * time.Minute, ""},
		{"another zone, same instant", noon.In(time.FixedZone("", 8*3600)), time.Minute, ""},
		{"5m behind", noon.Add(-5 * time.Minute), time.Hour, stale},
		{"1ns inside behind", noon.Add(-5*time.Minute + 1), time.Hour, ""},
		{"1ns beyond behind", noon.Add(-5*time.Minute - 1), time.Hour, stale},
		{"5m ahead", noon.Add(5 * time.Minute), time.Hour, stale},
		{"1ns inside ahead", noon.Add(5*time.Minute - 1), time.Hour, ""},
		{"1ns beyond ahead", noon.Add(5*time.Minute + 1), time.Hour, stale},
		{"year 1", year(1), time.Hour, stale},
		{"year 0", year(0), time.Hour, stale},
		{"year 1677, before int64 nanoseconds", year(1677), time.Hour, stale},
		{"year 2262, after them", year(2262), time.Hour, stale},
		{"year 9999, where Sub saturates", year(9999), time.Hour, stale},
		{"year 9999, longest ttl", year(9999), time.Duration(longest), stale},
		{"longest ttl", noon, time.Duration(longest), ""},

		{"expires now", noon.Add(-time.Minute), time.Minute, expired},
		{"expires in 1ns", noon.Add(-time.Minute + 1), time.Minute, ""},
		{"expired 1ns ago", noon.Add(-time.Minute - 1), time.Minute, expired},
		{"from the future, ttl 1s", noon.Add(4 * time.Minute), time.Second, ""},
		{"default ttl at the far edge", noon.Add(-5*time.Minute + 1), envelope.DefaultTTL, ""},
		{"stale and expired is stale", noon.Add(-time.Hour), time.Second, stale},
	} {
		err := replay.Window{}.Check(c.ts, c.ttl, noon)
		if got := codeOf(t, err); got != c.want {
			t.Errorf("%s: Check = %v, want %q", c.name, err, c.want)
		}
	}
}

// A client with a wrong clock must be able to mend it from the refusal alone.
func TestRefusalsTellTheTime(t *testing.T) {
	for _, ts := range []time.Time{noon.Add(-time.Hour), noon.Add(-2 * time.Minute)} {
		var refusal *envelope.Error
		if err := (replay.Window{}).Check(ts, time.Minute, noon); !errors.As(err, &refusal) {
			t.Fatalf("ts %v: %v", ts, err)
		}
		if refusal.Details["now"] != "2026-02-02T12:00:00.000Z" {
			t.Errorf("%v: details %v", refusal, refusal.Details)
		}
	}
}

func TestWindowsOwnSpans(t *testing.T) {
	w := replay.Window{Skew: time.Second, Memory: time.Minute, MaxTTL: time.Hour}
	for ts, want := range map[time.Time]envelope.Code{
		noon.Add(time.Second): stale, noon.Add(time.Second - 1): "", noon.Add(-time.Second): stale, noon.Add(1 - time.Second): "",
	} {
		if got := codeOf(t, w.Check(ts, time.Hour, noon)); got != want {
			t.Errorf("ts %v, skew 1s: %q, want %q", ts, got, want)
		}
	}
	if got := w.Expires(noon, 2*time.Hour); !got.Equal(noon.Add(time.Hour)) {
		t.Errorf("Expires = %v", got)
	}
	if got := w.RememberUntil(noon, noon); !got.Equal(noon.Add(time.Minute)) {
		t.Errorf("RememberUntil = %v", got)
	}
	if w.WithDefaults() != w {
		t.Errorf("WithDefaults changed spans that were given: %v", w.WithDefaults())
	}
	want := replay.Window{Skew: 5 * time.Minute, Memory: 30 * time.Minute, MaxTTL: 30 * 24 * time.Hour}
	if got := (replay.Window{}).WithDefaults(); got != want {
		t.Errorf("the zero Window has %v, want %v", got, want)
	}
}

func TestExpiresAndRememberUntil(t *testing.T) {
	const day = 24 * time.Hour
	var w replay.Window
	for _, c := range []struct{ ttl, lives, remembered time.Duration }{
		{time.Second, time.Second, 30 * time.Minute},
		{30*time.Minute - 1, 30*time.Minute - 1, 30 * time.Minute},
		{30*time.Minute + 1, 30*time.Minute + 1, 30*time.Minute + 1},
		{30 * day, 30 * day, 30 * day},
		{30*day + 1, 30 * day, 30 * day},
		{math.MaxInt64, 30 * day, 30 * day},
	} {
		expires := w.Expires(noon, c.ttl)
		if !expires.Equal(noon.Add(c.lives)) {
			t.Errorf("ttl %v: Expires = %v", c.ttl, expires)
		}
		if got := w.RememberUntil(noon, expires); !got.Equal(noon.Add(c.remembered)) {
			t.Errorf("ttl %v: RememberUntil = %v", c.ttl, got)
		}
	}
}

// PROTOCOL §3: the memory covers max(received+10m, ts+5m) with a clock that steps back 15 minutes. Whatever is accepted
// once is refused at any reading of the clock after the memory has lapsed, less such a step.
func TestNoReplayAfterTheMemory(t *testing.T) {
	var w replay.Window
	rapid.Check(t, func(t *rapid.T) {
		skew := time.Duration(rapid.Int64Range(int64(-5*time.Minute+1), int64(5*time.Minute-1)).Draw(t, "skew"))
		alive := int64(max(0, -skew)/time.Second) + 1 // a ttl that has not run out on arrival
		ttl := time.Duration(rapid.Int64Range(alive, 400*24*3600).Draw(t, "ttl seconds")) * time.Second
		received := noon.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "received")))
		ts := received.Add(skew)
		if err := w.Check(ts, ttl, received); err != nil {
			t.Fatal(err)
		}
		until := w.RememberUntil(received, w.Expires(ts, ttl))
		if until.Before(received.Add(30*time.Minute)) || until.Before(w.Expires(ts, ttl)) {
			t.Fatalf("remembered until %v only", until)
		}
		later := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "later"))
		back := time.Duration(rapid.Int64Range(0, int64(15*time.Minute)).Draw(t, "back"))
		if now := until.Add(later).Add(-back); w.Check(ts, ttl, now) == nil {
			t.Fatalf("ts %v, received %v, forgotten at %v: accepted again at %v", ts, received, until, now)
		}
	})
}

// The same at the worst corner, where nothing is left to chance: the farthest ts, forgotten at once, the largest step.
func TestNoReplayAtTheCorner(t *testing.T) {
	var w replay.Window
	ts := noon.Add(5*time.Minute - 1)
	if err := w.Check(ts, time.Hour*20, noon); err != nil {
		t.Fatal(err)
	}
	forgotten := w.RememberUntil(noon, noon)
	for _, back := range []time.Duration{0, 15 * time.Minute, 20 * time.Minute} { // 20: what is left of the margin
		if w.Check(ts, 20*time.Hour, forgotten.Add(-back)) == nil {
			t.Errorf("accepted again after a step of %v", back)
		}
	}
	if w.Check(ts, 20*time.Hour, forgotten.Add(-20*time.Minute-2)) != nil {
		t.Error("the corner is not where this test thinks it is")
	}
}
