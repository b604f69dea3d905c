package relay

// Epoch returns the random number of the store's database.
func (r *Relay) Epoch() uint32 { return r.startCursor.Epoch }
