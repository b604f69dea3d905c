package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/follow"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/client/internal/mark"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// identify returns who the relay is. It tries until the relay answers or ctx ends.
func (c *Client) identify(ctx context.Context) (didkey.DID, error) {
	var pause pacing.Backoff
	for {
		did, err := c.conn.RelayDID(ctx)
		if err == nil {
			return did, nil
		}
		c.conn.Log.Warn("a relay does not answer, will be retried", "relay", c.conn.Base, "error", err)
		if err := pause.Wait(ctx, 0, pacing.MaxPause); err != nil {
			return "", err
		}
	}
}

// fresh returns the events that have not come before with the same content, and remembers that they are being handled.
// Two events with one sender and id and different contents are both returned, and logged (RELAYS R-12).
//
// at is the relay of an agent; empty: of a reader. An agent handles again what the home of a thread shows again: the
// home may have been restored from a backup without the answer.
func (n *Network) fresh(events []*envelope.Envelope, at didkey.DID) (all []*envelope.Envelope) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range events {
		m, key := mark.Of(e), recent.Message{Sender: e.Sender.ID, ID: e.ID}
		shownByHome := at != "" && (e.Home == nil || e.Home.DID == at)
		if _, arrived := n.arrived[m]; !shownByHome && (arrived || n.state.WasHandled(e)) {
			continue
		}
		if other, ok := n.seen.Get(key); ok && other != m {
			n.log.Warn("two messages of one sender have the same id and different contents; both are delivered",
				"sender", e.Sender.ID, "id", e.ID)
		}
		n.seen.Add(key, m)
		n.arrived[m] = struct{}{}
		all = append(all, e)
	}
	return all
}

// done records that an event is handled.
func (n *Network) done(e *envelope.Envelope) {
	n.state.Handle(e)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.arrived, mark.Of(e))
}

// Follow follows all given relays, as Client.Follow does for one: one handler gets the events of all of them in the
// order in which they arrive, one at a time, and an event that came before from another relay is dropped until it
// expires. A relay that is down delays nothing of the others. The positions are in NetworkOptions.State; opts.Cursor
// is not used. Use a State for one filter only.
//
// Errors: ctx's error; the error of handler, unchanged; errors of writing the State; an *envelope.Error if all relays
// refuse the request and a retry would not help.
func (n *Network) Follow(
	ctx context.Context, opts FollowOptions, handler func(context.Context, *envelope.Envelope) error,
) error {
	var turn sync.Mutex
	return n.each(ctx, func(ctx context.Context, p *Client, relay didkey.DID) error {
		store := journal.Cursor{Journal: n.state, Relay: relay, URL: p.conn.Base}
		f := p.follower(opts)
		f.Cursor = store
		f.Handle = func(ctx context.Context, events []*envelope.Envelope, cursor string) error {
			for _, e := range n.fresh(events, "") {
				turn.Lock()
				err := ctx.Err()
				if err == nil {
					err = p.readable(handler)(ctx, e)
				}
				turn.Unlock()
				if err != nil {
					return &handlerError{err}
				}
				n.done(e)
			}
			return follow.SaveCursor(ctx, store, cursor)
		}
		return f.Run(ctx)
	})
}

// handlerError is an error that ends the loops of all relays.
type handlerError struct{ error }

func (e *handlerError) Unwrap() error { return e.error }

// each runs loop for each given relay, once the relay has said who it is, until ctx ends. It returns when all loops
// have ended. A relay that refuses its loop is logged, and the others continue. If all refuse, each returns the error.
func (n *Network) each(ctx context.Context, loop func(context.Context, *Client, didkey.DID) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var loops sync.WaitGroup
	var mu sync.Mutex
	left := len(n.given)
	for _, p := range n.given {
		loops.Go(func() {
			relay, err := p.identify(ctx)
			if err == nil && n.state.IsCaught(relay) {
				err = &wire.Failure{Err: ErrCaught}
			}
			if err == nil {
				err = loop(ctx, p, relay)
			}
			_, refused := errors.AsType[*wire.Failure](err)
			if wrapped, ok := errors.AsType[*handlerError](err); ok {
				err, refused = wrapped.error, false
			}
			mu.Lock()
			left--
			last := left == 0
			mu.Unlock()
			if refused && !last {
				n.log.Error("a relay refuses this client and is not followed any more", "relay", p.conn.Base, "error", err)
				return
			}
			stop(err)
		})
	}
	loops.Wait()
	return context.Cause(ctx)
}

// Serve runs an agent at all given relays, as Client.Serve does at one. The answer to a REQUEST goes to the home of its
// thread only (RELAYS R-14). A job that its client continues at another relay is worked on once. A MANIFEST that
// Serve posts names the relays. The positions are in NetworkOptions.State, and opts.Cursor and opts.State are not used.
// Errors: those of Client.Serve; a relay that refuses the agent is left out, unless all do.
func (n *Network) Serve(ctx context.Context, opts ServeOptions, handler Handler) error {
	opts.State = n.opts.State
	d, err := newDesk(ctx, n.me, n.log, opts, handler)
	if err != nil {
		return err
	}
	defer d.stop(nil)
	d.network = n
	err = n.each(d.ctx, func(ctx context.Context, p *Client, relay didkey.DID) error {
		return d.agentAt(p, relay).run(ctx)
	})
	d.stop(err)
	d.tasks.Wait()
	return context.Cause(d.ctx)
}

