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

// storedEvent is an event of the model, which keeps its events in a list.
type storedEvent struct {
	relay.Event
	*envelope.Envelope
	client didkey.DID // the client of its thread
}

// newStoredEvent returns the event that Append stores for e. r is the receipt.
func newStoredEvent(e relay.Entry, r relay.Receipt) storedEvent {
	m := e.Envelope
	return storedEvent{client: r.Thread.Client, Envelope: m, Event: relay.Event{Seq: r.Cursor.Seq, ID: m.ID, TS: m.TS,
		Received: e.Received, Expires: r.ExpiresAt, Size: len(m.Canonical()), Body: m.Canonical()}}
}

// forgotten reports whether Expire removes k if it is called at now.
func (k storedEvent) forgotten(now time.Time) bool {
	return !now.Before(k.Expires) && !now.Before(k.Received.Add(replay.DefaultMemory))
}

// matches reports whether q selects k. It follows the comments on the fields of relay.Query.
func (k storedEvent) matches(q relay.Query) bool {
	at := k.Envelope.TS
	switch {
	case q.Recipient != "" && k.Recipient != q.Recipient && (!q.Broadcast || k.Recipient != ""),
		q.Sender != "" && k.Sender.ID != q.Sender,
		q.Type != "" && k.Type != q.Type,
		q.Thread != "" && k.Thread != q.Thread,
		q.Thread != "" && q.Client != "" && k.client != q.Client,
		q.Viewer.Limited && k.Recipient != "" && k.Recipient != q.Viewer.DID && k.Sender.ID != q.Viewer.DID,
		!q.Expired && !k.Expires.After(q.Now),
		!q.Backward && (k.Seq <= q.After.Seq || q.Until > 0 && k.Seq > q.Until),
		q.Backward && (k.Seq > q.After.Seq || k.Seq < q.Until),
		!q.TS.IsZero() && !at.Equal(q.TS),
		!q.NewerThan.IsZero() && !at.After(q.NewerThan) && !k.Received.After(q.NewerThan):
		return false
	}
	return true
}

