package didkey

// CacheSize is the minimum number of identities that a full cache keeps.
const CacheSize = cacheSize

// Size returns the number of identities in c.
func (c *Verifiers) Size() int { return len(c.recent) + len(c.previous) }
