package sqlite

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// countParties returns the number of identities, and the number of rows that say who takes part in threads.
func countParties(t *testing.T, s *Store) (parties, roles int) {
	t.Helper()
	row := s.readDB.QueryRowContext(t.Context(),
		"SELECT (SELECT count(*) FROM party), (SELECT count(*) FROM thread_role)")
	must(t, row.Scan(&parties, &roles))
	return parties, roles
}

// TestUnusedIdentitiesAreRemoved checks that an identity is removed with the last message from it or for it. A thread's
// roles are removed with the thread.
func TestUnusedIdentitiesAreRemoved(t *testing.T) {
	alice, bob := key(1), key(2)
	at := time.Now().Truncate(time.Millisecond)
	entry := func(n int, ttl time.Duration, d envelope.Draft) relay.Entry {
		d.TTL = ttl
		m, err := d.Sign(key(n), at)
		must(t, err)
		return relay.Entry{Envelope: m, Received: at}
	}
	ask := envelope.Request{RequestID: "r", Intent: "echo"}
	const retention = relay.DefaultThreadRetention
	for _, c := range []struct {
		name  string
		posts []relay.Entry
		until time.Duration // when the last post is removed
		roles time.Duration // how much longer the thread's record is kept
	}{
		{"a manifest", []relay.Entry{func() relay.Entry {
			e := entry(1, 2*time.Hour,
				envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}})
			e.Listing = &relay.Listing{ID: "m", Intents: []string{}}
			return e
		}()}, 2 * time.Hour, 0},
		{"a manifest for one recipient", []relay.Entry{entry(1, time.Minute, envelope.Draft{Recipient: bob.DID(),
			Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}})}, replay.DefaultMemory, 0},
		{"a broadcast", []relay.Entry{entry(1, time.Hour, envelope.Draft{Thread: "t", Payload: ask})}, time.Hour,
			retention},
		{"a thread", []relay.Entry{
			entry(1, time.Hour, envelope.Draft{Thread: "t", Recipient: bob.DID(), Payload: ask}),
			entry(2, time.Hour, envelope.Draft{Thread: "t", Recipient: alice.DID(),
				Payload: envelope.Offer{RequestID: "r"}}),
			entry(1, time.Hour, envelope.Draft{Thread: "t", Recipient: bob.DID(),
				Payload: envelope.Accept{RequestID: "r"}}),
			entry(2, time.Hour, envelope.Draft{Thread: "t", Recipient: alice.DID(),
				Payload: envelope.Result{RequestID: "r", Status: "success"}}),
		}, time.Hour, retention},
		{"a manifest and a request for one recipient", []relay.Entry{
			entry(1, time.Hour, envelope.Draft{Recipient: bob.DID(),
				Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}),
			entry(1, 2*time.Hour, envelope.Draft{Thread: "u", Recipient: bob.DID(), Payload: ask}),
		}, 2 * time.Hour, retention},
		{"an offer that was withdrawn", []relay.Entry{
			entry(1, time.Hour, envelope.Draft{Thread: "t", Payload: ask}),
			entry(2, time.Hour, envelope.Draft{Thread: "t", Recipient: alice.DID(),
				Payload: envelope.Offer{RequestID: "r"}}),
			entry(2, time.Hour, envelope.Draft{Thread: "t", Recipient: alice.DID(),
				Payload: envelope.Failure{Code: "NO", Message: "no"}}),
			entry(1, time.Hour, envelope.Draft{Thread: "t", Payload: envelope.Cancel{}}),
		}, time.Hour, retention},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openNew(t)
			appendAll(t, s, c.posts)
			must(t, s.mergeAll(t.Context()))
			before, roles := countParties(t, s)
			silent := func(thread.Thread, time.Time) []*envelope.Envelope { return nil }
			// The first sweep ends threads. After it only removals are due.
			must(t, s.Expire(t.Context(), at.Add(thread.DefaultPendingTimeout), silent))
			must(t, s.Expire(t.Context(), at.Add(c.until-1), silent))
			if after, _ := countParties(t, s); after != before {
				t.Errorf("%d of %d identities are left while something refers to them", after, before)
			}
			must(t, s.Expire(t.Context(), at.Add(c.until), silent))
			if parties, _ := countParties(t, s); parties != 0 {
				t.Errorf("%d identities are left", parties)
			}
			later := at.Add(c.until + c.roles)
			must(t, s.Expire(t.Context(), later.Add(-1), silent))
			if _, left := countParties(t, s); left != roles {
				t.Errorf("%d of %d roles are left while the thread's record is kept", left, roles)
			}
			must(t, s.Expire(t.Context(), later, silent))
			if _, left := countParties(t, s); left != 0 {
				t.Errorf("%d roles are left", left)
			}
			// Removed identities can post again.
			for n := 1; n <= 2; n++ {
				m, err := envelope.Draft{Recipient: key(3 - n).DID(), Payload: ask}.Sign(key(n), later)
				must(t, err)
				appendAll(t, s, []relay.Entry{{Envelope: m, Received: later}})
			}
			if got := len(events(t, s)); got != 2 {
				t.Errorf("%d events, want 2", got)
			}
		})
	}
}