// naiveRead answers q from list. end is the cursor of the last event that was stored.
func naiveRead(list []storedEvent, end relay.Cursor, q relay.Query) relay.Page {
	page, size, events := relay.Page{Cursor: end}, 0, slices.All(list)
	if q.Backward && q.Limit > 0 {
		page.Cursor.Seq, events = 0, slices.Backward(list)
	}
	for _, k := range events {
		if q.Limit <= 0 || !k.matches(q) {
			continue
		}
		size += k.Size
		if len(page.Events) == q.Limit || q.MaxBytes > 0 && len(page.Events) > 0 && size > q.MaxBytes {
			page.More = true
			page.Cursor.Seq = q.Behind(page.Events[len(page.Events)-1].Seq)
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

// populate posts a few hundred messages of every type, with timestamps that are up to four minutes off. It then calls
// Expire, which removes some of them. It returns the events that must be left.
func populate(f *fixture) (list []storedEvent) {
	random := rand.New(rand.NewSource(1)) // the same events in every run; only the queries are random
	senders := []didkey.Key{alice, bob, carol, dave}
	anyone := func() didkey.Key { return senders[random.Intn(len(senders))] }
	payloads := []envelope.Payload{request, offer, offer, offer, accept, result, cancel, failure,
		envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}
	ttls := []time.Duration{time.Second, time.Minute, time.Hour, 3 * time.Hour}
	for i := range 600 {
		f.advance(time.Duration(random.Intn(20_000)) * time.Millisecond)
		if i%100 == 99 {
			f.advance(-10 * time.Minute) // the relay's clock is set back
		}
		d := withTTL(ttls[random.Intn(len(ttls))], envelope.Draft{Payload: payloads[random.Intn(len(payloads))]})
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
		if codeOf(err) == "" { // skip messages that the thread rules reject; other tests check these rules
			f.must(err)
			list = append(list, newStoredEvent(e, receipt))
		}
	}
	f.expire()
	left := slices.DeleteFunc(slices.Clone(list), func(k storedEvent) bool { return k.forgotten(f.now) })
	if len(left) < 150 || len(left) == len(list) {
		f.Fatalf("%d messages were stored and %d are left; too many or too few to test with", len(list), len(left))
	}
	return left
}

// drawQuery draws a query. Each field is set or left out at random. Its value is one that an event of list has, or a
// value close to it.
func drawQuery(t *rapid.T, list []storedEvent, end relay.Cursor) (q relay.Query) {
	some := func() storedEvent { return list[rapid.IntRange(0, len(list)-1).Draw(t, "event")] }
	sometimes := func(member string, set func()) {
		if rapid.IntRange(0, 3).Draw(t, member+"?") == 0 {
			set()
		}
	}
	offset := func() time.Duration {
		return rapid.SampledFrom([]time.Duration{0, 0, -1, 1, time.Minute, -time.Hour, time.Hour}).Draw(t, "offset")
	}
	someone := rapid.SampledFrom([]didkey.DID{alice.DID(), bob.DID(), carol.DID(), node.DID()})
	sometimes("recipient", func() { q.Recipient = someone.Draw(t, "recipient") })
	sometimes("broadcast", func() { q.Broadcast = true })
	sometimes("sender", func() { q.Sender = someone.Draw(t, "sender") })
	sometimes("type", func() { q.Type = rapid.SampledFrom(envelope.Types()).Draw(t, "type") })
	sometimes("thread", func() {
		q.Thread = rapid.SampledFrom([]string{"t0", "t1", "t2", "nowhere"}).Draw(t, "thread")
		sometimes("client", func() { q.Client = someone.Draw(t, "client") })
	})
	sometimes("limited", func() {
		q.Viewer.Limited = true
		q.Viewer.DID = rapid.SampledFrom([]didkey.DID{"", alice.DID(), bob.DID(), node.DID()}).Draw(t, "viewer")
	})
	q.Now = some().Expires.Add(offset())
	sometimes("expired", func() { q.Expired = true })
	sometimes("backward", func() { q.Backward, q.After = true, end })
	sometimes("after", func() { q.After = relay.Cursor{Epoch: end.Epoch, Seq: some().Seq} })
	sometimes("until", func() { q.Until = some().Seq })
	sometimes("ts", func() { q.TS = some().Envelope.TS.Add(offset()) })
	sometimes("newerThan", func() {
		q.NewerThan = some().Received.Add(offset())
		if rapid.Bool().Draw(t, "by ts") {
			q.NewerThan = some().Envelope.TS.Add(offset())
		}
	})
	sometimes("headers", func() { q.Headers = true })
	q.Limit = rapid.SampledFrom([]int{0, 1, 2, 7, everything, everything}).Draw(t, "limit")
	sometimes("maxBytes", func() { q.MaxBytes = rapid.IntRange(1, 4000).Draw(t, "maxBytes") })
	return q
}

// testReadModel compares the answers of Read to random queries with those of a list.
func testReadModel(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{
		Rules: thread.Rules{PendingTimeout: 24 * time.Hour, ActiveTimeout: 24 * time.Hour},
	})
	list := populate(f)
	end := f.end()
	var ended atomic.Bool
	ended.Store(true)
	rapid.Check(t, func(t *rapid.T) {
		f := *f
		f.tb = t
		for range 10 {
			q := drawQuery(t, list, end)
			f.equal(fmt.Sprintf("%+v", q), f.read(q), naiveRead(list, end, q))
			if q.Limit == 0 {
				continue
			}
			whole := q
			whole.Limit, whole.MaxBytes = everything, 0
			f.equal(fmt.Sprintf("page by page, %+v", q), follow(&f, q, &ended),
				numbers(naiveRead(list, end, whole).Events))
			q.MaxExamined = rapid.SampledFrom([]int{1, 2, 9, 100}).Draw(t, "maximum")
			f.equal(fmt.Sprintf("page by page with MaxExamined, %+v", q), follow(&f, q, &ended),
				numbers(naiveRead(list, end, whole).Events))
		}
	})
}
