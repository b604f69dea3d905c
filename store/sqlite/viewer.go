package sqlite

import (
	"context"
	"encoding/json"
	"strconv"
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

// audiences returns a condition for each index through which what v may see is reached, so that no reader walks through
// the mail of others. No event meets two of them.
func audiences(v relay.Viewer) []func(*selection) {
	all := []func(*selection){func(s *selection) { s.add(s.column("recipient") + " = 0") }}
	if v.DID == "" {
		return all
	}
	did := string(v.DID)
	return append(all,
		func(s *selection) { s.add(s.column("recipient")+" = "+partyNumber, did) },
		func(s *selection) {
			s.from, s.driven = bySender, true
			s.add("sender = "+partyNumber, did)
			s.add("+recipient NOT IN (0, ifnull("+partyNumber+", 0))", did)
		})
}

// ThreadsOf implements relay.Store.
func (s *Store) ThreadsOf(ctx context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error) {
	if err := s.closed(); err != nil {
		return nil, err
	}
	// The record names all that take part; which of them are parties is the rules' word.
	text, args := "SELECT record FROM thread WHERE id = ? AND instr(record, ?) > 0", []any{k.ID, string(party)}
	if k.Client != "" {
		text += " AND client = " + partyNumber
		args = append(args, string(k.Client))
	}
	rows, err := s.query(ctx, text+" ORDER BY n LIMIT "+strconv.Itoa(maxCandidates), args)
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
		if t = s.policy.Rules.At(t, now); party != "" && t.IsParty(party) {
			found = append(found, t)
		}
	}
	return found, s.readFailed(rows.Err())
}
