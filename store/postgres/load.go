package postgres

import (
	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// threadColumns are the columns of the table thread t that make a ledger.Row.
const threadColumns = "t.n, t.id, t.client, t.due, t.open, t.state, t.record"

// The statements of Load. Each gets its lookups as arrays. Where the order of the answers matters, the first column is
// the position of the lookup.
const (
	findMessages = "SELECT k.i, e.seq, e.expires, e.body, " +
		"t.n, t.id, t.client, t.due, t.open, t.state, t.record " +
		"FROM unnest($1::uuid[]) WITH ORDINALITY k (key, i) JOIN message m ON m.key = k.key " +
		"JOIN event e ON e.seq = m.seq AND e.forget > (SELECT swept FROM head) LEFT JOIN thread t ON t.n = e.thread AND e.thread > 0"
	findThreads = "SELECT 1::bigint, " + threadColumns + " FROM unnest($1::uuid[]) k (key) " +
		"JOIN thread t ON pair_key(t.client, t.id) = k.key"
	findOf = "SELECT k.i, " + threadColumns + " FROM unnest($1::uuid[]) WITH ORDINALITY k (key, i) " +
		"CROSS JOIN LATERAL (SELECT p.role, p.thread FROM participant p WHERE p.key = k.key " +
		"ORDER BY p.role, p.thread LIMIT $2) p JOIN thread t ON t.n = p.thread ORDER BY k.i, p.role, p.thread"
	findOpen = "SELECT k.i, " + threadColumns + " FROM unnest($1::bytea[]) WITH ORDINALITY k (id, i) " +
		"CROSS JOIN LATERAL (SELECT * FROM thread t WHERE t.id = k.id AND t.open ORDER BY t.n LIMIT $2) t ORDER BY k.i, t.n"
	findOldest = "SELECT k.i, " + threadColumns + " FROM unnest($1::bytea[]) WITH ORDINALITY k (id, i) " +
		"CROSS JOIN (VALUES (false), (true)) kind (open) CROSS JOIN LATERAL (SELECT * FROM thread t " +
		"WHERE t.id = k.id AND t.open = kind.open ORDER BY t.n LIMIT $2) t ORDER BY k.i, t.n"
	countInboxes = "SELECT k.i, c.events, c.bytes, c.first FROM " +
		"unnest($1::bytea[], $2::bigint[], $3::bigint[]) WITH ORDINALITY k (recipient, network, now, i) " +
		"JOIN party p ON p.did = k.recipient " +
		"CROSS JOIN LATERAL (SELECT count(*) AS events, coalesce(sum(charged), 0)::bigint AS bytes, " +
		"coalesce(min(expires), 0) AS first FROM event " +
		"WHERE recipient = p.id AND network = k.network AND expires > k.now AND charged > 0) c"
	countWholeInboxes = "SELECT k.i, c.events, c.bytes, c.first FROM " +
		"unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY k (recipient, now, i) " +
		"JOIN party p ON p.did = k.recipient " +
		"CROSS JOIN LATERAL (SELECT count(*) AS events, coalesce(sum(charged), 0)::bigint AS bytes, " +
		"coalesce(min(expires), 0) AS first FROM event WHERE recipient = p.id AND expires > k.now AND charged > 0) c"
	findArrivals = "SELECT p.did, e.network, e.charged, e.expires FROM (SELECT * FROM event WHERE seq > $1 AND charged > 0 " +
		"ORDER BY seq LIMIT $2) e JOIN party p ON p.id = e.recipient"
	findListings = "SELECT k.i, m.id, m.ts, m.expires FROM " +
		"unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY k (sender, now, i) " +
		"JOIN manifest m ON m.sender = k.sender AND m.expires > k.now"
)

// Load implements ledger.Tx. It makes one round trip.
func (w *writer) Load(wanted ledger.Wanted) (found ledger.Found, err error) {
	w.begin()
	w.loadMessages(wanted.Messages, &found)
	w.loadThreads(wanted.Threads, &found)
	found.Of = make([][]ledger.Row, len(wanted.Of))
	found.Open = make([][]ledger.Row, len(wanted.Open))
	found.Oldest = make([][]ledger.Row, len(wanted.Oldest))
	found.Inboxes = make([]ledger.Count, len(wanted.Inboxes))
	found.Listings = make([][]ledger.Listed, len(wanted.Listings))
	if len(wanted.Of) > 0 {
		keys := make([][16]byte, len(wanted.Of))
		for i, p := range wanted.Of {
			keys[i] = pairKey(p.Party, p.ID)
		}
		w.batch.Queue(findOf, keys, ledger.MaxCandidates).Query(listRows(found.Of))
	}
	if len(wanted.Open) > 0 {
		w.batch.Queue(findOpen, byteStrings(wanted.Open), ledger.MaxCandidates).Query(listRows(found.Open))
	}
	if len(wanted.Oldest) > 0 {
		w.batch.Queue(findOldest, byteStrings(wanted.Oldest), ledger.MaxCandidates).Query(listRows(found.Oldest))
	}
	w.loadInboxes(wanted.Inboxes, found.Inboxes)
	w.loadListings(wanted.Listings, found.Listings)
	if wanted.Since.Seq > 0 && wanted.Since.Epoch == w.store.epoch {
		w.loadArrivals(wanted.Since.Seq, &found)
	}
	err = w.flush()
	found.End = w.store.cursor(w.last)
	return found, err
}

func byteStrings[T ~string](texts []T) [][]byte {
	all := make([][]byte, len(texts))
	for i, text := range texts {
		all[i] = []byte(text)
	}
	return all
}

func (w *writer) loadMessages(wanted []ledger.MessageKey, found *ledger.Found) {
	if len(wanted) == 0 {
		return
	}
	keys := make([][16]byte, len(wanted))
	for i, m := range wanted {
		keys[i] = pairKey(m.Sender, m.ID)
	}
	w.batch.Queue(findMessages, keys).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var threadID, client, record []byte
			var i, seq, expires int64
			var number, due *int64
			var open *bool
			var state *int16
			m := ledger.Message{}
			if err := rows.Scan(&i, &seq, &expires, &m.Body, &number, &threadID, &client, &due, &open, &state,
				&record); err != nil {
				return err
			}
			m.MessageKey = wanted[i-1]
			m.Seq, m.Expires, m.Removed = relay.Seq(seq), instant(expires), expires < 0
			if number != nil {
				m.Thread = &ledger.Row{Number: *number, Key: thread.Key{Client: didkey.DID(client), ID: string(threadID)},
					Due: instant(*due), Open: *open, State: ledger.StateOf(int64(*state)), Record: record}
			}
			found.Messages = append(found.Messages, m)
		}
		return nil
	})
}

