package sqlite

import (
	"context"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// Append implements relay.Store.
func (s *Store) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	return s.queue.Append(ctx, e)
}

// AppendAll implements relay.Store.
func (s *Store) AppendAll(ctx context.Context, entries []relay.Entry) []relay.Outcome {
	return s.queue.AppendAll(ctx, entries)
}

// maxBatch is how many entries of AppendAll are stored in one transaction. So the transaction has room for other
// entries.
const maxBatch = ledger.MaxGroup / 2

// batch returns how many of jobs one transaction may have, at least one.
func (s *Store) batch(jobs []ledger.Job) int {
	most := int(s.care.logLimit.Load()) / 2
	for i, j := range jobs[:min(len(jobs), maxBatch)] {
		if most -= pages(j); most < 0 && i > 0 {
			return i
		}
	}
	return min(len(jobs), maxBatch)
}
