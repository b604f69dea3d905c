package sqlite

import (
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/thread"
)

// Load implements ledger.Tx.
func (w *writer) Load(wanted ledger.Wanted) (found ledger.Found, err error) {
	found.End = w.store.cursor(w.last)
	if err := w.loadKnown(wanted, &found); err != nil {
		return found, err
	}
	found.Of = make([][]ledger.Row, len(wanted.Of))
	for i, p := range wanted.Of {
		if found.Of[i], err = w.threadsOf(p); err != nil {
			return found, err
		}
	}
	found.Open = make([][]ledger.Row, len(wanted.Open))
	for i, id := range wanted.Open {
		if found.Open[i], err = w.openThreads(id); err != nil {
			return found, err
		}
	}
	found.Oldest = make([][]ledger.Row, len(wanted.Oldest))
	for i, id := range wanted.Oldest {
		if found.Oldest[i], err = w.oldestThreads(id); err != nil {
			return found, err
		}
	}
	found.Inboxes = make([]ledger.Count, len(wanted.Inboxes))
	for i, inbox := range wanted.Inboxes {
		if found.Inboxes[i], err = w.count(inbox); err != nil {
			return found, err
		}
	}
	found.Listings = make([][]ledger.Listed, len(wanted.Listings))
	for i, listings := range wanted.Listings {
		if found.Listings[i], err = w.listed(listings); err != nil {
			return found, err
		}
	}
	return found, nil
}

// knownRows finds the stored messages and the stored threads of two lists of keys. A list is a JSON array of strings.
// Each string is an identity, a space and an id. The identity is the sender's number for a message, and the client's
// DID for a thread. Two further lists have the numbers of messages and threads that the tail has found.
const (
	keyParty  = "substr(k.value, 1, instr(k.value, ' ') - 1)"
	keyID     = "substr(k.value, instr(k.value, ' ') + 1)"
	knownRows = "SELECT 0, p.did, e.id, e.seq, e.expires, e.thread, 0, e.body FROM json_each(?1) AS k " +
		"CROSS JOIN event_sent s ON s.sender = CAST(" + keyParty + " AS INTEGER) AND s.id = " + keyID +
		" CROSS JOIN event e ON e.seq = s.seq CROSS JOIN party p ON p.id = e.sender " +
		"UNION ALL SELECT 0, p.did, e.id, e.seq, e.expires, e.thread, 0, e.body FROM json_each(?3) AS k " +
		"CROSS JOIN event e ON e.seq = k.value CROSS JOIN party p ON p.id = e.sender " +
		"UNION ALL SELECT 1, t.client, t.id, t.n, t.due, t.open, t.state, t.record FROM json_each(?2) AS k " +
		"CROSS JOIN thread_role r ON r.id = " + keyID + " AND r.party = " + keyParty +
		" AND r.role = 2 CROSS JOIN thread t ON t.n = r.thread " +
		"UNION ALL SELECT 1, t.client, t.id, t.n, t.due, t.open, t.state, t.record FROM json_each(?4) AS k " +
		"CROSS JOIN thread t ON t.n = k.value"
)

// threadColumns are the columns of the table thread t that make a ledger.Row.
const threadColumns = "t.n, t.id, t.client, t.due, t.open, t.state, t.record"

// keys builds one list for knownRows.
type keys struct{ text []byte }

// add appends a key. party must contain no character that JSON escapes.
func (k *keys) add(party, id string) {
	separator := byte(',')
	if len(k.text) == 0 {
		separator = '['
	}
	k.text = append(k.text, separator, '"')
	k.text = append(k.text, party...)
	k.text = append(k.text, ' ')
	for i := range len(id) {
		if c := id[i]; c < ' ' || c == '"' || c == '\\' {
			k.text = fmt.Appendf(k.text, "\\u%04x", c)
		} else {
			k.text = append(k.text, c)
		}
	}
	k.text = append(k.text, '"')
}

// list closes the list and returns its text.
func (k *keys) list() string {
	if len(k.text) == 0 {
		return "[]"
	}
	return string(append(k.text, ']'))
}

