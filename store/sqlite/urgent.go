package sqlite

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// This file is for what the operator does on a full disk, such as removals and bans. While the store refuses messages,
// these changes use the room that it holds back for them.

// errNoReserve is the error of a change of the operator for which the reserve is too small.
var errNoReserve = envelope.NotStored("the relay's disk is so full that the room that the relay holds back is not enough "+
	"either; free a few megabytes on this disk and try again", 5*time.Second)

// urgentPages is by how many pages a change of the operator may exceed the size limit of the database.
const urgentPages = minFreePages

// runTask runs a function in the writer's goroutine and waits for it.
type runTask func(func(*writer) error) error

// urgent runs f, which makes its changes with run. If the disk is full, urgent runs f once more in the state scarce, see
// scarcely, and then once more without the reserve. So f must continue with what it has not done yet. A change that has
// begun is finished: f has no context.
func (s *Store) urgent(f func(run runTask) error) error {
	ctx := context.Background()
	err := s.care.refusal()
	if err == nil {
		err = f(func(g func(*writer) error) error { return s.task(ctx, g) })
	}
	if !errors.Is(err, errDiskFull) {
		return err
	}
	scarcely := func(g func(*writer) error) error {
		return s.task(ctx, func(w *writer) error { return w.scarcely(g) })
	}
	s.care.reserving.Lock()
	defer s.care.reserving.Unlock()
	if err = f(scarcely); !errors.Is(err, errDiskFull) {
		return err
	}
	if err := s.care.reserve.release(); err != nil {
		return s.care.handleError(err)
	}
	if err = f(scarcely); errors.Is(err, errDiskFull) {
		err = errNoReserve
	}
	restored := s.care.reserve.restore()
	if errors.Is(restored, errDiskFull) {
		restored = nil // the next tick tries again
	}
	return cmp.Or(err, s.care.handleError(restored))
}

// scarcely runs f so that it needs little room. It truncates the write-ahead log before and after f. The database may
// get urgentPages more than its limit, and the state diskFull does not refuse what f does.
func (w *writer) scarcely(f func(*writer) error) (err error) {
	c := &w.store.care
	if _, err := w.truncateLog(); err != nil {
		return c.handleError(err)
	}
	all, _, err := w.pageCounts()
	if err != nil {
		return err
	}
	if err := w.setMaxPages(all + urgentPages); err != nil {
		return err
	}
	w.scarce = true
	err = f(w)
	w.scarce = false
	if _, failed := w.truncateLog(); failed != nil {
		_ = c.handleError(failed) // what f did is stored, in the log
	}
	return cmp.Or(err, w.setMaxPages(w.maxPages))
}

// refusal returns the error for changes that the writer must not make now, else nil.
func (w *writer) refusal() error {
	err := w.store.care.refusal()
	if w.scarce && errors.Is(err, errDiskFull) {
		return nil
	}
	return err
}

// setMaxPages sets the largest number of pages of the database. SQLite takes the present number if it is larger.
func (w *writer) setMaxPages(n int64) error {
	var set int64
	err := w.conn.QueryRowContext(context.Background(), "PRAGMA max_page_count = "+strconv.FormatInt(max(n, 1), 10)).Scan(&set)
	return w.store.care.handleError(err)
}

// Govern implements relay.Extender.
func (s *Store) Govern(_ context.Context, f func(relay.StoreTx) error) (took time.Duration, err error) {
	if err := s.closed(); err != nil {
		return 0, err
	}
	u := &ledger.Update{F: f}
	err = s.urgent(func(run runTask) error {
		return run(func(w *writer) error {
			j := ledger.Job{Update: u, Done: make(chan relay.Outcome, 1)}
			w.appendGroup([]ledger.Job{j})
			o := <-j.Done
			took = o.Receipt.Took
			return o.Err
		})
	})
	if err == ledger.ErrPanicked {
		panic(u.Panicked)
	}
	return took, err
}
