package sqlite

import (
	"regexp"
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

// plan returns SQLite's query plan for q.
func plan(t *testing.T, s *Store, q relay.Query, scanAll bool) string {
	t.Helper()
	text, args := selectEvents(lookupFor(q, scanAll))
	return explain(t, s, text, args...)
}

// lookupFor returns a lookup for q in which the tail has no events.
func lookupFor(q relay.Query, scanAll bool) *lookup {
	l := &lookup{Query: q, skew: time.Minute, scanAll: scanAll}
	if q.Thread != "" {
		l.threads = []int64{1}
	}
	return l
}

var subqueryNumber = regexp.MustCompile(`SUBQUERY \d+`)

// explain returns SQLite's query plan for a statement, without the numbers of subqueries. It drops surplus arguments.
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
	return subqueryNumber.ReplaceAllString(strings.Join(steps, "\n"), "SUBQUERY")
}

// TestPlans checks that each query uses one index, which yields the events in order. SQLite may sort event numbers
// only.
func TestPlans(t *testing.T) {
	s := openNew(t)
	const (
		asked      = "SEARCH event_asked USING PRIMARY KEY (recipient=? AND seq>? AND seq<?)"
		unasked    = "SEARCH event_unasked USING PRIMARY KEY (recipient=? AND seq>? AND seq<?)"
		sequence   = "SEARCH event USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
		newerBound = "SEARCH event_ts USING PRIMARY KEY (ts<?)"
		byNumber   = "SEARCH event USING INTEGER PRIMARY KEY (rowid=?)\n"
		bySubquery = byNumber + "LIST SUBQUERY\n"
	)
	alice, bob := key(1).DID(), key(2).DID()
	after, at := relay.Cursor{Epoch: 1, Seq: 1}, time.Now()
	for _, c := range []struct {
		name    string
		q       relay.Query
		drives  string
		scanAll bool
	}{
		{"no condition", relay.Query{After: after}, sequence, false},
		{"type", relay.Query{After: after, Filter: relay.Filter{Type: envelope.TypeOffer}}, sequence, false},
		{"recipient", relay.Query{After: after, Filter: relay.Filter{Recipient: alice}}, asked, false},
		{"recipient and all other fields", relay.Query{After: after, NewerThan: at,
			Filter: relay.Filter{Recipient: alice, Sender: bob, Type: envelope.TypeOffer, Thread: "t", Client: bob}},
			asked, false},
		{"recipient and thread of anyone",
			relay.Query{After: after, Filter: relay.Filter{Recipient: alice, Thread: "t"}}, unasked, false},
		{"thread and client", relay.Query{After: after, Filter: relay.Filter{Thread: "t", Client: alice, Sender: bob}},
			"SEARCH event_thread USING PRIMARY KEY (thread=? AND seq>? AND seq<?)", false},
		{"thread", relay.Query{After: after, Filter: relay.Filter{Thread: "t"}},
			bySubquery + "SEARCH event_thread USING PRIMARY KEY (thread=? AND seq<?)", false},
		{"a thread id with many events", relay.Query{After: after, Filter: relay.Filter{Thread: "t"}}, sequence, true},
		{"sender", relay.Query{After: after, Filter: relay.Filter{Sender: alice, Type: envelope.TypeOffer}},
			bySubquery + "SEARCH event_sent USING PRIMARY KEY (sender=?)", false},
		{"a sender with many events",
			relay.Query{After: after, Filter: relay.Filter{Sender: alice, Type: envelope.TypeOffer}}, sequence, true},
		{"ts", relay.Query{TS: at, Filter: relay.Filter{Sender: alice, Thread: "t"}},
			bySubquery + "SEARCH event_ts USING PRIMARY KEY (ts=?)", false},
		{"a ts with many events", relay.Query{TS: at, After: after, Filter: relay.Filter{Sender: alice, Thread: "t"}},
			sequence, true},
		{"ts and recipient", relay.Query{TS: at, Filter: relay.Filter{Recipient: alice, Sender: bob}},
			"SEARCH event_ts USING PRIMARY KEY (ts=? AND recipient=? AND seq<?)", false},
		{"ts and recipient in a range",
			relay.Query{TS: at, NewerThan: at, After: after, Filter: relay.Filter{Recipient: alice, Sender: bob}},
			"SEARCH event_ts USING PRIMARY KEY (ts=? AND recipient=? AND seq>? AND seq<?)", false},
		{"newer than", relay.Query{NewerThan: at}, newerBound, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan(t, s, c.q, c.scanAll)
			if !strings.Contains(got, c.drives) || strings.Contains(got, scans) || strings.Contains(got, sorts) {
				t.Errorf("want %q:\n%s", c.drives, got)
			}
		})
	}
	// A reader with limited rights uses indexes that skip the messages of others.
	t.Run("broadcasts only", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after,
			Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Type: envelope.TypeOffer}}, false)
		if strings.Count(got, asked) != 1 || strings.Contains(got, unasked) || strings.Contains(got, scans) ||
			strings.Contains(got, sorts) || strings.Contains(got, sequence) {
			t.Errorf("want %q:\n%s", asked, got)
		}
	})
	t.Run("what one reader may see", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after,
			Filter: relay.Filter{Viewer: relay.Viewer{Limited: true, DID: alice}}}, false)
		if strings.Count(got, asked) != 2 || strings.Count(got, unasked) != 1 ||
			strings.Count(got, "event_sent USING PRIMARY KEY (sender=?)") != 1 ||
			strings.Contains(got, scans) || strings.Contains(got, sorts) || strings.Contains(got, sequence) {
			t.Errorf("want %q twice:\n%s", asked, got)
		}
	})
	// The same holds for queries by sender, thread or time. The time of a read must not show how many messages others
	// have.
	mine := relay.Viewer{Limited: true, DID: alice}
	const (
		sent    = "event_sent USING PRIMARY KEY (sender=?)"
		instant = "SEARCH event_ts USING PRIMARY KEY (ts=? AND recipient=? AND seq<?)"
	)
	for _, c := range []struct {
		name           string
		q              relay.Query
		inboxes, sents int // numbers of access paths
		instants       int
	}{
		{"a sender, read by nobody",
			relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Sender: bob}}, 1, 0, 0},
		{"a thread, read by nobody",
			relay.Query{After: after, Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Thread: "t"}}, 1, 0, 0},
		{"a time, read by nobody", relay.Query{TS: at,
			Filter: relay.Filter{Viewer: relay.Viewer{Limited: true}, Sender: bob}}, 0, 0, 1},
		{"a sender, read by a DID", relay.Query{After: after,
			Filter: relay.Filter{Viewer: mine, Sender: bob, Thread: "t"}}, 3, 0, 0},
		{"a thread, read by a DID",
			relay.Query{After: after, Filter: relay.Filter{Viewer: mine, Thread: "t"}}, 3, 1, 0},
		{"a time, read by a DID", relay.Query{TS: at, Filter: relay.Filter{Viewer: mine}}, 0, 1, 2},
		{"the reader as sender", relay.Query{After: after,
			Filter: relay.Filter{Viewer: mine, Sender: alice, Thread: "t"}}, 0, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan(t, s, c.q, false)
			if strings.Count(got, asked)+strings.Count(got, unasked) != c.inboxes ||
				strings.Count(got, sent) != c.sents || strings.Count(got, instant) != c.instants ||
				strings.Count(got, bySubquery) != c.sents || strings.Contains(got, sequence) ||
				strings.Contains(got, scans) || strings.Contains(got, sorts) {
				t.Errorf("want %d inboxes, %d senders, %d instants:\n%s", c.inboxes, c.sents, c.instants, got)
			}
		})
	}
	t.Run("recipient and broadcasts", func(t *testing.T) {
		got := plan(t, s, relay.Query{After: after, Filter: relay.Filter{Recipient: alice, Broadcast: true}}, false)
		if strings.Count(got, asked) != 2 || strings.Count(got, unasked) != 1 || strings.Contains(got, scans) ||
			strings.Contains(got, sorts) {
			t.Errorf("want %q twice:\n%s", asked, got)
		}
	})
}