// TestManifestsExpireInBatches checks that one transaction removes a limited number of manifests, however many are due.
func TestManifestsExpireInBatches(t *testing.T) {
	s := openNew(t)
	const many = 2*expireManifests + 1
	write(t, s, func(w *writer) error {
		_, err := w.conn.ExecContext(context.Background(),
			fmt.Sprintf(`WITH RECURSIVE k (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < %d)
			INSERT INTO manifest (sender, id, seq, ts, expires, intents, text, recipient)
			SELECT n, 'm', n, 0, 1000, '[]', '', 0 FROM k`, many))
		return err
	})
	left := func() (n int) {
		must(t, s.readDB.QueryRowContext(t.Context(), "SELECT count(*) FROM manifest").Scan(&n))
		return n
	}
	var again bool
	write(t, s, func(w *writer) (err error) {
		_, again, err = w.expire(time.Now(), nil)
		return err
	})
	if n := left(); n < many-expireManifests || n == many || !again {
		t.Errorf("one transaction leaves %d of %d manifests, again is %v", n, many, again)
	}
	must(t, s.Expire(t.Context(), time.Now(), nil))
	if n := left(); n != 0 {
		t.Errorf("%d manifests are left", n)
	}
}

// TestNoticesLeaveFreeSpace checks that threads end without notices when there is little room, so that the rest is left
// for messages and removals.
func TestNoticesLeaveFreeSpace(t *testing.T) {
	const pages = 600
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"),
		Options{MaxBytes: pages * pageSize, Reserve: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	at := time.Now().Truncate(time.Millisecond)
	free := func() (all, free int64) {
		must(t, s.task(t.Context(), func(w *writer) (err error) { all, free, err = w.pageCounts(); return err }))
		return all, free
	}
	room := func() int64 { all, free := free(); return pages - all + free }
	n := 0
	for ; room() > 2*minFreePages; n++ {
		m, err := envelope.Draft{TTL: time.Hour,
			Payload: envelope.Request{Intent: "echo", Title: strings.Repeat("x", 5000)}}.Sign(key(n%50), at)
		must(t, err)
		appendAll(t, s, []relay.Entry{{Envelope: m, Received: at}})
	}
	told := 0
	notices := func(r thread.Thread, _ time.Time) []*envelope.Envelope {
		told++
		m, err := envelope.Draft{ID: "timeout_" + r.ID, Thread: r.ID, Recipient: r.Client, TTL: time.Hour,
			Payload: envelope.Failure{Code: "TIMEOUT", Message: strings.Repeat("x", 5000)}}.Sign(key(99), at)
		must(t, err)
		return []*envelope.Envelope{m}
	}
	must(t, s.Expire(t.Context(), at.Add(thread.DefaultPendingTimeout), notices))
	if told == 0 || told == n {
		t.Errorf("%d notices for %d threads; want some, but not all", told, n)
	}
	// The notices of one transaction may exceed the limit. Ending the other threads takes room too.
	if left := room(); left < minFreePages/4 {
		t.Errorf("the notices left %d pages", left)
	}
	var alive int
	must(t, s.readDB.QueryRowContext(t.Context(), "SELECT count(*) FROM thread WHERE open = 1").Scan(&alive))
	if alive != 0 {
		t.Errorf("%d threads have not ended", alive)
	}
}

// TestCandidatesAreIndexed checks that the writer finds a sender's threads through an index, even if many threads have
// the same id.
func TestCandidatesAreIndexed(t *testing.T) {
	s := openNew(t)
	for name, c := range map[string]struct {
		text  string
		wants []string
	}{
		"threads of a party": {threadsOfParticipant,
			[]string{"SEARCH thread_role USING PRIMARY KEY (id=? AND party=? AND role>?)"}},
		"open threads": {openThreads,
			[]string{"SEARCH r USING PRIMARY KEY (id=? AND party=? AND role=?)",
				"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"}},
		"oldest threads": {oldestNumbers,
			[]string{"SEARCH thread_role USING PRIMARY KEY (id=? AND party=? AND role=?)"}},
		"messages and threads that a group names": {knownRows, []string{"SEARCH r USING PRIMARY KEY (id=? " +
			"AND party=? AND role=?)",
			"SEARCH s USING PRIMARY KEY (sender=? AND id=?)"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := explain(t, s, c.text, 1, 1, 1, 1)
			for _, want := range c.wants {
				if !strings.Contains(got, want) {
					t.Errorf("want %q:\n%s", want, got)
				}
			}
			if strings.Contains(got, "SCAN t") || strings.Contains(got, "TEMP B-TREE") {
				t.Errorf("the plan scans or sorts rows:\n%s", got)
			}
		})
	}
}

// enlargeRecords makes each thread's record so large that a few of them exceed ledger.MaxRecordBytes.
func enlargeRecords(t *testing.T, s *Store) {
	t.Helper()
	write(t, s, func(w *writer) error {
		rows, _, err := w.rows(w.stmts.dueThreads, int64(math.MaxInt64), 1000)
		for _, row := range rows {
			r, err := row.Decode()
			must(t, err)
			r.Transitions[0].ID = strings.Repeat("x", 60_000)
			_, err = w.conn.ExecContext(context.Background(), "UPDATE thread SET record = ? WHERE n = ?", r.Encode(),
				row.Number)
			must(t, err)
		}
		return err
	})
}

// TestLargeRecordsExpireInOneCall checks that one call of Expire ends all due threads, even if their records are too
// large to be read at once.
func TestLargeRecordsExpireInOneCall(t *testing.T) {
	s := openNew(t)
	const threads = 12
	for range threads {
		_, err := s.Append(t.Context(), request(t, key(1), ""))
		must(t, err)
	}
	enlargeRecords(t, s)
	must(t, s.Expire(t.Context(), time.Now().Add(thread.DefaultPendingTimeout+time.Minute), nil))
	var alive int
	must(t, s.readDB.QueryRowContext(t.Context(), "SELECT count(*) FROM thread WHERE open = 1").Scan(&alive))
	if ended := threads - alive; ended != threads {
		t.Errorf("%d of %d threads have ended", ended, threads)
	}
}

// TestOwnWorkIsFoundBehindLargeCopies checks that the thread in which an agent works is found, even behind many older
// threads with the same id and large records that name the agent.
func TestOwnWorkIsFoundBehindLargeCopies(t *testing.T) {
	s := openNew(t)
	alice, bob := key(1), key(2)
	post := func(by int, d envelope.Draft) {
		t.Helper()
		d.Thread = "t"
		_, err := s.Append(t.Context(), signed(t, key(by), d))
		must(t, err)
	}
	for stranger := range ledger.MaxCandidates - 1 {
		post(10+stranger, envelope.Draft{Recipient: bob.DID(),
			Payload: envelope.Request{RequestID: "r", Intent: "echo"}})
	}
	post(1, envelope.Draft{Payload: envelope.Request{RequestID: "r", Intent: "echo"}})
	post(2, envelope.Draft{Recipient: alice.DID(), Payload: envelope.Offer{RequestID: "r"}})
	post(1, envelope.Draft{Recipient: bob.DID(), Payload: envelope.Accept{RequestID: "r"}})
	enlargeRecords(t, s)
	post(2, envelope.Draft{Payload: envelope.Result{RequestID: "r", Status: "success"}})
}
