//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// wrongSpans counts the spans that do not hold what the table span promises, in order: they do not follow each other,
// their times of events are wrong, ids or threads are forgotten. The last are the states whose count of threads is wrong.
const wrongSpans = `SELECT (SELECT count(*) FROM (SELECT first, lag(last, 1, 0::bigint) OVER (ORDER BY last) AS before FROM span) s
	WHERE first <> before + 1), (SELECT count(*) FROM span s CROSS JOIN LATERAL (SELECT min(ts) AS min_ts, max(ts) AS max_ts,
	max(forget) AS max_forget, min(forget) AS min_forget FROM event WHERE seq BETWEEN s.first AND s.last) e
	WHERE e.min_ts < s.min_ts OR e.max_ts > s.max_ts OR e.min_forget IS NOT NULL AND
	(s.min_forget IS NULL OR s.min_forget > e.min_forget) OR s.max_forget < e.max_forget OR
	s.latest < (SELECT max(greatest(ts, received)) FROM event WHERE seq <= s.last)),
	(SELECT count(*) FROM message m JOIN event e ON e.seq = m.seq JOIN span s ON e.seq BETWEEN s.first AND s.last
	WHERE s.max_forget IS NULL), (SELECT count(*) FROM thread t JOIN span s ON t.n BETWEEN s.first AND s.last
	WHERE s.due IS NULL OR s.due > t.due), (SELECT count(*) FROM (SELECT state, count(*) AS n FROM thread GROUP BY state) t
	FULL JOIN (SELECT i - 1 AS state, n FROM head, unnest(threads) WITH ORDINALITY c (n, i)) c ON c.state = t.state
	WHERE coalesce(t.n, 0) <> coalesce(c.n, 0))`

// spansHold checks what the table span promises. It returns the number of spans.
func spansHold(t *testing.T, place, when string) (spans int) {
	t.Helper()
	direct(t, place, func(conn *pgx.Conn) error {
		var wrong [5]int
		if err := conn.QueryRow(t.Context(), wrongSpans).Scan(&wrong[0], &wrong[1], &wrong[2], &wrong[3], &wrong[4]); err != nil {
			return err
		}
		if wrong != [5]int{} {
			t.Errorf("%s: spans are wrong: %v", when, wrong)
		}
		return conn.QueryRow(t.Context(), "SELECT count(*) FROM span").Scan(&spans)
	})
	return spans
}

// TestSpans stores messages whose times differ from their arrival, in groups of several sizes, while the clock is also set
// back. Reads by time find the same events as a search through all of them, also after the spans were computed anew. Then
// threads end, and everything expires.
func TestSpans(t *testing.T) {
	place, random := t.TempDir(), rand.New(rand.NewPCG(3, 4))
	now := time.Now().Truncate(time.Millisecond)
	start := now
	// A thread that has ended is removed before one that waits would time out.
	policy := relay.Policy{Rules: thread.Rules{PendingTimeout: 9 * time.Hour}, ThreadRetention: time.Second}
	s := open(t, place, Options{Policy: policy, Partition: 300, Now: func() time.Time { return now }})
	var entries []relay.Entry
	for n := range 1500 {
		now = now.Add(time.Duration(random.IntN(3000)) * time.Millisecond)
		if n == 700 {
			now = now.Add(-10 * time.Minute)
		}
		d := envelope.Draft{Thread: fmt.Sprint("t", n), Payload: envelope.Request{RequestID: "r", Intent: "x"},
			TTL: time.Duration(1+random.IntN(50)) * time.Minute,
			TS:  now.Add(time.Duration(random.IntN(580)-290) * time.Second)}
		if n%3 == 0 {
			d.Recipient = key(9).DID()
		}
		m, err := d.Sign(key(byte(1+n%5)), now)
		must(t, err)
		entries = append(entries, relay.Entry{Envelope: m, Received: now})
	}
	for rest := entries; len(rest) > 0; {
		group := rest[:min(len(rest), 1+random.IntN(60))]
		rest = rest[len(group):]
		for _, o := range s.AppendAll(t.Context(), group) {
			must(t, o.Err)
		}
		if len(rest) > 0 && random.IntN(3) == 0 {
			must(t, s.Expire(t.Context(), start, nil))
		}
	}
	if n := spansHold(t, place, "after the posts"); n < 6 || n > 16 {
		t.Errorf("%d spans", n)
	}
	read := func(when string, q relay.Query, want func(relay.Entry) bool) {
		t.Helper()
		q.Expired, q.Limit, q.Headers = true, len(entries), true
		var got, wanted []string
		page, err := s.Read(t.Context(), q)
		must(t, err)
		for _, e := range page.Events {
			got = append(got, e.ID)
		}
		for _, e := range entries {
			if want(e) && (q.Recipient == "" || q.Recipient == e.Envelope.Recipient) {
				wanted = append(wanted, e.Envelope.ID)
			}
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: %d events, want %d", when, len(got), len(wanted))
		}
	}
	readAll := func(when string) {
		for _, recipient := range []relay.Filter{{}, {Recipient: key(9).DID()}} {
			for range 60 {
				at := entries[random.IntN(len(entries))].Envelope.TS.Add(time.Duration(random.IntN(2)) * time.Millisecond)
				read(when+": one instant", relay.Query{Filter: recipient, TS: at}, func(e relay.Entry) bool {
					return e.Envelope.TS.Equal(at)
				})
				read(when+": newer", relay.Query{Filter: recipient, NewerThan: at}, func(e relay.Entry) bool {
					return e.Envelope.TS.After(at) || e.Received.After(at)
				})
			}
		}
	}
	readAll("as written")
	direct(t, place, func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), "DELETE FROM span; SELECT span_fill()")
		return err
	})
	spansHold(t, place, "computed anew")
	readAll("computed anew")
	for _, n := range []int{3, 400, 1000} { // the end of a thread is due earlier than its timeout
		must(t, s.EndThread(t.Context(), thread.Key{Client: entries[n].Envelope.Sender.ID, ID: entries[n].Envelope.Thread}, now))
	}
	spansHold(t, place, "after the ends of threads")
	for range 30 {
		now = now.Add(4 * time.Minute)
		must(t, s.Expire(t.Context(), now, nil))
		spansHold(t, place, fmt.Sprint("at ", now))
	}
	var left [4]int
	now = now.Add(10_000 * time.Hour)
	must(t, s.Expire(t.Context(), now, nil))
	now = now.Add(time.Hour) // the sweep that follows removes the spans of dropped partitions
	must(t, s.Expire(t.Context(), now, nil))
	direct(t, place, func(conn *pgx.Conn) error {
		return conn.QueryRow(context.Background(), "SELECT (SELECT count(*) FROM thread), (SELECT count(*) FROM event WHERE seq < 1500), "+
			"(SELECT count(*) FROM message WHERE seq < 1500), (SELECT count(*) FROM span WHERE last < 1500)").
			Scan(&left[0], &left[1], &left[2], &left[3])
	})
	if left != [4]int{} {
		t.Errorf("threads, events, ids and spans are left: %v", left)
	}
}

