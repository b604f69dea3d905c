package deliver

import (
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
)

// maxPosters is how many senders of one generation are remembered. There are two generations.
const maxPosters = 1 << 14

// posters remembers when agents have posted in the last minutes. The relay itself remembers signed reads.
type posters struct {
	mu         sync.Mutex
	fresh, old map[didkey.DID]time.Time
	begun      time.Time // the first generation
}

// add remembers the senders of events. Events of before a restart have their own times.
func (p *posters) add(all []relay.Posted, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if age := now.Sub(p.begun); p.fresh == nil || age >= relay.OnlineWithin || age < 0 {
		p.fresh, p.old, p.begun = map[didkey.DID]time.Time{}, p.fresh, now
	}
	for _, e := range all {
		sender := e.Envelope.Sender.ID
		if last, known := p.fresh[sender]; known && e.Received.After(last) || !known && len(p.fresh) < maxPosters {
			p.fresh[sender] = e.Received
		}
	}
}

func (p *posters) last(did didkey.DID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := p.fresh[did]; ok {
		return at
	}
	return p.old[did]
}

// LastSeen returns when the relay has heard from an agent last, by a post or a signed read. It is zero if that was not in
// the last minutes.
func (d *Deliveries) LastSeen(did didkey.DID) time.Time {
	posted, read := d.posters.last(did), d.core.Relay.LastRead(did)
	if read.After(posted) {
		return read
	}
	return posted
}

// Online reports whether the relay has heard from an agent in the last relay.OnlineWithin (B-13).
func (d *Deliveries) Online(did didkey.DID) bool {
	return d.LastSeen(did).After(d.core.Relay.Now().Add(-relay.OnlineWithin))
}
