package storetest

import (
	"fmt"
	"math/rand"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// kept is an event as a naive store would keep it: in a list.
type kept struct {
	relay.Event
	*envelope.Envelope
	client didkey.DID
}

func keep(e relay.Entry, r relay.Receipt) kept {
	m := e.Envelope
	return kept{client: r.Thread.Client, Envelope: m, Event: relay.Event{Seq: r.Cursor.Seq, ID: m.ID, TS: m.TS,
		Received: e.Received, Expires: r.ExpiresAt, Size: len(m.Canonical()), Body: m.Canonical()}}
}

// forgotten reports whether Expire removes k at now.
func (k kept) forgotten(now time.Time) bool {
	return !now.Before(k.Expires) && !now.Before(k.Received.Add(replay.DefaultMemory))
}

// matches is relay.Query's comments, word by word.
func (k kept) matches(q relay.Query) bool {
	at := k.Envelope.TS
	switch {
	case q.Recipient != "" && k.Recipient != q.Recipient && (!q.Broadcast || k.Recipient != ""),
		q.Sender != "" && k.Sender.ID != q.Sender,
		q.Type != "" && k.Type != q.Type,
		q.Thread != "" && k.Thread != q.Thread,
		q.Thread != "" && q.Client != "" && k.client != q.Client,
		q.Viewer.Limited && k.Recipient != "" && k.Recipient != q.Viewer.DID && k.Sender.ID != q.Viewer.DID,
		!q.Expired && !k.Expires.After(q.Now),
		k.Seq <= q.After.Seq,
		q.Until > 0 && k.Seq > q.Until,
		!q.TS.IsZero() && !at.Equal(q.TS),
		!q.NewerThan.IsZero() && !at.After(q.NewerThan) && !k.Received.After(q.NewerThan):
		return false
	}
	return true
}

// naive answers q from the list, which ends at end.
func naive(list []kept, end relay.Cursor, q relay.Query) relay.Page {
	page, size := relay.Page{Cursor: end}, 0
	for _, k := range list {
		if q.Limit <= 0 || !k.matches(q) {
			continue
		}
		size += k.Size
		if len(page.Events) == q.Limit || q.MaxBytes > 0 && len(page.Events) > 0 && size > q.MaxBytes {
			page.More = true
			page.Cursor.Seq = page.Events[len(page.Events)-1].Seq
			return page
		}
		e := k.Event
		if q.Headers {
			e.Body = nil
		}
		page.Events = append(page.Events, e)
	}
	return page
}

// populate posts a few hundred messages of every kind, as clocks that are a few minutes off would sign them, and has
// the oldest removed. It returns what must be left.
func populate(f *fixture) (list []kept) {
	random := rand.New(rand.NewSource(1)) // the same every time: what is drawn are the queries
	people := []didkey.Key{alice, bob, carol, dave}
	anyone := func() didkey.Key { return people[random.Intn(len(people))] }
	payloads := []envelope.Payload{request, offer, offer, offer, accept, result, cancel, failure,
		envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}
	ttls := []time.Duration{time.Second, time.Minute, time.Hour, 3 * time.Hour}
	for i := range 600 {
		f.pass(time.Duration(random.Intn(20_000)) * time.Millisecond)
		if i%100 == 99 {
			f.pass(-10 * time.Minute) // somebody sets the relay's clock
		}
		d := lasting(ttls[random.Intn(len(ttls))], envelope.Draft{Payload: payloads[random.Intn(len(payloads))]})
		if _, none := d.Payload.(envelope.Manifest); !none {
			d.Thread = fmt.Sprint("t", random.Intn(9))
		}
		if random.Intn(3) > 0 {
			d = to(anyone(), d)
		}
		d.TS = f.now.Add(time.Duration(random.Intn(480_000)-240_000) * time.Millisecond)
		if random.Intn(2) == 0 {
			d.TS = d.TS.Truncate(10 * time.Second)
		}
		e := f.entry(anyone(), d)
		receipt, err := f.Append(f.Context(), e)
		if codeOf(err) == "" { // what thread rules refuse is another test's
			f.must(err)
			list = append(list, keep(e, receipt))
		}
	}
	f.expire()
	left := slices.DeleteFunc(slices.Clone(list), func(k kept) bool { return k.forgotten(f.now) })
	if len(left) < 150 || len(left) == len(list) {
		f.Fatalf("%d messages were stored and %d are left: nothing to test with", len(list), len(left))
	}
	return left
}

// drawQuery draws a query about what list has: each member is set or not, to something that is there or nearly.
func drawQuery(t *rapid.T, list []kept, end relay.Cursor) (q relay.Query) {
	some := func() kept { return list[rapid.IntRange(0, len(list)-1).Draw(t, "event")] }
	maybe := func(member string, set func()) {
		if rapid.IntRange(0, 3).Draw(t, member+"?") == 0 {
			set()
		}
	}
	offset := func() time.Duration {
		return rapid.SampledFrom([]time.Duration{0, 0, -1, 1, time.Minute, -time.Hour, time.Hour}).Draw(t, "offset")
	}
	someone := rapid.SampledFrom([]didkey.DID{alice.DID(), bob.DID(), carol.DID(), node.DID()})
	maybe("recipient", func() { q.Recipient = someone.Draw(t, "recipient") })
	maybe("broadcast", func() { q.Broadcast = true })
	maybe("sender", func() { q.Sender = someone.Draw(t, "sender") })
	maybe("type", func() { q.Type = rapid.SampledFrom(envelope.Types()).Draw(t, "type") })
	maybe("thread", func() {
		q.Thread = rapid.SampledFrom([]string{"t0", "t1", "t2", "nowhere"}).Draw(t, "thread")
		maybe("client", func() { q.Client = someone.Draw(t, "client") })
	})
	maybe("limited", func() {
		q.Viewer.Limited = true
		q.Viewer.DID = rapid.SampledFrom([]didkey.DID{"", alice.DID(), bob.DID(), node.DID()}).Draw(t, "viewer")
	})
	q.Now = some().Expires.Add(offset())
	maybe("expired", func() { q.Expired = true })
	maybe("after", func() { q.After = relay.Cursor{Epoch: end.Epoch, Seq: some().Seq} })
	maybe("until", func() { q.Until = some().Seq })
	maybe("ts", func() { q.TS = some().Envelope.TS.Add(offset()) })
	maybe("newerThan", func() {
		q.NewerThan = some().Received.Add(offset())
		if rapid.Bool().Draw(t, "by ts") {
			q.NewerThan = some().Envelope.TS.Add(offset())
		}
	})
	maybe("headers", func() { q.Headers = true })
	q.Limit = rapid.SampledFrom([]int{0, 1, 2, 7, everything, everything}).Draw(t, "limit")
	maybe("maxBytes", func() { q.MaxBytes = rapid.IntRange(1, 4000).Draw(t, "maxBytes") })
	return q
}

// testReadModel compares answers with those of a list.
func testReadModel(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{Rules: thread.Rules{PendingTimeout: 24 * time.Hour, ActiveTimeout: 24 * time.Hour}})
	list := populate(f)
	end := f.end()
	var ended atomic.Bool
	ended.Store(true)
	rapid.Check(t, func(t *rapid.T) {
		f := *f
		f.tb = t
		for range 10 {
			q := drawQuery(t, list, end)
			f.equal(fmt.Sprintf("%+v", q), f.read(q), naive(list, end, q))
			if q.Limit == 0 {
				continue
			}
			whole := q
			whole.Limit, whole.MaxBytes = everything, 0
			f.equal(fmt.Sprintf("page by page, %+v", q), follow(&f, q, &ended), numbers(naive(list, end, whole).Events))
			q.Look = rapid.SampledFrom([]int{1, 2, 9, 100}).Draw(t, "look")
			f.equal(fmt.Sprintf("slice by slice, %+v", q), follow(&f, q, &ended), numbers(naive(list, end, whole).Events))
		}
	})
}
