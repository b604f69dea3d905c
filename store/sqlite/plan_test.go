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
func plan(t *testing.T, s *Store, q relay.Query, wide bool) string {
	t.Helper()
	text, args := selectEvents(q, time.Minute, wide)
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

// Each query is driven by one index, in whose order it finds the events. Nothing is sorted but numbers of events.
func TestPlans(t *testing.T) {
	s := openNew(t)
	const (
		asked      = "SEARCH event USING INDEX event_asked (recipient=? AND rowid>? AND rowid<?)"
		unasked    = "SEARCH event USING INDEX event_unasked (recipient=? AND seq>? AND seq<?)"
		sequence   = "SEARCH event USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
		newerBound = "SEARCH event USING COVERING INDEX event_by_ts (ts<?)"
		byNumber   = "SEARCH event USING INTEGER PRIMARY KEY (rowid=?)\n"
	)
	alice, bob := key(1).DID(), key(2).DID()
	after, at := relay.Cursor{Epoch: 1, Seq: 1}, time.Now()
	for _, c := range []struct {
		name   string
		q      relay.Query
		drives string
		wide   bool
	}{
		{"nothing", relay.Query{After: after}, sequence, false},
		{"type", relay.Query{After: after, Filter: relay.Filter{Type: envelope.TypeOffer}}, sequence, false},
		{"recipient", relay.Query{After: after, Filter: relay.Filter{Recipient: alice}}, asked, false},
		{"recipient and all else", relay.Query{After: after, NewerThan: at,
			Filter: relay.Filter{Recipient: alice, Sender: bob, Type: envelope.TypeOffer, Thread: "t", Client: bob}}, asked, false},
		{"recipient and thread of anyone", relay.Query{After: after, Filter: relay.Filter{Recipient: alice, Thread: "t"}}, unasked, false},
		{"thread and client", relay.Query{After: after, Filter: relay.Filter{Thread: "t", Client: alice, Sender: bob}},
			"SEARCH event USING INDEX event_by_thread (thread=? AND rowid>? AND rowid<?)", false},
		{"thread", relay.Query{After: after, Filter: relay.Filter{Thread: "t"}},
			byNumber + "LIST SUBQUERY 2\nSEARCH event USING COVERING INDEX event_by_thread (thread=?)", false},
		{"a thread of many", relay.Query{After: after, Filter: relay.Filter{Thread: "t"}}, sequence, true},
		{"sender", relay.Query{After: after, Filter: relay.Filter{Sender: alice, Type: envelope.TypeOffer}},
			byNumber + "LIST SUBQUERY 2\nSEARCH event USING COVERING INDEX sqlite_autoindex_event_1 (sender=?)", false},
		{"a sender of many", relay.Query{After: after, Filter: relay.Filter{Sender: alice, Type: envelope.TypeOffer}}, sequence, true},
		{"ts", relay.Query{TS: at, Filter: relay.Filter{Sender: alice, Thread: "t"}},
			byNumber + "LIST SUBQUERY 1\nSEARCH event USING COVERING INDEX event_by_ts (ts=?)", false},
		{"a ts of many", relay.Query{TS: at, After: after, Filter: relay.Filter{Sender: alice, Thread: "t"}}, sequence, true},
		{"ts and recipient", relay.Query{TS: at, Filter: relay.Filter{Recipient: alice, Sender: bob}},
			"SEARCH event USING INDEX event_by_ts (ts=? AND recipient=? AND rowid<?)", false},
		{"ts and recipient in a stretch", relay.Query{TS: at, NewerThan: at, After: after, Filter: relay.Filter{Recipient: alice, Sender: bob}},
			"SEARCH event USING INDEX event_by_ts (ts=? AND recipient=? AND rowid>? AND rowid<?)", false},
		{"newer than", relay.Query{NewerThan: at}, newerBound, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan(t, s, c.q, c.wide)
			if !strings.Contains(got, c.drives) || strings.Contains(got, scans) || strings.Contains(got, sorts) {
				t.Errorf("want %q:\n%s", c.drives, got)
			}
		})
	}
	// Who may not see everything is led past the mail of others, not through it.
	t.Run("what everybody may see", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Type: envelope.TypeOffer}}, false)
		if strings.Count(got, asked) != 1 || strings.Contains(got, unasked) || strings.Contains(got, scans) || strings.Contains(got, sorts) || strings.Contains(got, sequence) {
			t.Errorf("want %q:\n%s", asked, got)
		}
	})
	t.Run("what one reader may see", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true, DID: alice}}}, false)
		if strings.Count(got, asked) != 2 || strings.Count(got, unasked) != 1 || strings.Count(got, "sqlite_autoindex_event_1 (sender=?)") != 1 ||
			strings.Contains(got, scans) || strings.Contains(got, sorts) || strings.Contains(got, sequence) {
			t.Errorf("want %q twice:\n%s", asked, got)
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
		inboxes, sents int // of the ways
		instants       int
	}{
		{"a sender, to nobody", relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Sender: bob}}, 1, 0, 0},
		{"a thread, to nobody", relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Thread: "t"}}, 1, 0, 0},
		{"a time, to nobody", relay.Query{TS: at, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Sender: bob}}, 0, 0, 1},
		{"a sender, to a reader", relay.Query{After: after, Filter: relay.Filter{Viewer: mine, Sender: bob, Thread: "t"}}, 3, 0, 0},
		{"a thread, to a reader", relay.Query{After: after, Filter: relay.Filter{Viewer: mine, Thread: "t"}}, 3, 1, 0},
		{"a time, to a reader", relay.Query{TS: at, Filter: relay.Filter{Viewer: mine}}, 0, 1, 2},
		{"oneself", relay.Query{After: after, Filter: relay.Filter{Viewer: mine, Sender: alice, Thread: "t"}}, 0, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan(t, s, c.q, false)
			if strings.Count(got, asked)+strings.Count(got, unasked) != c.inboxes || strings.Count(got, sent) != c.sents || strings.Count(got, instant) != c.instants ||
				strings.Count(got, "SEARCH event ")-strings.Count(got, byNumber) != c.inboxes+c.sents+c.instants ||
				strings.Contains(got, scans) || strings.Contains(got, sorts) {
				t.Errorf("want %d inboxes, %d senders, %d instants:\n%s", c.inboxes, c.sents, c.instants, got)
			}
		})
	}
	t.Run("recipient and broadcasts", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after, Filter: relay.Filter{Recipient: alice, Broadcast: true}}, false)
		if strings.Count(got, asked) != 2 || strings.Count(got, unasked) != 1 || strings.Contains(got, scans) || strings.Contains(got, sorts) {
			t.Errorf("want %q twice:\n%s", asked, got)
		}
	})
}

