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

// Copied describes the copy that Backup has made.
type Copied struct {
	Events int64
	Seq    relay.Seq // last number given to an event
	Bytes  int64
}

// Backup copies the database at path, as it is at one moment, into the new file to. A store may have the database open
// meanwhile, in this process or another. It keeps working; only its write-ahead log grows until Backup ends. When
// Backup returns nil, the copy was checked for damage and synced. The caller must sync the folder of the copy. On an
// error, or when ctx ends, Backup removes the copy.
//
// The copy gets its own epoch. The original continues to give numbers to further events, and the copy will give the same
// numbers to other events. So the copy must refuse cursors of the original (relay.ErrUnknownCursor).
//
// Backup calls progress, if it is not nil, every second with the bytes written and an estimate of the total.
func Backup(ctx context.Context, path, to string, progress func(done, total int64)) (_ Copied, err error) {
	to, err = filepath.Abs(to) // SQLite would take a relative name that begins with "file:" for a URI
	if err != nil {
		return Copied{}, err
	}
	// Create the file here, because SQLite would create it by the umask. VACUUM INTO accepts an empty file.
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
		return Copied{}, dbfile.WithPath(ctx, path, err)
	}
	copied, err := finishCopy(ctx, to)
	if err != nil {
		return Copied{}, dbfile.WithPath(ctx, to, err)
	}
	if copied.Bytes, err = syncFile(to); err != nil {
		return Copied{}, err
	}
	return copied, nil
}

// copyInto lets SQLite write the copy within one read transaction. A page-by-page copy would start again whenever
// another process writes.
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
			if info, err := os.Stat(to); err == nil { // Stat opens nothing; opening would drop SQLite's locks
				progress(info.Size(), total)
			}
		})()
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	return err
}

// finishCopy gives the copy its own epoch, checks its structure and counts its events.
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
		return c, fmt.Errorf("the copy is damaged (%s); run agora check on the original to find the cause", verdict)
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
