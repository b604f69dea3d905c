package channel

import (
	"context"

	"github.com/agora-relay/agora/gateway"
)

// SetLimits sets how many events of a channel are kept, how many unfinished deliveries an inbox may have, and how many
// channels there may be.
func (g *Gateway) SetLimits(n int64) { g.keep, g.open, g.rooms = n, n, n }

// CallOwn calls a callback of this service as the outbox does.
func (g *Gateway) CallOwn(ctx context.Context, url string, c gateway.Call) (gateway.Response, error) {
	return g.ownCallback(url)(ctx, c)
}
