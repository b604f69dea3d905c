package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// ThreadView is a thread as it stands now.
type ThreadView struct {
	thread.Thread
	Delivery           // its unexpired envelopes, notices of a timeout included
	Deadline time.Time // when the clock will end it; zero if it has ended
	Expired  int       // how many of its envelopes that the viewer may see have expired
}

// maxThreadEvents is more than the rules let a thread have: a REQUEST, 100 offers, as many withdrawals, an end, notices.
const maxThreadEvents = 1000

// Thread returns the thread k; without k.Client the oldest with k.ID.
// Errors: CodeThreadNotFound.
func (r *Relay) Thread(ctx context.Context, p Peer, k thread.Key) (ThreadView, error) {
	if err := r.draining(); err != nil {
		return ThreadView{}, err
	}
	now, w := r.now(), &work{peer: p, look: firstLook, least: leastLook, whole: true}
	t, err := r.threadFor(ctx, w, k, now)
	if err != nil {
		return ThreadView{}, err
	}
	q := Query{Filter: Filter{Thread: t.ID, Client: t.Client, Viewer: r.viewer(p)}, Now: now, Headers: true, Limit: maxThreadEvents}
	all, err := r.scan(ctx, w, &q)
	if err != nil {
		return ThreadView{}, err
	}
	v := ThreadView{Thread: t}
	v.Deadline, _ = r.policy.Rules.Deadline(t)
	unexpired := map[string]int{}
	for _, e := range all.Events {
		unexpired[e.ID]++
	}
	for _, step := range t.Transitions {
		if !q.Viewer.counts(t, step) {
			continue
		}
		if unexpired[step.ID]--; unexpired[step.ID] < 0 {
			v.Expired++
		}
	}
	q.Headers, q.MaxBytes, q.Until = false, pieceBytes, all.Cursor.Seq
	first, err := r.scan(ctx, w, &q)
	if err != nil {
		return v, err
	}
	v.Delivery, err = r.complete(ctx, w, &q, first, math.MaxInt)
	return v, err
}

// threadFor returns the thread k as w's peer may see it; one that it may not see is not there.
func (r *Relay) threadFor(ctx context.Context, w *work, k thread.Key, now time.Time) (t thread.Thread, err error) {
	v := r.viewer(w.peer)
	if !v.Limited {
		err = r.timed(ctx, w, func(ctx context.Context) (err error) {
			t, err = r.store.Thread(ctx, k, now)
			return err
		})
		return t, err
	}
	found, err := r.threadsOf(ctx, w, k, v.DID, now)
	if err == nil && len(found) == 0 {
		err = thread.ErrNotFound
	}
	if err != nil {
		return thread.Thread{}, err
	}
	return v.record(r.policy.Rules, found[0], now), nil
}

// threadsOf asks the store for w, also on behalf of somebody who has no part in a thread.
func (r *Relay) threadsOf(ctx context.Context, w *work, k thread.Key, party didkey.DID, now time.Time) (found []thread.Thread, err error) {
	err = r.timed(ctx, w, func(ctx context.Context) (err error) {
		found, err = r.store.ThreadsOf(ctx, k, party, now)
		return err
	})
	return found, err
}

// timed does one slice of w that the store does not time.
func (r *Relay) timed(ctx context.Context, w *work, slice func(context.Context) error) error {
	if err := r.begin(ctx, w); err != nil {
		return err
	}
	began := time.Now()
	defer func() { r.end(w, time.Since(began)) }()
	return slice(context.WithoutCancel(ctx))
}

const sweepEvery = time.Second

// sweep lets the store do what is due, until ctx ends.
func (r *Relay) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var due horizon
	for {
		began := time.Now()
		err := r.store.Expire(ctx, due.look(r.now(), began), r.timeoutNotices)
		if ctx.Err() == nil {
			r.observer.Swept(time.Since(began), err)
			r.noteSweep(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// noteSweep keeps how a sweep went. A failure is logged when it begins, and not again every second.
func (r *Relay) noteSweep(err error) {
	trouble, refused := errors.AsType[*envelope.Error](err)
	if err != nil && !refused {
		trouble = envelope.Errorf(envelope.CodeUnavailable, "the relay's store fails; the reason is in its log")
	}
	before := r.trouble.Swap(trouble)
	switch {
	case err != nil && (before == nil || before.Message != trouble.Message):
		r.log.Error("sweeping fails; it is tried every second", "err", err)
	case err == nil && before != nil:
		r.log.Info("sweeping succeeds again")
	}
}

// How long a notice of a timeout lives at least and at most.
const minNoticeTTL, maxNoticeTTL = time.Minute, 24 * time.Hour

// timeoutNotices returns the ERROR envelopes that tell the parties of t that the clock has ended it. The agent that a
// REQUEST names, and that has not offered, is told only while it can still read the REQUEST: afterwards it has nothing
// to learn. A notice lives as long as the REQUEST. Its id is derived from thread and party, so that the store keeps each
// notice once.
func (r *Relay) timeoutNotices(t thread.Thread, request time.Time) []*envelope.Envelope {
	if t.Terms.Quiet {
		return nil
	}
	var notices []*envelope.Envelope
	now := r.now()
	ttl := min(max(request.Sub(now).Truncate(time.Second), minNoticeTTL), maxNoticeTTL)
	details := fmt.Appendf(nil, `{"client":%q,"from":%q}`, t.Client, t.Transitions[len(t.Transitions)-1].From)
	for _, party := range append([]didkey.DID{t.Client}, t.Agents()...) { // one twice, if a client has asked itself
		if t.Unasked(party) && !now.Before(request) {
			continue
		}
		hash := sha256.Sum256([]byte(string(t.Client) + "\n" + t.ID + "\n" + string(party)))
		notice, err := envelope.Draft{
			ID:        "timeout_" + hex.EncodeToString(hash[:16]),
			Recipient: party,
			Thread:    t.ID,
			TTL:       ttl,
			Payload: envelope.Failure{RequestID: t.RequestID, Code: envelope.AgentTimeout, Details: details,
				Message: "the thread's time was up; the relay ended it"},
		}.Sign(r.key, now)
		if err != nil {
			// A party that is not told is better than a relay that ends no thread any more.
			r.log.Error("no notice of a thread's timeout", "thread", t.ID, "party", party, "err", err)
			continue
		}
		notices = append(notices, notice)
	}
	return notices
}
