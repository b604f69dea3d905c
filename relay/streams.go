package relay

import (
	"cmp"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// Stream is a long request of a gateway that waits, such as an inbox stream. It has the slot of a waiting poll. Its
// methods may be called with a nil Stream, which never ends.
type Stream struct {
	relay   *Relay
	peer    Peer // Reader is the identity that the caller has proven
	since   time.Time
	release func()
	ended   chan struct{}
}

// streams has the streams that are open.
type streams struct {
	mu  sync.Mutex
	all map[*Stream]struct{}
}

// OpenStream takes the slot of a waiting poll for a stream to from. Like a poll, the stream counts in Waiting. caller is
// the identity that the client has proven; it is empty if the client has none. The caller must call Close once, when the
// stream has ended. A stream must end when Ended is closed. OpenStream does not wait for a slot. Refusals:
// CodeRateLimited, CodeForbidden if from or caller is banned, CodeUnavailable if the relay drains or is paused.
func (r *Relay) OpenStream(from Peer, caller didkey.DID) (*Stream, error) {
	if caller != "" {
		from.Reader = caller
	}
	if err := r.draining(); err != nil {
		return nil, err
	}
	release, err := r.gate.Poll(from)
	if err != nil {
		return nil, err
	}
	s := &Stream{relay: r, peer: from, since: time.Now(), release: release, ended: make(chan struct{})}
	r.streams.mu.Lock()
	r.streams.all[s] = struct{}{}
	r.streams.mu.Unlock()
	r.countWaiting(1)
	// SetBans, Pause and Drain end the streams that are registered. So look again now that this one is.
	if err := cmp.Or(r.draining(), r.mayStay(from)); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Ended returns a channel that is closed when the stream must end: the relay drains or is paused, or the client was
// banned.
func (s *Stream) Ended() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.ended
}

// Banned returns why the client was banned, as CodeForbidden; nil: it is not banned.
func (s *Stream) Banned() error { return s.relay.gate.CheckPeer(s.peer) }

// Close gives the slot back.
func (s *Stream) Close() {
	if s == nil {
		return
	}
	all := &s.relay.streams
	all.mu.Lock()
	delete(all.all, s)
	all.mu.Unlock()
	s.relay.countWaiting(-1)
	s.release()
}

// end ends the streams for which reason returns an error.
func (all *streams) end(reason func(Peer) error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for s := range all.all {
		if reason(s.peer) == nil {
			continue
		}
		select {
		case <-s.ended:
		default:
			close(s.ended)
		}
	}
}
