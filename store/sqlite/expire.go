package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// Limits for one transaction of Expire. They keep it short, because posts wait for it.
const (
	expireEvents    = 1000
	expireManifests = 50 // each may have 256 rows of intents
)

// Expire implements relay.Store. It also returns the error of the last tick, so that the caller learns of problems with
// the disk. Refusals: CodeUnavailable while the store accepts no messages.
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
			return errors.Join(w.committed(posted, now), s.care.handleError(w.watchLog(expireEvents*eventPages)))
		})
		if err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(s.care.currentError(), s.task(ctx, func(w *writer) error {
		return w.ledger.CheckClock(s.options.Now())
	}))
}

// expire does part of the work that is due at now. again reports that more may be due.
func (w *writer) expire(now time.Time, notices relay.Notices) (posted []relay.Posted, again bool, err error) {
	rows := min(expireEvents, w.store.care.logLimit.Load()/eventPages+1)
	if again, err = w.mergeDue(now, int(rows)); again || err != nil {
		return nil, again, err
	}
	posted, others, err := w.expireThreads(now, notices)
	if err != nil {
		return nil, false, err
	}
	more, err := w.forget(now, rows)
	if err == nil {
		err = w.dropTiles(w.store.policy.LeavesUntil(now))
	}
	return posted, more || others, err
}

// alarm is a row of the table thread_due.
type alarm struct{ due, thread int64 }

// expireThreads looks at the threads whose alarms are due. It removes these alarms. A thread that is not due yet, or that
// changes, gets a new one.
func (w *writer) expireThreads(now time.Time, notices relay.Notices) (posted []relay.Posted, again bool, err error) {
	var alarms []alarm
	err = eachRow(func(scan scanner) error {
		var a alarm
		err := scan(&a.due, &a.thread)
		alarms = append(alarms, a)
		return err
	}, func() (*sql.Rows, error) { return w.stmts.dueThreads.Query(nanos(now), ledger.ExpireThreads) })
	if err != nil || len(alarms) == 0 {
		return nil, false, err
	}
	var numbers []int64
	for _, a := range alarms {
		if !slices.Contains(numbers, a.thread) {
			numbers = append(numbers, a.thread)
		}
	}
	found, cut, err := w.rows(w.stmts.threadsByNumber, string(appendList(nil, numbers)))
	if err != nil {
		return nil, false, err
	}
	var due []ledger.Row
	var early []int64 // not due yet
	for _, row := range found {
		if nanos(row.Due) <= nanos(now) {
			due = append(due, row)
		} else {
			early = append(early, row.Number)
		}
	}
	all, free, err := w.pageCounts()
	if err != nil {
		return nil, false, err
	}
	done, posted, err := w.ledger.Expire(w, due, now, notices, w.sparePages(all, free)*pageSize)
	if err != nil {
		return nil, false, err
	}
	left := map[int64]bool{} // threads whose alarms must stay
	for _, row := range due[done:] {
		left[row.Number] = true
	}
	if cut {
		last := slices.Index(numbers, found[len(found)-1].Number)
		for _, n := range numbers[last+1:] {
			left[n] = true
		}
	}
	for _, a := range alarms {
		if left[a.thread] {
			continue
		}
		if _, err := w.stmts.dropDue.Exec(a.due, a.thread); err != nil {
			return nil, false, err
		}
	}
	return posted, len(left) > 0 || len(alarms) == ledger.ExpireThreads, w.fill(early, dueFillers)
}

// forget removes events whose ids need not be remembered at now, and manifests that have expired, up to rows of each. more
// reports that there may be more of them.
func (w *writer) forget(now time.Time, rows int64) (more bool, err error) {
	if more, err = w.mergeDue(now, int(rows)); more || err != nil {
		return more, err
	}
	affected := parties{}
	if _, more, err = w.drop(now, rows, affected); err != nil {
		return false, err
	}
	return more, w.removeParties(affected)
}

// drop removes merged events whose forget time has come at now and manifests that have expired, up to rows of each. It saves
// the last number given, so that no number is used again. It adds the removed rows' senders and recipients to affected.
// more reports that more rows may be due.
func (w *writer) drop(now time.Time, rows int64, affected parties) (removed int64, more bool, err error) {
	var dropped, unlisted int64
	lists := min(rows, expireManifests)
	err = eachRow(func(scan scanner) error {
		var sender, recipient int64
		err := scan(&sender, &recipient)
		affected[sender], affected[recipient] = struct{}{}, struct{}{}
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
		affected[sender] = struct{}{}
		unlisted++
		return err
	}, func() (*sql.Rows, error) { return w.stmts.dropManifests.Query(nanos(now), lists) })
	return dropped + unlisted, dropped == rows || unlisted == lists, err
}

// removeParties removes the identities that no row refers to any more. some are the identities that a row removed just
// now referred to. So an identity is removed together with the last row that refers to it.
func (w *writer) removeParties(some parties) error {
	for id := range some {
		if named, err := w.namedByTail(id); named || err != nil {
			if err != nil {
				return err
			}
			continue
		}
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

// namedByTail reports whether an event that is not merged names the identity with this number.
func (w *writer) namedByTail(id int64) (named bool, err error) {
	if w.store.tail.len() == 0 {
		return false, nil
	}
	err = eachRow(func(scan scanner) error {
		var did didkey.DID
		err := scan(&did)
		named = w.store.tail.names(did)
		return err
	}, func() (*sql.Rows, error) { return w.stmts.partyDID.Query(id) })
	return named, err
}
