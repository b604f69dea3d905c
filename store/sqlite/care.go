package sqlite

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/relay"
)

// state says whether a store takes messages in. Reads go on in every state.
type state int32

const (
	takingIn state = iota
	diskFull
	diskFailed
)

// care looks after the disk: the mark, the reserve, the room that is left, the places of the files, and the length of
// the write-ahead log. One goroutine does the work, see run. It ticks every second, and the writer wakes it when the
// log has grown. Open does the first tick itself. The transitions:
//
//	from        event                                   to          action
//	takingIn    a write finds no room                   diskFull    log it; appends are refused
//	takingIn    tick                                    takingIn    grow the reserve, limit the database's size
//	diskFull    tick, too little room after a purge     diskFull    none
//	diskFull    tick, enough room after a purge         takingIn    log it; appends are stored again
//	not failed  a write or a sync fails                 diskFailed  log it; appends are refused until a restart
//	not failed  a read finds damage                     diskFailed  the same
//	not failed  tick, a file is not where it was        diskFailed  the same
//	not failed  the log has grown                       as before   copy the log into the database
//	any         tick                                    as before   first of all, sync the mark if it was written
//	diskFailed  anything else                           diskFailed  none
//
// A purge removes what is due: forgotten events, bodies of expired events, records of ended threads. It lets the
// reserve go if it needs the room, and makes it again afterwards.
//
// Nothing leads out of diskFailed: see failed.
type care struct {
	path     string
	maxBytes int64         // the database's size at most
	every    time.Duration // between two ticks
	log      *slog.Logger
	task     func(context.Context, func(*writer) error) error // Store.task
	db       *sql.DB                                          // whose second connection copies the log

	state    atomic.Int32
	last     atomic.Pointer[error] // of the last tick
	due      atomic.Int64          // the time of the last Expire; a purge removes what is due at it, and no more
	logLimit atomic.Int64          // pages, see watchLog
	logGrown chan struct{}         // holds one; the writer sends
	unsynced atomic.Bool           // the mark was written

	mark    *markFile              // the writer writes it, a tick syncs it
	reserve reserve                // a tick's
	files   map[string]os.FileInfo // the database and its write-ahead log as Open found them, by their paths
}

// run does what is due until stop is closed. Store.Close waits for its end.
func (c *care) run(stop <-chan struct{}) {
	ticks := time.NewTicker(c.every)
	defer ticks.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticks.C:
			c.tick()
		case <-c.logGrown:
			c.copyLog()
		}
	}
}

// tick does what is due once, and keeps the error for Expire to report.
func (c *care) tick() {
	err := c.look()
	if err == nil {
		switch state(c.state.Load()) {
		case takingIn:
			err = c.upkeep()
		case diskFull:
			err = c.makeRoom(instant(c.due.Load()))
		case diskFailed:
			err = errDiskFailed
		}
	}
	c.last.Store(&err)
}

// look syncs the mark and finds files that were moved. It does so in every state.
func (c *care) look() error {
	if err := c.syncMark(); err != nil {
		return err
	}
	return c.failed(c.misplaced())
}

// move changes the state, if it is still from. moved is false if somebody else was first.
func (c *care) move(from, to state) (moved bool) {
	return c.state.CompareAndSwap(int32(from), int32(to))
}

// refusal returns why the store takes nothing in, nil if it does.
func (c *care) refusal() error {
	switch state(c.state.Load()) {
	case diskFull:
		return errDiskFull
	case diskFailed:
		return errDiskFailed
	}
	return nil
}

// trouble returns the refusal, or else what went wrong in the last tick.
func (c *care) trouble() error {
	if err := c.refusal(); err != nil {
		return err
	}
	if err := c.last.Load(); err != nil {
		return *err
	}
	return nil
}

// syncMark has the mark on disk if it was written since.
func (c *care) syncMark() error {
	if !c.unsynced.Swap(false) {
		return nil
	}
	return c.failed(c.mark.file.Sync())
}

// note writes in the mark how far the database has come. swept is the time if an Expire did it. Only the writer calls
// it, after a commit. Errors: those of failed.
func (c *care) note(last relay.Seq, swept time.Time) error {
	next := c.mark.Mark
	next.Seq = last
	if !swept.IsZero() && swept.Sub(instant(next.Swept)).Abs() >= sweptEvery {
		next.Swept = nanos(swept)
	}
	if next == c.mark.Mark {
		return nil
	}
	err := c.failed(c.mark.write(next))
	c.unsynced.Store(true)
	return err
}
