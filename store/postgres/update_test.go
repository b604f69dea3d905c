//go:build postgres

package postgres

import (
	"context"
	"io/fs"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres/schema"
)

// oldRows fills the tables of schema 2: 95 events in four partitions, with ten threads.
const oldRows = `
SELECT event_partition_add(n) FROM generate_series(0, 3) n;
INSERT INTO event (seq, sender, id, recipient, type, thread, ts, received, expires, forget, charged, network, body, leaf, salt)
	SELECT i, convert_to('did:' || i % 7, 'UTF8'), convert_to('msg_' || i, 'UTF8'),
	CASE WHEN i % 5 = 0 THEN '' ELSE convert_to('did:' || i % 11, 'UTF8') END, 'REQUEST', CASE WHEN i % 9 = 0 THEN i ELSE 0 END,
	4e18 - i * 1e9, 4e18 + i * 1e9, 4e18 + i * 1e12, 4e18 + i * 1e12, i % 3, i % 4, convert_to(repeat('x', i), 'UTF8'),
	CASE WHEN i > 50 THEN i END, CASE WHEN i > 60 THEN '\x0102'::bytea END FROM generate_series(1, 95) i;
INSERT INTO message SELECT sender, id, seq, forget FROM event;
INSERT INTO thread SELECT seq, convert_to('t' || seq, 'UTF8'), sender, 4e18 + seq, recipient = '', 1, 'x' FROM event WHERE thread > 0;
INSERT INTO participant SELECT t.id, e.recipient, 1, e.seq FROM event e JOIN thread t ON t.n = e.seq WHERE recipient <> '';
UPDATE head SET last = 95;`

// digests are of all rows with identities, in the forms of schema 2 and of this version.
const oldDigest = "SELECT (SELECT md5(string_agg(concat_ws('|', seq, sender, id, recipient, type, thread, ts, received, expires, forget, " +
	"charged, network, body, coalesce(leaf, -1), coalesce(salt, 'none')), ',' ORDER BY seq)) FROM event) || " +
	"(SELECT md5(string_agg(concat_ws('|', thread, role, party, id), ',' ORDER BY thread)) FROM participant)"
const newDigest = "SELECT (SELECT md5(string_agg(concat_ws('|', seq, s.did, e.id, coalesce(r.did, ''), type, thread, ts, received, " +
	"expires, forget, charged, network, body, coalesce(leaf, -1), coalesce(salt, 'none')), ',' ORDER BY seq)) FROM event e " +
	"JOIN party s ON s.id = e.sender LEFT JOIN party r ON r.id = e.recipient) || " +
	"(SELECT md5(string_agg(concat_ws('|', thread, role, party, t.id), ',' ORDER BY thread)) FROM participant p JOIN thread t " +
	"ON t.n = p.thread AND p.key = pair_key(p.party, t.id))"

