package sqlite

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
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
	all := []func(*selection){func(s *selection) { s.inbox(q, "0") }}
	if q.Viewer.DID == "" {
		return all
	}
	did := string(q.Viewer.DID)
	sent := func(s *selection) { s.lead(senderColumn, bySender, did) }
	if q.Sender == q.Viewer.DID {
		return []func(*selection){sent}
	}
	all = append(all, func(s *selection) { s.inbox(q, partyNumber, did) })
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
	text, args := "SELECT record FROM thread WHERE id = ? AND client = "+partyNumber, []any{k.ID, string(k.Client)}
	if k.Client == "" {
		text = "SELECT record FROM thread WHERE n IN (SELECT n FROM thread WHERE id = ? AND client = " + partyNumber + ") OR n IN (" +
			"SELECT thread FROM participant WHERE id = ? AND party = " + partyNumber + " ORDER BY rank, thread LIMIT ?) ORDER BY n"
		args = []any{k.ID, string(party), k.ID, string(party), maxCandidates}
	}
	rows, err := s.query(ctx, text, args)
	if err != nil {
		return nil, s.readFailed(err)
	}
	defer rows.Close()
	var found []thread.Thread
	for rows.Next() {
		var record []byte
		var t thread.Thread
		if err := rows.Scan(&record); err != nil {
			return nil, s.readFailed(err)
		}
		if err := json.Unmarshal(record, &t); err != nil {
			return nil, err
		}
		if t = s.policy.Rules.At(t, now); t.IsParty(party) {
			found = append(found, t)
		}
	}
	return found, s.readFailed(rows.Err())
}
