package sqlite

import (
	"database/sql"
	"encoding/json"
	"strconv"

	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// Load implements ledger.Tx.
func (w *writer) Load(wanted ledger.Wanted) (found ledger.Found, err error) {
	found.End = w.store.cursor(w.last)
	if found.Messages, err = w.messages(wanted.Messages); err != nil {
		return found, err
	}
	if found.Threads, err = w.threads(wanted.Threads); err != nil {
		return found, err
	}
	found.Of = make([][]ledger.Row, len(wanted.Of))
	for i, p := range wanted.Of {
		party, err := w.party(p.Party)
		if err != nil {
			return found, err
		}
		if found.Of[i], _, err = w.rows(w.stmts.threadsOf, p.ID, party, ledger.MaxCandidates); err != nil {
			return found, err
		}
	}
	found.Open = make([][]ledger.Row, len(wanted.Open))
	for i, id := range wanted.Open {
		if found.Open[i], _, err = w.rows(w.stmts.openThreads, id, ledger.MaxCandidates); err != nil {
			return found, err
		}
	}
	found.Oldest = make([][]ledger.Row, len(wanted.Oldest))
	for i, id := range wanted.Oldest {
		if found.Oldest[i], _, err = w.rows(w.stmts.oldestThreads, id, ledger.MaxCandidates, id, ledger.MaxCandidates); err != nil {
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

// A question about many rows is one statement with a JSON array of keys: the number of an identity, a colon and an id.
const (
	keyed    = "json_each(?) AS k CROSS JOIN "
	keyParty = "CAST(substr(k.value, 1, instr(k.value, ':') - 1) AS INTEGER)"
	keyID    = "substr(k.value, instr(k.value, ':') + 1)"

	knownMessages = "SELECT p.did, e.id, e.seq, e.expires, e.body, e.thread FROM " + keyed +
		"event e ON e.sender = " + keyParty + " AND e.id = " + keyID + " CROSS JOIN party p ON p.id = e.sender"
	knownThreads = "SELECT " + threadColumns + " FROM " + keyed +
		"thread t ON t.client = " + keyParty + " AND t.id = " + keyID + " CROSS JOIN party p ON p.id = t.client"
)

// threadColumns are a ledger.Row's, of the tables thread t and party p.
const threadColumns = "t.n, t.id, p.did, t.due, t.open, t.record"

// keys is the JSON array of a question, without those whose identity is not here.
type keys []string

func (k *keys) add(party int64, id string) {
	if party != 0 {
		*k = append(*k, strconv.FormatInt(party, 10)+":"+id)
	}
}

// ask runs a question about keys.
func (k keys) ask(stmt *sql.Stmt, f func(scanner) error) error {
	if len(k) == 0 {
		return nil
	}
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return eachRow(f, func() (*sql.Rows, error) { return stmt.Query(string(text)) })
}

func (w *writer) messages(wanted []ledger.MessageKey) (found []ledger.Message, err error) {
	var k keys
	for _, m := range wanted {
		sender, err := w.party(m.Sender)
		if err != nil {
			return nil, err
		}
		k.add(sender, m.ID)
	}
	var threads []int64
	err = k.ask(w.stmts.knownMessages, func(scan scanner) error {
		var m ledger.Message
		var expires, n int64
		err := scan(&m.Sender, &m.ID, &m.Seq, &expires, &m.Body, &n)
		m.Expires = instant(expires)
		found, threads = append(found, m), append(threads, n)
		return err
	})
	for i, n := range threads {
		if n == 0 || err != nil {
			continue
		}
		var rows []ledger.Row
		if rows, _, err = w.rows(w.stmts.threadByNumber, n); len(rows) > 0 {
			found[i].Thread = &rows[0]
		}
	}
	return found, err
}

func (w *writer) threads(wanted []thread.Key) (found []ledger.Row, err error) {
	var k keys
	for _, key := range wanted {
		client, err := w.party(key.Client)
		if err != nil {
			return nil, err
		}
		k.add(client, key.ID)
	}
	err = k.ask(w.stmts.knownThreads, func(scan scanner) error {
		row, err := scanThread(scan)
		found = append(found, row)
		return err
	})
	return found, err
}

func scanThread(scan scanner) (row ledger.Row, err error) {
	var due int64
	err = scan(&row.Number, &row.ID, &row.Client, &due, &row.Open, &row.Record)
	row.Due = instant(due)
	return row, err
}

// rows returns the first of the threads that stmt selects: as many as fit ledger.MaxRecordBytes, but one at least. more
// says that there are others.
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

// count looks at no more of an inbox than it is asked to.
func (w *writer) count(asked ledger.Inbox) (c ledger.Count, err error) {
	recipient, err := w.party(asked.Recipient)
	if recipient == 0 || err != nil {
		return c, err // nobody has written to an identity that has no number
	}
	row, args := w.stmts.waiting.QueryRow, []any{recipient, asked.Network, nanos(asked.Now), asked.Most}
	if asked.Network == ledger.AllNetworks {
		row, args = w.stmts.waitingOfAll.QueryRow, []any{recipient, nanos(asked.Now), asked.Most}
	}
	var first sql.NullInt64
	if err := row(args...).Scan(&c.Events, &c.Bytes, &first); err != nil {
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