// TestPlansOfThreads checks that the table of due times yields the due threads in order, that counting threads by state
// reads only this index, and that ids are read along their indexes.
func TestPlansOfThreads(t *testing.T) {
	s := openNew(t)
	var stmts statements
	for text, want := range map[string]string{
		stmts.all()[&stmts.dueThreads]: "SEARCH thread_due USING PRIMARY KEY (due<?)",
		selectThreadCounts():           "SCAN thread USING COVERING INDEX thread_by_state",
		sentIDs:                        "SEARCH event_sent USING PRIMARY KEY ((sender,id)>(?,?))",
		roleIDs:                        "SEARCH thread_role USING PRIMARY KEY ((id,party)>(?,?))",
		countIDs: "SCAN CONSTANT ROW\nSCALAR SUBQUERY\nSCAN event_sent\n" +
			"SCALAR SUBQUERY\nSCAN thread USING COVERING INDEX thread_by_state",
	} {
		if got := explain(t, s, text, 1, 1, 1); got != want {
			t.Errorf("%s\nis run by\n%s\nwant\n%s", text, got, want)
		}
	}
}

// TestPlansOfBackwardReads checks that a read backwards uses the same indexes as a read forwards, and never sorts
// events.
func TestPlansOfBackwardReads(t *testing.T) {
	s := openNew(t)
	alice, bob := key(1).DID(), key(2).DID()
	for name, filter := range map[string]relay.Filter{
		"no condition":              {},
		"type":                      {Type: envelope.TypeOffer},
		"recipient":                 {Recipient: alice},
		"recipient and broadcasts":  {Recipient: alice, Broadcast: true},
		"recipient, sender, thread": {Recipient: alice, Sender: bob, Thread: "t"},
		"thread":                    {Thread: "t"},
		"thread and client":         {Thread: "t", Client: alice},
		"sender":                    {Sender: alice},
		"read by nobody":            {Viewer: relay.Viewer{Limited: true}},
		"read by a DID":             {Viewer: relay.Viewer{Limited: true, DID: alice}},
		"a thread, read by a DID":   {Viewer: relay.Viewer{Limited: true, DID: alice}, Thread: "t"},
		"the reader as sender":      {Viewer: relay.Viewer{Limited: true, DID: alice}, Sender: alice},
	} {
		for _, scanAll := range []bool{false, true} {
			forward := relay.Query{Filter: filter, After: relay.Cursor{Epoch: 1, Seq: 1}, MaxExamined: 10}
			back := forward
			back.Backward = true
			got, want := plan(t, s, back, scanAll), plan(t, s, forward, scanAll)
			if got != want || strings.Contains(got, sorts) {
				t.Errorf("%s: backwards\n%s\nforwards\n%s", name, got, want)
			}
			text, args := selectHorizon(lookupFor(back, scanAll))
			got = explain(t, s, text, args...)
			text, args = selectHorizon(lookupFor(forward, scanAll))
			if want = explain(t, s, text, args...); got != want || strings.Contains(got, sorts) {
				t.Errorf("%s: the bound backwards\n%s\nforwards\n%s", name, got, want)
			}
		}
	}
}

