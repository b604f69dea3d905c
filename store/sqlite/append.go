package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// Append implements relay.Store.
func (s *Store) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	return s.do(ctx, s.appends, job{entry: e})
}

// record is a row of the table thread.
type record struct {
	n    int64 // 0: not stored yet
	keep int64
	thread.Thread
}

// Why nothing was written.
var (
	errTaken = errors.New("the client has a thread with this id")
	errKnown = errors.New("the sender has used this id")
)

// append stores one entry within the transaction that is open. A refusal leaves nothing behind for the others of the
// group. Nearly every envelope is new, and nearly every REQUEST begins a thread: neither is looked up before the unique
// indexes, or the rules, object.
func (w *writer) append(e relay.Entry) (relay.Receipt, *relay.Posted, error) {
	if m := e.Envelope; m.Recipient != "" {
		// Nobody gets a number, which stays, for a message that is not new.
		if recipient, err := w.party(m.Recipient); err != nil {
			return relay.Receipt{}, nil, err
		} else if recipient == 0 {
			if receipt, found, err := w.duplicate(e); found || err != nil {
				return receipt, nil, err
			}
		}
	}
	begins := e.Envelope.Type == envelope.TypeRequest
	receipt, posted, err := w.put(e, begins)
	if begins && (errors.Is(err, errTaken) || isRefusal(err)) {
		receipt, posted, err = w.put(e, false)
	}
	if !errors.Is(err, errKnown) && !isRefusal(err) {
		return receipt, posted, err
	}
	if receipt, found, err := w.duplicate(e); found || err != nil {
		return receipt, nil, err
	}
	return relay.Receipt{}, nil, err
}

// isRefusal reports whether err is for the sender of a message, and harms no other.
func isRefusal(err error) bool {
	var refusal *envelope.Error
	return errors.As(err, &refusal)
}

// put stores e. begins says that e is taken for the beginning of a thread without a look at the threads there are.
// Refusals: those of the rules and quotas; errTaken if e does not begin a thread; errKnown.
func (w *writer) put(e relay.Entry, begins bool) (relay.Receipt, *relay.Posted, error) {
	m := e.Envelope
	sender, err := w.party(m.Sender.ID)
	if err != nil {
		return relay.Receipt{}, nil, err
	}
	var moved record
	if m.Type != envelope.TypeManifest {
		if moved, err = w.move(sender, e, begins); err != nil {
			return relay.Receipt{}, nil, err
		}
	}
	charge, err := w.admit(sender, e, moved.Thread)
	if err != nil {
		return relay.Receipt{}, nil, err
	}
	posted, err := w.write(e, moved, charge)
	if err != nil {
		return relay.Receipt{}, nil, err
	}
	return relay.Receipt{
		ID: m.ID, Cursor: w.store.cursor(posted.Seq), ExpiresAt: posted.Expires, Thread: moved.Key(), State: moved.State,
	}, &posted, nil
}

// write stores e and the thread as e leaves it. Refusals: errTaken, errKnown.
func (w *writer) write(e relay.Entry, moved record, charge int64) (posted relay.Posted, err error) {
	m, expires := e.Envelope, w.expires(e.Envelope)
	remember := w.store.policy.Window.RememberUntil(e.Received, expires)
	if m.Type == envelope.TypeManifest {
		return w.insert(e, 0, charge, remember)
	}
	begins := moved.n == 0
	if begins {
		if moved.n, err = w.addThread(moved, expires, e.Received); err != nil {
			return relay.Posted{}, err
		}
	}
	posted, err = w.insert(e, moved.n, charge, remember)
	if begins && errors.Is(err, errKnown) {
		if _, failed := w.stmts.dropThread.Exec(moved.n); failed != nil {
			return relay.Posted{}, failed
		}
	}
	if err != nil {
		return relay.Posted{}, err
	}
	if !begins {
		if err := w.updateThread(moved, expires, e.Received); err != nil {
			return relay.Posted{}, err
		}
	}
	return posted, w.enlist(m, moved)
}

// The ranks of participants. The thread in which an agent works comes first, so that no number of threads that name it
// can hide that one.
const rankAgent, rankOther = 0, 1

// enlist adds the participant that m has brought into its thread.
func (w *writer) enlist(m *envelope.Envelope, moved record) error {
	var who didkey.DID
	rank := rankOther
	switch m.Type {
	case envelope.TypeRequest:
		who = moved.Recipient
	case envelope.TypeOffer:
		who = m.Sender.ID
	case envelope.TypeAccept:
		who, rank = moved.Agent, rankAgent
	}
	if who == "" {
		return nil
	}
	party, err := w.intern(who)
	if err == nil {
		_, err = w.stmts.addParticipant.Exec(party, moved.ID, rank, moved.n)
	}
	return err
}

