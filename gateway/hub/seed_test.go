package hub_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// queue stores messages that are queued for a receiver. They count as size bytes each.
func (f *fixture) queue(sender, receiver string, count, size int) {
	f.t.Helper()
	f.store(sender, receiver, count, size, 0)
}

// store stores messages in a state, without the limits of POST /messages and much faster. f.CheckDatabase checks these
// rows, too.
func (f *fixture) store(sender, receiver string, count, size, state int) {
	f.t.Helper()
	for count > 0 {
		some := min(count, 500)
		count -= some
		if err := f.Relay.Update(f.t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
			return storeSome(tx, sender, receiver, some, size, state)
		}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// envelopeOf returns an envelope of size bytes in the form of RFC 8785, at least 83. A control character has 6 bytes.
func envelopeOf(sender string, size int) string {
	head, tail := `{"chorus_version":"0.4","original_text":"`, `","sender_culture":"en","sender_id":"`+sender+`"}`
	size -= len(head) + len(tail)
	return head + strings.Repeat(`\u0001`, size/6) + strings.Repeat("x", size%6) + tail
}

func storeSome(tx relay.ExtTx, sender, receiver string, count, size, state int) error {
	parties, err := integers(tx, 2, "SELECT s.n, r.n FROM hub_agent s JOIN hub_agent r ON s.deleted = 0 AND r.deleted = 0 "+
		"WHERE s.address = ? AND r.address = ?", sender, receiver)
	if err != nil {
		return err
	}
	from, to := parties[0], parties[1]
	parties = slices.Compact(parties)
	last, err := integers(tx, 2, "SELECT COALESCE(MAX(n), 0), COALESCE(MAX(ts), 0) FROM hub_message")
	if err != nil {
		return err
	}
	n, ts := last[0], max(time.Now().UnixMilli()*1e6, last[1])
	var messages, deliveries, entries, received [][]any
	for range count {
		n++
		ts += 1e6
		messages = append(messages, []any{n, fmt.Sprintf("%08x-0000-4000-8000-000000000000", n), from, sender, to, receiver,
			envelopeOf(sender, 100), ts})
		via, handed := "", int64(0)
		if state > 0 {
			via, handed = "poll", ts
		}
		deliveries = append(deliveries, []any{n, from, to, size, state, via, handed, 0, ""})
		for _, party := range parties {
			entries = append(entries, []any{party, n})
		}
		received = append(received, []any{to, n, from})
	}
	if _, err := tx.Exec("DELETE FROM gate_counter WHERE name = 'hub_message'"); err != nil {
		return err
	}
	err = errors.Join(insertRow(tx, "gate_counter", "hub_message", n), insertRows(tx, "hub_message", messages),
		insertRows(tx, "hub_delivery", deliveries), insertRows(tx, "hub_entry", entries),
		insertRows(tx, "hub_received", received), addPeer(tx, to, from, count, state, size))
	for _, party := range parties {
		queued := 0
		if party == to && state == 0 {
			queued = count
		}
		err = errors.Join(err, addUse(tx, party, count, queued, size))
	}
	return err
}

// addPeer counts messages from an agent that counts alone.
func addPeer(tx relay.ExtTx, agent, source int64, count, state, size int) error {
	p, err := integers(tx, 5, "SELECT known, queued, kept, kept_bytes, used FROM hub_peer WHERE agent = ? AND source = ?",
		agent, source)
	if err != nil {
		return err
	}
	if p[2] += int64(count); state == 0 {
		p[1] += int64(count)
	} else {
		p[0] = max(p[0], 1)
	}
	p[3] += int64(count * size)
	p[4] = max(p[4], 1)
	_, err = tx.Exec("DELETE FROM hub_peer WHERE agent = ? AND source = ?", agent, source)
	return errors.Join(err, insertRow(tx, "hub_peer", agent, source, p[0], p[1], p[2], p[3], p[4]))
}

// addUse counts messages of an agent.
func addUse(tx relay.ExtTx, agent int64, kept, queued, size int) error {
	u, err := integers(tx, 9, "SELECT agent, used, replied, framed, stream_ended, kept, kept_bytes, queued, queued_bytes "+
		"FROM hub_use WHERE agent = ?", agent)
	if err != nil {
		return err
	}
	for i, more := range []int{kept, kept * size, queued, queued * size} {
		u[5+i] += int64(more)
	}
	values := make([]any, len(u))
	for i, value := range u {
		values[i] = value
	}
	return errors.Join(deleteRows(fmt.Sprintf("hub_use WHERE agent = %d", agent))(tx), insertRow(tx, "hub_use", values...))
}

// integers returns the row that a SELECT of integers finds.
func integers(q relay.Querier, columns int, text string, args ...any) (row []int64, err error) {
	row = make([]int64, columns)
	into := make([]any, columns)
	for i := range row {
		into[i] = &row[i]
	}
	err = q.Query(func(scan func(...any) error) error { return scan(into...) }, text, args...)
	return row, err
}

// insertRow inserts a row with its checksum.
func insertRow(tx relay.ExtTx, table string, values ...any) error {
	return insertRows(tx, table, [][]any{values})
}

// insertRows inserts rows with their checksums in one statement.
func insertRows(tx relay.ExtTx, table string, rows [][]any) error {
	var all []any
	for _, values := range rows {
		all = append(append(all, values...), gateway.Sum(table, values...))
	}
	row := "(?" + strings.Repeat(", ?", len(all)/len(rows)-1) + ")"
	into := table
	if table == "hub_message" { // later migrations have added columns
		into += " (n, trace, sender, sender_id, receiver, receiver_id, envelope, ts, sum)"
	}
	_, err := tx.Exec("INSERT INTO "+into+" VALUES "+row+strings.Repeat(", "+row, len(rows)-1), all...)
	return err
}
