package sim

import (
	"context"
	"errors"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// watch follows all relays until the returned function is called. Nothing comes twice.
func (s *system) watch() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	w := s.newWire("watcher")
	w.pages = map[string]*pages{}
	n := s.network(newKey(s.T, s.random), w, &clock{}, nil, nil)
	ended := make(chan error, 1)
	go func() {
		opts := client.FollowOptions{FromOldest: true, Page: 2} // small pages, so that many cursors are used
		ended <- n.Follow(ctx, opts, func(_ context.Context, e *envelope.Envelope) error {
			s.checking.Lock()
			defer s.checking.Unlock()
			if !s.watched[e.Hash()].IsZero() {
				s.Errorf("%s %s was delivered twice to one follower", e.Type, e.ID)
			}
			s.watched[e.Hash()] = time.Now()
			return nil
		})
	}()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			s.Errorf("the watcher ended: %v", err)
		}
	}
}

// prompt checks that the watcher has got promptly what was stored between these times, when nothing failed.
func (s *system) prompt(from, to time.Time) {
	for _, r := range s.sites {
		for id, m := range r.acked {
			if m.at.Before(from) || m.at.After(to) {
				continue
			}
			if got := s.watched[m.Hash()]; got.Sub(m.at) > promptly {
				s.Errorf("%s was stored by %s at %s, and delivered %v later", id, r.host, m.at.Format(time.TimeOnly), got.Sub(m.at))
			}
		}
	}
}

// missed returns the messages that a relay has stored, that have not expired, and that the watcher has not got.
func (s *system) missed(r *site) (ids []string) {
	s.checking.Lock()
	defer s.checking.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, m := range r.acked {
		if s.watched[m.Hash()].IsZero() && r.clock.latest.Load() < m.ExpiresAt().UnixNano() {
			ids = append(ids, id)
		}
	}
	return ids
}

// lacks returns which broadcasts of the relays a mirror lacks: open REQUESTs that the other relay decides, and the
// newest MANIFEST of each agent (RELAYS R-19).
func (s *system) lacks(r *site) (missing []string) {
	there := map[string]bool{}
	mine, up := s.eventsNow(r)
	if !up {
		return []string{"everything, because it is down"}
	}
	for _, e := range mine {
		there[e.ID] = true
	}
	for _, peer := range r.mirrors {
		other := s.siteOf(peer.DID)
		newest := map[string]*envelope.Envelope{}
		theirs, _ := s.eventsNow(other)
		for _, e := range theirs {
			switch {
			case e.Recipient != "" || e.ExpiresAt().Before(r.clock.now().Add(copyable)):
			case e.Type == envelope.TypeRequest && e.Home != nil && e.Home.DID == peer.DID:
				newest[e.ID] = e
			case e.Type == envelope.TypeManifest:
				if by := string(e.Sender.ID); newest[by] == nil || newest[by].TS.Before(e.TS) {
					newest[by] = e
				}
			}
		}
		for _, e := range newest {
			if !there[e.ID] {
				missing = append(missing, e.ID+" of "+other.host)
			}
		}
	}
	return missing
}

// eventsNow returns what a relay has stored; up is false if the relay is down.
func (s *system) eventsNow(r *site) (all []*envelope.Envelope, up bool) {
	r.whileUp(func() { all, up = s.events(r), true })
	return all, up
}
