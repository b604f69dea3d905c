package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/agora-relay/agora/relay"
)

// Queue is a queue that strangers fill and its owner empties, such as an inbox. One stranger must not fill it alone, and
// all strangers together must leave half of it to peers that its owner knows (G-37).
type Queue struct {
	// What the queue may hold, in all and of one source, see Core.Source. 0: any number.
	Most, MostBytes, MostOfSource int64
	// What it holds.
	Count, Bytes, OfSource int64
}

// Full says which limit of a Queue is reached.
type Full int

// NotFull means that no limit is reached.
const (
	NotFull Full = iota
	FullCount
	FullBytes
	FullOfSource
)

// Check returns the limit that one more element of size bytes would break, and how many elements or bytes that limit
// allows. known says whether the owner of the queue knows who sends the element.
func (q Queue) Check(known bool, size int64) (full Full, most int64) {
	share := int64(2)
	if known {
		share = 1
	}
	switch {
	case q.Most > 0 && q.Count >= q.Most/share:
		return FullCount, q.Most / share
	case q.MostBytes > 0 && q.Bytes+size > q.MostBytes/share:
		return FullBytes, q.MostBytes / share
	case q.MostOfSource > 0 && q.OfSource >= q.MostOfSource:
		return FullOfSource, q.MostOfSource
	}
	return NotFull, 0
}

// Source returns a number for the network from which a request comes: an IPv4 address, or the /48 of an IPv6 address.
// Accounts are free, so what is counted must be counted by network. The number is negative, so that it differs from the
// numbers of rows. It is a keyed hash, because the database must not show who has used a gateway. It is 0 for the relay's
// own machine, which has no limits per address.
func (c *Core) Source(from relay.Peer) int64 {
	if from.Local {
		return 0
	}
	site := from.Site()
	hash := hmac.New(sha256.New, c.sourceKey)
	address := site.Addr().As16()
	hash.Write(address[:])
	return -int64(binary.BigEndian.Uint64(hash.Sum(nil))>>1) - 1
}
