package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// messageOfSize returns a message of about size bytes, sent at at, that expires after a minute.
func messageOfSize(t testing.TB, n, size int, at time.Time) relay.Entry {
	t.Helper()
	m, err := envelope.Draft{TTL: time.Minute,
		Payload: envelope.Manifest{ID: "m", Description: strings.Repeat("x", size)}}.Sign(key(n), at)
	must(t, err)
	return relay.Entry{Envelope: m, Received: at}
}

// fill appends messages until the store is full and returns their ids.
func fill(t testing.TB, s *Store, size int, at time.Time) (ids []string) {
	t.Helper()
	for n := range 100_000 {
		e := messageOfSize(t, n%50, size, at)
		_, err := s.Append(t.Context(), e)
		if errors.Is(err, errDiskFull) {
			return ids
		}
		must(t, err)
		ids = append(ids, e.Envelope.ID)
	}
	t.Fatal("the store does not get full")
	return nil
}

func checkIntact(t testing.TB, s *Store, ids []string) {
	t.Helper()
	if !slices.EqualFunc(events(t, s), ids, func(e relay.Event, id string) bool { return e.ID == id }) {
		t.Errorf("the %d stored events are not the %d acknowledged ones", len(events(t, s)), len(ids))
	}
	if got := pragma(t, s.readDB, "integrity_check"); got != "ok" {
		t.Errorf("integrity: %s", got)
	}
}

// TestFull checks that a full store refuses messages, can be read, and accepts messages again after the stored ones
// expire.
func TestFull(t *testing.T) {
	sizes := []int{100, 1000, 50_000}
	if racing.Detector {
		sizes = sizes[2:]
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agora.db")
			o := Options{MaxBytes: 1 << 20, Reserve: 8 << 20, Log: slog.New(slog.DiscardHandler)}
			s := openWith(t, path, o)
			now := time.Now().Truncate(time.Millisecond)
			must(t, tick(s, now))
			early := messageOfSize(t, 1, size, now)
			appendAll(t, s, []relay.Entry{early})
			ids := append([]string{early.Envelope.ID}, fill(t, s, size, now)...)
			if info, err := os.Stat(path); err != nil || info.Size() > o.MaxBytes {
				t.Errorf("the file has %d bytes, %v", info.Size(), err)
			}
			checkIntact(t, s, ids)
			// The store stays full until something expires. Each tick and each append says so.
			for range 3 {
				if err := tick(s, now.Add(time.Minute-1)); !errors.Is(err, errDiskFull) {
					t.Errorf("tick of a full store: %v", err)
				}
				if _, err := s.Append(t.Context(), messageOfSize(t, 1, 1, now)); !errors.Is(err, errDiskFull) {
					t.Errorf("append to a full store: %v", err)
				}
			}
			checkIntact(t, s, ids)
			if page, err := s.Read(t.Context(), relay.Query{Now: now, Limit: 1 << 20}); err != nil ||
				len(page.Events) != len(ids) ||
				slices.ContainsFunc(page.Events, func(e relay.Event) bool { return e.Size < size }) {
				t.Errorf("of %d events %d are delivered, %v", len(ids), len(page.Events), err)
			}

			// Expired events lose their bodies. Their ids are still remembered, and setting back the clock delivers
			// none of them.
			now = now.Add(time.Minute)
			must(t, tick(s, now))
			checkIntact(t, s, ids)
			late := messageOfSize(t, 1, size, now)
			appendAll(t, s, []relay.Entry{late})
			page, err := s.Read(t.Context(), relay.Query{Now: now.Add(-time.Hour), Limit: 1 << 20})
			if err != nil || len(page.Events) != 1 || page.Events[0].ID != late.Envelope.ID {
				t.Errorf("%d events are delivered, %v", len(page.Events), err)
			}
			if _, err := s.Append(t.Context(), early); !isCode(err, envelope.CodeExpired) {
				t.Errorf("an expired message again, after the clock was set back: %v", err)
			}
			var watched []string
			ctx, cancel := context.WithCancel(t.Context())
			err = s.Watch(ctx, relay.Cursor{}, nil, func(posted []relay.Posted) {
				for _, p := range posted {
					watched = append(watched, p.ID)
				}
				cancel()
			})
			if !errors.Is(err, context.Canceled) || !slices.Equal(watched, []string{late.Envelope.ID}) {
				t.Errorf("watched %q, %v", watched, err)
			}

			// The store fills up again. Half an hour later all of its events can be removed.
			ids = append(append(ids, late.Envelope.ID), fill(t, s, size, now)...)
			checkIntact(t, s, ids)
			must(t, s.Close())
			s = openWith(t, path, o)
			checkIntact(t, s, ids)
			now = now.Add(replay.DefaultMemory)
			must(t, s.Expire(t.Context(), now, nil))
			ids = fill(t, s, size, now)
			checkIntact(t, s, ids)
		})
	}
}

// TestFullUntilEnoughRoom checks that a full store waits for enough room. It must not switch between its states with
// every message.
func TestFullUntilEnoughRoom(t *testing.T) {
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"),
		Options{MaxBytes: 1 << 20, Reserve: 8 << 20, Log: slog.New(slog.DiscardHandler)})
	now := time.Now().Truncate(time.Millisecond)
	must(t, tick(s, now))
	appendAll(t, s, []relay.Entry{messageOfSize(t, 1, 30_000, now.Add(-30*time.Second))})
	fill(t, s, 1000, now)
	if err := tick(s, now.Add(30*time.Second)); !errors.Is(err, errDiskFull) {
		t.Errorf("with room for one message: %v", err)
	}
	must(t, tick(s, now.Add(time.Minute)))
}

