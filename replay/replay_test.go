package replay_test

import (
	"errors"
	"math"
	"strings"
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
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
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
		err := (replay.Window{}).Check(ts, time.Minute, noon)
		refusal, ok := errors.AsType[*envelope.Error](err)
		if !ok {
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

// TestNoReplayAfterTheMemory tests PROTOCOL §3. What was accepted once is refused after its id was forgotten, also if
// the clock is then set back by up to StepBack.
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
		back := time.Duration(rapid.Int64Range(0, int64(replay.StepBack)).Draw(t, "back"))
		if now := until.Add(later).Add(-back); w.Check(ts, ttl, now) == nil {
			t.Fatalf("ts %v, received %v, forgotten at %v: accepted again at %v", ts, received, until, now)
		}
	})
}

// TestNoReplayAtTheCorner tests the shortest valid memory and the farthest ts. The id is forgotten at the first moment
// possible, and the clock is then set back.
func TestNoReplayAtTheCorner(t *testing.T) {
	for _, skew := range []time.Duration{time.Second, 5 * time.Minute, 3 * time.Hour} {
		w := replay.Window{Skew: skew, Memory: 2*skew + replay.StepBack}
		if err := w.Validate(); err != nil {
			t.Fatal(err)
		}
		ts := noon.Add(skew - 1)
		if err := w.Check(ts, 20*time.Hour, noon); err != nil {
			t.Fatal(err)
		}
		forgotten := w.RememberUntil(noon, noon)
		for _, back := range []time.Duration{0, time.Minute, replay.StepBack} {
			if w.Check(ts, 20*time.Hour, forgotten.Add(-back)) == nil {
				t.Errorf("skew %v: accepted again after a step of %v", skew, back)
			}
		}
		if err := w.Check(ts, 20*time.Hour, forgotten.Add(-replay.StepBack-2)); err != nil {
			t.Errorf("skew %v: the step of %v is not the largest one: %v", skew, replay.StepBack, err)
		}
	}
}

func TestValidate(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		w    replay.Window
		want string // in the error; empty: there is none
	}{
		"the zero value":             {replay.Window{}, ""},
		"just enough":                {replay.Window{Skew: 5 * time.Minute, Memory: 25 * time.Minute}, ""},
		"1ns too little":             {replay.Window{Skew: 5 * time.Minute, Memory: 25*time.Minute - 1}, "raise Memory to 25m0s"},
		"a skew that needs more":     {replay.Window{Skew: 3 * time.Hour}, "raise Memory to 6h15m0s"},
		"no skew to speak of":        {replay.Window{Skew: 1, Memory: replay.StepBack + 2}, ""},
		"less than a step back":      {replay.Window{Skew: 1, Memory: replay.StepBack}, "raise Memory"},
		"a negative skew":            {replay.Window{Skew: -1}, "Skew is -1ns"},
		"a negative memory":          {replay.Window{Memory: -1}, "Memory is -1ns"},
		"a negative ttl":             {replay.Window{MaxTTL: -time.Hour}, "MaxTTL is -1h0m0s"},
		"less than the shortest ttl": {replay.Window{MaxTTL: time.Second - 1}, "MaxTTL is 999.999999ms; set it to at least 1s"},
		"the shortest ttl":           {replay.Window{MaxTTL: time.Second}, ""},
		"a ttl of a century":         {replay.Window{MaxTTL: 100 * year}, ""},
		"a ttl beyond it":            {replay.Window{MaxTTL: 100*year + 1}, "at most 876000h0m0s"},
		"a skew that overflows":      {replay.Window{Skew: math.MaxInt64, Memory: math.MaxInt64}, "Skew is"},
		"a memory that overflows":    {replay.Window{Memory: math.MaxInt64}, "Memory is"},
	} {
		err := c.w.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
