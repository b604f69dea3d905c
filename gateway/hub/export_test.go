package hub

import "context"

// SweepNow removes what has expired, as a running hub does once a minute.
func (h *Hub) SweepNow(ctx context.Context) { h.sweepOnce(ctx) }
