package sqlite

import (
	"context"

	"github.com/agora-relay/agora/relay"
)

// Append implements relay.Store.
func (s *Store) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	return s.do(ctx, s.appends, job{entry: e})
}

// appendEntries passes the entries of jobs to the ledger, which stores the accepted ones in the open transaction.
func (w *writer) appendEntries(group []job, outcomes []outcome) ([]relay.Posted, error) {
	entries := make([]relay.Entry, len(group))
	for i, j := range group {
		entries[i] = j.entry
	}
	decided, posted, err := w.ledger.Append(w, entries)
	for i, o := range decided {
		outcomes[i] = outcome{o.Receipt, o.Err}
	}
	return posted, err
}