// move returns the thread that e moves or begins, as e leaves it.
func (w *writer) move(sender int64, e relay.Entry, begins bool) (moved record, err error) {
	var candidates []record
	if !begins {
		if candidates, err = w.candidates(sender, e.Envelope); err != nil {
			return record{}, err
		}
	}
	threads := make([]thread.Thread, len(candidates))
	for i, c := range candidates {
		threads[i] = c.Thread
	}
	next, chosen, err := w.store.policy.Rules.Apply(threads, e.Envelope, e.Received)
	if err != nil {
		return record{}, err
	}
	if chosen >= 0 {
		moved = candidates[chosen]
	}
	moved.Thread = next
	return moved, nil
}

func (w *writer) expires(m *envelope.Envelope) time.Time {
	return w.store.policy.Window.Expires(m.TS, m.TTL)
}

// insert adds the event, and the manifest if it is one. charge is what it counts against its recipient's inbox. The row
// stays until remember. Refusals: errKnown.
func (w *writer) insert(e relay.Entry, threadN, charge int64, remember time.Time) (relay.Posted, error) {
	m := e.Envelope
	sender, err := w.intern(m.Sender.ID)
	if err != nil {
		return relay.Posted{}, err
	}
	recipient, err := w.intern(m.Recipient)
	if err != nil {
		return relay.Posted{}, err
	}
	expires := w.expires(m)
	seq := w.last + 1
	result, err := w.stmts.addEvent.Exec(seq, sender, m.ID, recipient, string(m.Type), threadN,
		nanos(m.TS), nanos(e.Received), nanos(expires), nanos(remember), m.Canonical(), charge, e.Network)
	if err != nil {
		return relay.Posted{}, err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return relay.Posted{}, cmp.Or(err, errKnown)
	}
	w.last = seq
	if e.Listing != nil {
		intents, err := json.Marshal(e.Listing.Intents)
		if err != nil {
			return relay.Posted{}, err
		}
		if _, err := w.stmts.addManifest.Exec(sender, e.Listing.ID, seq, nanos(m.TS), nanos(expires), string(intents), e.Listing.Text); err != nil {
			return relay.Posted{}, err
		}
		w.agents[sender] = struct{}{}
	}
	if _, ok := w.agents[sender]; ok && !e.Unseen {
		if _, err := w.stmts.seen.Exec(nanos(e.Received), sender); err != nil {
			return relay.Posted{}, err
		}
	}
	w.received(inboxKey{recipient, e.Network}, charge, expires)
	return relay.Posted{Envelope: m, Event: relay.Event{Seq: seq, ID: m.ID, TS: m.TS, Received: e.Received,
		Expires: expires, Size: len(m.Canonical()), Body: m.Canonical()}}, nil
}

// duplicate answers for an envelope that is here already: with its receipt if it is the same to the byte.
func (w *writer) duplicate(e relay.Entry) (r relay.Receipt, found bool, err error) {
	var seq, expires, n int64
	var body sql.RawBytes
	m := e.Envelope
	sender, err := w.party(m.Sender.ID)
	if sender == 0 || err != nil {
		return relay.Receipt{}, false, err
	}
	err = eachRow(func(scan scanner) error {
		found = true
		if err := scan(&seq, &expires, &n, &body); err != nil {
			return err
		}
		if !bytes.Equal(body, m.Canonical()) {
			return envelope.Errorf(envelope.CodeDuplicateID, "you have used this id for another message; give each message its own")
		}
		return nil
	}, func() (*sql.Rows, error) { return w.stmts.known.Query(sender, m.ID) })
	if err != nil || !found {
		return relay.Receipt{}, found, err
	}
	r = relay.Receipt{ID: m.ID, Cursor: w.store.cursor(relay.Seq(seq)), Duplicate: true, ExpiresAt: instant(expires)}
	if n == 0 {
		return r, true, nil
	}
	var text []byte
	var t thread.Thread
	err = w.conn.QueryRowContext(context.Background(), "SELECT record FROM thread WHERE n = ?", n).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return r, true, nil // the record has gone before the memory of the id
	}
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	r.Thread, r.State = t.Key(), w.store.policy.Rules.At(t, e.Received).State
	return r, true, err
}

// maxCandidates bounds how many threads with one id are looked at for a message. Ids are random where nobody means
// harm; those who copy one come later, and the oldest are looked at first.
const maxCandidates = 16

