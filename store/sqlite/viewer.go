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

// What a store answers a reader who may not see everything.

// visible keeps to the events that v may see, where another condition drives the statement.
func (s *selection) visible(v relay.Viewer) {
	switch {
	case !v.Limited:
	case v.DID == "":
		s.add("+recipient = 0")
	default:
		s.add("(+recipient = 0 OR +recipient = "+partyNumber+" OR +sender = "+partyNumber+")", string(v.DID), string(v.DID))
	}
}

// byAudience reports whether audiences drive q. Its sender, its thread or its time would lead a reader through the mail
// of others, and how long that took would tell how much there is. A thread by its client is asked for by the relay, for
// those who take part; a recipient is the reader himself.
func byAudience(q relay.Query) bool {
	return q.Viewer.Limited && q.Recipient == "" && (q.Thread == "" || q.Client == "")
}

// audiences returns where each way to what q's viewer may see begins, so that no reader walks through the mail of
// others. No event is on two of them.
func audiences(q relay.Query) []func(*selection) {
	all := []func(*selection){broadcasts(q)}
	if q.Viewer.DID == "" {
		return all
	}
	did := string(q.Viewer.DID)
	sent := func(s *selection) { s.lead(senderColumn, bySender, did) }
	if q.Sender == q.Viewer.DID {
		return []func(*selection){sent}
	}
	all = append(all, inbox(q, q.Viewer.DID)...)
	if q.Sender != "" {
		return all // what another has sent
	}
	return append(all, sent) // without what is on the other two, see filter
}

// ThreadsOf implements relay.Store.
func (s *Store) ThreadsOf(ctx context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error) {
	if err := s.closed(); err != nil || party == "" {
		return nil, err // nobody takes part
	}
	text, args := anyThread+"t.n IN ("+threadOfClient+")", []any{k.ID, string(k.Client)}
	if k.Client == "" {
		text = anyThread + "t.n IN (" + threadOfClient + ") OR t.n IN (" +
			"SELECT thread FROM thread_role WHERE id = ? AND party = ? AND role > 2 ORDER BY role, thread LIMIT ?) ORDER BY t.n"
		args = []any{k.ID, string(party), k.ID, string(party), ledger.MaxCandidates}
	}
	var found []ledger.Row
	err := eachRow(func(scan scanner) error {
		row, err := scanThread(scan)
		found = append(found, row)
		return err
	}, func() (*sql.Rows, error) { return s.query(ctx, text, args) })
	if err != nil {
		return nil, s.readFailed(err)
	}
	return ledger.OfParty(found, party, s.policy.Rules, now)
}
