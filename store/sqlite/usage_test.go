package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// TestUsage compares what Measure and Top report with what was stored. The store is open meanwhile.
func TestUsage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	store, err := Open(t.Context(), path, Options{Reserve: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	now := time.Now()
	post := func(by byte, d envelope.Draft, at time.Time) relay.Receipt {
		t.Helper()
		e, err := d.Sign(key(int(by)), at)
		if err != nil {
			t.Fatal(err)
		}
		r, err := store.Append(t.Context(), relay.Entry{Envelope: e, Received: at})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	request := envelope.Request{RequestID: "r", Intent: "echo"}
	inbox := key(9).DID()
	post(1, envelope.Draft{Thread: "old", Payload: request, TTL: time.Minute}, now.Add(-2*time.Hour))
	post(1, envelope.Draft{Thread: "a", Payload: request, Recipient: inbox, TTL: 4 * time.Hour}, now.Add(-2*time.Hour))
	post(1, envelope.Draft{Thread: "b", Payload: request, Recipient: inbox}, now)
	post(2, envelope.Draft{Thread: "c", Payload: request}, now)
	if done, err := store.Checkpoint(t.Context()); !done || err != nil {
		t.Errorf("checkpoint: %v, %v", done, err)
	}
	gone := post(2, envelope.Draft{Thread: "d", Payload: request}, now)
	if _, err := store.Remove(t.Context(), []relay.Seq{gone.Cursor.Seq}, now); err != nil {
		t.Fatal(err)
	}
	u, err := Measure(t.Context(), path, now.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if u.Events != 3 || u.Expired != 1 || u.Removed != 1 || u.LastHour != 3 || u.LastDay != 5 || u.Seq != 5 ||
		u.Threads[thread.Pending] != 5 || len(u.Types) != 1 || u.Types[0].Events != 3 || u.Identities != 3 ||
		u.BodyBytes <= u.Types[0].Bytes || u.DatabaseBytes == 0 || !u.Oldest.Equal(now.Add(-2*time.Hour)) {
		t.Errorf("%+v", u)
	}
	for by, want := range map[ledger.Ranking][]ledger.Ranked{
		ledger.BySender: {{DID: key(1).DID(), Events: 2}, {DID: key(2).DID(), Events: 1}},
		ledger.ByInbox:  {{DID: inbox, Events: 2, Unasked: 2}},
	} {
		for _, bytes := range []bool{false, true} {
			top, err := Top(t.Context(), path, by, bytes, 5, now.Add(time.Second))
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
	if done, err := store.Checkpoint(t.Context()); !done || err != nil {
		t.Errorf("checkpoint: %v, %v", done, err)
	}
}
