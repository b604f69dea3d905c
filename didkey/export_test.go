package didkey

// CacheSize is how many identities a cache keeps at least.
const CacheSize = cacheSize

// Size returns how many identities c keeps.
func (c *Verifiers) Size() int { return len(c.recent) + len(c.before) }
