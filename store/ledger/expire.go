package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// Limits of one call of Expire. They keep the call short, because posts wait until it is finished.
const (
	// ExpireThreads is how many threads an engine should pass to one call.
	ExpireThreads = 100

	expireNotices     = 100 // notices of timeouts
	expireTransitions = 500 // transitions of the removed threads, an upper bound of their participants
)

// Expire processes threads whose Due is not after now, in the given order. If the deadline of a thread has passed,
// Expire ends the thread and stores the envelopes that notices returns. If a thread had ended before, Expire removes
// its record. notices may be nil.
//
// room is how many bytes of disk space the notices may use. After that, threads end without notices. done is how many
// threads were processed; it is less than len(due) if a limit of one call was reached.
func (l *Ledger) Expire(
	tx Tx, due []Row, now time.Time, notices relay.Notices, room int64,
) (done int, posted []relay.Posted, err error) {
	x := expiry{group: l.newGroup(0), now: now}
	made := 0
	for _, row := range due {
		if made >= expireNotices || x.transitions >= expireTransitions {
			break
		}
		t, err := row.Decode()
		if err != nil {
			return 0, nil, err
		}
		if room <= 0 {
			notices = nil // the remaining disk space is reserved for messages and for removals
		}
		n, size := x.expire(stored(t, row), notices)
		made, room = made+n, room-size
		done++
	}
	if posted, err = x.write(tx); err != nil {
		return 0, nil, err
	}
	return done, posted, nil
}

// expiry is the state of one call of Expire.
type expiry struct {
	*group
	now         time.Time
	notices     []notice
	removed     []Removal
	transitions int // of the removed threads
}

// notice is a message in which the relay tells a party that a thread has timed out.
type notice struct {
	*envelope.Envelope
	of *groupThread
}

// expire decides about one thread. It returns the number of notices about the end of the thread, and their total size
// in bytes.
func (x *expiry) expire(h *groupThread, notices relay.Notices) (n int, size int64) {
	t := &h.Thread
	now := x.policy.Rules.At(t.Thread, x.now)
	if _, alive := x.policy.Rules.Deadline(now); !alive && now.State == t.State {
		// The thread had ended before, so its record is due for removal.
		participants := t.Participants()
		x.transitions += len(t.Transitions)
		x.removed = append(x.removed, Removal{t.Number, t.Key(), h.was.State, participants})
		return 0, 0
	} else if alive {
		// The thread has not reached its deadline. The stored Due is too early because the policy had shorter timeouts
		// when it was stored.
		x.putThread(h, now, x.now, t.Keep)
		return 0, 0
	}
	x.putThread(h, now, x.now, x.now)
	if notices == nil {
		return 0, 0
	}
	for _, m := range notices(now, t.RequestExpires) {
		x.notices = append(x.notices, notice{m, h})
		n, size = n+1, size+int64(len(m.Canonical()))
	}
	return n, size
}

// write stores what was decided. It skips a notice whose id is stored already: client and agent of a thread may be the
// same identity, and then both get the same notice. Only the relay can create notices, so they cannot be replayed.
// Therefore the id of a notice is remembered only until the notice expires.
func (x *expiry) write(tx Tx) ([]relay.Posted, error) {
	if len(x.notices) > 0 {
		w := Wanted{Since: x.lastEnd}
		for _, n := range x.notices {
			w.Messages = append(w.Messages, MessageKey{n.Sender.ID, n.ID})
		}
		found, err := tx.Load(w)
		if err != nil {
			return nil, err
		}
		x.startAfter(found)
		for _, m := range found.Messages {
			x.known[m.MessageKey] = known{}
		}
	}
	for _, n := range x.notices {
		if x.isKnown(n.Envelope) {
			continue
		}
		expires := x.policy.Window.Expires(n.TS, n.TTL)
		x.add(relay.Entry{Envelope: n.Envelope, Received: x.now}, n.of,
			inboxCharge(n.Envelope, n.of.Thread.Thread), expires, expires)
		if expires.After(n.of.Keep) {
			n.of.Keep = expires
		}
	}
	changes := x.changes()
	changes.Removed = x.removed
	if len(changes.Threads)+len(changes.Removed) == 0 {
		return nil, nil
	}
	if err := tx.Write(changes); err != nil {
		return nil, err
	}
	if len(changes.Events) > 0 {
		x.lastEnd = x.end
	}
	return changes.posted(), nil
}

// HasEnded reports whether the thread of row has ended at now and the last of its envelopes has expired. An engine that
// needs disk space may then remove the record before its Due, provided that none of the thread's messages is stored.
// gone is the removal to write.
func (l *Ledger) HasEnded(row Row, now time.Time) (gone Removal, ended bool, err error) {
	t, err := row.Decode()
	if err != nil {
		return Removal{}, false, err
	}
	_, alive := l.policy.Rules.Deadline(l.policy.Rules.At(t.Thread, now))
	return Removal{t.Number, t.Key(), row.State, t.Participants()}, !alive && !t.Keep.After(now), nil
}

// End returns the change that ends the thread of row at now, see thread.Thread.Remove. ended is false if the thread had
// ended before.
func (l *Ledger) End(row Row, now time.Time) (c Change, ended bool, err error) {
	t, err := row.Decode()
	if err != nil {
		return Change{}, false, err
	}
	before := l.policy.Rules.At(t.Thread, now)
	after := before.Remove(now)
	if len(after.Transitions) == len(before.Transitions) {
		return Change{}, false, nil
	}
	t.Thread = after
	return Change{Row: l.row(t, now), Was: stored(t, row).was}, true, nil
}

// Forget drops the cached counts of all inboxes. An engine calls it when it has removed messages.
func (l *Ledger) Forget() { clear(l.inboxes) }

// At returns the thread of row at now: if its deadline has passed, it has timed out.
func At(row Row, rules thread.Rules, now time.Time) (thread.Thread, error) {
	t, err := row.Decode()
	if err != nil {
		return thread.Thread{}, err
	}
	return rules.At(t.Thread, now), nil
}

// OfParty returns the threads of rows in which party is a party at now, the oldest first, each once. An engine
// implements relay.Store.ThreadsOf with it. If the query names a client, rows is that client's thread with the id.
// Otherwise rows is party's own thread with the id and the threads that Load returns in Found.Of for party.
func OfParty(rows []Row, party didkey.DID, rules thread.Rules, now time.Time) (found []thread.Thread, err error) {
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Number, b.Number) })
	for i, row := range rows {
		if i > 0 && row.Number == rows[i-1].Number {
			continue
		}
		t, err := At(row, rules, now)
		if err != nil {
			return nil, err
		}
		if t.IsParty(party) {
			found = append(found, t)
		}
	}
	return found, nil
}
