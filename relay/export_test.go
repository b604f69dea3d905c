package relay

import "time"

// NewTokens returns the default Nonces, for tests in which several relays share it.
func NewTokens(now time.Time) Nonces { return newTokens(now) }