// TestPlansOfBounds checks that the limits of a query are counted in indexes only, or by stepping over rows.
func TestPlansOfBounds(t *testing.T) {
	s := openNew(t)
	alice, bob, at := key(1).DID(), key(2).DID(), time.Now()
	const inIndex = "SEARCH "
	for name, c := range map[string]struct {
		q    relay.Query
		want []string
	}{
		"recipient": {
			relay.Query{Filter: relay.Filter{Recipient: alice, Sender: bob, Type: envelope.TypeOffer, Thread: "t"}},
			[]string{inIndex + "event_asked USING PRIMARY KEY (recipient=? AND seq<?)",
				inIndex + "event_unasked USING PRIMARY KEY (recipient=? AND seq<?)"}},
		"recipient, newer": {relay.Query{NewerThan: at, Filter: relay.Filter{Recipient: alice}},
			[]string{inIndex + "event_asked USING PRIMARY KEY (recipient=? AND seq>? AND seq<?)",
				inIndex + "event_unasked USING PRIMARY KEY (recipient=? AND seq>? AND seq<?)"}},
		"recipient and ts": {relay.Query{TS: at, Filter: relay.Filter{Recipient: alice}},
			[]string{inIndex + "event_ts USING PRIMARY KEY (ts=? AND recipient=? AND seq<?)"}},
		"sender": {relay.Query{Filter: relay.Filter{Sender: alice}}, []string{
			"SEARCH event USING INTEGER PRIMARY KEY (rowid=?)", inIndex + "event_sent USING PRIMARY KEY (sender=?)"}},
		"what one reader may see": {relay.Query{
			Filter: relay.Filter{Viewer: relay.Viewer{Limited: true, DID: alice}}}, []string{
			inIndex + "event_asked USING PRIMARY KEY (recipient=? AND seq<?)", inIndex + "event_asked USING PRIMARY KEY (recipient=? AND seq<?)",
			inIndex + "event_unasked USING PRIMARY KEY (recipient=? AND seq<?)",
			"SEARCH event USING INTEGER PRIMARY KEY (rowid=?)", inIndex + "event_sent USING PRIMARY KEY (sender=?)"}},
		"type": {relay.Query{Filter: relay.Filter{Type: envelope.TypeOffer}}, []string{
			"SEARCH event USING INTEGER PRIMARY KEY (rowid<?)"}},
	} {
		c.q.MaxExamined = 10
		text, args := selectHorizon(lookupFor(c.q, false))
		got := explain(t, s, text, args...)
		rest := got
		for _, want := range c.want {
			if !strings.Contains(rest, want) {
				t.Errorf("%s: want %q:\n%s", name, want, got)
			}
			rest = strings.Replace(rest, want, "", 1)
		}
		if strings.Contains(got, sorts) ||
			strings.Contains(strings.ReplaceAll(rest, inIndex+"event_ts USING PRIMARY KEY (ts<?)", ""), "SEARCH event") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	for _, q := range []relay.Query{{TS: at, MaxExamined: 10}, {Filter: relay.Filter{Sender: alice}, MaxExamined: 10},
		{Filter: relay.Filter{Thread: "t"}, MaxExamined: 10}} {
		text, args := selectSortCount(lookupFor(q, false))
		if got := explain(t, s, text, args...); strings.Contains(got, "SCAN event") ||
			strings.Contains(got, "SEARCH event USING INDEX") {
			t.Errorf("the events to sort are counted by\n%s", got)
		}
	}
}
