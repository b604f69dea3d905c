// Package dbfile has what the embedded store shares with its offline tools about database files: how to open a
// database, and the mark file beside it.
package dbfile

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	_ "modernc.org/sqlite" // registers the driver
)

// Open opens the database at path. It passes pragmas in the data source name, so that every connection of the pool gets
// them. mode is SQLite's: ro, rw or rwc.
func Open(path, txlock string, pragmas []string, mode string) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", Path: filepath.ToSlash(path),
		RawQuery: url.Values{"_pragma": pragmas, "_txlock": {txlock}, "mode": {mode}}.Encode()}
	return sql.Open("sqlite", dsn.String())
}

// OpenReadOnly opens a database that another process may have open, and never changes it. Unlike the pragma query_only,
// SQLite's mode=ro also keeps the last connection from copying a killed relay's write-ahead log into the database. It
// creates no file if there is none.
func OpenReadOnly(path string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return Open(path, "deferred", readOnlyPragmas, "ro")
}

// readOnlyPragmas do not contain query_only, which would also prevent VACUUM INTO from writing a copy.
var readOnlyPragmas = []string{"busy_timeout(5000)", "cache_size(-16384)", "trusted_schema(OFF)"}

// WithPath adds the path to an error. If ctx has ended, it returns an error that says so.
func WithPath(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
	return fmt.Errorf("%s: %w", path, err)
}

// EverySecond calls f every second until the returned function is called.
func EverySecond(f func()) (stop func()) {
	stopped := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f()
			case <-stopped:
				return
			}
		}
	})
	return func() {
		close(stopped)
		running.Wait()
	}
}