// TestReserve checks that the reserve grows to its target, survives a restart, and is restored at its former size.
func TestReserve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	o := Options{Reserve: reserveStep + 1<<20}
	s := openWith(t, path, o)
	size := func(want int64) {
		t.Helper()
		if got, err := fileSize(path + ".reserve"); err != nil || got != want {
			t.Errorf("the reserve has %d bytes, want %d, %v", got, want, err)
		}
	}
	size(reserveStep) // before the first message
	for range 2 {
		must(t, tick(s, time.Now()))
		size(o.Reserve)
	}
	must(t, s.Close())
	s = openWith(t, path, o)
	size(o.Reserve)
	must(t, tick(s, time.Now()))
	must(t, s.care.reserve.release())
	size(0)
	must(t, s.care.reserve.restore())
	size(o.Reserve)
	s.care.state.Store(int32(diskFull))
	must(t, tick(s, time.Now()))
	size(o.Reserve)
	appendAll(t, s, requests(t, 1))
}

// TestLogSizeIsBounded checks that the write-ahead log stays short while there are always readers.
func TestLogSizeIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openWith(t, path, Options{Reserve: 1 << 20})
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	for range 2 {
		reading.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Read(t.Context(), relay.Query{Expired: true, Limit: 100}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	appendAll(t, s, requests(t, 400))
	size, err := fileSize(path + logSuffix)
	must(t, err)
	// readers may block a restart of the log a few times
	if most := 4 * forceFactor * s.care.logLimit.Load() * logFrame; size > most {
		t.Errorf("the log has %d bytes, want at most %d", size, most)
	}
}

// TestLogIsCopied checks that a grown log is copied in the background before the writer restarts it.
func TestLogIsCopied(t *testing.T) {
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{Reserve: 1 << 20})
	limit := int(s.care.logLimit.Load())
	length, copied := 0, 0
	look := func() {
		must(t, s.task(t.Context(), func(w *writer) (err error) {
			_, length, copied, err = w.checkpoint(w.stmts.logStatus)
			return err
		}))
	}
	for n := 0; length < limit*3/2; n++ {
		appendAll(t, s, []relay.Entry{request(t, key(n), "")})
		look()
	}
	for end := time.Now().Add(20 * time.Second); copied == 0; look() {
		if time.Now().After(end) {
			t.Fatalf("none of %d pages is copied", length)
		}
	}
}

// TestExpirePlans checks that the statements that run every second use indexes.
func TestExpirePlans(t *testing.T) {
	s := openNew(t)
	for text, want := range map[string]string{
		"DELETE FROM manifest WHERE expires <= 1": "manifest_by_expires (expires<?)",
		"SELECT seq FROM event_forget WHERE (forget, seq) > (1, 1) AND forget <= 2 " +
			"ORDER BY forget, seq": "event_forget USING PRIMARY KEY ((forget,seq)>(?,?) AND forget<?)",
	} {
		rows, err := s.readDB.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text)
		must(t, err)
		var plan string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			must(t, rows.Scan(&id, &parent, &unused, &detail))
			plan += detail + "\n"
		}
		must(t, rows.Close())
		if !strings.Contains(plan, want) || strings.Contains(plan, sorts) || strings.Contains(plan, "SCAN") {
			t.Errorf("%s: %s", text, plan)
		}
	}
}

// TestRecovery fills a store with short-lived REQUESTs. Once their ids are forgotten, the store must accept as many
// again, long before the threads' records would normally be removed. Before that it must accept what fits into the room
// of the cut bodies.
func TestRecovery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openWith(t, path, Options{MaxBytes: 1 << 20, Reserve: 8 << 20, Log: slog.New(slog.DiscardHandler)})
	now := time.Now().Truncate(time.Millisecond)
	notices := func(r thread.Thread, _ time.Time) []*envelope.Envelope {
		m, err := envelope.Draft{ID: "timeout_" + r.ID, Thread: r.ID, Recipient: r.Client, TTL: time.Minute,
			Payload: envelope.Failure{Code: "TIMEOUT", Message: "time was up"}}.Sign(key(99), now)
		must(t, err)
		return []*envelope.Envelope{m}
	}
	sweep := func() {
		// The tick of a test can run while care's goroutine copies the log. It then cannot truncate the log, and the
		// next tick continues its work.
		for range 100 {
			if err := tick(s, now); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		must(t, s.Expire(t.Context(), now, notices))
	}
	fillThreads := func() (n int) {
		for ; ; n++ {
			m, err := envelope.Draft{TTL: 20 * time.Second,
				Payload: envelope.Request{Intent: "echo", Title: strings.Repeat("x", 1000)}}.Sign(key(n%50), now)
			must(t, err)
			_, err = s.Append(t.Context(), relay.Entry{Envelope: m, Received: now})
			if errors.Is(err, errDiskFull) {
				return n
			}
			must(t, err)
		}
	}
	first := fillThreads()
	now = now.Add(thread.DefaultPendingTimeout)
	sweep()
	second := fillThreads()
	now = now.Add(replay.DefaultMemory)
	sweep()
	now = now.Add(replay.DefaultMemory)
	sweep()
	third := fillThreads()
	t.Logf("%d REQUESTs, then %d after they have expired, then %d after they are forgotten", first, second, third)
	if second < first/8 || third < first*9/10 {
		t.Errorf("a store that accepted %d accepts %d after they have expired, and %d after they are forgotten",
			first, second, third)
	}
}
