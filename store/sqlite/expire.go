package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// How much one transaction of Expire does at most, so that posts do not wait long behind it.
const (
	expireEvents  = 1000
	expireThreads = 100
	expireNotices = 100
)

// Expire implements relay.Store. It also looks whether the database's files are where they were, keeps what is beside
// them in order, and while the disk is full tries to make room. Refusals: CodeUnavailable while the store takes nothing in.
func (s *Store) Expire(ctx context.Context, now time.Time, notices func(thread.Thread) []*envelope.Envelope) error {
	s.expiring.Lock()
	defer s.expiring.Unlock()
	if err := s.closed(); err != nil {
		return err
	}
	if err := s.failed(s.misplaced()); err != nil {
		return err
	}
	if err := s.syncMark(); err != nil {
		return err
	}
	if err := s.refusal(); errors.Is(err, errDiskFailed) {
		return err
	} else if err != nil {
		if err := s.makeRoom(ctx, now); err != nil {
			return err
		}
	}
	for again := true; again && ctx.Err() == nil; {
		err := s.task(ctx, func(w *writer) error {
			var posted []relay.Posted
			err := w.transact(func() (err error) {
				posted, again, err = w.expire(now, notices)
				return err
			})
			if err != nil {
				return err
			}
			return errors.Join(w.committed(posted, now), w.store.failed(w.watchLog(expireEvents*eventPages)))
		})
		if err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.upkeep(ctx)
}

// expire does some of what is due at now; again says that there may be more.
func (w *writer) expire(now time.Time, notices func(thread.Thread) []*envelope.Envelope) (posted []relay.Posted, again bool, err error) {
	due, err := w.records(w.stmts.dueThreads, nanos(now))
	if err != nil {
		return nil, false, err
	}
	for _, r := range due {
		if again = len(posted) >= expireNotices; again {
			break
		}
		ended := w.store.policy.Rules.At(r.Thread, now)
		if _, alive := w.store.policy.Rules.Deadline(ended); alive {
			// Timeouts were shorter when its deadline was written down.
			if err := w.updateThread(r, instant(r.keep), now); err != nil {
				return nil, false, err
			}
			continue
		}
		if ended.State == r.State {
			// It had ended before, so this is its removal.
			if _, err := w.stmts.dropThread.Exec(r.n); err != nil {
				return nil, false, err
			}
			continue
		}
		r.Thread = ended
		told, err := w.announce(r, now, notices)
		if err != nil {
			return nil, false, err
		}
		posted = append(posted, told...)
	}
	rows := min(expireEvents, w.store.logLimit.Load()/eventPages+1)
	dropped, err := w.drop(now, rows)
	if err != nil {
		return nil, false, err
	}
	if _, err := w.stmts.dropManifests.Exec(nanos(now)); err != nil {
		return nil, false, err
	}
	return posted, again || dropped == rows || len(due) == expireThreads, nil
}

// drop removes so many events at most that are forgotten at now, but remembers that their numbers were given.
func (w *writer) drop(now time.Time, rows int64) (dropped int64, err error) {
	result, err := w.stmts.dropEvents.Exec(nanos(now), rows)
	if err != nil {
		return 0, err
	}
	if dropped, err = result.RowsAffected(); err != nil || dropped == 0 {
		return 0, err
	}
	_, err = w.stmts.keepLast.Exec(w.last)
	return dropped, err
}

// announce stores that the clock has ended r, with the relay's notices of it. A notice that is here already, by its id,
// is left out: parties may coincide.
func (w *writer) announce(r record, now time.Time, notices func(thread.Thread) []*envelope.Envelope) (posted []relay.Posted, err error) {
	last := now
	for _, m := range notices(r.Thread) {
		p, err := w.insert(relay.Entry{Envelope: m, Received: now}, r.n)
		if errors.Is(err, errKnown) {
			continue
		}
		if err != nil {
			return nil, err
		}
		last = p.Expires
		posted = append(posted, p)
	}
	err = w.updateThread(r, last, now)
	return posted, err
}
