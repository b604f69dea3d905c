package a2a

// Limits of endpoints, for tests.
const (
	MaxParams   = maxParams
	MaxSent     = maxSent
	MaxOfSource = maxOfSource
)
