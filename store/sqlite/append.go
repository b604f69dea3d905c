package sqlite

import (
	"context"

	"github.com/agora-relay/agora/relay"
)

// Append implements relay.Store.
func (s *Store) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	return s.do(ctx, s.appends, job{entry: e})
}

// maxBatch is how many entries of AppendAll are stored in one transaction. So the transaction has room for other
// entries.
const maxBatch = maxGroup / 2

// AppendAll implements relay.Store.
func (s *Store) AppendAll(ctx context.Context, entries []relay.Entry) []relay.Outcome {
	outcomes := make([]relay.Outcome, 0, len(entries))
	for len(outcomes) < len(entries) {
		jobs := s.batch(entries[len(outcomes):])
		first := job{entry: jobs[0].entry, done: jobs[0].done, more: jobs[1:]}
		err := s.send(ctx, s.appends, first)
		for i := 0; i < len(jobs) && err == nil; i++ {
			o := s.wait(ctx, jobs[i].done)
			outcomes = append(outcomes, o)
			if !o.Decided() {
				err = o.Err
			}
		}
		for err != nil && len(outcomes) < len(entries) {
			outcomes = append(outcomes, relay.Outcome{Err: err})
		}
	}
	return outcomes
}

// batch returns jobs for as many entries as one transaction may have, at least one.
func (s *Store) batch(entries []relay.Entry) (jobs []job) {
	most := int(s.care.logLimit.Load()) / 2
	for _, e := range entries[:min(len(entries), maxBatch)] {
		j := job{entry: e, done: make(chan relay.Outcome, 1)}
		if most -= j.pages(); most < 0 && len(jobs) > 0 {
			break
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// appendEntries passes the entries of jobs to the ledger, which stores the accepted ones in the open transaction.
func (w *writer) appendEntries(group []job, outcomes []relay.Outcome) ([]relay.Posted, error) {
	entries := make([]relay.Entry, len(group))
	for i, j := range group {
		entries[i] = j.entry
	}
	decided, posted, err := w.ledger.Append(w, entries)
	copy(outcomes, decided)
	return posted, err
}
