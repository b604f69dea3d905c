package sqlite

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/relay"
)

// state says whether a store accepts messages. Reads work in every state.
type state int32

const (
	accepting state = iota
	diskFull
	diskFailed
)

// care is the background maintenance of the disk. It looks after the mark, the reserve, the free space, the length of
// the write-ahead log, and whether the files are still in their places. One goroutine calls run, which ticks every
// second. The writer wakes that goroutine when the log has grown. Open does the first tick itself. The transitions:
//
//	from        event                                   to          action
//	accepting   a write finds no room                   diskFull    log it; appends are refused
//	accepting   tick                                    accepting   grow the reserve, limit the database's size
//	diskFull    tick, too little room after a purge     diskFull    none
//	diskFull    tick, enough room after a purge         accepting   log it; appends are stored again
//	not failed  a write or a sync fails                 diskFailed  log it; appends are refused until a restart
//	not failed  a read finds damage                     diskFailed  log it; appends are refused until a restart
//	not failed  tick, a file was moved                  diskFailed  log it; appends are refused until a restart
//	not failed  the log has grown                       unchanged   copy the log into the database
//	any         tick                                    unchanged   before anything else, sync the mark if it changed
//	diskFailed  any other event                         diskFailed  none
//
// A purge removes what is due: events past their forget time, bodies of expired events, and records of ended threads.
// If it needs the room, it first deletes the reserve. The reserve is created again afterwards. What the operator does in
// the state diskFull is done all the same, see Store.urgent.
//
// The store never leaves diskFailed; see handleError.
type care struct {
	path         string
	maxBytes     int64         // largest size of the database
	tickInterval time.Duration // time between two ticks
	log          *slog.Logger
	task         func(context.Context, func(*writer) error) error // Store.task
	db           *sql.DB                                          // pool whose second connection copies the log

	state    atomic.Int32
	crowded  atomic.Bool           // extensions may use no more room
	tickErr  atomic.Pointer[error] // error of the last tick
	due      atomic.Int64          // nanoseconds; time of the last Expire, a purge removes only what is due then
	logLimit atomic.Int64          // pages, see watchLog
	logGrown chan struct{}         // has room for one; the writer sends to it
	unsynced atomic.Bool           // the mark was written after its last sync

	mark    *markFile              // written by the writer, synced by ticks
	reserve reserve                // used by who holds reserving
	files   map[string]os.FileInfo // database and write-ahead log as Open found them, by path

	reserving sync.Mutex // held by a tick, and by Store.urgent; its holder may wait for the writer
}

// run does the maintenance until stop is closed. Store.Close waits until run returns.
func (c *care) run(stop <-chan struct{}) {
	ticks := time.NewTicker(c.tickInterval)
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

// tick does one round of maintenance and keeps its error for Expire to report.
func (c *care) tick() {
	c.reserving.Lock()
	defer c.reserving.Unlock()
	err := c.checkDisk()
	if err == nil {
		switch state(c.state.Load()) {
		case accepting:
			err = c.maintain()
		case diskFull:
			err = c.makeRoom(instant(c.due.Load()))
		case diskFailed:
			err = errDiskFailed
		}
	}
	c.tickErr.Store(&err)
}

// checkDisk syncs the mark and detects moved files. It does both in every state.
func (c *care) checkDisk() error {
	if err := c.syncMark(); err != nil {
		return err
	}
	return c.handleError(c.movedFile())
}

// transition sets the state to to, if it is still from. moved is false if the state had already changed.
func (c *care) transition(from, to state) (moved bool) {
	return c.state.CompareAndSwap(int32(from), int32(to))
}

// refusal returns the error for callers while the store accepts no messages, else nil.
func (c *care) refusal() error {
	switch state(c.state.Load()) {
	case diskFull:
		return errDiskFull
	case diskFailed:
		return errDiskFailed
	}
	return nil
}

// currentError returns the refusal, or else the error of the last tick.
func (c *care) currentError() error {
	if err := c.refusal(); err != nil {
		return err
	}
	if err := c.tickErr.Load(); err != nil {
		return *err
	}
	return nil
}

// syncMark syncs the mark if it was written after its last sync.
func (c *care) syncMark() error {
	if !c.unsynced.Swap(false) {
		return nil
	}
	return c.handleError(c.mark.file.Sync())
}

// updateMark writes the last stored number into the mark. swept is the time of the sweep if an Expire made the commit,
// else zero. Only the writer calls it, after a commit. Errors: those of handleError.
func (c *care) updateMark(last relay.Seq, swept time.Time) error {
	next := c.mark.Mark
	next.Seq = last
	if !swept.IsZero() && swept.Sub(instant(next.Swept)).Abs() >= sweptInterval {
		next.Swept = nanos(swept)
	}
	if next == c.mark.Mark {
		return nil
	}
	err := c.handleError(c.mark.write(next))
	c.unsynced.Store(true)
	return err
}
