package deliver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file reads the events of the relay from a position on. The position moves in the transaction of each effect, see
// once. So an effect happens once, also after a crash (B-4).

// columns are the columns of the table with a gateway's position. It has one row. Its seq is the last event of the
// relay whose effects are stored.
const columns = "id, seq"

// PositionTable describes the table that has the position of a gateway, such as "hub", for `agora check`.
func PositionTable(gatewayName string) gateway.Table {
	return gateway.NewTable(gatewayName+"_position", 1, columns)
}

// position returns the last event of the relay whose effects are stored.
func (d *Deliveries) position(q relay.Querier) (seq relay.Seq, found bool, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		found = true
		return scan((*int64)(&seq))
	}, "SELECT seq FROM "+d.table.Name+" WHERE id = 1")
	return seq, found, err
}

func (d *Deliveries) setPosition(tx relay.ExtTx, seq relay.Seq) error {
	return gateway.Exec(tx, "INSERT INTO "+d.table.Name+" ("+columns+", sum) VALUES (?, ?, ?) "+
		"ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, sum = excluded.sum",
		d.table.WithSum([]any{int64(1), int64(seq)})...)
}

// start reads the recorded position. If there is none, it records the present end of the relay's events, so that no answer
// to a later REQUEST is missed.
func (d *Deliveries) start(ctx context.Context) error {
	found := false
	err := d.core.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		d.after, found, err = d.position(q)
		return err
	})
	if err != nil || found {
		return err
	}
	end, err := d.core.Relay.End(ctx)
	if err != nil {
		return err
	}
	d.after = end.Seq
	return d.core.Update(ctx, self, func(o *gateway.Op) error { return d.setPosition(o.ExtTx, end.Seq) })
}

// once moves the position to an event, in the transaction of its effect. It returns false if the effect is stored already.
func (d *Deliveries) once(o *gateway.Op, seq relay.Seq) (first bool, err error) {
	done, _, err := d.position(o)
	if err != nil || seq <= done {
		return false, err
	}
	return true, d.setPosition(o.ExtTx, seq)
}

// follow handles events until ctx ends.
func (d *Deliveries) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	mail := &mailbox{did: d.core.Key.DID(), posters: &d.posters, now: d.core.Relay.Now, woken: make(chan struct{}, 1),
		seen: d.after, recorded: d.after}
	watching.Go(func() {
		_ = d.insist(ctx, func() error { // it returns only the error of ctx
			cursor := relay.Cursor{Epoch: d.core.Relay.Epoch(), Seq: mail.last()}
			return d.core.Relay.Watch(ctx, cursor, mail.put)
		})
	})
	for {
		select {
		case <-mail.woken:
		case <-ctx.Done():
			return
		}
		if d.handleAll(ctx, mail.take()) != nil {
			return
		}
		if seen := mail.handled(); seen > 0 && d.insist(ctx, func() error { return d.record(ctx, seen) }) != nil {
			return
		}
	}
}

// maxTogether is how many effects one Update stores. Posts wait for it.
const maxTogether = 16

// handleAll handles events in their order. It returns an error only if ctx ends. Effects in different threads become one
// Update, because then one write to the disk is enough for all of them.
func (d *Deliveries) handleAll(ctx context.Context, events []relay.Posted) error {
	for len(events) > 0 {
		n := together(events)
		if d.storeAll(ctx, events[:n]) != nil { // none was stored, or it is not known
			for _, e := range events[:n] {
				if err := d.insist(ctx, d.handling(ctx, e)); err != nil {
					return err
				}
			}
		}
		events = events[n:]
	}
	return nil
}

// together returns how many of the first events can be prepared at the same time. They must be of different threads,
// because an effect depends on the earlier effects in its thread.
func together(events []relay.Posted) (n int) {
	threads := map[string]bool{}
	for n < min(len(events), maxTogether) && !threads[events[n].Envelope.Thread] {
		threads[events[n].Envelope.Thread] = true
		n++
	}
	return n
}

// storeAll stores the effects of events in one Update.
func (d *Deliveries) storeAll(ctx context.Context, events []relay.Posted) error {
	effects, errs := make([]func(*gateway.Op) error, len(events)), make([]error, len(events))
	var preparing sync.WaitGroup
	for i, e := range events {
		preparing.Go(func() { effects[i], errs[i] = d.prepare(ctx, e) })
	}
	preparing.Wait()
	effects = slices.DeleteFunc(effects, func(effect func(*gateway.Op) error) bool { return effect == nil })
	if err := errors.Join(errs...); err != nil || len(effects) == 0 {
		return err
	}
	return d.core.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
		for _, effect := range effects {
			if err := effect(o); err != nil {
				return err
			}
		}
		return nil
	})
}

// maxAttempts is how often the gateway tries to store the effect of an event while its database works.
const maxAttempts = 8

// handling returns a function that handles an event. After too many failures, it gives the event up, so that the events
// of others do not wait for it for ever.
func (d *Deliveries) handling(ctx context.Context, e relay.Posted) func() error {
	attempts := 0
	return func() error {
		err := d.storeAll(ctx, []relay.Posted{e})
		if err == nil || d.core.Relay.Health() != nil {
			return err
		}
		if attempts++; attempts < maxAttempts {
			return err
		}
		d.core.Log.Error("the answer of an agent is given up", "id", e.Envelope.ID, "sender", e.Envelope.Sender.ID, "err", err)
		return nil
	}
}

// record moves the position over events that have no effect.
func (d *Deliveries) record(ctx context.Context, seen relay.Seq) error {
	return d.core.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
		_, err := d.once(o, seen)
		return err
	})
}

// insist calls gateway.Insist, and logs failures.
func (d *Deliveries) insist(ctx context.Context, do func() error) error {
	return gateway.Insist(ctx, do, func(err error) {
		select {
		case <-d.core.Relay.Drained(): // nothing can be stored any more, so the failure is expected
		default:
			d.core.Log.Error("the answers of agents cannot be handled now; the gateway tries again", "err", err)
		}
	})
}

// recordAfter is how many events may come before the position moves over them. So a restart reads at most as many again.
const recordAfter = 1000

// mailbox has the events for the gateway that are not handled yet.
type mailbox struct {
	did     didkey.DID
	posters *posters
	now     func() time.Time
	woken   chan struct{} // has room for one

	mu             sync.Mutex
	events         []relay.Posted
	seen, recorded relay.Seq // the last event of the relay, also if it was for others; the last value of handled
}

// put adds those of the events that may answer a REQUEST. It is the function of Watch.
func (m *mailbox) put(all []relay.Posted) {
	m.posters.add(all, m.now())
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range all {
		m.seen = e.Seq
		if e.Envelope.Recipient != m.did || !e.Envelope.Sealed() { // a plain answer has no effect (C-27, A-21, B-4)
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
