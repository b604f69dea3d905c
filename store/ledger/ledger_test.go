package ledger_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

// keys are the keys that sign messages in these tests.
var keys = []didkey.Key{testKey(1), testKey(2), testKey(3), testKey(4)}

func testKey(n byte) didkey.Key {
	key, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err) // cannot happen: any 32 bytes are a valid seed
	}
	return key
}

func newData() *data {
	return &data{epoch: 7, seen: map[didkey.DID]time.Time{}, added: make(chan struct{})}
}

// drawEntry draws a message of any type, sender and recipient, in one of two threads. Some ids are drawn repeatedly.
func drawEntry(t *rapid.T, now time.Time) relay.Entry {
	by := rapid.SampledFrom(keys).Draw(t, "by")
	d := envelope.Draft{
		ID:     fmt.Sprint("id", rapid.IntRange(0, 60).Draw(t, "id")),
		Thread: rapid.SampledFrom([]string{"t", "t", "t", "u"}).Draw(t, "thread"),
		TTL:    rapid.SampledFrom([]time.Duration{time.Second, time.Hour}).Draw(t, "ttl"),
	}
	if to := rapid.IntRange(-2, len(keys)-1).Draw(t, "to"); to >= 0 {
		d.Recipient = keys[to].DID()
	}
	var listing *relay.Listing
	switch rapid.IntRange(0, 6).Draw(t, "type") {
	case 0:
		d.Payload = envelope.Request{RequestID: "r", Intent: "echo"}
	case 1, 2:
		d.Payload = envelope.Offer{RequestID: "r"}
	case 3:
		d.Payload = envelope.Accept{RequestID: "r"}
	case 4:
		d.Payload = envelope.Result{RequestID: "r", Status: "success"}
	case 5:
		d.Payload = envelope.Failure{RequestID: "r", Code: "NO", Message: "no"}
	case 6:
		id := fmt.Sprint("m", rapid.IntRange(0, 1).Draw(t, "manifest"))
		d.Thread, d.Payload = "", envelope.Manifest{ID: id, Intents: []envelope.Intent{}}
		listing = &relay.Listing{ID: id, Intents: []string{}}
	}
	m, err := d.Sign(by, now)
	if err != nil {
		t.Fatal(err)
	}
	return relay.Entry{Envelope: m, Received: now, Listing: listing, Network: rapid.Int64Range(0, 2).Draw(t, "network")}
}

// TestGroupsDecideAsOneByOne checks that appending a group gives the same outcomes and the same stored data as
// appending its messages one by one.
func TestGroupsDecideAsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := relay.Policy{Inbox: relay.Quota{Events: rapid.IntRange(1, 6).Draw(t, "quota")},
			Rules: thread.Rules{MaxOffers: 4}}
		together, single := newData(), newData()
		a := ledger.New(policy)
		b := a.Twin()
		now := noon
		for range rapid.IntRange(1, 6).Draw(t, "groups") {
			var group []relay.Entry
			for range rapid.IntRange(1, 12).Draw(t, "messages") {
				group = append(group, drawEntry(t, now))
			}
			got, posted, err := a.Append(together, group)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range group {
				want, alone, err := b.Append(single, []relay.Entry{e})
				if err != nil {
					t.Fatal(err)
				}
				got[i], want[0] = exact(got[i]), exact(want[0])
				if !reflect.DeepEqual(got[i], want[0]) {
					t.Fatalf("message %d of %d, %s %s:\n in a group %+v\n alone      %+v",
						i, len(group), e.Envelope.Type, e.Envelope.ID, got[i], want[0])
				}
				if len(alone) > 0 {
					if !reflect.DeepEqual(posted[0], alone[0]) {
						t.Fatalf("posted in a group %+v, alone %+v", posted[0], alone[0])
					}
					posted = posted[1:]
				}
			}
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, 2 * time.Minute}).Draw(t, "pause"))
		}
		for i := range single.events {
			// In a group, a newer manifest removes the Listing of an older event. The directories are compared instead.
			together.events[i].Listing, single.events[i].Listing = nil, nil
		}
		for _, d := range []*data{together, single} {
			for _, m := range d.listings {
				m.event.Listing, m.number = nil, 0
			}
			slices.SortFunc(d.listings, func(a, b *listing) int { return cmp.Compare(a.event.Seq, b.event.Seq) })
		}
		if !reflect.DeepEqual(together.events, single.events) ||
			!reflect.DeepEqual(together.listings, single.listings) ||
			!reflect.DeepEqual(together.threads, single.threads) {
			t.Fatalf("stored data differs.\nthreads of groups:\n%+v\nthreads one by one:\n%+v",
				together.threads, single.threads)
		}
		for _, row := range together.threads {
			if stored, err := row.Decode(); err != nil || row.State != stored.State {
				t.Fatalf("the row of a thread has the state %s, and its record %+v, %v", row.State, stored, err)
			}
		}
	})
}

