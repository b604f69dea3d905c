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

// The states lead to each other as the table at care says, and Expire says so.
func TestCareStates(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	noRoom := func(s *Store) { _ = s.care.failed(&os.PathError{Op: "write", Err: syscall.ENOSPC}) }
	broken := func(s *Store) { _ = s.care.failed(&os.PathError{Op: "write", Err: syscall.EIO}) }
	moved := func(s *Store) {
		must(t, os.Rename(s.path, s.path+".old"))
		s.care.tick()
	}
	ticks := func(s *Store) { s.care.tick() }
	crowded := func(s *Store) { // there is no room for a while, however much is purged
		s.care.maxBytes = leastRoom * pageSize
		s.care.tick()
	}
	for name, c := range map[string]struct {
		from  state
		event func(*Store)
		to    state
		want  error
	}{
		"taking in, a tick":       {takingIn, ticks, takingIn, nil},
		"taking in, no room":      {takingIn, noRoom, diskFull, errDiskFull},
		"taking in, an error":     {takingIn, broken, diskFailed, errDiskFailed},
		"taking in, a file moved": {takingIn, moved, diskFailed, errDiskFailed},
		"full, a tick with room":  {diskFull, ticks, takingIn, nil},
		"full, a tick without":    {diskFull, crowded, diskFull, errDiskFull},
		"full, no room":           {diskFull, noRoom, diskFull, errDiskFull},
		"full, an error":          {diskFull, broken, diskFailed, errDiskFailed},
		"full, a file moved":      {diskFull, moved, diskFailed, errDiskFailed},
		"failed, a tick":          {diskFailed, ticks, diskFailed, errDiskFailed},
		"failed, no room":         {diskFailed, noRoom, diskFailed, errDiskFailed},
		"failed, an error":        {diskFailed, broken, diskFailed, errDiskFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{Reserve: 1 << 16, Log: slog.New(slog.DiscardHandler)})
			appendAll(t, s, requests(t, 1))
			s.care.state.Store(int32(c.from))
			c.event(s)
			if got := state(s.care.state.Load()); got != c.to {
				t.Errorf("it leads to state %d, want %d", got, c.to)
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

// Expire only expires: it neither touches the reserve nor makes room. A purge removes what is due at the time of the
// last Expire, which no step of the machine's clock moves.
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
	sound(t, s, ids)
	forgotten := now.Add(replay.DefaultMemory)
	for range 2 {
		if err := s.Expire(t.Context(), forgotten, nil); !errors.Is(err, errDiskFull) {
			t.Errorf("Expire on a full disk: %v", err)
		}
	}
	sound(t, s, ids)
	s.care.tick()
	sound(t, s, nil)
	must(t, s.Expire(t.Context(), forgotten, nil))
}

// A database that failed is not written to, not even to copy what its log holds.
func TestFailedDatabaseIsNotCopied(t *testing.T) {
	s := openNew(t)
	appendAll(t, s, requests(t, 3))
	copied := func() (n int) {
		must(t, s.task(t.Context(), func(w *writer) (err error) {
			_, _, n, err = w.checkpoint(w.stmts.lookAtLog)
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
	s.care.state.Store(int32(takingIn))
	s.care.copyLog()
	if n := copied(); n <= before {
		t.Error("nothing was copied before a failure")
	}
}

// What a tick cannot do is said by the next Expire, until a tick can.
func TestExpireTellsOfTrouble(t *testing.T) {
	s := openNew(t)
	path := s.care.reserve.path
	must(t, s.care.reserve.release())
	must(t, os.Mkdir(path, 0o700)) // so that no reserve can be written, which changes no state here
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

// The goroutine ticks every second: within that time a mark that was written is on disk and the reserve grows. It ends
// when it is told to.
func TestCareRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "agora.db")
		limits := 0
		c := &care{
			path: path, every: Options{}.WithDefaults().every, log: slog.New(slog.DiscardHandler), logGrown: make(chan struct{}, 1),
			reserve: reserve{path: path + ".reserve", wanted: 2 * reserveStep},
			task:    func(context.Context, func(*writer) error) error { limits++; return nil },
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
			must(t, c.note(7, time.Unix(int64(100*second+100), 0)))
			if !c.unsynced.Load() {
				t.Error("the mark was written and nobody knows")
			}
			time.Sleep(time.Second)
			synctest.Wait()
			size, err := fileSize(c.reserve.path)
			must(t, err)
			if want := min(int64(second+1), 2) * reserveStep; size != want || limits != second+1 || c.unsynced.Load() {
				t.Errorf("after %d s: a reserve of %d bytes, want %d; %d limits; the mark is not on disk: %v", second+1, size, want, limits, c.unsynced.Load())
			}
		}
		close(stop)
		<-ended
	})
}
