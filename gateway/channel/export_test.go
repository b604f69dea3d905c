package channel

// SetLimits sets how many events of a channel are kept, and how many unfinished deliveries an inbox may have.
func (g *Gateway) SetLimits(keep, open int64) { g.keep, g.open = keep, open }
