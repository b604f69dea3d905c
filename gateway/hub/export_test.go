package hub

import "context"

// SweepNow removes what has expired, as a running hub does once a minute.
func (h *Hub) SweepNow(ctx context.Context) { h.sweepOnce(ctx) }

// Streams returns how many inbox streams are open.
func (h *Hub) Streams() int { return h.streams.count() }
