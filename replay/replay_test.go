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
		t.Fatalf("the error is not an *envelope.Error: %v", err)
	}
	return refusal.Code
}

// TestCheck checks timestamps and ttls around the limits, and years in which time arithmetic overflows.
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
		{"now in another time zone", noon.In(time.FixedZone("", 8*3600)), time.Minute, ""},
		{"5m ago", noon.Add(-5 * time.Minute), time.Hour, stale},
		{"5m ago less 1ns", noon.Add(-5*time.Minute + 1), time.Hour, ""},
		{"5m ago plus 1ns", noon.Add(-5*time.Minute - 1), time.Hour, stale},
		{"5m ahead", noon.Add(5 * time.Minute), time.Hour, stale},
		{"5m ahead less 1ns", noon.Add(5*time.Minute - 1), time.Hour, ""},
		{"5m ahead plus 1ns", noon.Add(5*time.Minute + 1), time.Hour, stale},
		{"year 1", year(1), time.Hour, stale},
		{"year 0", year(0), time.Hour, stale},
		{"year 1677, before the range of int64 nanoseconds", year(1677), time.Hour, stale},
		{"year 2262, after the range of int64 nanoseconds", year(2262), time.Hour, stale},
		{"year 9999, where Sub saturates", year(9999), time.Hour, stale},
		{"year 9999, longest ttl", year(9999), time.Duration(longest), stale},
		{"longest ttl", noon, time.Duration(longest), ""},

		{"expires now", noon.Add(-time.Minute), time.Minute, expired},
		{"expires in 1ns", noon.Add(-time.Minute + 1), time.Minute, ""},
		{"expired 1ns ago", noon.Add(-time.Minute - 1), time.Minute, expired},
		{"4m ahead, ttl 1s", noon.Add(4 * time.Minute), time.Second, ""},
		{"default ttl, 5m ago less 1ns", noon.Add(-5*time.Minute + 1), envelope.DefaultTTL, ""},
		{"both stale and expired", noon.Add(-time.Hour), time.Second, stale},
	} {
		err := replay.Window{}.Check(c.ts, c.ttl, noon)
		if got := codeOf(t, err); got != c.want {
			t.Errorf("%s: Check = %v, want %q", c.name, err, c.want)
		}
	}
}

// TestErrorsHaveTheRelaysTime checks that the details of an error have the relay's time. With it, a client whose clock
// is wrong can correct its clock.
func TestErrorsHaveTheRelaysTime(t *testing.T) {
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

// TestWindowUsesItsFields checks that a Window uses the values that it was given, and defaults for the others.
func TestWindowUsesItsFields(t *testing.T) {
	w := replay.Window{Skew: time.Second, Memory: time.Minute, MaxTTL: time.Hour}
	for ts, want := range map[time.Time]envelope.Code{
		noon.Add(time.Second): stale, noon.Add(time.Second - 1): "",
		noon.Add(-time.Second): stale, noon.Add(1 - time.Second): "",
	} {
		if got := codeOf(t, w.Check(ts, time.Hour, noon)); got != want {
			t.Errorf("ts %v, skew 1s: code %q, want %q", ts, got, want)
		}
	}
	if got := w.Expires(noon, 2*time.Hour); !got.Equal(noon.Add(time.Hour)) {
		t.Errorf("Expires = %v", got)
	}
	if got := w.RememberUntil(noon, noon); !got.Equal(noon.Add(time.Minute)) {
		t.Errorf("RememberUntil = %v", got)
	}
	if w.WithDefaults() != w {
		t.Errorf("WithDefaults changed fields that were set: %v", w.WithDefaults())
	}
	want := replay.Window{Skew: 5 * time.Minute, Memory: 30 * time.Minute, MaxTTL: 30 * 24 * time.Hour}
	if got := (replay.Window{}).WithDefaults(); got != want {
		t.Errorf("the defaults are %v, want %v", got, want)
	}
}

// TestExpiresAndRememberUntil checks both functions for ttls around the default Memory and MaxTTL.
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

// TestNoReplayAfterTheMemory tests PROTOCOL §3. A message that was accepted once is rejected after its id was
// forgotten, even if the clock is then set back by up to StepBack.
func TestNoReplayAfterTheMemory(t *testing.T) {
	var w replay.Window
	rapid.Check(t, func(t *rapid.T) {
		skew := time.Duration(rapid.Int64Range(int64(-5*time.Minute+1), int64(5*time.Minute-1)).Draw(t, "skew"))
		alive := int64(max(0, -skew)/time.Second) + 1 // the shortest ttl with which the message has not expired on arrival
		ttl := time.Duration(rapid.Int64Range(alive, 400*24*3600).Draw(t, "ttl seconds")) * time.Second
		received := noon.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "received")))
		ts := received.Add(skew)
		if err := w.Check(ts, ttl, received); err != nil {
			t.Fatal(err)
		}
		until := w.RememberUntil(received, w.Expires(ts, ttl))
		if until.Before(received.Add(30*time.Minute)) || until.Before(w.Expires(ts, ttl)) {
			t.Fatalf("remembered only until %v", until)
		}
		later := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "later"))
		back := time.Duration(rapid.Int64Range(0, int64(replay.StepBack)).Draw(t, "back"))
		if now := until.Add(later).Add(-back); w.Check(ts, ttl, now) == nil {
			t.Fatalf("ts %v, received %v, forgotten at %v: accepted again at %v", ts, received, until, now)
		}
	})
}