// agentAt adds the part of the desk at a relay of the network.
func (d *desk) agentAt(p *Client, relay didkey.DID) *agent {
	a := d.agent(p, journal.Cursor{Journal: d.state, Relay: relay, URL: p.conn.Base})
	a.relay = relay
	a.progress.Handled = d.network.done
	return a
}

// route puts a REQUEST into the queue of the agent at the home of its thread. A REQUEST whose home may not be
// contacted is dropped and logged. The home may be another relay than the one that has shown the REQUEST: a mirror
// shows copies.
func (a *agent) route(ctx context.Context, w *queuedRequest) {
	home := w.Event.Home
	if a.network == nil || home == nil || home.DID == a.relay {
		a.enqueue(ctx, w)
		return
	}
	a.desk.mu.Lock()
	i := slices.IndexFunc(a.agents, func(other *agent) bool { return other.relay == home.DID })
	var at *agent
	if i >= 0 {
		at = a.agents[i]
	}
	a.desk.mu.Unlock()
	switch {
	case a.network.state.IsCaught(home.DID):
		a.skip(ctx, w, ErrCaught)
	case at != nil:
		at.enqueue(ctx, w)
	case !a.network.opts.Discover:
		a.skip(ctx, w, errNotGiven)
	default:
		a.tasks.Go(func() {
			at, err := a.follow(ctx, *home)
			if err != nil {
				a.skip(ctx, w, err)
				return
			}
			at.enqueue(ctx, w)
		})
	}
}

var errNotGiven = errors.New("its home is not one of the relays that were given, or does not answer")

// skip leaves a REQUEST without an answer.
func (a *agent) skip(ctx context.Context, w *queuedRequest, reason error) {
	a.log.Warn("a REQUEST is not answered", "thread", w.Key.ID, "client", w.Key.Client, "home", w.Event.Home.URL,
		"reason", reason)
	a.release(ctx, w.Page)
}

// follow adds the part of the desk at a relay that was discovered, and follows the relay.
func (a *agent) follow(ctx context.Context, home envelope.Home) (*agent, error) {
	p, err := a.network.at(ctx, home)
	if err != nil {
		return nil, err
	}
	a.desk.following.Lock()
	defer a.desk.following.Unlock()
	for _, other := range a.desk.followed {
		if other.relay == home.DID {
			return other, nil
		}
	}
	other := a.agentAt(p, home.DID)
	a.desk.followed = append(a.desk.followed, other)
	a.tasks.Go(func() {
		if err := other.run(ctx); ctx.Err() == nil {
			a.log.Warn("a relay that was discovered is not followed any more", "relay", p.conn.Base, "error", err)
		}
	})
	return other, nil
}

// manifest returns the agent's MANIFEST as it is posted to all relays, with the same bytes (RELAYS R-10). It signs a
// new one when half of the last one's lifetime is over. It also does so if the last one does not name the relay at
// which it is posted now, because that relay did not answer before.
func (n *Network) manifest(ctx context.Context, payload envelope.Payload, at *Client) (*envelope.Envelope, error) {
	home, now := at.conn.Home(ctx), at.conn.Now()
	n.announcing.Lock()
	last := n.freshManifest(now, home)
	n.announcing.Unlock()
	if last != nil {
		return last, nil
	}
	relays := n.ownRelays(ctx)
	payload, err := envelope.WithRelays(payload, relays)
	if err != nil {
		return nil, err
	}
	n.announcing.Lock()
	defer n.announcing.Unlock()
	if e := n.freshManifest(now, home); e != nil { // the agent at another relay was faster
		return e, nil
	}
	d := envelope.Draft{Payload: payload, SenderName: n.opts.SenderName, SenderURL: n.opts.SenderURL}
	e, err := d.Sign(n.signer, now)
	if err == nil {
		n.announced, n.named = e, relays
	}
	return e, err
}

// freshManifest returns the last MANIFEST. It returns nil if the last one is too old, or does not name the relay home.
// home is nil for a relay that manifests do not name. The caller holds n.announcing.
func (n *Network) freshManifest(now time.Time, home *envelope.Home) *envelope.Envelope {
	e := n.announced
	if e == nil || now.Sub(e.TS) >= e.TTL/2 {
		return nil
	}
	if home == nil || len(n.named) == envelope.MaxRelays || slices.Contains(n.named, *home) {
		return e
	}
	return nil
}

// ownRelays returns the relays that a MANIFEST names: the given ones that can be homes and have answered, now or
// before.
func (n *Network) ownRelays(ctx context.Context) (relays []envelope.Home) {
	ctx, cancel := context.WithTimeout(ctx, n.opts.Silence/3)
	defer cancel()
	all, errs := askAll(n.given, func(p *Client) (*conn.About, error) {
		a, err := p.conn.About(ctx, conn.AboutAge)
		if err != nil {
			return p.conn.About(ctx, 0)
		}
		return a, nil
	})
	for i, a := range all {
		if errs[i] == nil && a.Home != nil && len(relays) < envelope.MaxRelays {
			relays = append(relays, *a.Home)
		}
	}
	return relays
}