// loadKnown answers Wanted.Messages and Wanted.Threads.
func (w *writer) loadKnown(wanted ledger.Wanted, found *ledger.Found) error {
	messages, threads := keys{w.keys[0][:0]}, keys{w.keys[1][:0]}
	var unmerged []relay.Seq
	for _, m := range wanted.Messages {
		if seq, found := w.store.tail.find(m); found {
			unmerged = append(unmerged, seq)
			continue
		}
		sender, err := w.party(m.Sender)
		if err != nil {
			return err
		}
		// A sender without a number has no messages.
		if sender != 0 && w.ids.filter.has(hashOf(messageID{sender, m.ID})) {
			messages.add(strconv.FormatInt(sender, 10), m.ID)
		}
	}
	var changed []int64
	for _, t := range wanted.Threads {
		if n := w.store.tail.threadOf(t); n != 0 {
			changed = append(changed, n)
		} else if w.ids.filter.has(hashOf(t)) {
			threads.add(string(t.Client), t.ID)
		}
	}
	if len(messages.text)+len(threads.text)+len(unmerged)+len(changed) == 0 {
		return nil
	}
	w.keys = [2][]byte{messages.text, threads.text}
	var threadNumbers []int64 // of the messages' threads; 0: none
	err := eachRow(func(scan scanner) error {
		var isThread bool
		var did didkey.DID
		var id string
		var number, expiresOrDue, threadOrOpen, state int64
		var blob []byte
		err := scan(&isThread, &did, &id, &number, &expiresOrDue, &threadOrOpen, &state, &blob)
		if isThread {
			found.Threads = append(found.Threads, ledger.Row{Number: number, Key: thread.Key{Client: did, ID: id},
				Due: instant(expiresOrDue), Open: threadOrOpen == 1, State: ledger.StateOf(state), Record: blob})
			return err
		}
		found.Messages = append(found.Messages, ledger.Message{MessageKey: ledger.MessageKey{Sender: did, ID: id},
			Seq: relay.Seq(number), Expires: instant(expiresOrDue), Body: blob, Removed: expiresOrDue < 0})
		threadNumbers = append(threadNumbers, threadOrOpen)
		return err
	}, func() (*sql.Rows, error) {
		return w.stmts.knownRows.Query(messages.list(), threads.list(), string(appendList(nil, unmerged)),
			string(appendList(nil, changed)))
	})
	for i, n := range threadNumbers {
		if n == 0 || err != nil {
			continue
		}
		var rows []ledger.Row
		if rows, _, err = w.rows(w.stmts.threadByNumber, n); len(rows) > 0 {
			found.Messages[i].Thread = &rows[0]
		}
	}
	return err
}

func scanThread(scan scanner) (row ledger.Row, err error) {
	var due, state int64
	err = scan(&row.Number, &row.ID, &row.Client, &due, &row.Open, &state, &row.Record)
	row.Due, row.State = instant(due), ledger.StateOf(state)
	return row, err
}

// rows returns the first threads that stmt selects. It returns as many records as fit into ledger.MaxRecordBytes, but
// at least one. more reports whether stmt selects further threads.
func (w *writer) rows(stmt *sql.Stmt, args ...any) (found []ledger.Row, more bool, err error) {
	size := 0
	err = eachRow(func(scan scanner) error {
		if more {
			return nil
		}
		row, err := scanThread(scan)
		size += len(row.Record)
		if more = size > ledger.MaxRecordBytes && len(found) > 0; !more {
			found = append(found, row)
		}
		return err
	}, func() (*sql.Rows, error) { return stmt.Query(args...) })
	return found, more, err
}

// threadsOf answers one lookup of Wanted.Of.
func (w *writer) threadsOf(p ledger.Participation) ([]ledger.Row, error) {
	numbers, err := w.store.tail.threadsOf(roleKey{p.ID, p.Party}, func(args ...any) (*sql.Rows, error) {
		return w.stmts.threadsOf.Query(args...)
	})
	if err != nil {
		return nil, err
	}
	return w.byNumber(numbers)
}

// threadsOf returns the first threads in which a party takes part, but not as the client, in the order of
// threadsOfParticipant. query runs that statement.
func (t *tail) threadsOf(k roleKey, query func(args ...any) (*sql.Rows, error)) ([]int64, error) {
	all := slices.DeleteFunc(t.rolesOf(k), func(r role) bool { return r.role <= schema.RoleClient })
	all, err := appendRoles(all, func() (*sql.Rows, error) { return query(k.id, string(k.party), ledger.MaxCandidates) })
	return firstThreads(all, ledger.MaxCandidates), err
}

