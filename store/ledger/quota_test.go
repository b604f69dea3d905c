package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// inboxes is an engine that counts the lookups of inboxes. It returns examined as Count.Examined. If arrivals is true,
// it knows what other writers have stored.
type inboxes struct {
	*data
	counts, examined int
	arrivals         bool
}

func (d *inboxes) Load(w ledger.Wanted) (ledger.Found, error) {
	d.counts += len(w.Inboxes)
	found, err := d.data.Load(w)
	for i := range found.Inboxes {
		found.Inboxes[i].Examined = d.examined
	}
	if d.arrivals && w.Since.Seq > 0 && w.Since.Epoch == d.epoch {
		found.Counted = true
		for _, e := range d.events {
			if e.Seq > w.Since.Seq && e.Charge > 0 {
				found.Arrivals = append(found.Arrivals, ledger.Arrival{Recipient: e.Envelope.Recipient, Network: e.Network,
					Charge: e.Charge, Expires: e.Expires})
			}
		}
	}
	return found, err
}

// requestAt returns a REQUEST from the first agent to the second that arrives at now.
func requestAt(t *testing.T, n int, now time.Time, ttl time.Duration) relay.Entry {
	t.Helper()
	d := envelope.Draft{Thread: fmt.Sprint("t", n), Recipient: keys[1].DID(), TTL: ttl,
		Payload: envelope.Request{Intent: "echo"}}
	m, err := d.Sign(keys[0], now)
	if err != nil {
		t.Fatal(err)
	}
	return relay.Entry{Envelope: m, Received: now}
}

// TestExpensiveInboxIsCountedRarely checks that a full inbox is counted less often if the engine examines more
// messages.
func TestExpensiveInboxIsCountedRarely(t *testing.T) {
	const examined = 500_000
	tx := &inboxes{data: newData(), examined: examined}
	l := ledger.New(relay.Policy{Inbox: relay.Quota{Events: 1}})
	post := func(n int, after time.Duration) {
		t.Helper()
		l.Begin()
		if _, _, err := l.Append(tx, []relay.Entry{requestAt(t, n, noon.Add(after), time.Second)}); err != nil {
			t.Fatal(err)
		}
	}
	post(0, 0) // the engine counts the inbox
	for n, c := range []struct {
		after  time.Duration
		counts int
	}{{0, 1}, {4999 * time.Millisecond, 1}, {5 * time.Second, 2}, {9999 * time.Millisecond, 2}, {10 * time.Second, 3}} {
		if post(n+1, c.after); tx.counts != c.counts {
			t.Errorf("after %v the engine has counted the inbox %d times, want %d", c.after, tx.counts, c.counts)
		}
	}
}

// TestUndoKeepsOtherCounts checks that Undo drops the counts of the inboxes that the transaction changed and no others.
func TestUndoKeepsOtherCounts(t *testing.T) {
	tx := &inboxes{data: newData()}
	l := ledger.New(relay.Policy{Inbox: relay.Quota{Events: 10}})
	post := func(e relay.Entry, want int) {
		t.Helper()
		if _, _, err := l.Append(tx, []relay.Entry{e}); err != nil || tx.counts != want {
			t.Fatalf("%d counts so far, error %v; want %d counts", tx.counts, err, want)
		}
	}
	l.Begin()
	post(requestAt(t, 1, noon, time.Hour), 1)
	l.Begin()
	before := *tx.data
	e := requestAt(t, 2, noon, time.Hour)
	other, err := envelope.Draft{
		Recipient: keys[2].DID(), Payload: envelope.Request{Intent: "echo"},
	}.Sign(keys[0], noon)
	if err != nil {
		t.Fatal(err)
	}
	e.Envelope = other
	post(e, 2)
	*tx.data = before
	tx.added = make(chan struct{})
	l.Undo(relay.Cursor{Epoch: before.epoch, Seq: before.last})
	l.Begin()
	post(requestAt(t, 3, noon, time.Hour), 2)
	post(e, 3)
}
