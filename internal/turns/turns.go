// Package turns lets jobs of many sources take turns.
package turns

import (
	"context"
	"slices"
	"sync"
)

// Queue lets only a few jobs run at a time, such as reads of the store, the parsing of bodies, or calls of other
// servers. If more jobs wait, their sources take turns, with one job each. So many jobs from one source delay another
// source by one job, not by all of them. A job that waits only because its source has too many running jobs takes no
// slot from other sources.
type Queue[S comparable] struct {
	limit func(S) int // how many jobs of a source may run at a time

	mu     sync.Mutex
	free   int               // how many more jobs may start
	queues map[S]sourceQueue // the sources with running or waiting jobs
	ready  []S               // the sources with a waiting job that may start, in the order of their turns
}

// sourceQueue has the jobs of one source.
type sourceQueue struct {
	running int
	waiting []chan struct{} // one for each waiting job, closed when the job may start; in order of arrival
	isReady bool            // the source is in Queue.ready
}

// New returns a queue that lets n jobs run at a time, and limit(s) jobs of source s.
func New[S comparable](n int, limit func(s S) int) *Queue[S] {
	return &Queue[S]{limit: limit, free: n, queues: map[S]sourceQueue{}}
}

// canStart reports whether src may start another job. state is its sourceQueue.
func (q *Queue[S]) canStart(src S, state sourceQueue) bool { return state.running < q.limit(src) }

// TryAcquire starts a job of src if it may start at once. If so, the caller must call Release when the job has ended.
func (q *Queue[S]) TryAcquire(src S) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.start(src)
}

// start starts a job of src if it may start at once.
func (q *Queue[S]) start(src S) bool {
	state := q.queues[src]
	if q.free == 0 || len(state.waiting) > 0 || !q.canStart(src, state) {
		return false
	}
	q.free--
	state.running++
	q.queues[src] = state
	return true
}

// Acquire waits until a job of src may start. The caller must call Release when the job has ended. If ctx ends first,
// Acquire returns its error, and Release must not be called. If the job may start at once, Acquire ignores ctx.
func (q *Queue[S]) Acquire(ctx context.Context, src S) error {
	q.mu.Lock()
	if q.start(src) {
		q.mu.Unlock()
		return nil
	}
	state, granted := q.queues[src], make(chan struct{})
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
func (q *Queue[S]) abandon(src S, granted chan struct{}) {
	q.mu.Lock()
	state := q.queues[src]
	i := slices.Index(state.waiting, granted)
	if i >= 0 {
		state.waiting = slices.Delete(state.waiting, i, i+1)
		q.save(src, state)
	}
	q.mu.Unlock()
	if i < 0 {
		q.Release(src)
	}
}

// Release ends a job of src and lets jobs of the next sources start.
func (q *Queue[S]) Release(src S) {
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
func (q *Queue[S]) save(src S, state sourceQueue) {
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
