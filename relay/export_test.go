package relay

import "time"

// NewTokens returns the default Nonces. It is for tests in which several relays share one.
func NewTokens(now time.Time) Nonces { return newNonceMemory(now) }
