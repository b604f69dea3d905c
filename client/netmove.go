package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
)

// homes returns the relays that can be the home of a REQUEST to this recipient, or to everybody if it is empty, the
// preferred one first (RELAYS R-11). All of them have answered now.
func (n *Network) homes(ctx context.Context, recipient didkey.DID) ([]*Client, error) {
	var named []envelope.Home
	if recipient != "" {
		agent, err := n.Agent(ctx, recipient)
		if err != nil && envelope.CodeOf(err) != envelope.CodeAgentNotFound {
			return nil, err
		}
		named = relaysOf(agent)
	}
	found := make([]*Client, max(len(named), len(n.given)))
	ask := func(i int, p *Client) {
		ctx, cancel := context.WithTimeout(ctx, n.opts.Silence/3)
		defer cancel()
		a, err := p.conn.About(ctx, time.Nanosecond)
		if err == nil && recipient != "" && len(named) == 0 {
			_, err = p.Agent(ctx, recipient)
		}
		if err != nil {
			n.log.Warn("a relay cannot be the home", "relay", p.conn.Base, "error", err)
			return
		}
		if a.Home != nil && !n.state.IsCaught(a.DID) {
			found[i] = p
		}
	}
	var asking sync.WaitGroup
	for i, home := range named {
		asking.Go(func() {
			if p, err := n.at(ctx, home); err != nil {
				n.log.Warn("a relay of the recipient is not used", "relay", home.URL, "error", err)
			} else {
				ask(i, p)
			}
		})
	}
	if len(named) == 0 {
		for i, p := range n.given {
			asking.Go(func() { ask(i, p) })
		}
	}
	asking.Wait()
	if ctx.Err() != nil { // a relay that was not asked to the end may be usable
		return nil, ctx.Err()
	}
	found = slices.DeleteFunc(found, func(p *Client) bool { return p == nil })
	if len(found) == 0 {
		return nil, errNoHome
	}
	return found, nil
}

var errNoHome = errors.New("client: no relay can be the home of this request: the relays of the recipient, or the " +
	"given ones, do not answer, do not have the recipient, or lack the feature home")

// relaysOf returns the relays in an agent's newest manifest (RELAYS R-10).
func relaysOf(a Agent) []envelope.Home {
	var payload struct {
		Relays []envelope.Home `json:"relays"`
	}
	if len(a.Manifests) == 0 || a.Manifests[0].DecodePayload(&payload) != nil || !envelope.ValidRelays(payload.Relays) {
		return nil
	}
	return payload.Relays
}

// canMove reports whether the job can be continued elsewhere: its thread has a home, and its REQUEST is known. The caller
// holds j.mu.
func (j *NetworkCall) canMove() bool { return j.order.Newest().Home != "" && j.opts.Intent != "" }

// due returns when the job is to be continued elsewhere, and why; zero: it need not be.
func (j *NetworkCall) due() (at time.Time, reason string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.canMove() {
		return time.Time{}, ""
	}
	at, reason = j.order.Due(time.Now(), j.network.state.IsCaught)
	if !at.IsZero() && at.Before(j.retry) {
		at = j.retry
	}
	return at, reason
}

// run calls on for each thread of the job, also for those that are added meanwhile, and continues the job when that is
// due. It ends with the first error of on, or with ctx's error.
func (j *NetworkCall) run(ctx context.Context, on func(context.Context, *leg) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	started := 0
	for {
		j.mu.Lock()
		added := j.legs[started:]
		left := slices.Clone(j.legs[:len(j.legs)-1])
		j.mu.Unlock()
		for _, l := range left[min(max(started-1, 0), len(left)):] {
			running.Go(func() { j.cancelLeft(ctx, l) })
		}
		for _, l := range added {
			running.Go(func() {
				if j.openAgain(ctx, l) != nil {
					return
				}
				if err := on(ctx, l); err != nil {
					stop(err)
				}
			})
		}
		started += len(added)
		at, reason := j.due()
		timer := time.NewTimer(time.Until(at))
		if at.IsZero() {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-j.wake:
		case <-timer.C:
			if err := j.move(ctx, reason); err != nil {
				return err
			}
		}
		timer.Stop()
	}
}

