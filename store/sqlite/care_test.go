package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/replay"

	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
)

// TestCareStates checks the transitions that the comment of care lists, and that Expire reports the state.
func TestCareStates(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	writeFindsNoRoom := func(s *Store) { _ = s.care.handleError(&os.PathError{Op: "write", Err: syscall.ENOSPC}) }
	broken := func(s *Store) { _ = s.care.handleError(&os.PathError{Op: "write", Err: syscall.EIO}) }
	moved := func(s *Store) {
		must(t, os.Rename(s.path, s.path+".old"))
		s.care.tick()
	}
	ticks := func(s *Store) { s.care.tick() }
	noRoom := func(s *Store) { // too little room, however much is purged
		s.care.maxBytes = minFreePages * pageSize
		s.care.tick()
	}
	for name, c := range map[string]struct {
		from  state
		event func(*Store)
		to    state
		want  error
	}{
		"accepting, a tick":         {accepting, ticks, accepting, nil},
		"accepting, no room":        {accepting, writeFindsNoRoom, diskFull, errDiskFull},
		"accepting, an error":       {accepting, broken, diskFailed, errDiskFailed},
		"accepting, a file moved":   {accepting, moved, diskFailed, errDiskFailed},
		"full, a tick with room":    {diskFull, ticks, accepting, nil},
		"full, a tick without room": {diskFull, noRoom, diskFull, errDiskFull},
		"full, no room":             {diskFull, writeFindsNoRoom, diskFull, errDiskFull},
		"full, an error":            {diskFull, broken, diskFailed, errDiskFailed},
		"full, a file moved":        {diskFull, moved, diskFailed, errDiskFailed},
		"failed, a tick":            {diskFailed, ticks, diskFailed, errDiskFailed},
		"failed, no room":           {diskFailed, writeFindsNoRoom, diskFailed, errDiskFailed},
		"failed, an error":          {diskFailed, broken, diskFailed, errDiskFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := openWith(t, filepath.Join(t.TempDir(), "agora.db"),
				Options{Reserve: 1 << 16, Log: slog.New(slog.DiscardHandler)})
			appendAll(t, s, requests(t, 1))
			s.care.state.Store(int32(c.from))
			c.event(s)
			if got := state(s.care.state.Load()); got != c.to {
				t.Errorf("the state is %d, want %d", got, c.to)
			}
			if err := s.Expire(t.Context(), now, nil); !errors.Is(err, c.want) {
				t.Errorf("Expire: %v, want %v", err, c.want)
			}
			if _, err := s.Append(t.Context(), request(t, key(1), "")); !errors.Is(err, c.want) {
				t.Errorf("Append: %v, want %v", err, c.want)
			}
			if n := len(events(t, s)); n == 0 {
				t.Error("nothing can be read")
			}
		})
	}
}

// TestExpireOnlyExpires checks that Expire neither touches the reserve nor makes room. A purge removes what is due at
// the time passed to the last Expire, whatever the machine's clock says.
func TestExpireOnlyExpires(t *testing.T) {
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{
		MaxBytes: 1 << 20, Reserve: 1 << 20, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Now().Add(1000 * time.Hour) },
	})
	now := time.Now().Truncate(time.Millisecond)
	must(t, s.care.reserve.release())
	must(t, s.Expire(t.Context(), now, nil))
	if size, err := fileSize(s.care.reserve.path); err != nil || size != 0 {
		t.Errorf("Expire made a reserve of %d bytes, %v", size, err)
	}
	ids := fill(t, s, 50_000, now)
	s.care.tick()
	checkIntact(t, s, ids)
	forgotten := now.Add(replay.DefaultMemory)
	for range 2 {
		if err := s.Expire(t.Context(), forgotten, nil); !errors.Is(err, errDiskFull) {
			t.Errorf("Expire on a full disk: %v", err)
		}
	}
	checkIntact(t, s, ids)
	s.care.tick()
	checkIntact(t, s, nil)
	must(t, s.Expire(t.Context(), forgotten, nil))
}

// TestFailedDatabaseIsNotCopied checks that the write-ahead log is not copied into the database after a failure.
func TestFailedDatabaseIsNotCopied(t *testing.T) {
	s := openNew(t)
	appendAll(t, s, requests(t, 3))
	copied := func() (n int) {
		must(t, s.task(t.Context(), func(w *writer) (err error) {
			_, _, n, err = w.checkpoint(w.stmts.logStatus)
			return err
		}))
		return n
	}
	before := copied()
	s.care.state.Store(int32(diskFailed))
	s.care.copyLog()
	if n := copied(); n != before {
		t.Errorf("%d pages were copied after the failure", n-before)
	}
	s.care.state.Store(int32(accepting))
	s.care.copyLog()
	if n := copied(); n <= before {
		t.Error("nothing was copied although the database had not failed")
	}
}

// TestExpireReportsTickErrors checks that Expire returns the error of the last tick until a tick succeeds.
func TestExpireReportsTickErrors(t *testing.T) {
	s := openNew(t)
	path := s.care.reserve.path
	must(t, s.care.reserve.release())
	must(t, os.Mkdir(path, 0o700)) // no reserve can be written there, which does not change the state
	s.care.reserve.path = filepath.Join(path, "none", "there")
	must(t, os.WriteFile(filepath.Join(path, "none"), nil, 0o600))
	s.care.tick()
	if err := s.Expire(t.Context(), time.Now(), nil); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Expire: %v", err)
	}
	appendAll(t, s, requests(t, 1))
	must(t, os.RemoveAll(path))
	s.care.reserve.path = path
	must(t, tick(s, time.Now()))
}

// TestCareRuns checks that care ticks every second. Each tick syncs a written mark and grows the reserve. run ends when
// stop is closed.
func TestCareRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "agora.db")
		limits := 0
		c := &care{
			path: path, tickInterval: Options{}.WithDefaults().tickInterval, log: slog.New(slog.DiscardHandler),
			logGrown: make(chan struct{}, 1),
			reserve:  reserve{path: path + ".reserve", wanted: 2 * reserveStep},
			task:     func(context.Context, func(*writer) error) error { limits++; return nil },
		}
		var err error
		c.mark, err = startMark(path+".mark", dbfile.Mark{Epoch: 1})
		must(t, err)
		defer c.mark.file.Close()
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			c.run(stop)
		}()
		for second := range 3 {
			must(t, c.updateMark(7, time.Unix(int64(100*second+100), 0)))
			if !c.unsynced.Load() {
				t.Error("the mark was written, but unsynced is false")
			}
			time.Sleep(time.Second)
			synctest.Wait()
			size, err := fileSize(c.reserve.path)
			must(t, err)
			if want := min(int64(second+1), 2) * reserveStep; size != want || limits != second+1 || c.unsynced.Load() {
				t.Errorf("after %d s: reserve has %d bytes, want %d; limit set %d times; mark unsynced: %v", second+1,
					size, want, limits, c.unsynced.Load())
			}
		}
		close(stop)
		<-ended
	})
}
