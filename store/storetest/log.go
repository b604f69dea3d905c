package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// TestLog runs the suite for stores that implement relay.LogStore. Each part opens its own stores.
func TestLog(t *testing.T, open Opener) {
	for name, run := range map[string]func(*testing.T, Opener){
		"Leaves": testLeaves, "Undo": testLogIsUndone, "Tiles": testTiles, "Salts": testSalts, "Clock": testLogClock,
		"Logs": testLogs, "Published": testPublished, "Retention": testLogRetention,
	} {
		t.Run(name, func(t *testing.T) { run(t, open) })
	}
}

// logFixture is a fixture whose store keeps a log.
type logFixture struct {
	*fixture
	relay.LogStore
	key    didkey.Key // of the relay
	number int64      // of its log
	start  string
	leaves []proof.Hash // what the log must have
}

func newLogFixture(t *testing.T, open Opener, policy relay.Policy) *logFixture {
	t.Helper()
	f := &logFixture{fixture: newFixture(t, open, policy), key: node}
	f.keep()
	f.leaves = []proof.Hash{tlog.RecordHash([]byte(f.start))}
	return f
}

// keep makes the store keep the log of f.key.
func (f *logFixture) keep() {
	f.Helper()
	store, ok := f.Store.(relay.LogStore)
	if !ok {
		f.Fatal("the store is not a relay.LogStore")
	}
	f.LogStore = store
	all, current, err := store.KeepLog(f.Context(), f.key.DID())
	f.must(err)
	f.number = current
	i := slices.IndexFunc(all, func(l relay.StoredLog) bool { return l.Number == current })
	if i < 0 || all[i].Origin != f.origin().String() {
		f.Fatalf("the log %d is not among %+v", current, all)
	}
	f.start = all[i].Start
}

func (f *logFixture) restart() {
	f.Helper()
	f.reopen()
	start := f.start
	if f.keep(); f.start != start {
		f.Errorf("after a restart the log begins with %q, before with %q", f.start, start)
	}
}

// origin returns the origin of the log.
func (f *logFixture) origin() proof.Origin {
	f.Helper()
	return proof.Origin{DID: f.key.DID(), Epoch: f.end().Epoch}
}

// logged checks the proof of a new message, and that it has the next leaf. It returns what the proof says.
func (f *logFixture) logged(e relay.Entry, receipt relay.Receipt) *proof.Verified {
	f.Helper()
	l := receipt.Logged
	if l == nil {
		f.Fatalf("%s %s has no leaf", e.Envelope.Type, e.Envelope.ID)
	}
	if l.Index != int64(len(f.leaves)) {
		f.Errorf("the leaf of %s %s has the index %d, want %d", e.Envelope.Type, e.Envelope.ID, l.Index, len(f.leaves))
	}
	f.leaves = append(f.leaves, tlog.RecordHash([]byte(l.Leaf)))
	text, err := l.Growth.Prove(f.key, f.origin(), l.Index, l.Leaf)
	f.must(err)
	p, err := proof.Parse(text)
	f.must(err)
	v, err := p.Verify()
	f.must(err)
	f.must(v.CheckMessage(e.Envelope, f.key.DID()))
	return v
}

// log stores a message and checks its leaf.
func (f *logFixture) log(e relay.Entry) *proof.Verified {
	f.Helper()
	return f.logged(e, f.append(e))
}

// ask returns a REQUEST of alice.
func (f *logFixture) ask() relay.Entry {
	f.Helper()
	return f.entry(alice, envelope.Draft{Payload: envelope.Request{Intent: "x"}})
}

// same checks that the store has exactly the leaves that it must have.
func (f *logFixture) same() {
	f.Helper()
	size, err := f.LogSize(f.Context(), f.number)
	f.must(err)
	found, err := f.LogHashes(f.Context(), f.number, 0, 0, size+1)
	f.must(err)
	if size != int64(len(f.leaves)) || !slices.Equal(found, f.leaves) {
		f.Fatalf("the log has the size %d and %d leaves, want these %d", size, len(found), len(f.leaves))
	}
	tree, err := proof.LoadTree(size, func(level int, first, n int64) ([]proof.Hash, error) {
		return f.LogHashes(f.Context(), f.number, level, first, n)
	})
	f.must(err)
	var want proof.Tree
	want.Grow(f.leaves)
	if tree.Root() != want.Root() {
		f.Errorf("the root of %d leaves is wrong", size)
	}
}

