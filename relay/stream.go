package relay

import (
	"context"
	"time"
)

// Stream is an answer to a poll that goes on: page after page, to one client. It holds the slot of one waiting poll
// until it is closed. It has no queue. While the client reads a page, new events are only in the store.
// Only one goroutine may use a Stream.
type Stream struct {
	relay *Relay
	poll  Poll
	begun bool // the first page was asked for
	leave func()
}

// OpenEvents begins a stream at the position of p, and returns its first page, which has what is stored. It does not
// wait. The next pages begin where the page before them has ended. p.Wait is ignored. The caller must close the stream.
// Refusals: those of Events.
func (r *Relay) OpenEvents(ctx context.Context, p *Poll) (*Stream, Delivery, error) {
	leave, err := r.OpenStream(p.Peer)
	if err != nil {
		return nil, Delivery{}, err
	}
	s := &Stream{relay: r, poll: *p, leave: leave}
	first, err := s.Next(ctx, 0)
	if err != nil {
		s.Close()
		return nil, Delivery{}, err
	}
	return s, first, nil
}

// Close frees the slot of the stream.
func (s *Stream) Close() { s.leave() }

// Next returns the next page. If there are no events, it waits for the first one, at most for wait, and then returns an
// empty page. Each page but the first counts against the allowance of the client's address, as a poll does. The page
// before must have been read completely. Refusals: those of Admit and of Events; CodeForbidden also if the client was
// banned meanwhile. After a refusal with CodeRateLimited, Next may be called again.
func (s *Stream) Next(ctx context.Context, wait time.Duration) (Delivery, error) {
	if err := s.admit(); err != nil {
		return Delivery{}, err
	}
	s.poll.Wait = wait
	d, err := s.relay.deliver(ctx, &s.poll)
	if err == nil {
		err = s.relay.checkPeerBan(s.poll.Peer)
	}
	if err != nil {
		return Delivery{}, err
	}
	s.poll.Since, s.poll.Cursor = time.Time{}, d.Cursor
	return d, nil
}

// admit does before each page what is done before a poll. The first page was admitted with its request.
func (s *Stream) admit() error {
	if s.begun {
		if err := s.relay.Admit(s.poll.Peer, Reads); err != nil {
			return err
		}
	}
	s.begun = true
	s.relay.keepPresent(s.poll.Peer)
	return s.relay.admitReader(&s.poll)
}

// checkPeerBan refuses a client that was banned after its request was admitted. Refusals: CodeForbidden.
func (r *Relay) checkPeerBan(p Peer) error {
	if !p.Local {
		if err := r.checkBan(p.Addr); err != nil {
			return err
		}
	}
	if r.reads != ToParties {
		return nil // an open relay answers the reads of banned identities as those of anonymous readers
	}
	return r.checkAgentBan(p.Reader)
}

// keepPresent marks the reader of a stream as present, as each of its polls would. An open relay knows the reader only
// if VerifyPresent has returned it.
func (r *Relay) keepPresent(p Peer) {
	switch {
	case p.Reader == "":
	case r.reads == ToParties:
		r.presence.mark(p.Reader, r.now())
	case r.checkAgentBan(p.Reader) == nil:
		r.presence.markFromNetwork(p.Reader, siteNetwork(p.Addr), r.now())
	}
}
