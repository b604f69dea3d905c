package sqlite

import (
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

const (
	sorts = "USE TEMP B-TREE FOR ORDER BY"
	scans = "SCAN event"
)

// plan is what SQLite would do for q.
func plan(t *testing.T, s *Store, q relay.Query) string {
	t.Helper()
	text, args := selectEvents(q, time.Minute)
	return explain(t, s, text, args...)
}

// explain is what SQLite would do for a statement. Arguments that it has no place for are left out.
func explain(t *testing.T, s *Store, text string, args ...any) string {
	t.Helper()
	args = args[:min(len(args), strings.Count(text, "?"))]
	rows, err := s.readDB.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, args...)
	must(t, err)
	defer rows.Close()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		must(t, rows.Scan(&id, &parent, &unused, &detail))
		steps = append(steps, detail)
	}
	must(t, rows.Err())
	return strings.Join(steps, "\n")
}

// Each query is driven by one index, in whose order it finds the events.
func TestPlans(t *testing.T) {
	s := openNew(t)
	const (
		inbox      = "SEARCH event USING INDEX event_by_recipient (recipient=? AND rowid>? AND rowid<?)"
		sequence   = "SEARCH event USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
		newerBound = "SEARCH event USING COVERING INDEX event_by_ts (ts<?)"
	)
	alice, bob := key(1).DID(), key(2).DID()
	after, at := relay.Cursor{Epoch: 1, Seq: 1}, time.Now()
	for _, c := range []struct {
		name   string
		q      relay.Query
		drives string
		sorted bool // in memory: the index has another order
	}{
		{"nothing", relay.Query{After: after}, sequence, false},
		{"type", relay.Query{After: after, Filter: relay.Filter{Type: envelope.TypeOffer}}, sequence, false},
		{"recipient", relay.Query{After: after, Filter: relay.Filter{Recipient: alice}}, inbox, false},
		{"recipient and all else", relay.Query{After: after, NewerThan: at,
			Filter: relay.Filter{Recipient: alice, Sender: bob, Type: envelope.TypeOffer, Thread: "t", Client: bob}}, inbox, false},
		{"recipient and thread of anyone", relay.Query{After: after, Filter: relay.Filter{Recipient: alice, Thread: "t"}}, inbox, false},
		{"thread and client", relay.Query{After: after, Filter: relay.Filter{Thread: "t", Client: alice, Sender: bob}},
			"SEARCH event USING INDEX event_by_thread (thread=? AND rowid>? AND rowid<?)", false},
		{"thread", relay.Query{After: after, Filter: relay.Filter{Thread: "t"}},
			"SEARCH event USING INDEX event_by_thread (thread=? AND rowid>? AND rowid<?)", true},
		{"sender", relay.Query{After: after, Filter: relay.Filter{Sender: alice, Type: envelope.TypeOffer}},
			"SEARCH event USING INDEX sqlite_autoindex_event_1 (sender=?)", true},
		{"ts", relay.Query{TS: at, Filter: relay.Filter{Sender: alice, Thread: "t"}}, "SEARCH event USING INDEX event_by_ts (ts=?)", true},
		{"ts and recipient", relay.Query{TS: at, Filter: relay.Filter{Recipient: alice, Sender: bob}},
			"SEARCH event USING INDEX event_by_ts (ts=? AND recipient=? AND rowid<?)", false},
		{"newer than", relay.Query{NewerThan: at}, newerBound, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan(t, s, c.q)
			if !strings.Contains(got, c.drives) || strings.Contains(got, scans) || strings.Contains(got, sorts) != c.sorted {
				t.Errorf("want %q, sorted %v:\n%s", c.drives, c.sorted, got)
			}
		})
	}
	// Who may not see everything is led past the mail of others, not through it.
	t.Run("what everybody may see", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Type: envelope.TypeOffer}})
		if strings.Count(got, inbox) != 1 || strings.Contains(got, scans) || strings.Contains(got, sorts) || strings.Contains(got, sequence) {
			t.Errorf("want %q:\n%s", inbox, got)
		}
	})
	t.Run("what one reader may see", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true, DID: alice}}})
		if strings.Count(got, inbox) != 2 || strings.Count(got, "sqlite_autoindex_event_1 (sender=?)") != 1 || strings.Contains(got, scans) || strings.Contains(got, sequence) {
			t.Errorf("want %q twice:\n%s", inbox, got)
		}
	})
	// Nor do a sender, a thread or a time lead through it: how long it took would tell how much there is.
	mine := relay.Viewer{Limited: true, DID: alice}
	const (
		sent    = "sqlite_autoindex_event_1 (sender=?)"
		instant = "SEARCH event USING INDEX event_by_ts (ts=? AND recipient=? AND rowid<?)"
	)
	for _, c := range []struct {
		name           string
		q              relay.Query
		inboxes, sents int
		instants       int
	}{
		{"a sender, to nobody", relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Sender: bob}}, 1, 0, 0},
		{"a thread, to nobody", relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Thread: "t"}}, 1, 0, 0},
		{"a time, to nobody", relay.Query{TS: at, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Sender: bob}}, 0, 0, 1},
		{"a sender, to a reader", relay.Query{After: after, Filter: relay.Filter{Viewer: mine, Sender: bob, Thread: "t"}}, 2, 0, 0},
		{"a thread, to a reader", relay.Query{After: after, Filter: relay.Filter{Viewer: mine, Thread: "t"}}, 2, 1, 0},
		{"a time, to a reader", relay.Query{TS: at, Filter: relay.Filter{Viewer: mine}}, 0, 1, 2},
		{"oneself", relay.Query{After: after, Filter: relay.Filter{Viewer: mine, Sender: alice, Thread: "t"}}, 0, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan(t, s, c.q)
			if strings.Count(got, inbox) != c.inboxes || strings.Count(got, sent) != c.sents || strings.Count(got, instant) != c.instants ||
				strings.Count(got, "SEARCH event ") != c.inboxes+c.sents+c.instants || strings.Contains(got, scans) {
				t.Errorf("want %d inboxes, %d senders, %d instants:\n%s", c.inboxes, c.sents, c.instants, got)
			}
		})
	}
	t.Run("recipient and broadcasts", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after, Filter: relay.Filter{Recipient: alice, Broadcast: true}})
		if strings.Count(got, inbox) != 2 || strings.Contains(got, scans) {
			t.Errorf("want %q twice:\n%s", inbox, got)
		}
	})
}