// testLeaves checks L-1 to L-3, L-8 and L-14: each accepted message gets one leaf, through restarts and groups, and
// while there is no log none.
func testLeaves(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{})
	ask := f.entry(alice, envelope.Draft{Thread: "t", Recipient: bob.DID(), Payload: envelope.Request{RequestID: "r", Intent: "x"}})
	if v := f.log(ask); v.Index != 1 || v.Size != 2 || v.Leaf.Request != ask.Envelope.Hash() {
		t.Errorf("the REQUEST has %+v", v)
	}
	if receipt := f.append(ask); !receipt.Duplicate || receipt.Logged != nil {
		t.Errorf("the duplicate has a leaf: %+v", receipt)
	}
	for round := range 3 {
		var entries []relay.Entry
		for range 300 {
			entries = append(entries, f.ask())
		}
		for i, o := range f.AppendAll(t.Context(), entries) {
			f.must(o.Err)
			f.logged(entries[i], o.Receipt)
		}
		f.restart()
		offer := f.entry(bob, envelope.Draft{Thread: "t", Recipient: alice.DID(), Payload: envelope.Offer{RequestID: "r"}})
		if v := f.log(offer); v.Leaf.Request != ask.Envelope.Hash() {
			t.Errorf("the OFFER has %+v", v)
		}
		if v := f.log(f.entry(bob, envelope.Draft{Payload: envelope.Manifest{ID: "m"}})); v.Leaf.Request != (proof.Hash{}) {
			t.Errorf("the MANIFEST has %+v", v)
		}
		if round == 1 { // what is stored without the log leaves no gap in it
			f.reopen()
			if receipt := f.append(f.ask()); receipt.Logged != nil {
				t.Errorf("a message has a leaf while there is no log: %+v", receipt)
			}
			f.restart()
		}
		f.same()
	}
}

// testLogIsUndone checks L-14: an update that fails leaves no leaves, and the leaves of an update that succeeds stay.
func testLogIsUndone(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{})
	f.log(f.ask())
	updates, ok := f.Store.(relay.Extender)
	if !ok {
		t.Fatal("the store is not a relay.Extender")
	}
	failure := errors.New("no")
	for _, end := range []error{failure, nil, failure} {
		var entries []relay.Entry
		var receipts []relay.Receipt
		_, err := updates.Update(t.Context(), func(tx relay.StoreTx) error {
			for range 2 {
				e := f.ask()
				receipt, err := tx.Append(e)
				if err != nil {
					return err
				}
				entries, receipts = append(entries, e), append(receipts, receipt)
			}
			return end
		})
		if !errors.Is(err, end) {
			t.Fatal(err)
		}
		for i := range entries {
			if end == nil {
				f.logged(entries[i], receipts[i])
			}
		}
		f.log(f.ask())
		f.same()
	}
}

// testTiles checks L-13: hashes of all levels can be read, however the leaves came, and rows of full tiles are one row.
func testTiles(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{})
	for _, group := range []int{1, 250, 10, 3, 256, 600, 1, 1, 1} {
		var entries []relay.Entry
		for range group {
			entries = append(entries, f.ask())
		}
		for i, o := range f.AppendAll(t.Context(), entries) {
			f.must(o.Err)
			f.logged(entries[i], o.Receipt)
		}
		f.same()
	}
	for _, part := range [][2]int64{{0, 1}, {255, 2}, {256, 256}, {511, 1}, {700, 424}} {
		hashes, err := f.LogHashes(t.Context(), f.number, 0, part[0], part[1])
		f.must(err)
		if !slices.Equal(hashes, f.leaves[part[0]:part[0]+part[1]]) {
			t.Errorf("%d leaves from %d on are wrong", part[1], part[0])
		}
	}
	nodes, err := f.LogHashes(t.Context(), f.number, 1, 0, 9)
	f.must(err)
	var second proof.Tree
	second.Grow(f.leaves[256:512])
	if len(nodes) != len(f.leaves)/256 || nodes[1] != second.Root() {
		t.Errorf("level 1 has %d hashes, or the second is wrong", len(nodes))
	}
	for _, part := range [][3]int64{{-1, 0, 1}, {9, 0, 1}, {0, -1, 1}, {0, 0, -1}, {0, 1 << 62, 1 << 62}, {2, 0, 1}, {1, 99, 1}} {
		if hashes, err := f.LogHashes(t.Context(), f.number, int(part[0]), part[1], part[2]); err != nil || len(hashes) > 0 {
			t.Errorf("%v: %d hashes, %v", part, len(hashes), err)
		}
	}
}

