//go:build postgres

package postgres

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// What an event may cost, with its share of a thread, of the log and of all indexes. The event has bodyBytes.
const (
	maxEventBytes   = 1700
	maxEventRecords = 11.9
	maxEventWAL     = 2250 // bytes, without images of whole pages
	bodyBytes       = 730
	groupSize       = 13
)

// TestSize measures what events of conversations cost: bytes in tables and indexes, and records of the write-ahead log.
func TestSize(t *testing.T) {
	const warm, threads, lag, parties = 300, 2000, 60, 400
	// Images of whole pages depend on when the last checkpoint was.
	x := startSite(t, "-c", "full_page_writes=off", "-c", "fsync=off").schema(t, "size")
	events := conversations(t, threads, lag, parties)
	bodies := 0
	for _, e := range events[warm:] {
		bodies += len(e.Envelope.Canonical())
	}
	var before, after cost
	for _, part := range []struct {
		events []relay.Entry
		cost   *cost
	}{{events[:warm], &before}, {events[warm:], &after}} {
		s := x.open(t, Options{})
		_, _, err := s.KeepLog(t.Context(), key(99).DID())
		must(t, err)
		for rest := part.events; len(rest) > 0; {
			group := rest[:min(groupSize, len(rest))]
			rest = rest[len(group):]
			for _, o := range s.AppendAll(t.Context(), group) {
				must(t, o.Err)
			}
		}
		must(t, s.Close())
		*part.cost = x.cost(t)
	}
	n := float64(len(events) - warm)
	each := func(after, before int64) float64 { return float64(after-before) / n }
	size, records, wal := each(after.size, before.size), each(after.records, before.records), each(after.wal, before.wal)
	t.Logf("%.0f events with bodies of %.0f bytes: %.0f bytes, %.1f records and %.0f bytes of WAL, and %.0f µs of the server's CPU each",
		n, float64(bodies)/n, size, records, wal, each(after.ticks, before.ticks)*10_000)
	t.Logf("tables and indexes, bytes an event:\n%s", x.relations(t, n))
	if size > maxEventBytes || records > maxEventRecords || wal > maxEventWAL {
		t.Errorf("an event costs %.0f bytes, %.1f records and %.0f bytes of WAL; the limits are %d, %.1f and %d", size, records,
			wal, maxEventBytes, maxEventRecords, maxEventWAL)
	}
}

// conversations returns the events of so many threads, each with a REQUEST, an OFFER, an ACCEPT and a RESULT. There are
// lag REQUESTs between two events of a thread.
func conversations(t *testing.T, threads, lag, parties int) (events []relay.Entry) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	keys := make([]didkey.Key, 2*parties)
	for i := range keys {
		seed := make([]byte, 32)
		binary.BigEndian.PutUint64(seed, uint64(i+1000))
		k, err := didkey.FromSeed(seed)
		must(t, err)
		keys[i] = k
	}
	type conversation struct {
		client, agent didkey.Key
		thread        string
	}
	all := make([]conversation, threads)
	for n := range all {
		all[n] = conversation{keys[random.IntN(parties)], keys[parties+random.IntN(parties)],
			fmt.Sprintf("%08x-49f4-4b2a-9e0e-%012x", random.Uint32(), n)}
	}
	payloads := []envelope.Payload{envelope.Request{RequestID: "r", Intent: "translate"},
		envelope.Offer{RequestID: "r", Plan: "at once"}, envelope.Accept{RequestID: "r"},
		envelope.Result{RequestID: "r", Status: "ok"}}
	for tick := range threads + len(payloads)*lag {
		for step, payload := range payloads {
			n := tick - step*lag
			if n < 0 || n >= threads {
				continue
			}
			from, to := all[n].client, all[n].agent
			if step%2 == 1 {
				from, to = to, from
			}
			d := envelope.Draft{Recipient: to.DID(), Thread: all[n].thread, Payload: payload, SenderURL: "https://agent.example/"}
			short := bodyBytes - len(signed(t, from, d).Envelope.Canonical())
			d.SenderURL += strings.Repeat("x", max(0, short))
			events = append(events, signed(t, from, d))
		}
	}
	return events
}

// cost is what a server has written and used.
type cost struct{ size, records, wal, ticks int64 }

// cost returns the cost since the server has started. All stores are closed, because a process of the server counts
// what it writes when it ends.
func (x site) cost(t *testing.T) (c cost) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), x.dsn)
	must(t, err)
	defer conn.Close(t.Context())
	x.await(t, "the processes of the store have ended", func() bool {
		return x.query(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agora'") == 0
	})
	batch := &pgx.Batch{}
	queueSize(batch, &c.size)
	must(t, conn.SendBatch(t.Context(), batch).Close())
	var stat string
	must(t, conn.QueryRow(t.Context(), "SELECT wal_records, wal_bytes::bigint, pg_read_file('/proc/' || "+
		"split_part(pg_read_file('postmaster.pid'), E'\n', 1) || '/stat') FROM pg_stat_wal").Scan(&c.records, &c.wal, &stat))
	// The fields behind the name are those of proc(5), from the third. The 16th and the 17th are those of ended children.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	var user, system int64
	_, err = fmt.Sscan(fields[16-3], &user)
	must(t, err)
	_, err = fmt.Sscan(fields[17-3], &system)
	must(t, err)
	c.ticks = user + system
	return c
}

// relations returns a line for each table and index with its bytes an event.
func (x site) relations(t *testing.T, n float64) (text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), x.dsn)
	must(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT relname::text, pg_relation_size(oid) FROM pg_class WHERE relnamespace = "+
		"current_schema()::regnamespace AND relkind IN ('r', 'i') AND pg_relation_size(oid) > 65536 ORDER BY 2 DESC")
	must(t, err)
	var name string
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&name, &size}, func() error {
		text += fmt.Sprintf("%8.0f  %s\n", float64(size)/n, name)
		return nil
	})
	must(t, err)
	return text
}
