package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// Copied says what a Backup holds.
type Copied struct {
	Events int64
	Seq    relay.Seq // the last number given to an event
	Bytes  int64
}

// Backup writes the database at path, as it stands at one moment, into a new file at to. The store that has the
// database open, in this process or another, goes on meanwhile: only its write-ahead log grows until Backup is done.
// When Backup returns nil the copy has been checked for damage and is on disk; its folder is the caller's to sync. On
// an error or when ctx ends it is removed.
//
// The copy gets an epoch of its own. The events that come after it in the original are not in it and their numbers
// will be used again, so the original's cursors must not pass for its own (relay.ErrUnknownCursor).
//
// progress, if not nil, is called every second with the bytes written and about how many they will be.
func Backup(ctx context.Context, path, to string, progress func(done, total int64)) (_ Copied, err error) {
	to, err = filepath.Abs(to) // a relative name that begins with "file:" would be taken for a URI
	if err != nil {
		return Copied{}, err
	}
	// SQLite takes an empty file for none, and gives its own a mode by the umask.
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Copied{}, err
	}
	if err := f.Close(); err != nil {
		return Copied{}, errors.Join(err, os.Remove(to))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(to))
		}
	}()
	if err := copyInto(ctx, path, to, progress); err != nil {
		return Copied{}, dbfile.InWords(ctx, path, err)
	}
	copied, err := finishCopy(ctx, to)
	if err != nil {
		return Copied{}, dbfile.InWords(ctx, to, err)
	}
	if copied.Bytes, err = syncFile(to); err != nil {
		return Copied{}, err
	}
	return copied, nil
}

// copyInto has the database itself write the copy, out of one read transaction. A page-by-page copy would have to start
// again whenever another process writes.
func copyInto(ctx context.Context, path, to string, progress func(done, total int64)) (err error) {
	db, err := dbfile.OpenReadOnly(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var total int64
	err = db.QueryRowContext(ctx, "SELECT (page_count - freelist_count) * page_size "+
		"FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&total)
	if err != nil {
		return err
	}
	if progress != nil {
		defer dbfile.EverySecond(func() {
			if info, err := os.Stat(to); err == nil { // not open: that is SQLite's
				progress(info.Size(), total)
			}
		})()
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	return err
}

// finishCopy makes the copy a database of its own and looks whether its pages hang together.
func finishCopy(ctx context.Context, to string) (c Copied, err error) {
	db, err := dbfile.Open(to, "immediate", []string{"synchronous(FULL)", "trusted_schema(OFF)"}, "rw")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	result, err := db.ExecContext(ctx, "UPDATE meta SET value = ? WHERE name = 'epoch'", schema.NewEpoch())
	if err != nil {
		return c, err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return c, errors.Join(err, errors.New("the database has no epoch, so no relay wrote it"))
	}
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return c, err
	}
	if verdict != "ok" {
		return c, fmt.Errorf("the copy is damaged (%s); look for the reason with agora check", verdict)
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM event").Scan(&c.Events); err != nil {
		return c, err
	}
	return c, db.QueryRowContext(ctx, schema.LastNumber).Scan(&c.Seq)
}

func syncFile(path string) (size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), f.Sync()
}