// TestNoReplayWithTheShortestMemory tests the shortest valid memory and the farthest ts. The id is forgotten
// at the first moment possible, and the clock is then set back.
func TestNoReplayWithTheShortestMemory(t *testing.T) {
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
				t.Errorf("skew %v: accepted again after the clock was set back by %v", skew, back)
			}
		}
		if err := w.Check(ts, 20*time.Hour, forgotten.Add(-replay.StepBack-2)); err != nil {
			t.Errorf("skew %v: with the clock set back by 2ns more than %v, the copy should be accepted: %v",
				skew, replay.StepBack, err)
		}
	}
}

// TestValidate checks which windows are valid, and that the errors say how to correct the others.
func TestValidate(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		w    replay.Window
		want string // a part of the error; empty: no error
	}{
		"the zero value":      {replay.Window{}, ""},
		"the shortest memory": {replay.Window{Skew: 5 * time.Minute, Memory: 25 * time.Minute}, ""},
		"a memory 1ns too short": {
			replay.Window{Skew: 5 * time.Minute, Memory: 25*time.Minute - 1}, "raise Memory to 25m0s"},
		"a skew that needs a longer memory":         {replay.Window{Skew: 3 * time.Hour}, "raise Memory to 6h15m0s"},
		"a skew of 1ns":                             {replay.Window{Skew: 1, Memory: replay.StepBack + 2}, ""},
		"a memory shorter than needed for StepBack": {replay.Window{Skew: 1, Memory: replay.StepBack}, "raise Memory"},
		"a negative skew":                           {replay.Window{Skew: -1}, "Skew is -1ns"},
		"a negative memory":                         {replay.Window{Memory: -1}, "Memory is -1ns"},
		"a negative ttl":                            {replay.Window{MaxTTL: -time.Hour}, "MaxTTL is -1h0m0s"},
		"a MaxTTL below 1s": {
			replay.Window{MaxTTL: time.Second - 1}, "MaxTTL is 999.999999ms; set it to at least 1s"},
		"a MaxTTL of 1s":          {replay.Window{MaxTTL: time.Second}, ""},
		"a MaxTTL of MaxSpan":     {replay.Window{MaxTTL: 100 * year}, ""},
		"a MaxTTL above MaxSpan":  {replay.Window{MaxTTL: 100*year + 1}, "at most 876000h0m0s"},
		"a skew that overflows":   {replay.Window{Skew: math.MaxInt64, Memory: math.MaxInt64}, "Skew is"},
		"a memory that overflows": {replay.Window{Memory: math.MaxInt64}, "Memory is"},
	} {
		err := c.w.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}

// TestCheckMirrored checks the limits of a copied message: ts < now+5m, and now+20m < expiry <= now+24h+5m (RELAYS
//
func TestCheckMirrored(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		name    string
		ts, ttl time.Duration // ts after noon
		want    envelope.Code
	}{
		{"now", 0, time.Hour, ""},
		{"old, with time left", -10 * day, 10*day + 20*time.Minute + 1, ""},
		{"20m left", -time.Hour, 80 * time.Minute, expired},
		{"20m and 1ns left", -time.Hour, 80*time.Minute + 1, ""},
		{"expired", -time.Hour, time.Minute, expired},
		{"5m ahead", 5 * time.Minute, time.Hour, stale},
		{"5m ahead less 1ns", 5*time.Minute - 1, time.Hour, ""},
		{"24h and 5m left", 0, day + 5*time.Minute, ""},
		{"24h, 5m and 1ns left", 0, day + 5*time.Minute + 1, stale},
		{"the longest ttl", 0, math.MaxInt64, stale},
	} {
		if err := (replay.Window{}).CheckMirrored(noon.Add(c.ts), c.ttl, noon); codeOf(t, err) != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := (replay.Window{MaxTTL: time.Hour}).CheckMirrored(noon.Add(-50*time.Minute), day, noon); codeOf(t,
		err) != expired {
		t.Errorf("10m left by the maximum ttl of the relay: %v", err)
	}
}
