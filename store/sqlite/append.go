package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
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
		// A message that is stored already gives its recipient no number: no sweep would remove the identity again.
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
		if _, err := w.stmts.addManifest.Exec(sender, e.Listing.ID, seq, nanos(m.TS), nanos(expires), string(intents), e.Listing.Text, recipient); err != nil {
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
