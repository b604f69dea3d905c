package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sqlite "modernc.org/sqlite"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// requests returns n REQUESTs of n different senders.
func requests(t testing.TB, n int) []relay.Entry {
	t.Helper()
	entries := make([]relay.Entry, n)
	for i := range entries {
		entries[i] = request(t, key(i+1), "")
	}
	return entries
}

func TestGroupCommit(t *testing.T) {
	s := openNew(t)
	var commits atomic.Int64
	write(t, s, func(w *writer) error {
		return w.conn.Raw(func(driver any) error {
			driver.(sqlite.HookRegisterer).RegisterCommitHook(func() int32 {
				commits.Add(1)
				return 0
			})
			return nil
		})
	})
	for _, size := range []int{1, 2, ledger.MaxGroup} {
		before, stored := commits.Load(), len(events(t, s))
		for _, err := range appendTogether(t, s, requests(t, size)) {
			must(t, err)
		}
		if got := commits.Load() - before; got != 1 {
			t.Errorf("%d events that waited together took %d commits", size, got)
		}
		if got := len(events(t, s)) - stored; got != size {
			t.Errorf("%d of %d events are stored", got, size)
		}
	}
}

// TestRefusalWithinGroup checks that only the refused entry of a group fails. The other entries are stored.
func TestRefusalWithinGroup(t *testing.T) {
	s := openNew(t)
	entries := requests(t, 3)
	entries[1] = signed(t, key(9), envelope.Draft{Thread: "nowhere", Payload: envelope.Cancel{}})
	for i, err := range appendTogether(t, s, entries) {
		if i == 1 && !isCode(err, envelope.CodeThreadNotFound) || i != 1 && err != nil {
			t.Errorf("caller %d: %v", i, err)
		}
	}
	if n := len(events(t, s)); n != 2 {
		t.Errorf("%d events", n)
	}
}

// TestFailingEntry checks that only one caller gets an error if a statement fails because of one entry's data. The
// other entries of the group are stored, and the next group succeeds.
func TestFailingEntry(t *testing.T) {
	s := openNew(t)
	entries := requests(t, 5)
	published := make(chan relay.Posted, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, relay.Cursor{}, nil, func(events []relay.Posted) {
			for _, e := range events {
				published <- e
			}
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	execute(t, s, fmt.Sprintf("CREATE TRIGGER fail BEFORE INSERT ON event WHEN new.id = '%s' "+
		"BEGIN SELECT RAISE(ABORT, 'broken'); END",
		entries[3].Envelope.ID))
	for i, err := range appendTogether(t, s, entries) {
		if broken := err != nil && strings.Contains(err.Error(), "broken") &&
			!isCode(err, envelope.CodeUnavailable); broken != (i == 3) || err != nil && i != 3 {
			t.Errorf("caller %d gets %v", i, err)
		}
	}
	if got := events(t, s); len(got) != 4 {
		t.Errorf("%d events were stored, want 4", len(got))
	}
	for want := range relay.Seq(4) {
		if e := <-published; e.Seq != want+1 {
			t.Errorf("event %d was published, want %d", e.Seq, want+1)
		}
	}
	if s.head.Load() != 4 || s.care.mark.Seq != 4 {
		t.Errorf("head is %d, the mark has %d; want 4 each", s.head.Load(), s.care.mark.Seq)
	}
	execute(t, s, "DROP TRIGGER fail")
	for i, err := range appendTogether(t, s, entries) {
		if err != nil {
			t.Errorf("caller %d, trying again: %v", i, err)
		}
	}
	// The writer's cache of parties must not contain numbers from the transaction that was rolled back.
	for _, e := range entries {
		page, err := s.Read(t.Context(),
			relay.Query{Filter: relay.Filter{Sender: e.Envelope.Sender.ID}, Expired: true, Limit: 9})
		if err != nil || len(page.Events) != 1 || page.Events[0].ID != e.Envelope.ID {
			t.Errorf("want one event of %s, got %+v, %v", e.Envelope.Sender.ID, page.Events, err)
		}
	}
}

// TestUndoneEntryFillsNoInbox checks that an entry that was rolled back does not count against an inbox.
func TestUndoneEntryFillsNoInbox(t *testing.T) {
	o := Options{}
	o.Inbox.Events = 2
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), o)
	bob, undone := key(9).DID(), errors.New("undone")
	appendAll(t, s, []relay.Entry{request(t, key(1), bob)})
	err := s.task(t.Context(), func(w *writer) error {
		return w.transact(func() error {
			_, _, err := w.ledger.Append(w, []relay.Entry{request(t, key(2), bob)})
			return errors.Join(err, undone)
		})
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	appendAll(t, s, []relay.Entry{request(t, key(3), bob)})
	if _, err := s.Append(t.Context(), request(t, key(4), bob)); !isCode(err, envelope.CodeRateLimited) {
		t.Errorf("append to a full inbox: %v", err)
	}
}

// TestFullInboxIsCountedOncePerSecond checks that a full inbox is counted once a second, and not for each post, while
// its messages expire.
func TestFullInboxIsCountedOncePerSecond(t *testing.T) {
	o := Options{}
	o.Inbox.Events = 2
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), o)
	bob, start := key(9).DID(), time.Now().Truncate(time.Second)
	post := func(after time.Duration) error {
		now := start.Add(after)
		m, err := envelope.Draft{Recipient: bob, TS: now, TTL: time.Second,
			Payload: envelope.Request{Intent: "translate"}}.Sign(key(1), now)
		must(t, err)
		_, err = s.Append(t.Context(), relay.Entry{Envelope: m, Received: now})
		return err
	}
	for _, c := range []struct {
		after time.Duration
		full  bool
	}{{0, false}, {100, false}, {900, true}, {999, true}, {1000, false}, {1001, true}, {1100, true}, {1999, true},
		{2000, false}} {
		err := post(c.after * time.Millisecond)
		if full := isCode(err, envelope.CodeRateLimited); full != c.full || err != nil &&
			err.(*envelope.Error).RetryAfter < time.Second {
			t.Errorf("after %d ms: %v, want a full inbox: %v", c.after, err, c.full)
		}
	}
}

