package deliver

import (
	"context"

	"github.com/agora-relay/agora/relay"
)

// HandleAll handles events as Run does.
func (d *Deliveries) HandleAll(ctx context.Context, events []relay.Posted) error {
	return d.handleAll(ctx, events)
}
