package client

import (
	"context"
	"time"

	"github.com/agora-relay/agora/client/internal/follow"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Filter selects events. An event must match all fields that are set. The zero value selects all events.
type Filter struct {
	Recipient didkey.DID
	Broadcast bool // with Recipient: also select events without a recipient
	Sender    didkey.DID
	Type      envelope.Type
	Thread    string
}

// FollowOptions say which events Follow reads, and where it begins. The zero value reads all events from now on.
type FollowOptions struct {
	Filter
	// Cursor stores the position of the reader; nil: the position is kept in memory until Follow returns.
	Cursor CursorStore
	// FromOldest and Since say where to begin if Cursor has no saved cursor. With FromOldest, Follow begins with the
	// oldest event that the relay has. Else it begins with the events after Since, or after the present time if Since
	// is zero. An event is after Since if its timestamp is, or if the relay received it after Since.
	FromOldest bool
	Since      time.Time
	// Page is the largest number of events in one response of the relay; 0: 100. So it is also the largest number of
	// events that are delivered again after a crash.
	Page int
}

// Follow passes each event that matches the filter to handler, in the relay's order. It then waits for more events,
// until ctx ends or handler returns an error.
//
// handler gets only verified envelopes. Follow skips and logs an event that does not verify, that does not match the
// filter, or that is larger than 1 MiB. If a payload is sealed to the client's own key, Follow decrypts it
// (envelope.Envelope.Opened is true then). If that fails, Follow skips the event. Payloads that are sealed to other
// keys stay sealed. That includes payloads that the client itself has sealed for others.
//
// A client with a signer signs its polls (PROTOCOL §8). At an open relay the signature only shows that the identity is
// online.
//
// Follow delivers each event at least once. It saves the cursor when handler has returned nil for all events of a page
// (see FollowOptions.Page). After a restart, the events after the saved cursor are delivered again. Within one call,
// Follow skips an event that is among the last 4096 events that it has seen.
//
// Follow logs failures of the network or the relay and retries, after the delay that the relay asks for (an hour at
// most). If the relay does not know the cursor, for example because it has lost its database, Follow starts again with
// the relay's oldest event.
//
// Errors: ctx's error; the error of handler, unchanged; errors of the CursorStore; an *envelope.Error if the relay
// refuses the request and a retry would not help.
func (c *Client) Follow(
	ctx context.Context, opts FollowOptions, handler func(context.Context, *envelope.Envelope) error,
) error {
	f := c.follower(opts)
	f.Handle = func(ctx context.Context, events []*envelope.Envelope, cursor string) error {
		for _, e := range events {
			if err := c.readable(handler)(ctx, e); err != nil {
				return err
			}
		}
		return follow.SaveCursor(ctx, opts.Cursor, cursor)
	}
	return f.Run(ctx)
}

// follower returns the poll loop for opts.
func (c *Client) follower(opts FollowOptions) *follow.Follower {
	return &follow.Follower{Conn: c.conn, Filter: follow.Filter(opts.Filter), Cursor: opts.Cursor,
		FromOldest: opts.FromOldest, Since: opts.Since, Page: opts.Page}
}
