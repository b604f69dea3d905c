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

// Errors of writes. The store returns errDiskFull in the state diskFull, errDiskFailed in the state diskFailed, and
// errBusy in any state.
var (
	errDiskFull   = envelope.NotStored("the relay's disk is full; nothing was stored, try again later", 5*time.Second)
	errDiskFailed = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 30 * time.Second,
		Message: "the relay's disk failed; no messages are accepted until the operator restarts the relay"}
	errBusy = envelope.NotStored("the relay's database is busy; nothing was stored, try again in a moment", time.Second)
)

// handleError changes the state if err requires it, and returns the error for the caller.
//
// A full disk leads to diskFull. Any other error of the disk or of the database leads to diskFailed, which only a
// restart ends. The reason: after a failed fsync the kernel may have dropped the pages that it could not write, and the
// next fsync would succeed all the same. Only opening the database again is safe, because that writes the write-ahead log
// again first, see rewriteLog.
func (c *care) handleError(err error) error {
	if err == nil || ledger.IsRefusal(err) {
		return err
	}
	code := codeOf(err)
	switch {
	case code&0xff == sqlite3.SQLITE_FULL, code == sqlite3.SQLITE_IOERR_SHMSIZE, errors.Is(err, syscall.ENOSPC):
		if c.transition(accepting, diskFull) {
			c.log.Error("the disk is full, or the database has reached its size limit; "+
				"no messages are accepted until there is room", "err", err)
		}
		return cmp.Or(c.refusal(), error(errDiskFull)) // errDiskFailed, if the state was diskFailed before
	case code&0xff == sqlite3.SQLITE_BUSY, code&0xff == sqlite3.SQLITE_LOCKED:
		return errBusy
	case code&0xff == sqlite3.SQLITE_CANTOPEN, errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		// The process has no file descriptors left. No file was written. Descriptors become free when connections
		// close.
		return errBusy
	}
	if state(c.state.Swap(int32(diskFailed))) != diskFailed {
		c.log.Error("the database failed; no messages are accepted until the relay is restarted. "+
			"Check the disk first, then run `agora check`", "err", err)
	}
	return errDiskFailed
}

// handleReadError changes the state to diskFailed if a read failed because the database is damaged or its disk fails:
// events stored in a damaged database may never be readable. It returns err unchanged.
func (c *care) handleReadError(err error) error {
	switch codeOf(err) & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR:
		_ = c.handleError(err) // logs it
	}
	return err
}

func (s *Store) handleReadError(err error) error { return s.care.handleReadError(err) }

// rememberFiles records which files the connections have open. SQLite keeps the same two files open from its first read
// to its last Close, even when it restarts or truncates the write-ahead log.
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

// movedFile returns an error that names a database file that was moved, removed or replaced, or nil. Data written to
// such a file is lost at the next start. movedFile opens no file.
func (c *care) movedFile() error {
	for path, opened := range c.files {
		switch found, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s was moved or removed while the relay was using it; "+
				"stop the relay and put the file back", path)
		case err != nil:
			return err
		case !os.SameFile(opened, found):
			return fmt.Errorf("%s is another file than the one that the relay opened; "+
				"stop the relay and put the original file back", path)
		}
	}
	return nil
}

// isDataError reports whether err was caused by the data of a statement, or is neither SQLite's nor the connection's.
// Such an error says nothing about the disk.
func isDataError(err error) bool {
	switch code := codeOf(err); code & 0xff {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH:
		return true
	case sqlite3.SQLITE_OK: // not an error of SQLite
		return !errors.Is(err, sql.ErrConnDone) && !errors.Is(err, driver.ErrBadConn)
	}
	return false
}

// codeOf returns SQLite's extended error code, or SQLITE_OK if err is not an error of SQLite.
func codeOf(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return sqlite3.SQLITE_OK
}