// testSalts checks L-4: the leaf of a stored message can be read, and nobody knows it any more after a removal.
func testSalts(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{})
	e := f.ask()
	receipt := f.append(e)
	v := f.logged(e, receipt)
	log, index, leaf, err := f.LogLeaf(t.Context(), receipt.Cursor.Seq)
	f.must(err)
	if log != f.number || index != v.Index || leaf.String() != receipt.Logged.Leaf {
		t.Errorf("the leaf %d is %q, want %d and %q", index, leaf.String(), v.Index, receipt.Logged.Leaf)
	}
	if log, _, _, err := f.LogLeaf(t.Context(), receipt.Cursor.Seq+1); log != 0 || err != nil {
		t.Errorf("an event that is not stored has a leaf: %v", err)
	}
	f.remove([]relay.Seq{receipt.Cursor.Seq}, receipt.Cursor.Seq)
	if log, _, _, err := f.LogLeaf(t.Context(), receipt.Cursor.Seq); log != 0 || err != nil {
		t.Errorf("a removed event still has its salt: %v", err)
	}
	f.same()
}

// testLogClock checks L-7: no leaf is backdated by more than 15 minutes.
func testLogClock(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{})
	f.log(f.ask())
	f.advance(-15 * time.Minute)
	f.log(f.ask())
	f.advance(-time.Second)
	_, err := f.Append(t.Context(), f.ask())
	if refusal, ok := errors.AsType[*envelope.Error](err); !ok || !refusal.NothingStored() {
		t.Errorf("a backdated message got: %v", err)
	}
	f.restart()
	if _, err = f.Append(t.Context(), f.ask()); err == nil {
		t.Error("a backdated message is stored after a restart")
	}
	f.advance(16 * time.Minute)
	f.log(f.ask())
	f.same()
}

// testLogs checks L-1 and L-2: another relay has another log, which names the one before. What the old one has can still
// be read.
func testLogs(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{})
	e := f.ask()
	old := f.append(e)
	f.logged(e, old)
	var before proof.Tree
	before.Grow(f.leaves)
	origin := f.origin()
	f.reopen()
	f.key = dave
	f.keep()
	f.leaves = []proof.Hash{tlog.RecordHash([]byte(f.start))}
	start, err := proof.ParseStart(f.start)
	f.must(err)
	if p := start.Previous; p == nil || p.Origin != origin || p.Size != 2 || p.Root != before.Root() {
		t.Errorf("the second log begins with %q", f.start)
	}
	first := f.number - 1
	if log, index, leaf, err := f.LogLeaf(t.Context(), old.Cursor.Seq); log != first || index != 1 || leaf.String() != old.Logged.Leaf ||
		err != nil {
		t.Errorf("an event of the first log has the leaf %d of the log %d, %v", index, log, err)
	}
	if size, err := f.LogSize(t.Context(), first); size != 2 || err != nil {
		t.Errorf("the first log has the size %d, %v", size, err)
	}
	e = f.ask()
	receipt := f.append(e)
	f.logged(e, receipt)
	f.same()
	if log, index, _, err := f.LogLeaf(t.Context(), receipt.Cursor.Seq); log != f.number || index != 1 || err != nil {
		t.Errorf("the leaf of the second log has the index %d in the log %d, %v", index, log, err)
	}
	f.reopen()
	store, ok := f.Store.(relay.LogStore)
	if !ok {
		t.Fatal("the store is not a relay.LogStore")
	}
	if _, _, err := store.KeepLog(t.Context(), node.DID()); err == nil {
		t.Error("the first log continues after the second one has begun")
	}
}

