package hub

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// streams are the open inbox streams. An agent has at most one.
type streams struct {
	mu   sync.Mutex
	open map[int64]*stream
}

// stream is an open inbox stream. Its handler's goroutine writes it.
type stream struct {
	agent int64
	news  chan struct{} // has an element if there may be a new message
	ended chan string   // gets the reason when the hub closes the stream
	done  chan struct{} // is closed when nothing more is written
	turn  chan struct{} // has an element while written messages are not recorded yet, see waitRecorded
	abort func()        // ends a write that makes no progress
	used  atomic.Int64  // when the sweep last recorded the use of the stream; 0: not yet
}

// add makes s the stream of its agent. It ends the stream that the agent had before, and waits until nothing more is
// written to it.
func (all *streams) add(s *stream) {
	all.mu.Lock()
	old := all.open[s.agent]
	all.open[s.agent] = s
	all.mu.Unlock()
	if old == nil {
		return
	}
	old.end("replaced")
	late := time.AfterFunc(replaceTime, old.abort)
	defer late.Stop()
	<-old.done
}

// remove removes s, unless a newer stream of its agent is open.
func (all *streams) remove(s *stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.open[s.agent] == s {
		delete(all.open, s.agent)
	}
}

// get returns the stream of an agent; nil: it has none.
func (all *streams) get(agent int64) *stream {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.open[agent]
}

func (all *streams) has(agent int64) bool { return all.get(agent) != nil }

func (all *streams) count() int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return len(all.open)
}

// unrecorded returns at most limit streams whose use was last recorded before a time.
func (all *streams) unrecorded(before int64, limit int) (some []*stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, s := range all.open {
		if s.used.Load() < before && len(some) < limit {
			some = append(some, s)
		}
	}
	return some
}

// wake tells the stream of an agent that there may be a new message.
func (all *streams) wake(agent int64) {
	if s := all.get(agent); s != nil {
		select {
		case s.news <- struct{}{}:
		default: // the stream was woken before and has not looked yet
		}
	}
}

// waitRecorded waits until the messages that the stream of an agent has written are recorded. It is called before a
// confirmation, because a client may confirm a message before the hub has recorded that it was written.
func (all *streams) waitRecorded(ctx context.Context, agent int64) error {
	s := all.get(agent)
	if s == nil {
		return nil
	}
	select {
	case s.turn <- struct{}{}:
		<-s.turn
		return nil
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end closes the stream of an agent.
func (all *streams) end(agent int64, reason string) {
	if s := all.get(agent); s != nil {
		s.end(reason)
	}
}

// end makes the handler of the stream close it.
func (s *stream) end(reason string) {
	select {
	case s.ended <- reason:
	default: // the hub already closes it for another reason
	}
}
