package relay

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
)

func reasonOf(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	e, ok := err.(*envelope.Error)
	if !ok {
		t.Fatal(err)
	}
	reason, _ := e.Details["reason"].(string)
	return string(e.Code) + " " + reason
}

// try is what VerifyRead does with a token that is signed well.
func (t *tokens) try(nonce int, ts, now time.Time) error {
	if !t.isFresh(ts, now) {
		return outOfTime(now)
	}
	r := &Relay{nonces: t}
	return r.useRead(context.Background(), sha256.Sum256(fmt.Append(nil, nonce)), ts, now)
}

const (
	used    = "UNAUTHORIZED used"
	untimed = "UNAUTHORIZED time"
)

func TestTokensThroughTime(t *testing.T) {
	start := time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)
	type step struct {
		nonce   int
		ts, now time.Duration // since the start
		want    string
	}
	for name, steps := range map[string][]step{
		"once": {{1, 1, 1, ""}, {1, 1, 2, used}, {1, time.Second, time.Second, used}, {2, 1, 2, ""}},
		"a minute either way": {{1, 10 * time.Minute, 11*time.Minute - 1, ""}, {2, 10 * time.Minute, 11 * time.Minute, untimed},
			{3, 12 * time.Minute, 11*time.Minute + 1, ""}, {4, 12*time.Minute + 2, 11*time.Minute + 1, untimed}},
		"what was signed before the start": {{1, -1, 1, untimed}, {2, -time.Minute + 2, 1, untimed}, {3, 0, 1, ""}},
		"as long as it could be used": {{1, 11 * time.Minute, 10*time.Minute + 1, ""}, {2, 10*time.Minute + 30*time.Second, 11 * time.Minute, ""},
			{1, 11 * time.Minute, 12*time.Minute - 1, used}, {1, 11 * time.Minute, 12 * time.Minute, untimed}},
		"the clock is set back": {{1, 10 * time.Minute, 10 * time.Minute, ""}, {2, 15 * time.Minute, 15 * time.Minute, ""}, {3, 18 * time.Minute, 18 * time.Minute, ""},
			{1, 10 * time.Minute, 10 * time.Minute, untimed}, {4, 17*time.Minute + time.Second, 17 * time.Minute, ""}, {3, 18 * time.Minute, 17*time.Minute + 30*time.Second, used}},
		"the clock is set back as far as it may be": {{1, time.Hour, time.Hour, ""}, {2, time.Hour - replay.StepBack, time.Hour - replay.StepBack, untimed},
			{1, time.Hour, time.Hour, used}},
		"the clock is set back farther": {{1, time.Hour, time.Hour, ""}, {2, time.Hour - replay.StepBack - 1, time.Hour - replay.StepBack - 1, ""}},
		"the clock was a day ahead":     {{1, 24 * time.Hour, 24 * time.Hour, ""}, {2, 2 * time.Hour, 2 * time.Hour, ""}},
		"the end of all years":          {{1, 1 << 62, time.Minute, untimed}, {1, -1 << 62, time.Minute, untimed}},
	} {
		tokens := newTokens(start)
		for i, s := range steps {
			if got := reasonOf(t, tokens.try(s.nonce, start.Add(s.ts), start.Add(s.now))); got != s.want {
				t.Errorf("%s, step %d: %q, want %q", name, i, got, s.want)
			}
		}
	}
}

// TestTokenMemoryForgetsNothingEarly: whoever fills the memory is refused, and nobody's used token comes back.
func TestTokenMemoryForgetsNothingEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := newTokens(time.Now())
		tokens.max = 8
		time.Sleep(time.Second)
		first := time.Now()
		for i := range 8 {
			if err := tokens.try(i, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		err := tokens.try(8, time.Now(), time.Now())
		if got := reasonOf(t, err); got != "UNAVAILABLE " || err.(*envelope.Error).RetryAfter != tokenMemory-time.Second {
			t.Errorf("%v", err)
		}
		if got := reasonOf(t, tokens.try(0, first, time.Now())); got != used {
			t.Errorf("a used token while the memory is full: %q", got)
		}
		time.Sleep(tokenMemory - time.Second)
		for i := range 8 {
			if err := tokens.try(100+i, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if len(tokens.fresh)+len(tokens.old) != 16 {
			t.Errorf("%d and %d are remembered", len(tokens.fresh), len(tokens.old))
		}
		if got := reasonOf(t, tokens.try(0, time.Now(), time.Now())); got != used {
			t.Errorf("the nonce after two minutes: %q", got)
		}
	})
}

func TestPresenceIsBounded(t *testing.T) {
	var p presence
	now := time.Now()
	for i := range 2 * maxPresent {
		p.note(didText(i), now)
	}
	if len(p.fresh) != maxPresent || p.last(didText(0)).IsZero() || !p.last(didText(2*maxPresent-1)).IsZero() {
		t.Errorf("%d readers", len(p.fresh))
	}
	p.note(didText(0), now.Add(OnlineWithin))
	if later := now.Add(time.Minute); !p.last(didText(0)).After(later) || p.last(didText(1)).After(later) || len(p.old) != maxPresent {
		t.Errorf("last %v and %v, %d before", p.last(didText(0)), p.last(didText(1)), len(p.old))
	}
}

func didText(i int) didkey.DID { return didkey.DID(fmt.Sprint("did:key:", i)) }

// TestPresenceReport: a report has who was noted here, once a minute, and is bounded, like what is heard of others.
func TestPresenceReport(t *testing.T) {
	var p presence
	noon := time.Date(2026, 2, 2, 12, 0, 30, 0, time.UTC)
	minute := noon.Truncate(time.Minute)
	if p.note(didText(0), noon); p.report() != nil {
		t.Error("somebody is reported before anybody has asked")
	}
	p.note(didText(1), noon)
	p.hear(map[didkey.DID]time.Time{didText(2): minute, didText(3): minute.Add(time.Hour), didText(1): minute.Add(-time.Hour)}, noon)
	if got := p.report(); len(got) != 1 || !got[didText(1)].Equal(minute) {
		t.Errorf("reported %v", got)
	}
	if p.note(didText(1), noon.Add(time.Second)); len(p.report()) != 0 {
		t.Error("the same minute is reported twice")
	}
	for i, want := range []time.Time{minute, minute, minute, minute} {
		if got := p.last(didText(i)); !got.Equal(want) {
			t.Errorf("%d was seen at %v, want %v", i, got, want)
		}
	}
	for i := range 2 * maxReported {
		p.note(didText(i), noon.Add(time.Minute))
	}
	if n := len(p.report()); n != maxReported {
		t.Errorf("%d readers in a report", n)
	}
	others := map[didkey.DID]time.Time{}
	for i := range 2 * maxPresent {
		others[didText(i)] = noon
	}
	if p.hear(others, noon); len(p.fresh) != maxPresent {
		t.Errorf("%d readers are known of", len(p.fresh))
	}
}
