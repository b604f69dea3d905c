//go:build postgres

package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// partitions returns how many events each partition has, by its name.
func partitions(t *testing.T, place string) map[string]int {
	t.Helper()
	found := map[string]int{}
	direct(t, place, func(conn *pgx.Conn) error {
		rows, err := conn.Query(t.Context(), "SELECT c.relname::text, (SELECT count(*) FROM event e WHERE e.tableoid = c.oid) "+
			"FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = 'event'::regclass")
		if err != nil {
			return err
		}
		var name string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
			found[name] = n
			return nil
		})
		return err
	})
	return found
}

// TestPartitionsAreDropped stores messages in several partitions. Those in which every event is due must be dropped as
// a whole. From a partition that stays for long, the due events must be removed.
func TestPartitionsAreDropped(t *testing.T) {
	place := t.TempDir()
	s := open(t, place, Options{Partition: 10})
	var now time.Time
	for n := range 35 {
		ttl := time.Minute
		if n == 15 {
			ttl = 24 * time.Hour // in the second partition
		}
		e := signed(t, key(byte(n+1)), envelope.Draft{TTL: ttl, Payload: envelope.Request{Intent: "x"}})
		_, err := s.Append(t.Context(), e)
		must(t, err)
		now = e.Received
	}
	if found := partitions(t, place); found["event_p0"] != 9 || found["event_p1"] != 10 || found["event_p2"] != 10 ||
		found["event_p3"] != 6 || len(found) != 4 {
		t.Fatalf("the partitions have %v events", found)
	}
	must(t, s.Expire(t.Context(), now.Add(2*time.Hour), nil))
	found := partitions(t, place)
	_, first := found["event_p0"]
	_, third := found["event_p2"]
	if first || third || found["event_p1"] != 1 || len(found) < 4 {
		t.Errorf("after the sweep the partitions have %v events", found)
	}
	page, err := s.Read(t.Context(), relay.Query{Expired: true, Limit: 99})
	must(t, err)
	if len(page.Events) != 1 || page.Events[0].Seq != 16 || page.Cursor.Seq != 35 {
		t.Errorf("%d events are left, and the end is %v", len(page.Events), page.Cursor)
	}
	_, err = s.Append(t.Context(), request(t, key(99), "t"))
	must(t, err)
}
