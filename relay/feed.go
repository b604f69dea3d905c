package relay

import (
	"context"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay/admission"
)

// Feed is an answer to a poll that stays open: page after page, to one client. It has a Stream until it is closed. It has no
// queue. While the client reads a page, new events are only in the store. Only one goroutine may use a Feed.
type Feed struct {
	*Stream
	poll   Poll
	reader didkey.DID // who the client is, if it has proven that; it stays online
	begun  bool       // the first page was asked for
}

// OpenEvents begins a feed at the position of p, and returns its first page, which has what is stored. It does not
// wait. The next pages begin where the page before them has ended. p.Wait is ignored. At an open relay, p.Peer.Reader may
// be who VerifyPresent has returned. The caller must close the feed. Refusals: those of Events.
func (r *Relay) OpenEvents(ctx context.Context, p *Poll) (*Feed, Delivery, error) {
	f := &Feed{poll: *p, reader: p.Peer.Reader}
	if r.reads != ToParties {
		f.poll.Peer.Reader = "" // an open relay answers the reads of banned identities as those of anonymous readers
	}
	var err error
	if f.Stream, err = r.OpenStream(f.poll.Peer, ""); err != nil {
		return nil, Delivery{}, err
	}
	first, err := f.Next(ctx, 0)
	if err != nil {
		f.Close()
		return nil, Delivery{}, err
	}
	return f, first, nil
}

// Next returns the next page. If there are no events, it waits for the first one, at most for wait, and then returns an
// empty page. Each page but the first counts against the allowance of the client's address, as a poll does. The page
// before must have been read completely. Refusals: those of Admit and of Events; CodeForbidden also if the client was
// banned meanwhile. After a refusal with CodeRateLimited, Next may be called again.
func (f *Feed) Next(ctx context.Context, wait time.Duration) (Delivery, error) {
	if err := f.admit(); err != nil {
		return Delivery{}, err
	}
	f.poll.Wait = wait
	d, err := f.relay.deliver(ctx, &f.poll)
	if err == nil {
		err = f.relay.gate.CheckPeer(f.poll.Peer)
	}
	if err != nil {
		return Delivery{}, err
	}
	f.poll.Since, f.poll.Cursor = time.Time{}, d.Cursor
	return d, nil
}

// admit does before each page what is done before a poll. The first page was admitted with its request.
func (f *Feed) admit() error {
	if f.begun {
		if err := f.relay.gate.Admit(f.poll.Peer, admission.Reads); err != nil {
			return err
		}
	}
	f.begun = true
	f.keepPresent()
	return f.relay.admitReader(&f.poll)
}

// keepPresent marks the reader of the feed as present, as each of its polls would.
func (f *Feed) keepPresent() {
	r, from := f.relay, f.poll.Peer
	switch {
	case f.reader == "":
	case r.reads == ToParties:
		r.presence.mark(f.reader, r.now())
	case r.gate.CheckAgent(f.reader) == nil:
		r.presence.markFromNetwork(f.reader, from.Site(), r.now())
	}
}