// TestReadStopsAtAnnouncedEvents checks that Read accepts every cursor that it has returned, even between a commit and
// its publication.
func TestReadStopsAtAnnouncedEvents(t *testing.T) {
	s := openNew(t)
	for _, e := range requests(t, 3) {
		_, err := s.Append(t.Context(), e)
		must(t, err)
	}
	s.head.Store(2) // as if the third were committed but not yet published
	for _, q := range []relay.Query{{Limit: 1}, {Limit: 3}, {Limit: 9},
		{Limit: 9, Filter: relay.Filter{Recipient: didkey.DID("x"), Broadcast: true}}} {
		page, err := s.Read(t.Context(), q)
		must(t, err)
		if want := min(2, q.Limit); len(page.Events) != want || page.Cursor.Seq != relay.Seq(want) ||
			page.More != (want < 2) {
			t.Errorf("limit %d: %d events, more %v, cursor %v", q.Limit, len(page.Events), page.More, page.Cursor)
		}
		if _, err := s.Read(t.Context(), relay.Query{After: page.Cursor}); err != nil {
			t.Errorf("Read with the returned cursor: %v", err)
		}
	}
}

// TestRefusedRequestLeavesNothing checks that a duplicate or conflicting REQUEST leaves no thread, party or number
// behind.
func TestRefusedRequestLeavesNothing(t *testing.T) {
	s := openNew(t)
	e := request(t, key(1), key(2).DID())
	first, err := s.Append(t.Context(), e)
	must(t, err)
	count := func() (n [4]int) {
		must(t, s.readDB.QueryRowContext(t.Context(),
			"SELECT (SELECT count(*) FROM thread), (SELECT count(*) FROM event), "+
				"(SELECT count(*) FROM party), (SELECT max(seq) FROM event)").Scan(&n[0], &n[1], &n[2], &n[3]))
		return n
	}
	before := count()
	other := signed(t, key(1), envelope.Draft{ID: e.Envelope.ID, Recipient: key(3).DID(), Thread: "another",
		Payload: envelope.Request{Intent: "translate"}})
	if _, err := s.Append(t.Context(), other); codeOfRefusal(err) != envelope.CodeDuplicateID || count() != before {
		t.Errorf("%v; threads, events, parties and numbers: %v, before %v", err, count(), before)
	}
	second := signed(t, key(1), envelope.Draft{Recipient: key(3).DID(), Thread: e.Envelope.Thread,
		Payload: envelope.Request{Intent: "translate"}})
	if _, err := s.Append(t.Context(), second); codeOfRefusal(err) != envelope.CodeInvalidTransition ||
		count() != before {
		t.Errorf("%v; threads, events, parties and numbers: %v, before %v", err, count(), before)
	}
	execute(t, s, "DELETE FROM thread")
	before[0] = 0
	again, err := s.Append(t.Context(), e)
	if err != nil || !again.Duplicate || again.Cursor != first.Cursor || again.ExpiresAt != first.ExpiresAt ||
		count() != before {
		t.Errorf("%+v, %v; want the first receipt %+v; %v, before %v", again, err, first, count(), before)
	}
	next, err := s.Append(t.Context(), request(t, key(1), key(2).DID()))
	if must(t, err); next.Cursor.Seq != first.Cursor.Seq+1 {
		t.Errorf("the next event has number %d", next.Cursor.Seq)
	}
}

func codeOfRefusal(err error) envelope.Code {
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return ""
	}
	return refusal.Code
}
