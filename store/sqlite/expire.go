package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// How much one transaction of Expire does at most, so that posts do not wait long behind it.
const (
	expireEvents  = 1000
	expireThreads = 100
	expireNotices = 100
	expireAgents  = 500 // those that take part in the threads that are removed

	expireManifests = 50 // each may have 256 rows of intents
)

// Expire implements relay.Store. It also looks whether the database's files are where they were, keeps what is beside
// them in order, and while the disk is full tries to make room. Refusals: CodeUnavailable while the store takes nothing in.
func (s *Store) Expire(ctx context.Context, now time.Time, notices relay.Notices) error {
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
func (w *writer) expire(now time.Time, notices relay.Notices) (posted []relay.Posted, again bool, err error) {
	due, others, err := w.records(w.stmts.dueThreads, nanos(now))
	if err != nil {
		return nil, false, err
	}
	all, free, err := w.pageCounts()
	if err != nil {
		return nil, false, err
	}
	spare := w.spare(all, free)
	left := parties{}
	agents := 0
	for _, r := range due {
		if again = len(posted) >= expireNotices || agents >= expireAgents; again {
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
			agents += len(r.Transitions)
			if err := w.removeThread(r, left); err != nil {
				return nil, false, err
			}
			continue
		}
		r.Thread = ended
		if spare <= 0 {
			notices = nil // the last room is for messages, and for removing things
		}
		told, err := w.announce(r, now, notices)
		if err != nil {
			return nil, false, err
		}
		for _, p := range told {
			spare -= 1 + int64(p.Size/pageSize)
		}
		posted = append(posted, told...)
	}
	rows := min(expireEvents, w.store.logLimit.Load()/eventPages+1)
	_, more, err := w.drop(now, rows, left)
	if err == nil {
		err = w.removeParties(left)
	}
	return posted, again || more || others || len(due) == expireThreads, err
}

// parties is a set of identities by their numbers.
type parties map[int64]struct{}

// removeThread removes the record of r, and adds those who took part to left.
func (w *writer) removeThread(r record, left parties) error {
	client, err := w.party(r.Client)
	if err != nil {
		return err
	}
	left[client] = struct{}{}
	for _, did := range r.participants() {
		agent, err := w.party(did)
		if err != nil {
			return err
		}
		left[agent] = struct{}{}
		if _, err := w.stmts.dropParticipant.Exec(agent, r.ID, r.n); err != nil {
			return err
		}
	}
	_, err = w.stmts.dropThread.Exec(r.n)
	return err
}

// participants returns whom enlist has added to r, each once.
func (r record) participants() []didkey.DID {
	all := []didkey.DID{r.Recipient}
	for _, step := range r.Transitions {
		if step.Type == envelope.TypeOffer {
			all = append(all, step.By)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if all[0] == "" {
		all = all[1:]
	}
	return all
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

// announce stores that the clock has ended r, with the relay's notices of it. A notice that is here already, by its id,
// is left out: parties may coincide. Nobody can post a notice, so its row goes when it expires.
func (w *writer) announce(r record, now time.Time, notices relay.Notices) (posted []relay.Posted, err error) {
	last := now
	if notices == nil {
		return nil, w.updateThread(r, last, now)
	}
	request, err := w.requestExpires(r.Thread)
	if err != nil {
		return nil, err
	}
	for _, m := range notices(r.Thread, request) {
		p, err := w.insert(relay.Entry{Envelope: m, Received: now}, r.n, charged(m, r.Thread), w.expires(m))
		if errors.Is(err, errKnown) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if p.Expires.After(last) {
			last = p.Expires
		}
		posted = append(posted, p)
	}
	err = w.updateThread(r, last, now)
	return posted, err
}
