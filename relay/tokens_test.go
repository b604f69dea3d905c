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
	"github.com/agora-relay/agora/relay/admission"
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

// useToken does what VerifyRead does with a token whose signature is valid.
func (t *nonceMemory) useToken(nonce int, ts, now time.Time) error {
	if !t.acceptsTime(ts, now) {
		return readTimeError(now)
	}
	r := &Relay{nonces: t}
	return r.markReadUsed(context.Background(), sha256.Sum256(fmt.Append(nil, nonce)), ts, now)
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
		"a minute either way": {{1, 10 * time.Minute, 11*time.Minute - 1, ""},
			{2, 10 * time.Minute, 11 * time.Minute, untimed},
			{3, 12 * time.Minute, 11*time.Minute + 1, ""}, {4, 12*time.Minute + 2, 11*time.Minute + 1, untimed}},
		"signed before the start": {{1, -1, 1, untimed}, {2, -time.Minute + 2, 1, untimed}, {3, 0, 1, ""}},
		"remembered while it could be used": {{1, 11 * time.Minute, 10*time.Minute + 1, ""},
			{2, 10*time.Minute + 30*time.Second, 11 * time.Minute, ""},
			{1, 11 * time.Minute, 12*time.Minute - 1, used}, {1, 11 * time.Minute, 12 * time.Minute, untimed}},
		"the clock is set back": {{1, 10 * time.Minute, 10 * time.Minute, ""}, {2, 15 * time.Minute, 15 * time.Minute, ""},
			{3, 18 * time.Minute, 18 * time.Minute, ""},
			{1, 10 * time.Minute, 10 * time.Minute, untimed}, {4, 17*time.Minute + time.Second, 17 * time.Minute, ""},
			{3, 18 * time.Minute, 17*time.Minute + 30*time.Second, used}},
		"the clock is set back as far as it may be": {{1, time.Hour, time.Hour, ""},
			{2, time.Hour - replay.StepBack, time.Hour - replay.StepBack, untimed},
			{1, time.Hour, time.Hour, used}},
		"the clock is set back farther": {{1, time.Hour, time.Hour, ""},
			{2, time.Hour - replay.StepBack - 1, time.Hour - replay.StepBack - 1, ""}},
		"the clock was a day ahead": {{1, 24 * time.Hour, 24 * time.Hour, ""}, {2, 2 * time.Hour, 2 * time.Hour, ""}},
		"extreme times":             {{1, 1 << 62, time.Minute, untimed}, {1, -1 << 62, time.Minute, untimed}},
	} {
		memory := newNonceMemory(start)
		for i, s := range steps {
			if got := reasonOf(t, memory.useToken(s.nonce, start.Add(s.ts), start.Add(s.now))); got != s.want {
				t.Errorf("%s, step %d: %q, want %q", name, i, got, s.want)
			}
		}
	}
}

// TestTokenMemoryForgetsNothingEarly checks that tokens are refused while the memory is full, and that no used token
// becomes valid again.
func TestTokenMemoryForgetsNothingEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newNonceMemory(time.Now())
		memory.max = 8
		time.Sleep(time.Second)
		first := time.Now()
		for i := range 8 {
			if err := memory.useToken(i, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		err := memory.useToken(8, time.Now(), time.Now())
		if got := reasonOf(t, err); got != "UNAVAILABLE " || err.(*envelope.Error).RetryAfter != nonceLifetime-time.Second {
			t.Errorf("%v", err)
		}
		if got := reasonOf(t, memory.useToken(0, first, time.Now())); got != used {
			t.Errorf("a used token while the memory is full: %q", got)
		}
		time.Sleep(nonceLifetime - time.Second)
		for i := range 8 {
			if err := memory.useToken(100+i, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if len(memory.fresh)+len(memory.old) != 16 {
			t.Errorf("%d and %d are remembered", len(memory.fresh), len(memory.old))
		}
		if got := reasonOf(t, memory.useToken(0, time.Now(), time.Now())); got != used {
			t.Errorf("a used nonce after two minutes: %q", got)
		}
	})
}

func TestPresenceIsBounded(t *testing.T) {
	var p presence
	now := time.Now()
	for i := range 2 * maxReaders {
		p.mark(didText(i), now)
	}
	if len(p.fresh) != maxReaders || p.lastSeen(didText(0)).IsZero() || !p.lastSeen(didText(2*maxReaders-1)).IsZero() {
		t.Errorf("%d readers", len(p.fresh))
	}
	p.mark(didText(0), now.Add(OnlineWithin))
	if later := now.Add(time.Minute); !p.lastSeen(didText(0)).After(later) || p.lastSeen(didText(1)).After(later) ||
		len(p.old) != maxReaders {
		t.Errorf("last %v and %v, %d before", p.lastSeen(didText(0)), p.lastSeen(didText(1)), len(p.old))
	}
}

func didText(i int) didkey.DID { return didkey.DID(fmt.Sprint("did:key:", i)) }

// TestPresenceReport checks that a report has the readers of this node, once a minute. It also checks that reports, and
// what is learned from them, are bounded.
func TestPresenceReport(t *testing.T) {
	var p presence
	noon := time.Date(2026, 2, 2, 12, 0, 30, 0, time.UTC)
	minute := noon.Truncate(time.Minute)
	if p.mark(didText(0), noon); p.report() != nil {
		t.Error("the first report is not nil")
	}
	p.mark(didText(1), noon)
	p.applyRemote(map[didkey.DID]time.Time{didText(2): minute, didText(3): minute.Add(time.Hour),
		didText(1): minute.Add(-time.Hour)}, noon)
	if got := p.report(); len(got) != 1 || !got[didText(1)].Equal(minute) {
		t.Errorf("reported %v", got)
	}
	if p.mark(didText(1), noon.Add(time.Second)); len(p.report()) != 0 {
		t.Error("the same minute is reported twice")
	}
	for i, want := range []time.Time{minute, minute, minute, minute} {
		if got := p.lastSeen(didText(i)); !got.Equal(want) {
			t.Errorf("%d was seen at %v, want %v", i, got, want)
		}
	}
	for i := range 2 * admission.MaxReported {
		p.mark(didText(i), noon.Add(time.Minute))
	}
	if n := len(p.report()); n != admission.MaxReported {
		t.Errorf("%d readers in a report", n)
	}
	others := map[didkey.DID]time.Time{}
	for i := range 2 * maxReaders {
		others[didText(i)] = noon
	}
	if p.applyRemote(others, noon); len(p.fresh) != maxReaders {
		t.Errorf("%d readers are recorded", len(p.fresh))
	}
}