// What bounds a query is counted in indexes, and nothing that an index does not answer is asked of a row.
func TestPlansOfBounds(t *testing.T) {
	s := openNew(t)
	alice, bob, at := key(1).DID(), key(2).DID(), time.Now()
	const inIndex = "SEARCH event USING COVERING INDEX "
	for name, c := range map[string]struct {
		q    relay.Query
		want []string
	}{
		"recipient": {relay.Query{Filter: relay.Filter{Recipient: alice, Sender: bob, Type: envelope.TypeOffer, Thread: "t"}},
			[]string{inIndex + "event_asked (recipient=? AND rowid<?)", inIndex + "event_unasked (recipient=? AND seq<?)"}},
		"recipient, newer": {relay.Query{NewerThan: at, Filter: relay.Filter{Recipient: alice}},
			[]string{inIndex + "event_asked (recipient=? AND rowid>? AND rowid<?)", inIndex + "event_unasked (recipient=? AND seq>? AND seq<?)"}},
		"recipient, an instant": {relay.Query{TS: at, Filter: relay.Filter{Recipient: alice}},
			[]string{inIndex + "event_by_ts (ts=? AND recipient=? AND rowid<?)"}},
		"sender": {relay.Query{Filter: relay.Filter{Sender: alice}}, []string{"SEARCH event USING INTEGER PRIMARY KEY (rowid=?)", inIndex + "sqlite_autoindex_event_1 (sender=?)"}},
		"what one reader may see": {relay.Query{Filter: relay.Filter{Viewer: relay.Viewer{Limited: true, DID: alice}}}, []string{
			inIndex + "event_asked (recipient=? AND rowid<?)", inIndex + "event_asked (recipient=? AND rowid<?)", inIndex + "event_unasked (recipient=? AND seq<?)",
			"SEARCH event USING INTEGER PRIMARY KEY (rowid=?)", inIndex + "sqlite_autoindex_event_1 (sender=?)"}},
		"type": {relay.Query{Filter: relay.Filter{Type: envelope.TypeOffer}}, []string{"SEARCH event USING INTEGER PRIMARY KEY (rowid<?)"}},
	} {
		c.q.Look = 10
		text, args := selectHorizon(c.q, time.Minute, false)
		got := explain(t, s, text, args...)
		rest := got
		for _, want := range c.want {
			if !strings.Contains(rest, want) {
				t.Errorf("%s: want %q:\n%s", name, want, got)
			}
			rest = strings.Replace(rest, want, "", 1)
		}
		if strings.Contains(got, sorts) || strings.Contains(strings.ReplaceAll(rest, inIndex+"event_by_ts (ts<?)", ""), "SEARCH event") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	for _, q := range []relay.Query{{TS: at, Look: 10}, {Filter: relay.Filter{Sender: alice}, Look: 10}, {Filter: relay.Filter{Thread: "t"}, Look: 10}} {
		text, args := crowd(q)
		if got := explain(t, s, text, args...); strings.Contains(got, "SCAN event") || strings.Contains(got, "SEARCH event USING INDEX") {
			t.Errorf("a crowd is counted by\n%s", got)
		}
	}
}