// exact returns o without the parts that may differ between runs: the measured Took and the estimated RetryAfter.
func exact(o relay.Outcome) relay.Outcome {
	o.Receipt.Took = 0
	if refusal, ok := o.Err.(*envelope.Error); ok && refusal.RetryAfter > 0 {
		o.Err = &envelope.Error{Code: refusal.Code, Message: refusal.Message, Details: refusal.Details}
	}
	return o
}

// counting counts the round trips of an engine.
type counting struct {
	*data
	loads, writes int
}

func (c *counting) Load(w ledger.Wanted) (ledger.Found, error) { c.loads++; return c.data.Load(w) }
func (c *counting) Write(w ledger.Changes) error               { c.writes++; return c.data.Write(w) }

// TestRoundTripsOfAGroup checks that a group of any size costs at most three calls of Load and one of Write.
func TestRoundTripsOfAGroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, tx := ledger.New(relay.Policy{}), &counting{data: newData()}
		for range 3 {
			tx.loads, tx.writes = 0, 0
			group := rapid.SliceOfN(
				rapid.Custom(func(t *rapid.T) relay.Entry { return drawEntry(t, noon) }), 1, 40).Draw(t, "group")
			if _, _, err := l.Append(tx, group); err != nil || tx.loads > 3 || tx.writes > 1 {
				t.Fatalf("%d messages: %d loads, %d writes, %v", len(group), tx.loads, tx.writes, err)
			}
		}
	})
}

// TestInboxesOfTwoLedgers checks that an inbox does not exceed its quota if two ledgers write to the same database. An
// engine that says what the other ledger has stored counts the inbox only once for each ledger until it is full.
func TestInboxesOfTwoLedgers(t *testing.T) {
	for _, arrivals := range []bool{false, true} {
		testInboxesOfTwoLedgers(t, arrivals)
	}
}

func testInboxesOfTwoLedgers(t *testing.T, arrivals bool) {
	policy := relay.Policy{Inbox: relay.Quota{Events: 20}}
	tx, writers := &inboxes{data: newData(), arrivals: arrivals}, []*ledger.Ledger{ledger.New(policy), ledger.New(policy)}
	taken := 0
	for n := range 50 {
		d := envelope.Draft{Thread: fmt.Sprint("t", n), Recipient: keys[1].DID(), Payload: envelope.Request{Intent: "echo"}}
		m, err := d.Sign(keys[0], noon)
		if err != nil {
			t.Fatal(err)
		}
		outcomes, _, err := writers[n%2].Append(tx, []relay.Entry{{Envelope: m, Received: noon}})
		if err != nil {
			t.Fatal(err)
		}
		if outcomes[0].Err == nil {
			taken++
		}
		if arrivals && taken < 20 && tx.counts > 2 {
			t.Fatalf("the inbox was counted %d times for %d messages", tx.counts, taken)
		}
	}
	if taken != 20 {
		t.Errorf("%d messages were accepted, want 20", taken)
	}
}

// TestLookupsAreMadeOnce checks that a lookup that many messages of a group need is made once.
func TestLookupsAreMadeOnce(t *testing.T) {
	var group []relay.Entry
	for n := range byte(100) {
		m, err := envelope.Draft{Thread: "t", Payload: envelope.Offer{RequestID: "r"}}.Sign(testKey(100+n), noon)
		if err != nil {
			t.Fatal(err)
		}
		group = append(group, relay.Entry{Envelope: m, Received: noon})
	}
	tx := &asked{data: newData()}
	if _, _, err := ledger.New(relay.Policy{}).Append(tx, group); err != nil || tx.open != 1 || tx.oldest != 1 {
		t.Errorf("error %v, %d lookups of open threads and %d lookups of the oldest threads; want no error and 1 of each",
			err, tx.open, tx.oldest)
	}
}

// asked is an engine that counts the lookups of open threads and of the oldest threads.
type asked struct {
	*data
	open, oldest int
}

func (a *asked) Load(w ledger.Wanted) (ledger.Found, error) {
	a.open += len(w.Open)
	a.oldest += len(w.Oldest)
	return a.data.Load(w)
}

// TestEngineFails checks that Append returns the engine's error, and neither outcomes nor posted messages.
func TestEngineFails(t *testing.T) {
	m, err := envelope.Draft{Payload: envelope.Request{Intent: "echo"}}.Sign(keys[0], noon)
	if err != nil {
		t.Fatal(err)
	}
	for _, tx := range []ledger.Tx{failing{onLoad: true}, failing{}} {
		outcomes, posted, err := ledger.New(relay.Policy{}).Append(tx, []relay.Entry{{Envelope: m, Received: noon}})
		if !errors.Is(err, errBroken) || outcomes != nil || posted != nil {
			t.Errorf("%+v: outcomes %v, posted %v, error %v", tx, outcomes, posted, err)
		}
	}
}

var errBroken = errors.New("broken")

// failing is an engine whose Load or Write fails.
type failing struct{ onLoad bool }

func (f failing) Load(w ledger.Wanted) (ledger.Found, error) {
	if f.onLoad {
		return ledger.Found{}, errBroken
	}
	return newData().Load(w)
}

func (failing) Write(ledger.Changes) error { return errBroken }