// move continues the job at the next relay (RELAYS R-15). If there is none, it is tried again a little later.
func (j *NetworkCall) move(ctx context.Context, reason string) error {
	from := j.newest()
	opts := j.opts
	j.mu.Lock()
	opts.Recipient = j.order.For()
	j.mu.Unlock()
	defer func() {
		if ctx.Err() == nil {
			j.mu.Lock()
			j.retry = time.Now().Add(retryMove)
			j.mu.Unlock()
		}
	}()
	opts.Thread = ""
	if opts.TTL = j.expires.Sub(from.peer.conn.Now()).Truncate(time.Second); opts.TTL < time.Second {
		return from.ended
	}
	homes, err := j.network.homes(ctx, opts.Recipient)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		j.network.log.Warn("a job cannot be continued now", "thread", from.call.Thread, "error", err)
		return from.ended
	}
	next := nextHome(homes, from.peer)
	if next == nil {
		return from.ended
	}
	err = j.open(ctx, next, opts, j.root)
	to := j.newest()
	if to == from {
		j.network.log.Warn("a relay does not take the continued job", "relay", next.conn.Base, "error", err)
		return ctx.Err()
	}
	if j.network.opts.Moved == nil {
		j.network.log.Warn("a job was continued at another relay", "from", from.home.URL, "to", to.home.URL, "reason", reason)
	} else {
		j.network.opts.Moved(Move{From: from.home, To: to.home, Thread: to.call.Thread, Reason: reason})
	}
	return ctx.Err()
}

// nextHome returns the relay after the present one, in a circle; nil: there is no other. If the present one is not in
// the list, because it does not answer, that is the first of the list.
func nextHome(homes []*Client, present *Client) *Client {
	i := slices.Index(homes, present)
	next := homes[(i+1)%len(homes)]
	if next == present {
		return nil
	}
	return next
}

// cancelLeft cancels a thread that the job has left, unless it has an ACCEPT (RELAYS R-16). It tries until the relay
// answers, or ctx ends.
func (j *NetworkCall) cancelLeft(ctx context.Context, l *leg) {
	j.mu.Lock()
	may := j.order.MayCancel(l.Leg)
	j.mu.Unlock()
	var pause pacing.Backoff
	for may && ctx.Err() == nil {
		err := l.call.Cancel(ctx, "continued at another relay")
		if !Unanswered(err) || pause.Wait(ctx, 0, pacing.MaxPause) != nil {
			return
		}
	}
}

// fatal returns the error if it ends the job. An error of a thread that the job has left does not, and a relay that has
// lost the thread makes the job continue elsewhere.
func (j *NetworkCall) fatal(ctx context.Context, l *leg, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	refusal, refused := errors.AsType[*AgentError](err)
	switch {
	case refused && refusal.From == j.order.For() && l.call.agent == "": // the named agent declines
		return err
	case l != j.legs[len(j.legs)-1]:
		j.network.log.Info("a thread that the job has left has ended", "thread", l.call.Thread, "reason", err)
		return nil
	case len(j.legs) > deal.MaxContinued || !j.canMove():
		return err
	case envelope.CodeOf(err) == envelope.CodeThreadNotFound:
		l.Lost = "has lost the thread"
	case errors.Is(err, errLost):
		l.Lost = "has lost the ACCEPT"
	case refused && refusal.Code == envelope.AgentTimeout && !l.Offered && j.order.For() != "": // perhaps it withholds it
		l.Lost = "shows no offer"
	default:
		return err
	}
	l.ended = err
	j.notify()
	return nil
}

// openAgain posts the REQUEST of a thread once more, if open was interrupted. It returns ctx's error.
func (j *NetworkCall) openAgain(ctx context.Context, l *leg) error {
	j.mu.Lock()
	cut := l.cut
	j.mu.Unlock()
	if !cut {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, j.network.opts.Silence)
	defer cancel()
	began := time.Now()
	_, err := l.peer.PostEnvelope(within, l.call.links.Request)
	err = j.insist(within, l.peer, l.call.links.Request, err)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	l.cut = false
	switch {
	case err == nil:
	case Unanswered(err) || within.Err() != nil:
		l.Sent(began)
	default:
		l.Lost = "does not take the REQUEST"
	}
	j.notify()
	return nil
}

// acceptAgain accepts the agent's offer in a thread that continues the job, and returns nil. In a thread with an ACCEPT
// it returns nil at once, unless an earlier call was interrupted while it posted the ACCEPT.
func (j *NetworkCall) acceptAgain(ctx context.Context, l *leg) error {
	j.mu.Lock()
	decided, open := l.Decided, l.open
	j.mu.Unlock()
	if open != nil {
		j.acceptContinued(ctx, l, *open)
	}
	if decided {
		return nil
	}
	for offer, err := range l.call.Offers(ctx) {
		if err != nil {
			return err
		}
		j.mu.Lock()
		l.Offered = true
		err = j.decide(l, offer)
		j.mu.Unlock()
		if err != nil {
			j.network.log.Warn("an offer was not accepted", "agent", offer.Agent, "reason", err)
			continue
		}
		j.acceptContinued(ctx, l, offer)
		return nil
	}
	return nil
}

// acceptContinued accepts an offer in a thread that continues the job. A home that refuses the ACCEPT is left.
func (j *NetworkCall) acceptContinued(ctx context.Context, l *leg, offer Offer) {
	err := j.accept(ctx, l, offer)
	if err == nil || ctx.Err() != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	l.Lost = "has refused the ACCEPT"
	j.notify()
	j.network.log.Warn("the ACCEPT of a continued job was refused", "thread", l.call.Thread, "error", err)
}
