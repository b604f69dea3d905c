package sqlite

import (
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
		s.add("+recipient = 0")
	default:
		s.add("(+recipient = 0 OR +recipient = "+partyNumber+" OR +sender = "+partyNumber+")", string(v.DID),
			string(v.DID))
	}
}

// byAudience reports whether q must be read by audience. An index on sender, thread or time would make the read pass
// over messages of others, and the time this takes would show how many there are. Two kinds of queries need no
// audience. A query for a thread and its client comes from the relay itself, on behalf of the thread's parties. A query
// for a recipient comes from that recipient.
func byAudience(q relay.Query) bool {
	return q.Viewer.Limited && q.Recipient == "" && (q.Thread == "" || q.Client == "")
}

// audiences returns how each access path to the visible events begins. No path passes over messages of others, and no
// event is on two paths.
func audiences(q relay.Query) []func(*selection) {
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
	text, args := anyThread+"t.n IN ("+threadOfClient+")", []any{k.ID, string(k.Client)}
	if k.Client == "" {
		text = anyThread + "t.n IN (" + threadOfClient + ") OR t.n IN (" +
			"SELECT thread FROM thread_role WHERE id = ? AND party = ? AND role > 2 ORDER BY role, thread LIMIT ?) " +
			"ORDER BY t.n"
		args = []any{k.ID, string(party), k.ID, string(party), ledger.MaxCandidates}
	}
	var found []ledger.Row
	err := eachRow(func(scan scanner) error {
		row, err := scanThread(scan)
		found = append(found, row)
		return err
	}, func() (*sql.Rows, error) { return s.query(ctx, text, args) })
	if err != nil {
		return nil, s.handleReadError(err)
	}
	return ledger.OfParty(found, party, s.policy.Rules, now)
}