// openThreads answers one lookup of Wanted.Open.
func (w *writer) openThreads(id string) ([]ledger.Row, error) {
	open, _ := w.store.tail.oldest(id, ledger.MaxCandidates)
	all, err := appendRoles(rolesFor(open), func() (*sql.Rows, error) { return w.stmts.openThreads.Query(id, ledger.MaxCandidates) })
	if err != nil {
		return nil, err
	}
	return w.byNumber(firstThreads(all, ledger.MaxCandidates))
}

// oldestThreads answers one lookup of Wanted.Oldest.
func (w *writer) oldestThreads(id string) ([]ledger.Row, error) {
	stored, err := appendRoles(nil, func() (*sql.Rows, error) { return w.stmts.oldestThreads.Query(id, ledger.MaxCandidates) })
	if err != nil {
		return nil, err
	}
	open, closed := w.store.tail.oldest(id, ledger.MaxCandidates)
	var all []int64
	for kind, some := range [][]int64{closed, open} { // the kinds are RoleClosed and RoleOpen
		of := slices.DeleteFunc(slices.Clone(stored), func(r role) bool { return r.role != kind })
		for i := range of {
			of[i].role = 0
		}
		all = append(all, firstThreads(append(of, rolesFor(some)...), ledger.MaxCandidates)...)
	}
	slices.Sort(all)
	return w.byNumber(slices.Compact(all))
}

// rolesFor returns roles with these threads, to be sorted by age only.
func rolesFor(threads []int64) []role {
	all := make([]role, len(threads))
	for i, n := range threads {
		all[i].thread = n
	}
	return all
}

// appendRoles appends the rows of a query, which have a role and the number of a thread.
func appendRoles(all []role, query func() (*sql.Rows, error)) ([]role, error) {
	err := eachRow(func(scan scanner) error {
		var r role
		err := scan(&r.role, &r.thread)
		all = append(all, r)
		return err
	}, query)
	return all, err
}

// firstThreads sorts roles and returns the first threads, each once.
func firstThreads(all []role, limit int) (threads []int64) {
	slices.SortFunc(all, role.compare)
	for _, r := range all {
		if len(threads) < limit && !slices.Contains(threads, r.thread) {
			threads = append(threads, r.thread)
		}
	}
	return threads
}

// byNumber returns the threads with these numbers, in this order, see rows.
func (w *writer) byNumber(threads []int64) ([]ledger.Row, error) {
	if len(threads) == 0 {
		return nil, nil
	}
	rows, _, err := w.rows(w.stmts.threadsByNumber, string(appendList(nil, threads)))
	return rows, err
}

// count returns how much waits in an inbox. It reads all stored messages that count against the inbox, expired or not.
func (w *writer) count(asked ledger.Inbox) (c ledger.Count, err error) {
	recipient, err := w.party(asked.Recipient)
	if recipient == 0 || err != nil {
		return c, err // an identity without a number has no messages
	}
	unmerged := w.store.tail.events(span{until: math.MaxInt64 - 1}, []tailKey{tailRecipient(asked.Recipient)})[0]
	row, args := w.stmts.waiting.QueryRow, []any{recipient, nanos(asked.Now), string(appendList(nil, unmerged)), asked.Network}
	if asked.Network == ledger.AllNetworks {
		row, args = w.stmts.waitingOfAll.QueryRow, args[:3]
	}
	var first sql.NullInt64
	if err := row(args...).Scan(&c.Examined, &c.Events, &c.Bytes, &first); err != nil {
		return c, err
	}
	if first.Valid {
		c.First = instant(first.Int64)
	}
	return c, nil
}

func (w *writer) listed(asked ledger.Listings) (found []ledger.Listed, err error) {
	sender, err := w.party(asked.Sender)
	if sender == 0 || err != nil {
		return nil, err
	}
	err = eachRow(func(scan scanner) error {
		var m ledger.Listed
		var ts, expires int64
		err := scan(&m.ID, &ts, &expires)
		m.TS, m.Expires = instant(ts), instant(expires)
		found = append(found, m)
		return err
	}, func() (*sql.Rows, error) { return w.stmts.listed.Query(sender, nanos(asked.Now)) })
	return found, err
}

var _ ledger.Tx = (*writer)(nil)
