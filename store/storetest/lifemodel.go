package storetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// lifeModel compares a store with a list of the events that the store should have. It models how long events are stored
// and how long their ids are remembered. Its messages belong to no thread.
type lifeModel struct {
	*fixture
	list   []storedEvent
	last   relay.Cursor // the cursor of the last event
	posted int          // how many messages were posted, for their ids
}

// post posts a new message.
func (l *lifeModel) post(t *rapid.T) {
	l.posted++
	d := withTTL(time.Duration(rapid.SampledFrom([]int{1, 60, 1800, 3600}).Draw(t, "ttl"))*time.Second, manifest("m"))
	d.ID = fmt.Sprint("id", l.posted)
	by := rapid.SampledFrom([]didkey.Key{alice, bob}).Draw(t, "sender")
	if d.TS = l.now.Add(time.Duration(rapid.IntRange(-299, 299).Draw(t, "skew")) * time.Second); d.TTL < 300*time.Second {
		d.TS = l.now
	}
	l.accept(l.entry(by, d))
}

// accept appends a message that the store must treat as new.
func (l *lifeModel) accept(e relay.Entry) {
	receipt := l.append(e)
	if receipt.Duplicate || receipt.Cursor.Seq <= l.last.Seq {
		l.Fatalf("receipt %+v after %v; want a new event with a larger Seq", receipt, l.last)
	}
	l.last = receipt.Cursor
	l.list = append(l.list, newStoredEvent(e, receipt))
}

// pick draws an event from the list. It returns false if the list is empty.
func (l *lifeModel) pick(t *rapid.T) (storedEvent, bool) {
	if len(l.list) == 0 {
		return storedEvent{}, false
	}
	return l.list[rapid.IntRange(0, len(l.list)-1).Draw(t, "event")], true
}

// retry appends a stored message again and checks that the store returns its first receipt as a duplicate.
func (l *lifeModel) retry(t *rapid.T) {
	if k, ok := l.pick(t); ok {
		got := l.append(relay.Entry{Envelope: k.Envelope, Received: l.now})
		want := relay.Receipt{ID: k.Event.ID, Cursor: relay.Cursor{Epoch: l.last.Epoch, Seq: k.Seq}, Duplicate: true,
			ExpiresAt: k.Expires}
		l.equal("retry", got, want)
	}
}

// conflict checks that the store rejects another message with the sender and id of a stored one.
func (l *lifeModel) conflict(t *rapid.T) {
	if k, ok := l.pick(t); ok {
		by := alice
		if k.Sender.ID == bob.DID() {
			by = bob
		}
		l.refused(l.entry(by, withID(k.Event.ID, manifest("another"))), envelope.CodeDuplicateID)
	}
}

// wait moves the clock, sometimes backwards.
func (l *lifeModel) wait(t *rapid.T) {
	l.advance(time.Duration(rapid.SampledFrom([]int{-600, 1, 60, 600, 1800, 3600}).Draw(t, "seconds")) * time.Second)
}

// sweep calls Expire and removes the same events from the list.
func (l *lifeModel) sweep(*rapid.T) {
	l.expire()
	l.list = slices.DeleteFunc(l.list, func(k storedEvent) bool { return k.forgotten(l.now) })
}

// restart sometimes reopens the store. It does so rarely, because reopening takes longer than all other steps.
func (l *lifeModel) restart(t *rapid.T) {
	if rapid.IntRange(0, 4).Draw(t, "now?") == 0 {
		l.reopen()
	}
}

// check compares the events that the store returns with the list. rapid calls it after every step.
func (l *lifeModel) check(*rapid.T) {
	for _, q := range []relay.Query{{Expired: true, Limit: everything}, {Now: l.now, Limit: everything}} {
		l.equal("stored", l.read(q), naiveRead(l.list, l.last, q))
	}
}

// testLifeModel runs random sequences of the steps of lifeModel.
func testLifeModel(t *testing.T, open Opener) {
	dir, runs := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		folder := filepath.Join(dir, fmt.Sprint(runs))
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		l := &lifeModel{fixture: fixtureAt(t, open, folder, relay.Policy{})}
		l.last = l.end()
		t.Repeat(map[string]func(*rapid.T){
			"post": l.post, "retry": l.retry, "conflict": l.conflict, "wait": l.wait, "sweep": l.sweep, "restart": l.restart,
			"": l.check,
		})
	})
}
