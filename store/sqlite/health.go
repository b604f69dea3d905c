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
)

// Errors returned while writes are refused. Store.refusing holds the first or the second. Reads go on.
var (
	errDiskFull   = envelope.NotStored("the relay's disk is full; nothing was stored, try again later", 5*time.Second)
	errDiskFailed = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 30 * time.Second,
		Message: "the relay's disk failed; nothing more is taken in until its operator has restarted it"}
	errBusy = envelope.NotStored("the relay's database is busy; nothing was stored, try again in a moment", time.Second)
)

// refusal returns why the store takes nothing in, nil if it does.
func (s *Store) refusal() error {
	if e := s.refusing.Load(); e != nil {
		return e
	}
	return nil
}

// failed notes what an error of the database means for the store and returns what its caller is told.
//
// A full disk closes the store until Expire has made room. Any other error of the disk, or of the database itself,
// closes it for good: after a failed fsync the kernel may have dropped what it could not write, and the next fsync
// would report success all the same. Only opening the database again, which reads what is there, is trusted.
func (s *Store) failed(err error) error {
	var refusal *envelope.Error
	if err == nil || errors.As(err, &refusal) {
		return err
	}
	code := codeOf(err)
	switch {
	case code&0xff == sqlite3.SQLITE_FULL, code == sqlite3.SQLITE_IOERR_SHMSIZE, errors.Is(err, syscall.ENOSPC):
		if s.refusing.CompareAndSwap(nil, errDiskFull) {
			s.options.Log.Error("the disk is full, or the database as large as it may get; nothing is taken in until there is room", "err", err)
		}
		return cmp.Or(s.refusing.Load(), errDiskFull) // a failed one, if that came first
	case code&0xff == sqlite3.SQLITE_BUSY, code&0xff == sqlite3.SQLITE_LOCKED:
		return errBusy
	case code&0xff == sqlite3.SQLITE_CANTOPEN, errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		// No file descriptors are left. No file was written to, and descriptors come back when connections go.
		return errBusy
	}
	if s.refusing.Swap(errDiskFailed) != errDiskFailed {
		s.options.Log.Error("the database failed; nothing more is taken in until the relay is started again. "+
			"Look after the disk first, then at the database with `agora check`", "err", err)
	}
	return errDiskFailed
}

// readFailed notes what an error of a read means for the store and returns it as it is. A damaged database closes the
// store too: what is acknowledged into one may never be read.
func (s *Store) readFailed(err error) error {
	switch codeOf(err) & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR:
		_ = s.failed(err) // which notes it
	}
	return err
}

// rememberFiles notes which files the connections have open. SQLite keeps both from its first read to its last Close,
// also where it makes the log begin again or leaves it empty.
func (s *Store) rememberFiles() error {
	s.files = map[string]os.FileInfo{}
	for _, path := range []string{s.path, s.path + "-wal"} {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		s.files[path] = info
	}
	return nil
}

// misplaced returns which of the files is not where it was, nil if none: what is written to it then, nobody finds again.
// It opens nothing.
func (s *Store) misplaced() error {
	for path, opened := range s.files {
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
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return sqlite3.SQLITE_OK
}
