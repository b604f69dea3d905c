package relay_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// setting is a configuration for a delivery test: how wrong the senders' clocks are, how coarse their timestamps are,
// how small the reader's pages are, and how long the reader pauses between polls.
type setting struct {
	skew, grain, pause time.Duration
	limit              int
}

func (s setting) String() string {
	return fmt.Sprintf("skew=%v,grain=%v,pause=%v,limit=%d", s.skew, s.grain, s.pause, s.limit)
}

func settings() (all []setting) {
	for _, skew := range []time.Duration{0, 500 * time.Millisecond, 5 * time.Second, 240 * time.Second} {
		for _, grain := range []time.Duration{time.Millisecond, time.Second} {
			for _, pause := range []time.Duration{0, 2 * time.Second, 10 * time.Second} {
				for _, limit := range []int{1, 3, 100} {
					all = append(all, setting{skew, grain, pause, limit})
				}
			}
		}
	}
	if testing.Short() {
		all = slices.Collect(func(yield func(setting) bool) {
			for i := 0; i < len(all) && yield(all[i]); i += 5 { // each value of each field is among them
			}
		})
	}
	return all
}

// TestDelivery checks PROTOCOL §7 with five senders and three messages a second. A client with the protocol's own loop
// (since = ts of the last event) gets every message and never polls in a hot loop. A client that continues with the
// cursor gets each message exactly once, in the relay's order.
func TestDelivery(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, s := range settings() {
		t.Run(s.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { deliver(t, s) })
		})
	}
}

const (
	sending = 60 * time.Second
	senders = 5
	perSec  = 3
)

func deliver(t *testing.T, s setting) {
	// The threads last longer than the test. Otherwise notices of their timeouts would arrive, which the test does not
	// count.
	r := startWith(t, relay.Policy{Rules: thread.Rules{PendingTimeout: 24 * time.Hour}}, relay.Config{})
	random := rand.New(rand.NewPCG(1, uint64(s.skew)^uint64(s.grain)^uint64(s.pause)^uint64(s.limit)))
	me := key(t)
	var keys [senders]didkey.Key
	var skews [senders]time.Duration
	for i := range keys {
		keys[i] = key(t)
		skews[i] = time.Duration((random.Float64()*2 - 1) * float64(s.skew))
	}
	time.Sleep(time.Duration(random.IntN(int(time.Second)))) // so that the test does not begin with a second
	// This is long enough for the slowest reader to get the last message and to be idle after it.
	lasts := sending + 90*time.Second + time.Duration(sending.Seconds()*perSec)*s.pause/time.Duration(s.limit)
	end := time.Now().Add(lasts)

	sent := map[string]bool{}
	go func() {
		for n := range int(sending.Seconds()) * perSec {
			time.Sleep(time.Duration(random.IntN(int(2*time.Second/perSec)) + 1))
			i := random.IntN(senders)
			id := fmt.Sprintf("m%d", n)
			e := sign(t, keys[i], envelope.Draft{ID: id, Payload: request, Thread: id, Recipient: me.DID(),
				TS: time.Now().Add(skews[i]).Truncate(s.grain)})
			post(t, r, e)
			sent[id] = true
		}
	}()

	bySince := make(chan tally)
	byCursor := make(chan tally)
	go func() { bySince <- followSince(t, r, me.DID(), s, end) }()
	go func() { byCursor <- followCursor(t, r, me.DID(), s, end) }()
	since, cursor := <-bySince, <-byCursor

	for id := range sent {
		if since.got[id] == 0 {
			t.Errorf("%s never reached the since client", id)
		}
		if cursor.got[id] != 1 {
			t.Errorf("%s reached the cursor client %d times", id, cursor.got[id])
		}
	}
	// Answers without new events should be held: there may be about one a second, however coarse the timestamps are.
	if most := int(lasts.Seconds()); since.empty > most {
		t.Errorf("the since client got %d answers without anything new, more than one a second", since.empty)
	}
	if s.grain == time.Millisecond && since.repeats > len(sent)/8 {
		t.Errorf("with millisecond timestamps the since client got %d repeats of %d events", since.repeats, len(sent))
	}
}

// tally counts what a reader got.
type tally struct {
	got            map[string]int
	empty, repeats int
}

// add counts a page. It counts the page as empty if no event of it is new.
func (a *tally) add(page relay.Page) {
	fresh := false
	for _, e := range page.Events {
		if a.got[e.ID]++; a.got[e.ID] == 1 {
			fresh = true
		} else {
			a.repeats++
		}
	}
	if !fresh {
		a.empty++
	}
}

// followSince is the loop from the protocol's section "Client Subscription Loop".
func followSince(t *testing.T, r *relay.Relay, me didkey.DID, s setting, end time.Time) tally {
	a := tally{got: map[string]int{}}
	since := time.Now().Truncate(time.Millisecond)
	for time.Now().Before(end) && a.empty < 10_000 { // in a hot loop, the time stands still
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: since, Wait: 30 * time.Second,
			Limit: s.limit})
		a.add(page)
		if n := len(page.Events); n > 0 {
			since = page.Events[n-1].TS
		}
		time.Sleep(s.pause)
	}
	return a
}

func followCursor(t *testing.T, r *relay.Relay, me didkey.DID, s setting, end time.Time) tally {
	a := tally{got: map[string]int{}}
	var cursor relay.Cursor
	var last relay.Seq
	for time.Now().Before(end) {
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Cursor: cursor, Wait: 30 * time.Second,
			Limit: s.limit})
		a.add(page)
		for _, e := range page.Events {
			if e.Seq <= last {
				t.Errorf("event %d after %d", e.Seq, last)
			}
			last = e.Seq
		}
		cursor = page.Cursor
		if len(page.Events) > s.limit {
			t.Errorf("a page of %d events, limit %d", len(page.Events), s.limit)
		}
		if !page.More {
			time.Sleep(s.pause)
		}
	}
	return a
}
