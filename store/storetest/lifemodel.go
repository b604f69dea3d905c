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

// life is a store beside the list it should amount to. Its messages belong to no thread: what is modelled is how long
// an event and the memory of its id live.
type life struct {
	*fixture
	list []kept
	last relay.Cursor
	made int
}

func (l *life) post(t *rapid.T) {
	l.made++
	d := lasting(time.Duration(rapid.SampledFrom([]int{1, 60, 1800, 3600}).Draw(t, "ttl"))*time.Second, manifest("m"))
	d.ID = fmt.Sprint("id", l.made)
	by := rapid.SampledFrom([]didkey.Key{alice, bob}).Draw(t, "sender")
	if d.TS = l.now.Add(time.Duration(rapid.IntRange(-299, 299).Draw(t, "skew")) * time.Second); d.TTL < 300*time.Second {
		d.TS = l.now
	}
	l.accept(l.entry(by, d))
}

// accept appends an entry that must be new.
func (l *life) accept(e relay.Entry) {
	receipt := l.append(e)
	if receipt.Duplicate || receipt.Cursor.Seq <= l.last.Seq {
		l.Fatalf("new behind %v: %+v", l.last, receipt)
	}
	l.last = receipt.Cursor
	l.list = append(l.list, keep(e, receipt))
}

// pick returns an event of the list, if there is any.
func (l *life) pick(t *rapid.T) (kept, bool) {
	if len(l.list) == 0 {
		return kept{}, false
	}
	return l.list[rapid.IntRange(0, len(l.list)-1).Draw(t, "event")], true
}

func (l *life) retry(t *rapid.T) {
	if k, ok := l.pick(t); ok {
		got := l.append(relay.Entry{Envelope: k.Envelope, Received: l.now})
		want := relay.Receipt{ID: k.Event.ID, Cursor: relay.Cursor{Epoch: l.last.Epoch, Seq: k.Seq}, Duplicate: true, ExpiresAt: k.Expires}
		l.equal("retry", got, want)
	}
}

func (l *life) conflict(t *rapid.T) {
	if k, ok := l.pick(t); ok {
		by := alice
		if k.Sender.ID == bob.DID() {
			by = bob
		}
		l.refused(l.entry(by, named(k.Event.ID, manifest("another"))), envelope.CodeDuplicateID)
	}
}

func (l *life) wait(t *rapid.T) {
	l.pass(time.Duration(rapid.SampledFrom([]int{-600, 1, 60, 600, 1800, 3600}).Draw(t, "seconds")) * time.Second)
}

func (l *life) sweep(*rapid.T) {
	l.expire()
	l.list = slices.DeleteFunc(l.list, func(k kept) bool { return k.forgotten(l.now) })
}

func (l *life) restart(t *rapid.T) {
	if rapid.IntRange(0, 4).Draw(t, "now?") == 0 { // it takes longer than all else
		l.reopen()
	}
}

// check compares what readers see with the list.
func (l *life) check(*rapid.T) {
	for _, q := range []relay.Query{{Expired: true, Limit: everything}, {Now: l.now, Limit: everything}} {
		l.equal("stored", l.read(q), naive(l.list, l.last, q))
	}
}

func testLifeModel(t *testing.T, open Opener) {
	dir, runs := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		place := filepath.Join(dir, fmt.Sprint(runs))
		if err := os.Mkdir(place, 0o700); err != nil {
			t.Fatal(err)
		}
		l := &life{fixture: fixtureAt(t, open, place, relay.Policy{})}
		l.last = l.end()
		t.Repeat(map[string]func(*rapid.T){
			"post": l.post, "retry": l.retry, "conflict": l.conflict, "wait": l.wait, "sweep": l.sweep, "restart": l.restart,
			"": l.check,
		})
	})
}
