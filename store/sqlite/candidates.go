package sqlite

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/agora-relay/agora/envelope"
)

// The threads that a message may mean, found by indexes however many others have the same id.

// maxCandidates bounds how many threads with one id are looked at for a message. Ids are random where nobody means
// harm; those who copy one come later, and the oldest are looked at first.
const maxCandidates = 16

// candidates returns the threads m may mean, oldest first. One of a message's two ends is always the client, which
// narrows the search wherever both are known.
func (w *writer) candidates(sender int64, m *envelope.Envelope) ([]record, error) {
	switch m.Type {
	case envelope.TypeRequest:
		found, _, err := w.records(w.stmts.ownThread, m.Thread, sender)
		return found, err
	case envelope.TypeAccept, envelope.TypeCancel, envelope.TypeError:
		// The client's own: no number of copies made before may stand in its way.
		found, _, err := w.records(w.stmts.ownThread, m.Thread, sender)
		if err != nil || len(found) > 0 && m.Type != envelope.TypeError {
			return found, err
		}
		others, err := w.candidatesOf(sender, m)
		own := func(r record) bool { return r.Client == m.Sender.ID }
		return oldestFirst(append(found, slices.DeleteFunc(others, own)...)), err
	}
	return w.candidatesOf(sender, m)
}

// threadsOfParticipant selects the threads with an id in which a party takes part: those in which it works first, then
// by age. The order matters because records cuts the list off.
const threadsOfParticipant = "SELECT t.n, t.keep, t.record FROM participant p CROSS JOIN thread t ON t.n = p.thread " +
	"WHERE p.id = ? AND p.party = ? ORDER BY p.rank, p.thread LIMIT ?"

// oldestThreads selects the numbers of the oldest threads with an id, so many of those that are open to any agent and of
// the others.
const oldestThreads = "SELECT n FROM (SELECT n FROM thread WHERE id = ? AND open = 0 ORDER BY n LIMIT ?) " +
	"UNION ALL SELECT n FROM (SELECT n FROM thread WHERE id = ? AND open = 1 ORDER BY n LIMIT ?)"

// candidatesOf returns the threads of m's two ends if there are any. Else it returns those in which the sender takes
// part and, for an OFFER, those in which any agent may offer. Else it returns the oldest, from which the rules tell why
// m is refused. Each search follows an index, however many threads have the same id.
func (w *writer) candidatesOf(sender int64, m *envelope.Envelope) ([]record, error) {
	if m.Recipient != "" {
		recipient, err := w.party(m.Recipient)
		if err != nil {
			return nil, err
		}
		found, _, err := w.records(w.stmts.threadsOf, m.Thread, sender, recipient)
		if err != nil || len(found) > 0 {
			return found, err
		}
	}
	found, _, err := w.records(w.stmts.threadsFor, m.Thread, sender, maxCandidates)
	if err == nil && m.Type == envelope.TypeOffer {
		var open []record
		open, _, err = w.records(w.stmts.openThreads, m.Thread)
		found = append(found, open...)
	}
	if err == nil && len(found) == 0 {
		found, _, err = w.records(w.stmts.threadsWith, m.Thread, maxCandidates, m.Thread, maxCandidates)
	}
	return oldestFirst(found), err
}

// oldestFirst sorts records by age and leaves each in once.
func oldestFirst(records []record) []record {
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.n, b.n) })
	return slices.CompactFunc(records, func(a, b record) bool { return a.n == b.n })
}

// maxRecordBytes bounds the records that are read at a time. One with a hundred offers has some 60 KB.
const maxRecordBytes = 256 << 10

// records returns the first of the records that stmt selects: as many as fit maxRecordBytes, but one at least. more says
// that there are others.
func (w *writer) records(stmt *sql.Stmt, args ...any) (found []record, more bool, err error) {
	size := 0
	err = eachRow(func(scan scanner) error {
		var r record
		var text sql.RawBytes
		if err := scan(&r.n, &r.keep, &text); err != nil {
			return err
		}
		size += len(text)
		if more = more || size > maxRecordBytes && len(found) > 0; more {
			return nil
		}
		found = append(found, r)
		return json.Unmarshal(text, &found[len(found)-1].Thread)
	}, func() (*sql.Rows, error) { return stmt.Query(args...) })
	return found, more, err
}
