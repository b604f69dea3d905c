package gateway_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// prepared is a Follower whose effects count in the database.
type prepared struct {
	*gateway.Follower
	t    *testing.T
	ops  []*gateway.Op // of each effect that is on disk, in order
	seqs []relay.Seq

	mu       sync.Mutex
	prepares int
	fails    map[relay.Seq]int // how often the effect of an event fails
}

func prepareAll(t *testing.T, o *office) *prepared {
	p := &prepared{t: t, fails: map[relay.Seq]int{}}
	p.Follower = &gateway.Follower{Core: o.core, Prepare: func(_ context.Context, e relay.Posted) (func(*gateway.Op) error, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.prepares++; e.Seq%5 == 0 {
			return nil, nil
		}
		return func(op *gateway.Op) error {
			if _, err := gateway.Next(op.ExtTx, "effects"); err != nil {
				return err
			}
			if p.fails[e.Seq]--; p.fails[e.Seq] >= 0 {
				return errors.New("the effect fails")
			}
			op.Then(func() { p.ops, p.seqs = append(p.ops, op), append(p.seqs, e.Seq) })
			return nil
		}, nil
	}}
	return p
}

// handle handles events in these threads, with the numbers from 1 on. It returns how many Updates were made.
func (p *prepared) handle(threads ...string) (updates int) {
	p.t.Helper()
	p.ops, p.seqs = nil, nil
	var events []relay.Posted
	for i, thread := range threads {
		events = append(events, relay.Posted{Event: relay.Event{Seq: relay.Seq(i + 1)},
			Envelope: &envelope.Envelope{Thread: thread}})
	}
	if err := p.HandleAll(p.t.Context(), events); err != nil {
		p.t.Fatal(err)
	}
	return len(slices.Compact(slices.Clone(p.ops)))
}

// Effects of events in different threads become one Update, in the order of the events. In one thread, each event waits
// for the effect of the one before. If an effect fails, all effects of its Update are stored one by one, each once.
func TestPreparedEffects(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		p := prepareAll(t, o)
		want := []relay.Seq{1, 2, 3, 4, 6}
		if n := p.handle("a", "b", "c", "d", "e", "f"); n != 1 || !slices.Equal(p.seqs, want) {
			t.Errorf("%d Updates for the effects of %v", n, p.seqs)
		}
		if n := p.handle("a", "b", "a", "c", "d", "e"); n != 2 || !slices.Equal(p.seqs, want) {
			t.Errorf("with a second event in a thread: %d Updates for the effects of %v", n, p.seqs)
		}
		var many []string
		for i := range 40 {
			many = append(many, string(rune('a'+i)))
		}
		if n := p.handle(many...); n != 3 || len(p.seqs) != 32 {
			t.Errorf("%d Updates for %d effects", n, len(p.seqs))
		}
		p.fails[3] = 3
		began := time.Now()
		p.handle("a", "b", "c", "d", "e", "f")
		if n := len(slices.Compact(p.ops)); n != 5 || !slices.Equal(p.seqs, want) || time.Since(began) < time.Second {
			t.Errorf("after failures: %d Updates for the effects of %v", n, p.seqs)
		}
		update(t, o.relay, func(tx relay.ExtTx) error {
			n, err := gateway.Next(tx, "effects")
			if n != 5+5+32+5+1 {
				t.Errorf("%d effects were stored", n-1)
			}
			return err
		})
	})
}
