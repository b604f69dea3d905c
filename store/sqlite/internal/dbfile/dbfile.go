// Package dbfile is what the embedded store and its offline tools share about the files of a database: how they are
// opened, and the mark beside them.
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

// Open passes pragmas in the data source name, where they reach every connection of the pool. The mode is SQLite's.
func Open(path, txlock string, pragmas []string, mode string) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", Path: filepath.ToSlash(path),
		RawQuery: url.Values{"_pragma": pragmas, "_txlock": {txlock}, "mode": {mode}}.Encode()}
	return sql.Open("sqlite", dsn.String())
}

// OpenReadOnly opens a database that may be another process's, and never changes it. Unlike query_only, mode=ro also
// keeps the last connection from moving a killed relay's write-ahead log into the database, and makes no file where
// there is none.
func OpenReadOnly(path string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return Open(path, "deferred", strangerPragmas, "ro")
}

// strangerPragmas lack query_only, with which SQLite would not write a copy either.
var strangerPragmas = []string{"busy_timeout(5000)", "cache_size(-16384)", "trusted_schema(OFF)"}

// InWords says which file an error is about, and that ctx ended where that is the reason.
func InWords(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
	return fmt.Errorf("%s: %w", path, err)
}

// EverySecond calls f each second until the function it returns is called.
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
