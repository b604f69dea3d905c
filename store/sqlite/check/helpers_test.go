package check

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
)

// key returns the same identity for the same n every time.
func key(n int) didkey.Key {
	k, err := didkey.FromSeed(bytes.Repeat([]byte{byte(n), byte(n >> 8)}, 16))
	if err != nil {
		panic(err) // 32 bytes are always a valid seed
	}
	return k
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openAt(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Reserve: 1 << 20})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// request returns a REQUEST that opens a new thread.
func request(t testing.TB, by didkey.Key, to didkey.DID) relay.Entry {
	t.Helper()
	return signed(t, by, envelope.Draft{Recipient: to, Payload: envelope.Request{Intent: "translate"}})
}

func signed(t testing.TB, by didkey.Key, d envelope.Draft) relay.Entry {
	t.Helper()
	now := time.Now()
	m, err := d.Sign(by, now)
	must(t, err)
	return relay.Entry{Envelope: m, Received: now}
}

// completeThread takes one thread from its REQUEST to its RESULT. It calls onReceipt for each receipt.
func completeThread(ctx context.Context, s relay.Store, n int, onReceipt func(relay.Receipt)) error {
	client, agent := key(n), key(n+1)
	id := envelope.NewID("thread", time.Now())
	for i, d := range []envelope.Draft{
		{Recipient: agent.DID(), Payload: envelope.Request{RequestID: "r", Intent: "translate"}},
		{Recipient: client.DID(), Payload: envelope.Offer{RequestID: "r"}},
		{Recipient: agent.DID(), Payload: envelope.Accept{RequestID: "r"}},
		{Recipient: client.DID(), Payload: envelope.Result{RequestID: "r", Status: "success"}},
	} {
		by := client
		if i%2 == 1 {
			by = agent
		}
		d.Thread = id
		now := time.Now()
		m, err := d.Sign(by, now)
		if err != nil {
			return err
		}
		receipt, err := s.Append(ctx, relay.Entry{Envelope: m, Received: now})
		if err != nil {
			return err
		}
		onReceipt(receipt)
	}
	return nil
}

// findings checks a database and returns its findings and the report.
func findings(t testing.TB, path string, now time.Time) (found []Finding, r Report) {
	t.Helper()
	r, err := Database(t.Context(), path, Options{Now: now, Found: func(f Finding) { found = append(found, f) }})
	must(t, err)
	if int64(len(found)) != r.Findings {
		t.Errorf("Found was called for %d findings, the report counts %d", len(found), r.Findings)
	}
	return found, r
}

// query calls f for each row of a query. The database may be damaged.
func query(t testing.TB, path string, f func(scanner) error, text string) {
	t.Helper()
	db, err := dbfile.OpenReadOnly(path)
	must(t, err)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	must(t, err)
	must(t, errors.Join(eachRow(t.Context(), conn, f, text), conn.Close()))
}

// spoil runs SQL on a database that no store has open. The SQL may write what a store never would.
func spoil(t testing.TB, path, text string) {
	t.Helper()
	db, err := dbfile.Open(path, "immediate", []string{"writable_schema(ON)"}, "rw")
	must(t, err)
	_, err = db.ExecContext(context.Background(), text)
	must(t, errors.Join(err, db.Close()))
}
