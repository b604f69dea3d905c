package sim

import (
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/relay"
)

// TestFailedCopy checks that no event is lost when the sync at the end of a checkpoint fails, the relay is stopped and
// started, and the power fails. Before, a reader cuts a checkpoint short: then SQLite copies pages and does not sync
// them, and the failed sync drops those too.
func TestFailedCopy(t *testing.T) {
	for seed := range uint64(8) {
		folder := t.TempDir()
		synctest.Test(t, func(t *testing.T) { newWorld(t, seed, folder).failCopy() })
	}
}

func (w *world) failCopy() {
	w.maxBytes = 256 << 20
	w.must(makeFolder(w.folder()))
	w.newDisk()
	defer func() { w.disk.Close() }()
	w.begin()
	w.postSome(200)
	_, err := w.life.store.View(w.Context(), func(q relay.Querier) error {
		err := q.Query(nothing, "SELECT id FROM sim_message WHERE id = ''") // the reader sees the state of now
		for range 40 {
			w.postSome(12)
		}
		return err
	})
	w.must(err)
	w.disk.Plan(0, FailCopy)
	w.postUntil(func() bool { return w.disk.Occurred() == 1 })
	w.stop()
	w.begin()
	w.disk.Plan(0, PowerLoss)
	w.postSome(1)
	w.stop()
	w.recover()
	w.begin()
	w.oracle.audit(w.life.store, w.disk, w.path())
	w.stop()
}

func nothing(func(...any) error) error { return nil }

// begin starts the relay, which must not fail.
func (w *world) begin() {
	w.Helper()
	if !w.start() {
		w.Fatal("the relay does not start")
	}
}

// postUntil posts messages until done.
func (w *world) postUntil(done func() bool) {
	w.Helper()
	for range 1000 {
		if w.postSome(12); done() {
			return
		}
	}
	w.Fatal("what the test waits for does not happen")
}

// TestPowerLossAtStart checks that nothing is damaged when the sync of a commit fails, the relay is stopped, and the
// power fails while it starts again. The start copies the write-ahead log into the database, also what the failed sync
// has dropped from the disk.
func TestPowerLossAtStart(t *testing.T) {
	for seed := range uint64(40) {
		folder := t.TempDir()
		synctest.Test(t, func(t *testing.T) { newWorld(t, seed, folder).failStart(int(seed % 20)) })
	}
}

func (w *world) failStart(after int) {
	w.must(makeFolder(w.folder()))
	w.newDisk()
	defer func() { w.disk.Close() }()
	w.begin()
	w.postSome(100)
	w.stop()
	w.begin()
	w.postSome(1) // begins the write-ahead log
	w.disk.Plan(0, FailSync)
	w.postSome(40)
	w.stop()
	w.disk.Plan(after, PowerLoss)
	if w.start() {
		w.postSome(20)
		w.stop()
	}
	w.recover()
	w.disk.Calm()
	w.begin()
	w.oracle.audit(w.life.store, w.disk, w.path())
	w.stop()
}
