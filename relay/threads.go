package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// ThreadView is a thread as a reader sees it now.
type ThreadView struct {
	thread.Thread
	Delivery           // its unexpired envelopes, including notices of a timeout
	Deadline time.Time // when the thread will time out; zero: it has ended
	Expired  int       // how many of the envelopes that the reader may see have expired
	Removed  []Tombstone
}

// Tombstone says that the operator has removed an envelope of a thread. Steps of the thread still have its id.
type Tombstone struct {
	ID string    `json:"id"` // of the envelope
	At time.Time `json:"at"` // when it was removed
}

// maxThreadEvents returns an upper bound of the number of envelopes of a thread: a REQUEST, the offers, a withdrawal of
// each, an end, and a notice for each party.
func maxThreadEvents(rules thread.Rules) int { return 3*rules.MaxOffers + 10 }

// Thread returns the thread k. Without k.Client, it returns the oldest thread with k.ID that p may see. Errors:
// CodeThreadNotFound.
func (r *Relay) Thread(ctx context.Context, p Peer, k thread.Key) (ThreadView, error) {
	if err := r.draining(); err != nil {
		return ThreadView{}, err
	}
	now, reader := r.now(), r.newReader(p)
	reader.mustComplete = true
	t, err := r.threadFor(ctx, reader, k, now)
	if err != nil {
		return ThreadView{}, err
	}
	q := Query{Filter: Filter{Thread: t.ID, Client: t.Client, Viewer: r.viewer(p)}, Now: now, Headers: true,
		Removed: true, Limit: maxThreadEvents(r.policy.Rules)}
	all, err := r.scanThread(ctx, reader, &q, t)
	if err != nil {
		return ThreadView{}, err
	}
	v := ThreadView{Thread: t}
	v.Deadline, _ = r.policy.Rules.Deadline(t)
	unexpired := map[string]int{}
	for _, e := range all.Events {
		unexpired[e.ID]++
		if !e.Removed.IsZero() {
			v.Removed = append(v.Removed, Tombstone{e.ID, e.Removed.UTC()})
		}
	}
	for _, step := range t.Transitions {
		if !q.Viewer.countsTransition(t, step) {
			continue
		}
		if unexpired[step.ID]--; unexpired[step.ID] < 0 {
			v.Expired++
		}
	}
	q.Headers, q.Removed, q.MaxBytes, q.Until = false, false, pieceBytes, all.Cursor.Seq
	first, err := reader.scan(ctx, &q)
	if err != nil {
		return v, err
	}
	v.Delivery, err = reader.complete(ctx, &q, first, math.MaxInt)
	return v, err
}

// settling is how long a view of a thread waits for the event of the thread's last step.
const settling = time.Second

// scanThread scans the events of t. If the last step of t is recent, scanThread waits for its event, at most for
// settling. A store commits a step together with its event. But Store.Read shows an event only once the store has
// published it, which is a moment later.
func (r *Relay) scanThread(ctx context.Context, reader *storeReader, q *Query, t thread.Thread) (Page, error) {
	last := len(t.Transitions) - 1
	for pause := time.Millisecond; ; pause *= 2 {
		page, err := reader.scan(ctx, q)
		if err != nil || last < 0 || !q.Viewer.countsTransition(t, t.Transitions[last]) ||
			pause > settling/2 || r.now().Sub(t.Transitions[last].At) > settling ||
			slices.ContainsFunc(page.Events, func(e Event) bool { return e.ID == t.Transitions[last].ID }) {
			return page, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Page{}, ctx.Err()
		}
	}
}

// threadFor returns the thread k as the reader's client may see it. A thread that the client may not see is not found.
func (r *Relay) threadFor(
	ctx context.Context, reader *storeReader, k thread.Key, now time.Time,
) (t thread.Thread, err error) {
	v := r.viewer(reader.peer)
	if !v.Limited {
		err = reader.timedSlice(ctx, func(ctx context.Context) (err error) {
			t, err = r.store.Thread(ctx, k, now)
			return err
		})
		return t, err
	}
	found, err := reader.threadsOf(ctx, k, v.DID, now)
	if err == nil && len(found) == 0 {
		err = thread.ErrNotFound
	}
	if err != nil {
		return thread.Thread{}, err
	}
	return v.visibleThread(r.policy.Rules, found[0], now), nil
}

// threadsOf returns the threads that k selects and of which party is a party, see Store.ThreadsOf. The time that this
// takes is charged to the reader's client.
func (r *storeReader) threadsOf(
	ctx context.Context, k thread.Key, party didkey.DID, now time.Time,
) (found []thread.Thread, err error) {
	err = r.timedSlice(ctx, func(ctx context.Context) (err error) {
		found, err = r.store.ThreadsOf(ctx, k, party, now)
		return err
	})
	return found, err
}

const sweepEvery = time.Second

// sweep calls Store.Expire every sweepEvery, until ctx ends.
func (r *Relay) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var clock sweepClock
	for {
		began := time.Now()
		err := r.store.Expire(ctx, clock.advance(r.now(), began), r.timeoutNotices)
		if ctx.Err() == nil {
			r.observer.Swept(time.Since(began), err)
			r.recordSweep(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// recordSweep keeps the outcome of a sweep for Health. It logs a failure when it begins, and not again every second.
func (r *Relay) recordSweep(err error) {
	failure, refused := errors.AsType[*envelope.Error](err)
	if err != nil && !refused {
		failure = envelope.Errorf(envelope.CodeUnavailable, "the relay's store has failed; the reason is in the relay's log")
	}
	before := r.sweepError.Swap(failure)
	switch {
	case err != nil && (before == nil || before.Message != failure.Message):
		r.log.Error("cannot remove expired data and end threads; trying again every second", "err", err)
	case err == nil && before != nil:
		r.log.Info("removing expired data and ending threads works again")
	}
}

// Limits of the ttl of a timeout notice.
const minNoticeTTL, maxNoticeTTL = time.Minute, 24 * time.Hour

// timeoutNotices returns the ERROR envelopes that tell the parties of t that t has timed out. An agent that the REQUEST
// names, but that has not offered, gets a notice only while it can still read the REQUEST. After that, the notice would
// tell it nothing that it needs. A notice lives as long as the REQUEST, within minNoticeTTL and maxNoticeTTL. Its id is
// derived from thread and party, so the store keeps each notice only once.
func (r *Relay) timeoutNotices(t thread.Thread, request time.Time) []*envelope.Envelope {
	if t.Terms.Quiet {
		return nil
	}
	var notices []*envelope.Envelope
	now := r.now()
	ttl := min(max(request.Sub(now).Truncate(time.Second), minNoticeTTL), maxNoticeTTL)
	details := fmt.Appendf(nil, `{"client":%q,"from":%q}`, t.Client, t.Transitions[len(t.Transitions)-1].From)
	// A client that has sent the REQUEST to itself is in this list twice.
	for _, party := range append([]didkey.DID{t.Client}, t.Agents()...) {
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
				Message: "the thread has timed out; the relay has ended it"},
		}.Sign(r.key, now)
		if err != nil {
			// Sending no notice to a party is better than never ending a thread again.
			r.log.Error("cannot sign the notice of a thread's timeout; this party gets none", "thread", t.ID, "party", party,
				"err", err)
			continue
		}
		notices = append(notices, notice)
	}
	return notices
}