// testPublished checks L-18: what is published replaces only what its publisher knows.
func testPublished(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{})
	for _, step := range []struct{ before, next, want string }{
		{"", "one", "one"}, {"", "two", "one"}, {"one", "two", "two"}, {"one", "three", "two"},
	} {
		f.must(f.Publish(t.Context(), step.before, step.next))
		if found, err := f.Published(t.Context(), f.number); found != step.want || err != nil {
			t.Errorf("after %v, %q is published, %v", step, found, err)
		}
	}
	f.restart()
	if found, err := f.Published(t.Context(), f.number); found != "two" || err != nil {
		t.Errorf("after a restart, %q is published, %v", found, err)
	}
}

// testLogRetention checks L-16: full tiles of old leaves are removed, the tree stays.
func testLogRetention(t *testing.T, open Opener) {
	f := newLogFixture(t, open, relay.Policy{LogRetention: 10 * 24 * time.Hour,
		Window: replay.Window{MaxTTL: 24 * time.Hour}})
	fill := func(n int) {
		t.Helper()
		for range n / 100 {
			var entries []relay.Entry
			for range 100 {
				entries = append(entries, f.ask())
			}
			for i, o := range f.AppendAll(t.Context(), entries) {
				f.must(o.Err)
				f.logged(entries[i], o.Receipt)
			}
		}
	}
	first := func(want int64) {
		t.Helper()
		// The clock of the store is not that of the test, so the store may report that it is behind the log.
		if err := f.Expire(t.Context(), f.now, func(thread.Thread, time.Time) []*envelope.Envelope { return nil }); err != nil &&
			codeOf(err) != envelope.CodeUnavailable {
			t.Fatal(err)
		}
		if found, err := f.FirstLeaf(t.Context(), f.number); found != want || err != nil {
			t.Errorf("the first leaf that is kept is %d, want %d, %v", found, want, err)
		}
	}
	fill(1000) // with the start, 3 full tiles
	first(0)
	f.advance(9 * 24 * time.Hour)
	fill(300)
	first(0)
	f.advance(26 * time.Hour)
	first(3 * 256)
	f.restart()
	fill(300)
	size, err := f.LogSize(t.Context(), f.number)
	f.must(err)
	tree, err := proof.LoadTree(size, func(level int, first, n int64) ([]proof.Hash, error) {
		return f.LogHashes(t.Context(), f.number, level, first, n)
	})
	f.must(err)
	var want proof.Tree
	want.Grow(f.leaves)
	if tree.Root() != want.Root() {
		t.Error("the root has changed")
	}
	f.advance(400 * 24 * time.Hour)
	first(size - size%256)
	if found, err := f.LogHashes(t.Context(), f.number, 0, 0, 10); len(found) > 0 || err != nil {
		t.Errorf("%d removed leaves are still there, %v", len(found), err)
	}
	for len(f.leaves)%256 > 0 { // the last row of a log stays, also if it is a full tile
		f.log(f.ask())
	}
	ended := f.number
	f.reopen()
	f.key = dave
	f.keep()
	f.advance(400 * 24 * time.Hour)
	first(0)
	if found, err := f.LogSize(t.Context(), ended); found != int64(len(f.leaves)) || err != nil {
		t.Errorf("the log has %d leaves after another one, want %d, %v", found, len(f.leaves), err)
	}
	for range 200 { // the ended log of another relay leaves its partial tile, which is many rows
		f.append(f.ask())
	}
	f.reopen()
	f.key = carol
	f.keep()
	f.leaves = []proof.Hash{tlog.RecordHash([]byte(f.start))}
	fill(600)
	f.advance(400 * 24 * time.Hour)
	first(512)
}
