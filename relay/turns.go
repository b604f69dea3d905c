package relay

import (
	"context"
	"slices"
	"sync"
)

// maxConcurrentReads is how many reads the store works on at a time.
const maxConcurrentReads = 4

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

// fairQueue lets only a few jobs run at a time, such as reads of the store or the parsing of bodies. If more jobs wait,
// their sources take turns, with one job each. So many jobs from one source delay another source by one job, not by all
// of them. One source never uses all slots, unless it is the local machine.
//
// This works only if jobs are short. So a long read is split into many jobs. Each of them examines a bounded number of
// events, see readJob.
type fairQueue struct {
	perSource int // how many jobs of one source may run at a time

	mu     sync.Mutex
	free   int                    // how many more jobs may start
	queues map[source]sourceQueue // the sources with running or waiting jobs
	ready  []source               // the sources with a waiting job that may start, in the order of their turns
}

// sourceQueue has the jobs of one source.
type sourceQueue struct {
	running int
	waiting []chan struct{} // one for each waiting job, closed when the job may start; in order of arrival
	isReady bool            // the source is in fairQueue.ready
}

// newFairQueue returns a queue that lets n jobs run at a time, and perSource jobs of one source.
func newFairQueue(n, perSource int) *fairQueue {
	return &fairQueue{free: n, perSource: perSource, queues: map[source]sourceQueue{}}
}

// canStart reports whether src may start another job. state is its sourceQueue.
func (q *fairQueue) canStart(src source, state sourceQueue) bool {
	return src.local || state.running < q.perSource
}

// acquire waits until a job of src may start. The caller must call release when the job has ended. If ctx ends first,
// acquire returns its error, and release must not be called. If the job may start at once, acquire ignores ctx.
func (q *fairQueue) acquire(ctx context.Context, src source) error {
	q.mu.Lock()
	state := q.queues[src]
	if q.free > 0 && q.canStart(src, state) { // if so, no job of src is waiting
		q.free--
		state.running++
		q.queues[src] = state
		q.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	state.waiting = append(state.waiting, granted)
	q.save(src, state)
	q.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
		q.abandon(src, granted)
		return ctx.Err()
	}
}

// abandon removes a job from the waiting jobs of src. If the job may already start, abandon releases its slot.
func (q *fairQueue) abandon(src source, granted chan struct{}) {
	q.mu.Lock()
	state := q.queues[src]
	i := slices.Index(state.waiting, granted)
	if i >= 0 {
		state.waiting = slices.Delete(state.waiting, i, i+1)
		q.save(src, state)
	}
	q.mu.Unlock()
	if i < 0 {
		q.release(src)
	}
}

// release ends a job of src and lets jobs of the next sources start.
func (q *fairQueue) release(src source) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	state := q.queues[src]
	state.running--
	q.save(src, state)
	for q.free > 0 && len(q.ready) > 0 {
		src := q.ready[0]
		q.ready = q.ready[1:]
		state := q.queues[src]
		state.isReady = false
		if len(state.waiting) > 0 { // all its jobs may have been abandoned
			q.free--
			state.running++
			close(state.waiting[0])
			state.waiting = state.waiting[1:]
		}
		q.save(src, state)
	}
}

// save stores the sourceQueue of src. It adds src to ready if one of its waiting jobs may start.
func (q *fairQueue) save(src source, state sourceQueue) {
	if !state.isReady && len(state.waiting) > 0 && q.canStart(src, state) {
		state.isReady = true
		q.ready = append(q.ready, src)
	}
	if state.running == 0 && !state.isReady {
		delete(q.queues, src)
		return
	}
	q.queues[src] = state
}
