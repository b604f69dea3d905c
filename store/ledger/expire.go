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

// How much one call of Expire does at most, so that posts do not wait long behind it. ExpireThreads is also how many
// rows an engine should give it.
const (
	ExpireThreads = 100
	expireNotices = 100
	expireAgents  = 500 // those that take part in the threads that are removed
)

// Expire does what is due at now for threads whose Due has come, in their order: it ends those that the clock ends, with
// the relay's notices of it, and removes the records of those that have ended before. notices may be nil. room is how
// many bytes of notices there is room for; what goes beyond is not told. done is how many of the threads it got to.
func (l *Ledger) Expire(tx Tx, due []Row, now time.Time, notices relay.Notices, room int64) (done int, posted []relay.Posted, err error) {
	x := expiry{group: l.empty(0), now: now}
	told := 0
	for _, row := range due {
		if told >= expireNotices || x.agents >= expireAgents {
			break
		}
		t, err := row.Decode()
		if err != nil {
			return 0, nil, err
		}
		if room <= 0 {
			notices = nil // the last room is for messages, and for removing things
		}
		n, size := x.expire(&held{Thread: *t, wasOpen: row.Open}, notices)
		told, room = told+n, room-size
		done++
	}
	if posted, err = x.write(tx); err != nil {
		return 0, nil, err
	}
	return done, posted, nil
}

// expiry is one call of Expire.
type expiry struct {
	*group
	now     time.Time
	ended   []notice
	removed []Removal
	agents  int // how many take part in the threads removed
}

// notice is a message of the relay's own about a thread that the clock has ended.
type notice struct {
	*envelope.Envelope
	of *held
}

// expire decides about h, and returns how many notices tell of its end and their size in bytes.
func (x *expiry) expire(h *held, notices relay.Notices) (n int, size int64) {
	t := &h.Thread
	now := x.policy.Rules.At(t.Thread, x.now)
	if _, alive := x.policy.Rules.Deadline(now); !alive && now.State == t.State {
		// It had ended before, so this is its removal.
		participants := t.Participants()
		x.agents += len(t.Transitions)
		x.removed = append(x.removed, Removal{t.Number, t.Key(), participants})
		return 0, 0
	} else if alive {
		// Timeouts were shorter when its deadline was written down.
		x.keep(h, now, x.now, t.Keep)
		return 0, 0
	}
	x.keep(h, now, x.now, x.now)
	if notices == nil {
		return 0, 0
	}
	for _, m := range notices(now, t.RequestExpires) {
		x.ended = append(x.ended, notice{m, h})
		n, size = n+1, size+int64(len(m.Canonical()))
	}
	return n, size
}

// write stores what was decided. A notice that is here already, by its id, is left out: parties may coincide. Nobody can
// post a notice, so its id is remembered no longer than it is delivered.
func (x *expiry) write(tx Tx) ([]relay.Posted, error) {
	if len(x.ended) > 0 {
		var w Wanted
		for _, n := range x.ended {
			w.Messages = append(w.Messages, MessageKey{n.Sender.ID, n.ID})
		}
		found, err := tx.Load(w)
		if err != nil {
			return nil, err
		}
		x.since(found.End)
		for _, m := range found.Messages {
			x.known[m.MessageKey] = known{}
		}
	}
	for _, n := range x.ended {
		if x.isKnown(n.Envelope) {
			continue
		}
		expires := x.policy.Window.Expires(n.TS, n.TTL)
		x.add(relay.Entry{Envelope: n.Envelope, Received: x.now}, n.of, charged(n.Envelope, n.of.Thread.Thread), expires, expires)
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
		x.left = x.end
	}
	return changes.posted(), nil
}

// HasEnded reports whether the thread of row has ended at now and the last of its envelopes has expired: then its record
// may go early if the room is needed and none of its messages is stored. gone is what to remove.
func (l *Ledger) HasEnded(row Row, now time.Time) (gone Removal, ended bool, err error) {
	t, err := row.Decode()
	if err != nil {
		return Removal{}, false, err
	}
	_, alive := l.policy.Rules.Deadline(l.policy.Rules.At(t.Thread, now))
	return Removal{t.Number, t.Key(), t.Participants()}, !alive && !t.Keep.After(now), nil
}

// At returns the thread of row as it stands at now.
func At(row Row, rules thread.Rules, now time.Time) (thread.Thread, error) {
	t, err := row.Decode()
	if err != nil {
		return thread.Thread{}, err
	}
	return rules.At(t.Thread, now), nil
}

// OfParty returns those of rows of which party is a party at now, the oldest first, each once. For relay.Store.ThreadsOf
// rows are the party's own thread with the id, and those that Found.Of would have; or the one of the client that is
// asked for.
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
