package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// inboxes is an engine that counts how often it is asked for an inbox. looked is what it says it looked at.
type inboxes struct {
	*data
	counts, looked int
}

func (d *inboxes) Load(w ledger.Wanted) (ledger.Found, error) {
	d.counts += len(w.Inboxes)
	found, err := d.data.Load(w)
	for i := range found.Inboxes {
		found.Inboxes[i].Looked = d.looked
	}
	return found, err
}

// askAt returns a REQUEST of the first person for the second, which arrives at now.
func askAt(t *testing.T, n int, now time.Time, ttl time.Duration) relay.Entry {
	t.Helper()
	d := envelope.Draft{Thread: fmt.Sprint("t", n), Recipient: people[1].DID(), TTL: ttl, Payload: envelope.Request{Intent: "echo"}}
	m, err := d.Sign(people[0], now)
	if err != nil {
		t.Fatal(err)
	}
	return relay.Entry{Envelope: m, Received: now}
}

// An inbox whose count is expensive is counted less often.
func TestExpensiveInboxIsCountedRarely(t *testing.T) {
	const looked = 500_000
	tx := &inboxes{data: newData(), looked: looked}
	l := ledger.New(relay.Policy{Inbox: relay.Quota{Events: 1}})
	post := func(n int, after time.Duration) {
		t.Helper()
		l.Begin()
		if _, _, err := l.Append(tx, []relay.Entry{askAt(t, n, noon.Add(after), time.Second)}); err != nil {
			t.Fatal(err)
		}
	}
	post(0, 0) // counts
	for n, c := range []struct {
		after  time.Duration
		counts int
	}{{0, 1}, {4999 * time.Millisecond, 1}, {5 * time.Second, 2}, {9999 * time.Millisecond, 2}, {10 * time.Second, 3}} {
		if post(n+1, c.after); tx.counts != c.counts {
			t.Errorf("after %v the engine has counted %d times, want %d", c.after, tx.counts, c.counts)
		}
	}
}

// What is undone costs no count of the inboxes that it did not change, and those that it changed are counted again.
func TestUndoKeepsOtherCounts(t *testing.T) {
	tx := &inboxes{data: newData()}
	l := ledger.New(relay.Policy{Inbox: relay.Quota{Events: 10}})
	post := func(e relay.Entry, want int) {
		t.Helper()
		if _, _, err := l.Append(tx, []relay.Entry{e}); err != nil || tx.counts != want {
			t.Fatalf("%d counts, %v, want %d", tx.counts, err, want)
		}
	}
	l.Begin()
	post(askAt(t, 1, noon, time.Hour), 1)
	l.Begin()
	before := *tx.data
	e := askAt(t, 2, noon, time.Hour)
	other, err := envelope.Draft{Recipient: people[2].DID(), Payload: envelope.Request{Intent: "echo"}}.Sign(people[0], noon)
	if err != nil {
		t.Fatal(err)
	}
	e.Envelope = other
	post(e, 2)
	*tx.data = before
	tx.added = make(chan struct{})
	l.Undo(relay.Cursor{Epoch: before.epoch, Seq: before.last})
	l.Begin()
	post(askAt(t, 3, noon, time.Hour), 2)
	post(e, 3)
}
