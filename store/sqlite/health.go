package sqlite

import (
	"cmp"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/store/ledger"
)

// Errors of writes. The first is returned in the state diskFull, the second in diskFailed, the third in any.
var (
	errDiskFull   = envelope.NotStored("the relay's disk is full; nothing was stored, try again later", 5*time.Second)
	errDiskFailed = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 30 * time.Second,
		Message: "the relay's disk failed; nothing more is taken in until its operator has restarted it"}
	errBusy = envelope.NotStored("the relay's database is busy; nothing was stored, try again in a moment", time.Second)
)

// failed changes the state as an error of the database asks for, and returns what the caller is told.
//
// A full disk leads to diskFull. Any other error of the disk, or of the database itself, leads to diskFailed, which only
// a restart ends. After a failed fsync the kernel may have dropped what it could not write, and the next fsync would
// report success all the same. Only opening the database again, which reads what is there, can be trusted.
func (c *care) failed(err error) error {
	if err == nil || ledger.IsRefusal(err) {
		return err
	}
	code := codeOf(err)
	switch {
	case code&0xff == sqlite3.SQLITE_FULL, code == sqlite3.SQLITE_IOERR_SHMSIZE, errors.Is(err, syscall.ENOSPC):
		if c.move(takingIn, diskFull) {
			c.log.Error("the disk is full, or the database as large as it may get; nothing is taken in until there is room", "err", err)
		}
		return cmp.Or(c.refusal(), error(errDiskFull)) // diskFailed, if that came first
	case code&0xff == sqlite3.SQLITE_BUSY, code&0xff == sqlite3.SQLITE_LOCKED:
		return errBusy
	case code&0xff == sqlite3.SQLITE_CANTOPEN, errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		// No file descriptors are left. No file was written to, and descriptors come back when connections go.
		return errBusy
	}
	if state(c.state.Swap(int32(diskFailed))) != diskFailed {
		c.log.Error("the database failed; nothing more is taken in until the relay is started again. "+
			"Look after the disk first, then at the database with `agora check`", "err", err)
	}
	return errDiskFailed
}

// readFailed changes the state if an error of a read says that the database is damaged: what is stored in one may never
// be read. It returns the error as it is.
func (c *care) readFailed(err error) error {
	switch codeOf(err) & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR:
		_ = c.failed(err) // which logs it
	}
	return err
}

func (s *Store) readFailed(err error) error { return s.care.readFailed(err) }

// rememberFiles notes which files the connections have open. SQLite keeps both from its first read to its last Close,
// also where it makes the log begin again or leaves it empty.
func (c *care) rememberFiles() error {
	c.files = map[string]os.FileInfo{}
	for _, path := range []string{c.path, c.path + "-wal"} {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		c.files[path] = info
	}
	return nil
}

// misplaced returns which of the files is not where it was, nil if none. What is written to such a file is lost to the
// next start. It opens nothing.
func (c *care) misplaced() error {
	for path, opened := range c.files {
		switch found, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s was moved or removed while the relay has it open; stop the relay and put it back", path)
		case err != nil:
			return err
		case !os.SameFile(opened, found):
			return fmt.Errorf("%s is another file than the one the relay has open; stop the relay and put that one back", path)
		}
	}
	return nil
}

// ofData reports whether a statement failed for what it was given, which says nothing about the disk.
func ofData(err error) bool {
	switch code := codeOf(err); code & 0xff {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH:
		return true
	case sqlite3.SQLITE_OK: // not SQLite's
		return !errors.Is(err, sql.ErrConnDone) && !errors.Is(err, driver.ErrBadConn)
	}
	return false
}

// codeOf returns SQLite's extended code of an error, SQLITE_OK if it is none of SQLite's.
func codeOf(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return sqlite3.SQLITE_OK
}
