package relay

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

// source says who waits for a turn: an IPv4 address, the /48 of an IPv6 address, or all local requests together. It is
// an array of bytes because hashing it needs little stack. The stack of a poll keeps its largest size while the poll
// waits.
type source struct {
	network [16]byte
	local   bool
}

func (p Peer) source() source {
	if p.Local {
		return source{local: true}
	}
	return source{network: siteNetwork(p.Addr).Addr().As16()}
}

// newTurns returns a queue that lets n jobs run at a time, and perSource jobs of one source. Local jobs may use all
// slots. This works only if jobs are short. So a long read is split into many jobs. Each of them examines a bounded
// number of events, see readJob.
func newTurns(n, perSource int) *turns.Queue[source] {
	return turns.New(n, func(s source) int {
		if s.local {
			return math.MaxInt
		}
		return perSource
	})
}
