package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// Reads for readers that may not see everything.

// visible limits the selection to the events that v may see, if another condition chose the index.
func (s *selection) visible(v relay.Viewer) {
	switch {
	case !v.Limited:
	case v.DID == "":
		s.add("+event.recipient = 0")
	default:
		s.add("(+event.recipient = 0 OR +event.recipient = "+partyNumber+" OR +event.sender = "+partyNumber+")", string(v.DID),
			string(v.DID))
	}
}

// byAudience reports whether q must be read by audience. An index on sender, thread or time would make the read pass
// over messages of others, and the time this takes would show how many there are. Two kinds of queries need no
// audience. A query for a thread and its client comes from the relay itself, on behalf of the thread's parties. A query
// for a recipient comes from that recipient.
func byAudience(q *lookup) bool {
	return q.Viewer.Limited && q.Recipient == "" && (q.Thread == "" || q.Client == "")
}

// audiences returns how each access path to the visible events begins. No path passes over messages of others, and no
// event is on two paths.
func audiences(q *lookup) []func(*selection) {
	all := []func(*selection){broadcasts(q)}
	if q.Viewer.DID == "" {
		return all
	}
	did := string(q.Viewer.DID)
	sent := func(s *selection) { s.addLeading(senderColumn, bySender, did) }
	if q.Sender == q.Viewer.DID {
		return []func(*selection){sent}
	}
	all = append(all, inbox(q, q.Viewer.DID)...)
	if q.Sender != "" {
		return all // events sent by someone else
	}
	return append(all, sent) // filter leaves out of sent what the other paths have
}

// ThreadsOf implements relay.Store.
func (s *Store) ThreadsOf(ctx context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error) {
	if err := s.closed(); err != nil || party == "" {
		return nil, err // the empty party takes part in no thread
	}
	found, err := s.rowsOf(ctx, k, party)
	if err != nil {
		return nil, s.handleReadError(err)
	}
	return ledger.OfParty(found, party, s.policy.Rules, now)
}

// rowsOf returns the threads for ledger.OfParty.
func (s *Store) rowsOf(ctx context.Context, k thread.Key, party didkey.DID) ([]ledger.Row, error) {
	own, err := s.threadNumber(ctx, thread.Key{ID: k.ID, Client: cmp.Or(k.Client, party)})
	if err != nil {
		return nil, err
	}
	numbers := []int64{own}
	if k.Client == "" {
		others, err := s.tail.threadsOf(roleKey{k.ID, party}, func(args ...any) (*sql.Rows, error) {
			return s.query(ctx, threadsOfParticipant, args)
		})
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, others...)
	}
	return s.threadRows(ctx, numbers)
}
