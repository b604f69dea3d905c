package gateway

import (
	"context"
	"time"

	"github.com/agora-relay/agora/relay"
)

// Op is one operation of a gateway: a transaction, and what to do when it is on disk.
type Op struct {
	relay.ExtTx
	Now   int64 // nanoseconds since 1970
	after []func()
}

// NewOp returns the operation of a transaction that the gateway has not begun itself. Call Done when it is on disk.
func (c *Core) NewOp(tx relay.ExtTx) *Op { return &Op{ExtTx: tx, Now: c.Relay.Now().UnixNano()} }

// Then makes Done call f.
func (o *Op) Then(f func()) { o.after = append(o.after, f) }

// Done calls the functions that were passed to Then, in order. The operation must be on disk.
func (o *Op) Done() {
	for _, f := range o.after {
		f()
	}
}

// Number returns the number that a SELECT finds, or 0 if it finds no row.
func (o *Op) Number(text string, args ...any) (int64, error) { return Number(o, text, args...) }

// Update runs an operation in one Update of the relay. f may be run twice, each time with a new Op.
func (c *Core) Update(ctx context.Context, from relay.Peer, f func(*Op) error) error {
	var o *Op
	err := c.Relay.Update(ctx, from, func(tx relay.ExtTx) error {
		o = c.NewOp(tx)
		return f(o)
	})
	if err == nil {
		o.Done()
	}
	return err
}

// Pauses of Insist.
const (
	firstPause = time.Second // before the second call; each further pause is twice as long
	maxPause   = time.Minute
)

// Insist calls f until it succeeds, and failed with each of its errors before a pause. It returns an error only if ctx
// ends.
func Insist(ctx context.Context, f func() error, failed func(error)) error {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		failed(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
