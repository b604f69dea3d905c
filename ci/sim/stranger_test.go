package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// stranger posts what relays must refuse: the moves of others in threads, and messages that they have. It also posts
// broadcasts that expire soon.
type stranger struct {
	*system
	key    didkey.Key
	random *rand.Rand
}

// disturbThreads starts the stranger.
func (s *system) disturbThreads() (stop func()) {
	x := &stranger{s, newKey(s.T, s.random), rand.New(rand.NewPCG(s.seed, 20))}
	s.stranger = x.key.DID()
	ctx, cancel := context.WithCancel(s.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-time.After(time.Duration(50+x.random.IntN(400)) * tick):
				x.act(ctx)
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
		for _, r := range s.sites { // a broadcast that its mirrors must have at the end
			x.post(s.Context(), r, envelope.Draft{Payload: x.noise(), TTL: jobTTL,
				Home: &envelope.Home{DID: r.key.DID(), URL: r.origin}})
		}
	}
}

// noise returns a request that nobody answers.
func (x *stranger) noise() envelope.Payload {
	return envelope.Request{RequestID: fmt.Sprint("noise", x.random.Uint64()), Intent: "noise"}
}

func (x *stranger) act(ctx context.Context) {
	r := x.sites[x.random.IntN(len(x.sites))]
	r.mu.Lock()
	var e *envelope.Envelope
	if n := len(r.recent); n > 0 {
		e = r.recent[n-1-x.random.IntN(min(n, 20))]
	}
	r.mu.Unlock()
	switch n := x.random.IntN(4); {
	case n == 0 || e == nil:
		x.post(ctx, r, envelope.Draft{Payload: x.noise(),
			TTL: time.Duration(1+x.random.IntN(60)) * time.Second})
	case n == 1:
		x.send(ctx, r, e)
	default:
		if d, ok := x.intrude(e); ok {
			d.Thread, d.Home, d.TTL = e.Thread, e.Home, jobTTL
			x.post(ctx, r, d)
		}
	}
}

// intrude returns a move in the thread of e that only another party may make.
func (x *stranger) intrude(e *envelope.Envelope) (d envelope.Draft, ok bool) {
	if d.Re = e.Hash(); e.Sender.ID == x.key.DID() {
		return d, false
	}
	switch e.Type {
	case envelope.TypeRequest:
		if d.Recipient = e.Sender.ID; e.Recipient != "" && x.random.IntN(2) == 0 {
			d.Payload = envelope.Offer{RequestID: e.RequestID, Price: &envelope.Price{Currency: "USD"}}
		} else {
			d.Payload = envelope.Failure{RequestID: e.RequestID, Code: envelope.AgentInternal, Message: "no"}
		}
	case envelope.TypeOffer:
		d.Recipient, d.Payload = e.Sender.ID, envelope.Accept{RequestID: e.RequestID}
	case envelope.TypeAccept:
		if d.Recipient = e.Sender.ID; x.random.IntN(2) == 0 {
			d.Payload = envelope.Result{RequestID: e.RequestID, Status: "success", Output: output{}.json()}
		} else {
			d.Recipient, d.Payload = e.Recipient, envelope.Cancel{RequestID: e.RequestID}
		}
	default:
		return d, false
	}
	return d, true
}

func (x *stranger) post(ctx context.Context, r *site, d envelope.Draft) {
	e, err := d.Sign(x.key, r.clock.now())
	x.must(err)
	x.send(ctx, r, e)
}

func (x *stranger) send(ctx context.Context, r *site, e *envelope.Envelope) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.origin+"/events", nil)
	x.must(err)
	request.Header.Set("Content-Type", "application/json")
	_, _ = r.serve(ctx, request, e.Canonical()) // it is checked there
}
