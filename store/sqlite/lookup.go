package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// lookup is a query with what must be known before its statement can be made.
type lookup struct {
	relay.Query
	skew    time.Duration // the policy's
	threads []int64       // the threads that Thread and Client name, see Store.threads
	tail    [][]relay.Seq // the events of the tail that the query may find, one list for each tailKey
	// scanAll says that the events with the query's TS, thread or sender are too many to sort, see selectSortCount.
	scanAll bool
}

// lookup prepares q. No statement may have read an event for q before.
func (s *Store) lookup(ctx context.Context, q relay.Query) (l *lookup, err error) {
	l = &lookup{Query: q, skew: s.policy.Window.Skew}
	// For other queries, a filter compares the id. The time of a read by a limited reader must not show how many threads of
	// others have it.
	if q.Thread != "" && (q.Client != "" || q.Recipient == "" && !byAudience(l)) {
		if l.threads, err = s.threads(ctx, thread.Key{ID: q.Thread, Client: q.Client}, q.MaxExamined); err != nil {
			return nil, err
		}
	}
	if keys := l.tailKeys(); len(keys) > 0 {
		l.tail = s.tail.events(span{q.After.Seq, q.Until}, keys)
	}
	return l, nil
}

// threads returns the numbers of the threads with an id, at most one more than limit if limit is not 0. With a client, it
// returns that client's thread. A thread that is not found has no event yet.
func (s *Store) threads(ctx context.Context, k thread.Key, limit int) (numbers []int64, err error) {
	if k.Client != "" {
		n, err := s.threadNumber(ctx, k)
		if n == 0 {
			return nil, err
		}
		return []int64{n}, err
	}
	for _, r := range s.tail.rolesOf(roleKey{id: k.ID}) {
		numbers = append(numbers, r.thread)
	}
	if limit > 0 {
		numbers = numbers[:min(len(numbers), limit+1)]
	}
	err = eachRow(func(scan scanner) error {
		var n int64
		err := scan(&n)
		numbers = append(numbers, n)
		return err
	}, func() (*sql.Rows, error) {
		if limit == 0 {
			limit = -2
		}
		return s.query(ctx, threadsWithID+" LIMIT ?", []any{k.ID, limit + 1})
	})
	slices.Sort(numbers)
	return slices.Compact(numbers), err
}

// threadNumber returns the number of a client's thread, 0 if there is none.
func (s *Store) threadNumber(ctx context.Context, k thread.Key) (int64, error) {
	if n := s.tail.threadOf(k); n != 0 {
		return n, nil
	}
	return s.queryNumber(ctx, threadOfClient, []any{k.ID, string(k.Client)})
}

// thread returns the number of the client's thread. If there is none, it returns a number that no thread has.
func (q *lookup) thread() int64 {
	if len(q.threads) == 0 {
		return -1
	}
	return q.threads[0]
}

// tailKeys returns the keys of some lists. Together they have all events that are not merged and that q may find. It
// corresponds to accessPaths. It returns none if q reads along the sequence of events.
func (q *lookup) tailKeys() (keys []tailKey) {
	v := q.Viewer
	switch {
	case q.Recipient != "":
		keys = append(keys, tailRecipient(q.Recipient))
		if q.Broadcast {
			keys = append(keys, tailRecipient(""))
		}
	case byAudience(q):
		if v.DID == "" || q.Sender != v.DID {
			keys = append(keys, tailRecipient(""))
		}
		if v.DID != "" && q.Sender != v.DID {
			keys = append(keys, tailRecipient(v.DID))
		}
		if v.DID != "" && (q.Sender == "" || q.Sender == v.DID) {
			keys = append(keys, tailSender(v.DID))
		}
	case !q.TS.IsZero():
		keys = append(keys, tailTS(nanos(q.TS)))
	case q.Thread != "":
		for _, n := range q.threads {
			keys = append(keys, tailThread(n))
		}
	case q.Sender != "":
		keys = append(keys, tailSender(q.Sender))
	}
	return keys
}

// tailCount returns how many events of the tail q may find.
func (q *lookup) tailCount() (n int) {
	for _, list := range q.tail {
		n += len(list)
	}
	return n
}

// tailHorizon is like selectHorizon for the tail.
func (q *lookup) tailHorizon() (seq relay.Seq) {
	for _, list := range q.tail {
		n := len(list)
		if n < q.MaxExamined {
			continue
		}
		at := list[q.MaxExamined-1]
		if q.Backward {
			at = list[n-q.MaxExamined]
		}
		seq = nearer(seq, at, q.Backward)
	}
	return seq
}

// unmerged returns the events of the tail in the range of q, in order.
func (q *lookup) unmerged() (all []relay.Seq) {
	in := span{q.After.Seq, q.Until}
	for _, list := range q.tail {
		all = append(all, in.within(list)...)
	}
	if len(q.tail) > 1 {
		slices.Sort(all)
		all = slices.Compact(all)
	}
	return all
}