// candidates returns the threads m may mean, oldest first. One of a message's two ends is always the client, which
// narrows the search wherever both are known.
func (w *writer) candidates(sender int64, m *envelope.Envelope) ([]record, error) {
	switch m.Type {
	case envelope.TypeRequest:
		return w.records(w.stmts.ownThread, m.Thread, sender)
	case envelope.TypeAccept, envelope.TypeCancel, envelope.TypeError:
		// The client's own: no number of copies made before may stand in its way.
		found, err := w.records(w.stmts.ownThread, m.Thread, sender)
		if err != nil || len(found) > 0 && m.Type != envelope.TypeError {
			return found, err
		}
		others, err := w.candidatesOf(sender, m)
		own := func(r record) bool { return r.Client == m.Sender.ID }
		return oldestFirst(append(found, slices.DeleteFunc(others, own)...)), err
	}
	return w.candidatesOf(sender, m)
}

// threadsOfParticipant selects the numbers of the threads with an id in which a party takes part: those in which it
// works first, and the oldest before the others.
const threadsOfParticipant = "SELECT thread FROM participant WHERE id = ? AND party = ? ORDER BY rank, thread LIMIT ?"

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
		found, err := w.records(w.stmts.threadsOf, m.Thread, sender, recipient)
		if err != nil || len(found) > 0 {
			return found, err
		}
	}
	found, err := w.records(w.stmts.threadsFor, m.Thread, sender, maxCandidates)
	if err == nil && m.Type == envelope.TypeOffer {
		var open []record
		open, err = w.records(w.stmts.openThreads, m.Thread)
		found = oldestFirst(append(found, open...))
	}
	if err != nil || len(found) > 0 {
		return found, err
	}
	return w.records(w.stmts.threadsWith, m.Thread, maxCandidates, m.Thread, maxCandidates)
}

// oldestFirst sorts records by age and leaves each in once.
func oldestFirst(records []record) []record {
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.n, b.n) })
	return slices.CompactFunc(records, func(a, b record) bool { return a.n == b.n })
}

func (w *writer) records(stmt *sql.Stmt, args ...any) (found []record, err error) {
	err = eachRow(func(scan scanner) error {
		var r record
		var text []byte
		if err := scan(&r.n, &r.keep, &text); err != nil {
			return err
		}
		found = append(found, r)
		return json.Unmarshal(text, &found[len(found)-1].Thread)
	}, func() (*sql.Rows, error) { return stmt.Query(args...) })
	return found, err
}

// updateThread writes r, whose newest envelope expires as given.
func (w *writer) updateThread(r record, expires, now time.Time) error {
	due, keep, text, err := w.row(r, expires, now)
	if err == nil {
		_, err = w.stmts.updateThread.Exec(due, keep, text, w.open(r.Thread), r.n)
	}
	return err
}

// addThread writes r for the first time and returns its number. Refusals: errTaken.
func (w *writer) addThread(r record, expires, now time.Time) (int64, error) {
	due, keep, text, err := w.row(r, expires, now)
	if err != nil {
		return 0, err
	}
	client, err := w.intern(r.Client)
	if err != nil {
		return 0, err
	}
	result, err := w.stmts.addThread.Exec(r.ID, client, due, keep, text, w.open(r.Thread))
	if err != nil {
		return 0, err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return 0, cmp.Or(err, errTaken)
	}
	return result.LastInsertId()
}

// open reports whether any agent may offer in t.
func (w *writer) open(t thread.Thread) bool {
	return t.State == thread.Pending && t.Recipient == "" && t.OffersMade < w.store.policy.Rules.MaxOffers
}

// row returns the columns of r that change.
func (w *writer) row(r record, expires, now time.Time) (due, keep int64, text string, err error) {
	record, err := json.Marshal(r.Thread)
	if err != nil {
		return 0, 0, "", err
	}
	keep = max(r.keep, nanos(expires))
	policy := w.store.policy
	at, alive := policy.Rules.Deadline(r.Thread)
	if !alive {
		// The record outlives the rows of its events, which refer to it.
		at = instant(keep).Add(policy.ThreadRetention)
		if rows := now.Add(policy.Window.Memory); at.Before(rows) {
			at = rows
		}
	}
	return nanos(at), keep, string(record), nil
}

// party returns the number of an identity, 0 if it has none.
func (w *writer) party(did didkey.DID) (id int64, err error) {
	if id, ok := w.parties[did]; ok {
		return id, nil
	}
	err = w.stmts.party.QueryRow(string(did)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err == nil {
		w.cache(did, id)
	}
	return id, err
}

// intern returns the number of an identity and gives it one if needed; nobody is 0.
func (w *writer) intern(did didkey.DID) (int64, error) {
	if did == "" {
		return 0, nil
	}
	if id, err := w.party(did); id != 0 || err != nil {
		return id, err
	}
	result, err := w.stmts.addParty.Exec(string(did))
	if err != nil {
		return 0, err
	}
	id, err := result.LastInsertId()
	if err == nil {
		w.cache(did, id)
	}
	return id, err
}

func (w *writer) cache(did didkey.DID, id int64) {
	if len(w.parties) >= maxParties {
		clear(w.parties)
	}
	w.parties[did] = id
}
