package gateway

import (
	"context"
	"errors"
	"sync"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Follower handles what agents answer to the REQUESTs of a gateway. It reads the events of the relay from a position in
// the gateway's tables on. The position moves in the transaction of each effect, see Once. So an effect happens once, also
// after a crash.
type Follower struct {
	Core *Core
	// Position returns the last event of the relay whose effects are stored. SetPosition stores it.
	Position    func(q relay.Querier) (seq relay.Seq, found bool, err error)
	SetPosition func(tx relay.ExtTx, seq relay.Seq) error
	// Handle does what a sealed OFFER, RESULT or ERROR to the DID of the gateways leads to. After an error it is called
	// again.
	Handle func(ctx context.Context, e relay.Posted) error
	// Prepare may take the place of Handle. It changes nothing, and returns the effect, which an Update stores and which
	// begins with Once; nil: there is none. It is called for several events at the same time. Their effects may become one
	// Update, in the order of the events. Then one write to the disk is enough for all of them.
	Prepare func(ctx context.Context, e relay.Posted) (effect func(o *Op) error, err error)

	after relay.Seq // the events up to this one were handled before the start
}

// Start reads the recorded position. If there is none, it records the present end of the relay's events. Call it before
// the first REQUEST is sent, so that no answer is missed.
func (f *Follower) Start(ctx context.Context) error {
	found := false
	err := f.Core.Relay.View(ctx, own, func(q relay.Querier) (err error) {
		f.after, found, err = f.Position(q)
		return err
	})
	if err != nil || found {
		return err
	}
	end, err := f.Core.Relay.End(ctx)
	if err != nil {
		return err
	}
	f.after = end.Seq
	return f.Core.Update(ctx, own, func(o *Op) error { return f.SetPosition(o.ExtTx, end.Seq) })
}

// Once moves the position to an event, in the transaction of its effect. It returns false if the effect is stored already.
func (f *Follower) Once(o *Op, seq relay.Seq) (first bool, err error) {
	done, _, err := f.Position(o)
	if err != nil || seq <= done {
		return false, err
	}
	return true, f.SetPosition(o.ExtTx, seq)
}

// Run handles events until ctx ends. Start must have succeeded.
func (f *Follower) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	mail := &mailbox{did: f.Core.Key.DID(), woken: make(chan struct{}, 1), seen: f.after, recorded: f.after}
	watching.Go(func() {
		_ = f.insist(ctx, func() error { // it returns only the error of ctx
			cursor := relay.Cursor{Epoch: f.Core.Relay.Epoch(), Seq: mail.last()}
			return f.Core.Relay.Watch(ctx, cursor, mail.put)
		})
	})
	for {
		select {
		case <-mail.woken:
		case <-ctx.Done():
			return
		}
		if f.handleAll(ctx, mail.take()) != nil {
			return
		}
		if seen := mail.handled(); seen > 0 && f.insist(ctx, func() error { return f.record(ctx, seen) }) != nil {
			return
		}
	}
}

// maxTogether is how many effects one Update stores, because posts wait for it.
const maxTogether = 16

// handleAll handles events in their order. It returns an error only if ctx ends.
func (f *Follower) handleAll(ctx context.Context, events []relay.Posted) error {
	for len(events) > 0 {
		n := f.together(events)
		if n == 1 || f.storeAll(ctx, events[:n]) != nil {
			for _, e := range events[:n] {
				if err := f.insist(ctx, f.handling(ctx, e)); err != nil {
					return err
				}
			}
		}
		events = events[n:]
	}
	return nil
}

// together returns how many of the first events can be prepared at the same time: they are of different threads, because
// an effect may depend on the one before in its thread.
func (f *Follower) together(events []relay.Posted) (n int) {
	if f.Prepare == nil {
		return 1
	}
	threads := map[string]bool{}
	for n < min(len(events), maxTogether) && !threads[events[n].Envelope.Thread] {
		threads[events[n].Envelope.Thread] = true
		n++
	}
	return n
}

