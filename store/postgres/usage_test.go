//go:build postgres

package postgres

import (
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// TestUsage compares what Measure and Top report with what was stored.
func TestUsage(t *testing.T) {
	store, now := open(t, t.TempDir(), Options{}), time.Now()
	post := func(by byte, d envelope.Draft, at time.Time) relay.Receipt {
		t.Helper()
		e, err := d.Sign(key(by), at)
		must(t, err)
		r, err := store.Append(t.Context(), relay.Entry{Envelope: e, Received: at})
		must(t, err)
		return r
	}
	request := envelope.Request{RequestID: "r", Intent: "echo"}
	inbox := key(9).DID()
	post(1, envelope.Draft{Thread: "old", Payload: request, TTL: time.Minute}, now.Add(-2*time.Hour))
	post(1, envelope.Draft{Thread: "a", Payload: request, Recipient: inbox, TTL: 4 * time.Hour}, now.Add(-2*time.Hour))
	post(1, envelope.Draft{Thread: "b", Payload: request, Recipient: inbox}, now)
	post(2, envelope.Draft{Thread: "c", Payload: request}, now)
	gone := post(2, envelope.Draft{Thread: "d", Payload: request}, now)
	_, err := store.Remove(t.Context(), []relay.Seq{gone.Cursor.Seq}, now)
	must(t, err)
	u, err := store.Measure(t.Context(), now.Add(time.Second))
	must(t, err)
	// The removal has taken a number of its own.
	if u.Events != 3 || u.Expired != 1 || u.Removed != 1 || u.LastHour != 3 || u.LastDay != 5 || u.Seq != 6 ||
		u.Threads[thread.Pending] != 5 || len(u.Types) != 1 || u.Types[0].Events != 3 || u.Types[0].Type != "REQUEST" ||
		u.Identities != 3 || u.BodyBytes <= u.Types[0].Bytes || u.DatabaseBytes == 0 ||
		!u.Oldest.Equal(now.Add(-2*time.Hour)) {
		t.Errorf("%+v", u)
	}
	for by, want := range map[ledger.Ranking][]ledger.Ranked{
		ledger.BySender: {{DID: key(1).DID(), Events: 2}, {DID: key(2).DID(), Events: 1}},
		ledger.ByInbox:  {{DID: inbox, Events: 2, Unasked: 2}},
	} {
		for _, bytes := range []bool{false, true} {
			top, err := store.Top(t.Context(), by, bytes, 5, now.Add(time.Second))
			if err != nil || len(top) != len(want) {
				t.Fatalf("%s: %+v, %v", by, top, err)
			}
			for i, r := range top {
				if r.Bytes < 100 {
					t.Errorf("%s: %+v", by, r)
				}
				if r.Bytes = 0; r != want[i] {
					t.Errorf("%s: %+v, want %+v", by, r, want[i])
				}
			}
		}
	}
	if top, err := store.Top(t.Context(), ledger.BySender, false, 1, now.Add(time.Hour)); err != nil || len(top) != 1 {
		t.Errorf("the first of the list: %+v, %v", top, err)
	}
	if done, err := store.Checkpoint(t.Context()); !done || err != nil {
		t.Errorf("checkpoint: %v, %v", done, err)
	}
}

// TestRecordedBackups checks that all nodes know when the last backup was made, and that an old time does not replace a
// newer one.
func TestRecordedBackups(t *testing.T) {
	place, at := t.TempDir(), time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	a, b := open(t, place, Options{}), open(t, place, Options{})
	if s, err := b.Servers(t.Context()); err != nil || s.Backup != nil || s.Standbys == nil || *s.Standbys != 0 ||
		s.Required != 0 {
		t.Errorf("before: %+v, %v", s, err)
	}
	for _, d := range []time.Duration{0, time.Hour, -time.Hour} {
		must(t, a.RecordBackup(t.Context(), at.Add(d)))
	}
	if s, err := b.Stats(t.Context()); err != nil || s.Backup == nil || !s.Backup.Equal(at.Add(time.Hour)) {
		t.Errorf("the last backup is that of %v, %v", s.Backup, err)
	}
}

// TestRequiredStandbys reads the forms of synchronous_standby_names.
func TestRequiredStandbys(t *testing.T) {
	for names, want := range map[string]int{"": 0, "*": 1, "db1": 1, "db1, db2": 1, "ANY 2 (db1, db2, db3)": 2,
		"any 1(db1,db2)": 1, "FIRST 3 (*)": 3, " 2 (db1, db2) ": 2, `"1 (x)", y`: 1} {
		if n := requiredStandbys(names); n != want {
			t.Errorf("%q: %d, want %d", names, n, want)
		}
	}
}
