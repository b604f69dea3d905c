package channel

import (
	"context"

	"github.com/agora-relay/agora/gateway"
)

// SetLimits sets how many events of a channel are kept, and how many unfinished deliveries an inbox may have.
func (g *Gateway) SetLimits(keep, open int64) { g.keep, g.open = keep, open }

// CallOwn calls a callback of this service as the outbox does.
func (g *Gateway) CallOwn(ctx context.Context, url string, c gateway.Call) (gateway.Response, error) {
	return g.ownCallback(url)(ctx, c)
}
