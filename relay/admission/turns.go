package admission

import (
	"math"

	"github.com/agora-relay/agora/internal/turns"
)

// maxConcurrentReads is how many reads the store works on at a time. maxConcurrentViews is how many of them may be Views
// of extensions. So one slot is only for the relay's own reads (G-34).
const (
	maxConcurrentReads = 4
	maxConcurrentViews = maxConcurrentReads - 1
)

// Source says who waits for a turn: an IPv4 address, the /48 of an IPv6 address, or all local requests together. It is
// an array of bytes because hashing it needs little stack. The stack of a poll keeps its largest size while the poll
// waits.
type Source struct {
	network [16]byte
	local   bool
}

// Source returns where p waits for its turns.
func (p Peer) Source() Source {
	if p.Local {
		return Source{local: true}
	}
	return Source{network: siteNetwork(p.Addr).Addr().As16()}
}

// NewTurns returns a queue that lets n jobs run at a time, and perSource jobs of one source. Local jobs may use all
// slots. This works only if jobs are short, so a long read is split into many.
func NewTurns(n, perSource int) *turns.Queue[Source] {
	return turns.New(n, func(s Source) int {
		if s.local {
			return math.MaxInt
		}
		return perSource
	})
}
