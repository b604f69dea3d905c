package cli

import (
	"context"
	"errors"
	"time"

	"github.com/agora-relay/agora/client"
)

// ErrCountReached ends Follow when --count is reached.
var ErrCountReached = errors.New("--count is reached")

// CountingCursor ends Follow with ErrCountReached if Reached reports true after a cursor was saved. So the saved cursor
// is the one after the last message.
type CountingCursor struct {
	Store   client.CursorStore // nil: the cursor is not saved
	Reached func() bool
}

// Load implements client.CursorStore.
func (c CountingCursor) Load(ctx context.Context) (string, error) {
	if c.Store == nil {
		return "", nil
	}
	return c.Store.Load(ctx)
}

// Save implements client.CursorStore.
func (c CountingCursor) Save(ctx context.Context, cursor string) error {
	if c.Store != nil {
		if err := c.Store.Save(ctx, cursor); err != nil {
			return err
		}
	}
	if c.Reached() {
		return ErrCountReached
	}
	return nil
}

// WithTimeout returns ctx with an end after this time; 0: without one.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