// TestUpdateOfTables updates the tables of schema 2. The first attempt is interrupted while the rows of events are written
// anew, and changes nothing of them. The second one keeps everything.
func TestUpdateOfTables(t *testing.T) {
	place := t.TempDir()
	old := schema.Program{Files: fstest.MapFS{}, Together: []int{1, 2}}
	for _, name := range []string{"0001_initial.sql", "0002_log.sql"} {
		text, err := fs.ReadFile(schema.Files, name)
		must(t, err)
		old.Files.(fstest.MapFS)[name] = &fstest.MapFile{Data: text}
	}
	conn := connection(t, place)
	must(t, old.Migrate(t.Context(), conn, nil, 30))
	_, err := conn.Exec(t.Context(), oldRows)
	must(t, err)
	var want, got string
	must(t, conn.QueryRow(t.Context(), oldDigest).Scan(&want))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dsn, err := dsnOf(t.Context(), place)
	must(t, err)
	config, err := pgx.ParseConfig(dsn)
	must(t, err)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Severity == "NOTICE" && n.Message == "made the rows of partition 1 smaller, 2 of 4" {
			cancel()
		}
	}
	interrupted, err := pgx.ConnectConfig(t.Context(), config)
	must(t, err)
	if err := schema.Current.Migrate(ctx, interrupted, nil, 30); err == nil || ctx.Err() == nil {
		t.Errorf("the update was not interrupted: %v", err)
	}
	_ = interrupted.Close(t.Context()) // it is closed
	must(t, conn.QueryRow(t.Context(), oldDigest).Scan(&got))
	if got != want {
		t.Error("after the interruption there are other rows")
	}

	now := time.Unix(4e9, 0)
	s := open(t, place, Options{Now: func() time.Time { return now }})
	must(t, conn.QueryRow(t.Context(), newDigest).Scan(&got))
	if got != want {
		t.Error("after the update there are other rows")
	}
	if n := spansHold(t, place, "after the update"); n != 3 {
		t.Errorf("%d spans, want one for each full partition", n)
	}
	for seq, sender := range map[relay.Seq]didkey.DID{1: "did:1", 95: "did:4"} {
		found, err := s.Known(t.Context(), sender, map[relay.Seq]string{1: "msg_1", 95: "msg_95"}[seq])
		if found != seq || err != nil {
			t.Errorf("the id of event %d is that of %d: %v", seq, found, err)
		}
	}
	page, err := s.Read(t.Context(), relay.Query{Filter: relay.Filter{Recipient: "did:3", Sender: "did:0"}, Expired: true, Limit: 9})
	must(t, err)
	if len(page.Events) != 2 || page.Events[0].Seq != 14 || page.Events[1].Seq != 91 {
		t.Errorf("%+v", page)
	}
	receipt, err := s.Append(t.Context(), request(t, key(1), "t"))
	if err != nil || receipt.Cursor.Seq != 96 {
		t.Errorf("%+v, %v", receipt, err)
	}
}

// TestParties checks that an identity without events loses its number a while after the last one was removed, and not
// before. A later message gives it another number.
func TestParties(t *testing.T) {
	place, now := t.TempDir(), time.Now()
	s := open(t, place, Options{Partition: 4, Now: func() time.Time { return now }})
	post := func(by byte) {
		t.Helper()
		m, err := (envelope.Draft{Payload: envelope.Request{RequestID: "r", Intent: "x"}}).Sign(key(by), now)
		must(t, err)
		_, err = s.Append(t.Context(), relay.Entry{Envelope: m, Received: now})
		must(t, err)
	}
	numbers := func() (numbers []int64) {
		direct(t, place, func(conn *pgx.Conn) (err error) {
			rows, err := conn.Query(t.Context(), "SELECT id FROM party ORDER BY id")
			if err == nil {
				numbers, err = pgx.CollectRows(rows, pgx.RowTo[int64])
			}
			return err
		})
		return numbers
	}
	expire := func(d time.Duration) {
		now = now.Add(d)
		for range 2 { // a partition is dropped after the first
			now = now.Add(2 * partitionsEvery)
			must(t, s.Expire(t.Context(), now, nil))
		}
	}
	post(1)
	post(2)
	if got := numbers(); len(got) != 2 {
		t.Fatalf("the numbers are %v", got)
	}
	expire(keptLonger + 48*time.Hour)
	if got := numbers(); len(got) != 2 {
		t.Errorf("while its event has a row, an identity has lost its number: %v", got)
	}
	for by := byte(3); by < 9; by++ {
		post(by)
	}
	expire(keptLonger + 48*time.Hour)
	expire(keptLonger)
	before := numbers()
	if len(before) == 0 || before[0] < 3 || len(before) > 4 {
		t.Errorf("of 8 identities these are left: %v", before)
	}
	post(1)
	if got := numbers(); len(got) != len(before)+1 || got[len(got)-1] <= 8 {
		t.Errorf("after the message of an identity that was forgotten: %v", got)
	}
}
