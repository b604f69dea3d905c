package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// How many rows one transaction of Expire removes at most, so that posts do not wait long behind it.
const (
	expireEvents    = 1000
	expireManifests = 50 // each may have 256 rows of intents
)

// Expire implements relay.Store. It fails while the store takes nothing in, and with what the last look at the disk
// found, so that its caller learns of it. Refusals: CodeUnavailable while the store takes nothing in.
func (s *Store) Expire(ctx context.Context, now time.Time, notices relay.Notices) error {
	if err := s.closed(); err != nil {
		return err
	}
	s.care.due.Store(nanos(now))
	for again := true; again && ctx.Err() == nil; {
		err := s.task(ctx, func(w *writer) error {
			if err := s.care.refusal(); err != nil {
				return err // on a full disk only care writes
			}
			var posted []relay.Posted
			err := w.transact(func() (err error) {
				posted, again, err = w.expire(now, notices)
				return err
			})
			if err != nil {
				return err
			}
			return errors.Join(w.committed(posted, now), s.care.failed(w.watchLog(expireEvents*eventPages)))
		})
		if err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.care.trouble()
}

// expire does some of what is due at now; again says that there may be more.
func (w *writer) expire(now time.Time, notices relay.Notices) (posted []relay.Posted, again bool, err error) {
	due, others, err := w.rows(w.stmts.dueThreads, nanos(now), ledger.ExpireThreads)
	if err != nil {
		return nil, false, err
	}
	all, free, err := w.pageCounts()
	if err != nil {
		return nil, false, err
	}
	done, posted, err := w.ledger.Expire(w, due, now, notices, w.spare(all, free)*pageSize)
	if err != nil {
		return nil, false, err
	}
	left := parties{}
	rows := min(expireEvents, w.store.care.logLimit.Load()/eventPages+1)
	_, more, err := w.drop(now, rows, left)
	if err == nil {
		err = w.removeParties(left)
	}
	return posted, more || others || done < len(due) || len(due) == ledger.ExpireThreads, err
}

// drop removes events that are forgotten at now and manifests that have expired, so many rows at most. It remembers that
// the events' numbers were given, and adds to left who sent them or was to get them. more says that there may be more.
func (w *writer) drop(now time.Time, rows int64, left parties) (removed int64, more bool, err error) {
	var dropped, unlisted int64
	lists := min(rows, expireManifests)
	err = eachRow(func(scan scanner) error {
		var sender, recipient int64
		err := scan(&sender, &recipient)
		left[sender], left[recipient] = struct{}{}, struct{}{}
		dropped++
		return err
	}, func() (*sql.Rows, error) { return w.stmts.dropEvents.Query(nanos(now), rows) })
	if err != nil {
		return 0, false, err
	}
	if dropped > 0 {
		if _, err := w.stmts.keepLast.Exec(w.last); err != nil {
			return 0, false, err
		}
	}
	err = eachRow(func(scan scanner) error {
		var sender int64
		err := scan(&sender)
		left[sender] = struct{}{}
		unlisted++
		return err
	}, func() (*sql.Rows, error) { return w.stmts.dropManifests.Query(nanos(now), lists) })
	return dropped + unlisted, dropped == rows || unlisted == lists, err
}

// removeParties removes those identities to which nothing refers any more. Each was the sender, the recipient or a party
// of something that has just been removed; so an identity goes with the last thing that refers to it.
func (w *writer) removeParties(some parties) error {
	for id := range some {
		err := eachRow(func(scan scanner) error {
			var did didkey.DID
			err := scan(&did)
			delete(w.parties, did)
			delete(w.agents, id)
			return err
		}, func() (*sql.Rows, error) { return w.stmts.dropParty.Query(id) })
		if err != nil {
			return err
		}
	}
	return nil
}