// storeAll stores the effects of events in one Update. After an error none was stored, or it is not known, and the events
// are handled one by one.
func (f *Follower) storeAll(ctx context.Context, events []relay.Posted) error {
	effects, errs := make([]func(*Op) error, len(events)), make([]error, len(events))
	var preparing sync.WaitGroup
	for i, e := range events {
		preparing.Go(func() { effects[i], errs[i] = f.Prepare(ctx, e) })
	}
	preparing.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.Core.Update(context.WithoutCancel(ctx), own, func(o *Op) error {
		for _, effect := range effects {
			if effect == nil {
				continue
			}
			if err := effect(o); err != nil {
				return err
			}
		}
		return nil
	})
}

// handle handles one event.
func (f *Follower) handle(ctx context.Context, e relay.Posted) error {
	if f.Prepare == nil {
		return f.Handle(ctx, e)
	}
	effect, err := f.Prepare(ctx, e)
	if err != nil || effect == nil {
		return err
	}
	return f.Core.Update(context.WithoutCancel(ctx), own, effect)
}

// maxAttempts is how often the gateway tries to store the effect of an event while its database works.
const maxAttempts = 8

// handling returns a function that handles an event. After too many failures, it gives the event up, so that the events
// of others do not wait for it for ever.
func (f *Follower) handling(ctx context.Context, e relay.Posted) func() error {
	attempts := 0
	return func() error {
		err := f.handle(ctx, e)
		if err == nil || f.Core.Relay.Health() != nil {
			return err
		}
		if attempts++; attempts < maxAttempts {
			return err
		}
		f.Core.Log.Error("the answer of an agent is given up", "id", e.Envelope.ID, "sender", e.Envelope.Sender.ID, "err", err)
		return nil
	}
}

// record moves the position over events that have no effect.
func (f *Follower) record(ctx context.Context, seen relay.Seq) error {
	return f.Core.Update(context.WithoutCancel(ctx), own, func(o *Op) error {
		_, err := f.Once(o, seen)
		return err
	})
}

// insist is Insist that logs failures.
func (f *Follower) insist(ctx context.Context, do func() error) error {
	return Insist(ctx, do, func(err error) {
		select {
		case <-f.Core.Relay.Drained(): // nothing can be stored any more, so the failure is expected
		default:
			f.Core.Log.Error("the answers of agents cannot be handled now; the gateway tries again", "err", err)
		}
	})
}

// recordAfter is how many events may come before the position moves over them. So a restart reads at most as many again.
const recordAfter = 1000

// mailbox has the events for the gateway that are not handled yet.
type mailbox struct {
	did   didkey.DID
	woken chan struct{} // has room for one

	mu             sync.Mutex
	events         []relay.Posted
	seen, recorded relay.Seq // the last event of the relay, also if it was for others; the last value of handled
}

// put adds those of the events that may answer a REQUEST. It is the function of Watch.
func (m *mailbox) put(all []relay.Posted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range all {
		m.seen = e.Seq
		if e.Envelope.Recipient != m.did || !e.Envelope.Sealed() { // a plain answer has no effect (C-27, A-21)
			continue
		}
		switch e.Envelope.Type {
		case envelope.TypeOffer, envelope.TypeResult, envelope.TypeError:
			m.events = append(m.events, e)
		}
	}
	if len(m.events) == 0 && m.seen < m.recorded+recordAfter {
		return
	}
	select {
	case m.woken <- struct{}{}:
	default: // it was woken before
	}
}

// handled returns the position to record, if all events before it are handled. Otherwise, and if the last one is recent,
// it returns 0.
func (m *mailbox) handled() relay.Seq {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.events) > 0 || m.seen < m.recorded+recordAfter {
		return 0
	}
	m.recorded = m.seen
	return m.seen
}

// take returns the events that were added since the last call.
func (m *mailbox) take() []relay.Posted {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := m.events
	m.events = nil
	return events
}

func (m *mailbox) last() relay.Seq {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}