// TestSweepReadsLittle stores many messages, and lets PostgreSQL count them. The statements of a sweep then read only the
// rows of the spans that are due, and those behind the last span. The sweep runs each second and holds the lock of all
// nodes, so it must not pass over whole tables, whatever the planner expects.
func TestSweepReadsLittle(t *testing.T) {
	const groups = 60
	place, now := t.TempDir(), time.Now()
	s := open(t, place, Options{Now: func() time.Time { return now }})
	for n := range groups {
		at := now.Add(time.Duration(n-groups) * time.Second)
		var entries []relay.Entry
		for i := range spanSize {
			m, err := envelope.Draft{Thread: fmt.Sprint("t", n*spanSize+i), Recipient: key(byte(100 + i%50)).DID(),
				Payload: envelope.Request{RequestID: "r", Intent: "x"}}.Sign(key(byte(1+i%50)), at)
			must(t, err)
			entries = append(entries, relay.Entry{Envelope: m, Received: at})
		}
		for _, o := range s.AppendAll(t.Context(), entries) {
			must(t, o.Err)
		}
	}
	direct(t, place, func(conn *pgx.Conn) error {
		var due, forget int64 // when the first span is due, and when all its ids are
		if err := conn.QueryRow(t.Context(), "SELECT min(due), min(max_forget) FROM span").Scan(&due, &forget); err != nil {
			return err
		}
		// The node plans its statements once for all arguments, too.
		if _, err := conn.Exec(t.Context(), session+"; ANALYZE; SET plan_cache_mode = force_generic_plan"); err != nil {
			return err
		}
		for name, statement := range map[string]struct{ text, args string }{
			"dueThreads":  {dueThreads, fmt.Sprint(due, ", ", expireSpans, ", ", ledger.ExpireThreads)},
			"delaySpans":  {delaySpans, fmt.Sprint(due, ", ", expireSpans)},
			"forgetSpans": {forgetSpans, fmt.Sprint(forget, ", ", expireRows/spanSize)},
			"removeDue":   {removeDue, fmt.Sprint("0, ", 1<<20, ", ", forget, ", ", expireSpans)},
			"dropParties": {dropParties, fmt.Sprint(due, ", ", expireRows, ", ", due)},
		} {
			var plans []scanned
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "PREPARE "+name+" AS "+statement.text); err != nil {
					return err
				}
				text := "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE " + name + "(" + statement.args + ")"
				return errors.Join(tx.QueryRow(t.Context(), text).Scan(&plans), errUndo)
			})
			if !errors.Is(err, errUndo) || len(plans) == 0 {
				return fmt.Errorf("%s: %w", name, err)
			}
			if rows := plans[0].Plan.rows(); rows > 10*spanSize {
				t.Errorf("%s reads %.0f rows of %d", name, rows, groups*spanSize)
			}
		}
		return nil
	})
}

var errUndo = errors.New("undo")

// scanned is what EXPLAIN says of a statement.
type scanned struct{ Plan scan }

// scan is a node of a plan.
type scan struct {
	Relation string  `json:"Relation Name"` // empty: it reads no table
	Rows     float64 `json:"Actual Rows"`   // that it returns, in each loop
	Removed  float64 `json:"Rows Removed by Filter"`
	Loops    float64 `json:"Actual Loops"`
	Plans    []scan
}

// rows returns how many rows of tables the plan has read.
func (s scan) rows() (sum float64) {
	if s.Relation != "" {
		sum = (s.Rows + s.Removed) * s.Loops
	}
	for _, p := range s.Plans {
		sum += p.rows()
	}
	return sum
}