func (w *writer) loadThreads(wanted []thread.Key, found *ledger.Found) {
	if len(wanted) == 0 {
		return
	}
	keys := make([][16]byte, len(wanted))
	for i, k := range wanted {
		keys[i] = pairKey(k.Client, k.ID)
	}
	w.batch.Queue(findThreads, keys).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			_, row, err := scanRow(rows.Scan)
			if err != nil {
				return err
			}
			found.Threads = append(found.Threads, row)
		}
		return nil
	})
}

// scanRow reads a number and threadColumns.
func scanRow(scan func(...any) error) (i int64, row ledger.Row, err error) {
	var id, client []byte
	var due int64
	var state int16
	err = scan(&i, &row.Number, &id, &client, &due, &row.Open, &state, &row.Record)
	row.Key = thread.Key{Client: didkey.DID(client), ID: string(id)}
	row.Due, row.State = instant(due), ledger.StateOf(int64(state))
	return i, row, err
}

// listRows returns a function that puts rows into lists. It leaves out what comes after ledger.MaxRecordBytes in a list.
func listRows(lists [][]ledger.Row) func(pgx.Rows) error {
	sizes := make([]int, len(lists))
	return func(rows pgx.Rows) error {
		for rows.Next() {
			i, row, err := scanRow(rows.Scan)
			if err != nil {
				return err
			}
			i--
			if sizes[i] += len(row.Record); sizes[i] <= ledger.MaxRecordBytes || len(lists[i]) == 0 {
				lists[i] = append(lists[i], row)
			}
		}
		return nil
	}
}

func (w *writer) loadInboxes(wanted []ledger.Inbox, found []ledger.Count) {
	var recipients, wholeRecipients [][]byte
	var networks, nows, wholeNows []int64
	var positions, wholePositions []int
	for i, k := range wanted {
		if k.Network == ledger.AllNetworks {
			wholeRecipients, wholeNows = append(wholeRecipients, []byte(k.Recipient)), append(wholeNows, nanos(k.Now))
			wholePositions = append(wholePositions, i)
			continue
		}
		recipients, networks = append(recipients, []byte(k.Recipient)), append(networks, k.Network)
		nows, positions = append(nows, nanos(k.Now)), append(positions, i)
	}
	into := func(positions []int) func(pgx.Rows) error {
		return func(rows pgx.Rows) error {
			for rows.Next() {
				var i, first int64
				var c ledger.Count
				if err := rows.Scan(&i, &c.Events, &c.Bytes, &first); err != nil {
					return err
				}
				if c.Examined = c.Events; first != 0 {
					c.First = instant(first)
				}
				found[positions[i-1]] = c
			}
			return nil
		}
	}
	if len(positions) > 0 {
		w.batch.Queue(countInboxes, recipients, networks, nows).Query(into(positions))
	}
	if len(wholePositions) > 0 {
		w.batch.Queue(countWholeInboxes, wholeRecipients, wholeNows).Query(into(wholePositions))
	}
}

func (w *writer) loadListings(wanted []ledger.Listings, found [][]ledger.Listed) {
	if len(wanted) == 0 {
		return
	}
	senders, nows := make([][]byte, len(wanted)), make([]int64, len(wanted))
	for i, l := range wanted {
		senders[i], nows[i] = []byte(l.Sender), nanos(l.Now)
	}
	w.batch.Queue(findListings, senders, nows).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var i, ts, expires int64
			var id []byte
			if err := rows.Scan(&i, &id, &ts, &expires); err != nil {
				return err
			}
			found[i-1] = append(found[i-1], ledger.Listed{ID: string(id), TS: instant(ts), Expires: instant(expires)})
		}
		return nil
	})
}

func (w *writer) loadArrivals(since relay.Seq, found *ledger.Found) {
	w.batch.Queue(findArrivals, int64(since), ledger.MaxArrivals+1).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var recipient []byte
			var a ledger.Arrival
			var expires int64
			if err := rows.Scan(&recipient, &a.Network, &a.Charge, &expires); err != nil {
				return err
			}
			a.Recipient, a.Expires = didkey.DID(recipient), instant(expires)
			found.Arrivals = append(found.Arrivals, a)
		}
		if found.Counted = len(found.Arrivals) <= ledger.MaxArrivals; !found.Counted {
			found.Arrivals = nil
		}
		return nil
	})
}

var _ ledger.Tx = (*writer)(nil)
