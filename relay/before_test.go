package relay_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

// endOf returns the position after the newest event of r.
func endOf(t *testing.T, r *relay.Relay) relay.Cursor {
	t.Helper()
	end, err := r.End(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// TestBeforeAndAfterMakeAll checks that the pages before a position and those after it have each event exactly once,
// while messages are posted, expire and are removed. Half of the reads are done in small slices.
func TestBeforeAndAfterMakeAll(t *testing.T) {
	rounds := 100
	if racing.Detector {
		rounds = 20
	}
	for _, reads := range []relay.Visibility{relay.ToAll, relay.ToParties} {
		t.Run(string(reads), func(t *testing.T) {
			f := newTraffic(t, reads)
			for range rounds {
				f.readBothWays()
			}
		})
	}
}

// traffic posts random messages to a relay and reads them. The relay does not run: its clock is now, and goOn removes
// what has expired.
type traffic struct {
	t      *testing.T
	relay  *relay.Relay
	store  *countingStore
	now    time.Time
	reads  relay.Visibility
	random *rand.Rand
	keys   []didkey.Key
	posted []postedMessage
}

type postedMessage struct {
	*envelope.Envelope
	seq     relay.Seq
	expires time.Time
}

func newTraffic(t *testing.T, reads relay.Visibility) *traffic {
	f := &traffic{t: t, reads: reads, random: rand.New(rand.NewPCG(1, 2)), keys: []didkey.Key{key(t), key(t), key(t)},
		now: time.Now()}
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	f.store = &countingStore{Store: store}
	f.relay, err = relay.New(t.Context(), relay.Config{Store: f.store, Reads: reads, Origin: ownOrigin, Key: key(t),
		Now: func() time.Time { return f.now }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *traffic) anyone() didkey.Key { return f.keys[f.random.IntN(len(f.keys))] }

// goOn posts a message, lets some time pass, or does nothing. After the longest time, it removes what has expired.
func (f *traffic) goOn() {
	switch f.random.IntN(30) {
	case 0:
		f.now = f.now.Add(40 * time.Minute)
		if err := f.store.Expire(f.t.Context(), f.now, nil); err != nil {
			f.t.Fatal(err)
		}
	case 1, 2, 3:
		f.now = f.now.Add(8 * time.Second)
	case 4, 5, 6:
		f.post(envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}})
	case 7, 8, 9, 10, 11, 12:
		f.post(envelope.Draft{Payload: requestWithoutID})
	}
}

func (f *traffic) post(d envelope.Draft) {
	d.TTL = []time.Duration{10 * time.Second, time.Hour, 5 * time.Hour}[f.random.IntN(3)]
	if f.random.IntN(3) > 0 {
		d.Recipient = f.anyone().DID()
	}
	e, err := d.Sign(f.anyone(), f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	receipt := post(f.t, f.relay, e)
	f.posted = append(f.posted, postedMessage{e, receipt.Cursor.Seq, receipt.ExpiresAt})
}

// poll returns a random read by a random reader that may do it.
func (f *traffic) poll() relay.Poll {
	reader := f.anyone()
	p := relay.Poll{Peer: signedPeer(reader), Limit: 1 + f.random.IntN(9)}
	if f.random.IntN(3) == 0 {
		p.Recipient, p.Broadcast = reader.DID(), f.random.IntN(2) == 0
	} else if f.random.IntN(4) == 0 {
		p.Peer.Reader = "" // anonymous
	}
	if f.random.IntN(4) == 0 {
		p.Sender = f.anyone().DID()
	}
	if f.random.IntN(4) == 0 {
		p.Type = envelope.TypeRequest
	}
	if n := len(f.posted); n > 0 && f.random.IntN(6) == 0 {
		p.Thread = f.posted[f.random.IntN(n)].Thread
	}
	return p
}

// readBothWays reads from one position to both ends, in turns, and posts between the pages.
func (f *traffic) readBothWays() {
	f.store.took, f.store.examines = 0, nil
	if f.random.IntN(2) == 0 {
		f.store.took = 20 * time.Millisecond // three slices are a page
		f.store.examines = func() int { return 1 + f.random.IntN(9) }
	}
	for range 5 {
		f.goOn()
	}
	began, start := f.now, endOf(f.t, f.relay)
	p := f.poll()
	backward, forward := p, p
	backward.Cursor, forward.Cursor = start, start
	var older, newer []relay.Seq
	for more, last := true, false; more || !last; {
		if more && f.random.IntN(2) == 0 {
			more = f.page(f.relay.EventsBefore, &backward, &older)
		} else {
			last = !more // after the last page backwards, nothing is posted any more
			for f.page(f.relay.Events, &forward, &newer) {
			}
		}
		if more {
			f.goOn()
		}
	}
	f.check(p, began, start, older, newer)
}

// page reads one page, adds the numbers of its events to list, and moves p. It reports whether there are more.
func (f *traffic) page(
	read func(context.Context, *relay.Poll) (relay.Delivery, error), p *relay.Poll, list *[]relay.Seq,
) bool {
	d, err := read(f.t.Context(), p)
	if err != nil {
		f.t.Fatal(err)
	}
	n := 0
	for events, err := range d.Pieces() {
		if err != nil {
			f.t.Fatal(err)
		}
		for _, e := range events {
			*list = append(*list, e.Seq)
		}
		n += len(events)
	}
	if n > p.Limit || d.More && d.Cursor == p.Cursor {
		f.t.Fatalf("a page of %d events, limit %d, more %v; from %v to %v", n, p.Limit, d.More, p.Cursor, d.Cursor)
	}
	p.Cursor = d.Cursor
	return d.More
}

// check compares what was read with what was posted. A message that has expired in the meantime may be there or not.
func (f *traffic) check(p relay.Poll, began time.Time, start relay.Cursor, older, newer []relay.Seq) {
	if !slices.IsSortedFunc(older, func(a, b relay.Seq) int { return int(b - a) }) || !slices.IsSorted(newer) {
		f.t.Fatalf("not in order: %v backwards, %v forwards", older, newer)
	}
	times := map[relay.Seq]int{}
	for _, seq := range append(slices.Clone(older), newer...) {
		times[seq]++
	}
	p.Viewer = relay.Viewer{Limited: f.reads == relay.ToParties, DID: p.Peer.Reader}
	for _, m := range f.posted {
		least, most, in := 1, 1, older
		if m.seq > start.Seq {
			in = newer
		}
		if !m.expires.After(f.now) {
			least = 0
		}
		if !p.Match(m.Envelope) || !m.expires.After(began) {
			least, most = 0, 0
		}
		if n := times[m.seq]; n < least || n > most || n == 1 && !slices.Contains(in, m.seq) {
			f.t.Fatalf("event %d was read %d times, want %d to %d, by %+v from %v: %v backwards, %v forwards", m.seq, n, least,
				most, p.Filter, start, older, newer)
		}
		delete(times, m.seq)
	}
	if len(times) > 0 {
		f.t.Fatalf("events that were not posted: %v", times)
	}
}

// TestBeforeRefusals checks which reads are refused. TestDebtEndsReads has those of an address in debt.
func TestBeforeRefusals(t *testing.T) {
	r := start(t, privateConfig)
	alice, bob := key(t), key(t)
	post(t, r, sign(t, alice, envelope.Draft{Payload: request, Recipient: bob.DID()}))
	end := endOf(t, r)
	for name, c := range map[string]struct {
		p      relay.Poll
		reason string
	}{
		"another's inbox":   {relay.Poll{Filter: relay.Filter{Recipient: bob.DID()}, Cursor: end}, envelope.ReasonUnsigned},
		"another epoch":     {relay.Poll{Cursor: relay.Cursor{Epoch: end.Epoch + 1}}, envelope.ReasonUnknownCursor},
		"a future position": {relay.Poll{Cursor: relay.Cursor{Epoch: end.Epoch, Seq: end.Seq + 1}}, envelope.ReasonUnknownCursor},
	} {
		c.p.Peer, c.p.Limit = signedPeer(alice), 9
		d, err := r.EventsBefore(t.Context(), &c.p)
		if refusal, ok := err.(*envelope.Error); !ok || refusal.Details[envelope.DetailReason] != c.reason {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	r.Drain()
	if _, err := r.EventsBefore(t.Context(), &relay.Poll{Peer: signedPeer(alice), Limit: 1}); err != nil {
		t.Errorf("a read while the relay drains: %v", err)
	}
}

// TestBeforeNeverWaits checks that a read backwards is answered at once, although all slots of waiting polls are taken,
// and that the observer sees its answer.
func TestBeforeNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, seen := observed(t, relay.Config{Limits: relay.Limits{Polls: 1, PollsPerAddress: 1}})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		waiting := relay.Poll{Peer: from("192.0.2.1"), Filter: relay.Filter{Type: envelope.TypeOffer}, Wait: time.Hour, Limit: 1}
		go func() { _, _ = r.Events(ctx, &waiting) }()
		synctest.Wait()
		for _, reports := range []int{1, 2} { // the first page has no event
			began := time.Now()
			d, err := r.EventsBefore(t.Context(), &relay.Poll{Peer: from("192.0.2.1"), Cursor: endOf(t, r), Wait: time.Hour,
				Filter: relay.Filter{Type: envelope.TypeManifest}, Limit: 1})
			if took := time.Since(began); err != nil || took > 0 || len(d.Events) != reports-1 || len(seen.delivered) != reports {
				t.Errorf("%+v after %v, %v; %d reports", d, took, err, len(seen.delivered))
			}
			post(t, r, sign(t, key(t), envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}))
		}
	})
}
