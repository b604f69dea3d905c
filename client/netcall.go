package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
)

// retryMove is how long a job waits before it looks for another relay again, if there was none.
const retryMove = 5 * time.Second

// Move tells that a job was continued at another relay.
type Move struct {
	From, To envelope.Home
	Thread   string // the new thread
	Reason   string // why, in a few words, such as "is silent"
}

// NetworkCall is the client's side of a job: one thread, or several if the job was continued at other relays. Its
// methods are the methods of Call. While Offers, Collect or Result run, they watch the home of the newest thread, and
// continue the job elsewhere if the home is silent, caught, or shows no OFFER of the named agent (RELAYS ).
// Only one goroutine may use it at a time.
type NetworkCall struct {
	network *Network
	opts    RequestOptions
	root    envelope.Hash // the hash of the first REQUEST
	expires time.Time     // of the first REQUEST

	wake chan struct{} // has one element after something has changed that run must look at

	mu     sync.Mutex
	limits *envelope.Constraints // of Limit; nil: those of the REQUEST
	order  deal.Order
	legs   []*leg    // those of order.Legs
	retry  time.Time // when another relay is looked for again
}

// leg is one thread of a job. NetworkCall.mu guards its deal.Leg and ended.
type leg struct {
	*deal.Leg
	call  *Call
	peer  *Client
	home  envelope.Home
	ended error  // with Lost: the error if no other relay takes the job
	cut   bool   // ctx has ended before the relay had answered to the REQUEST
	open  *Offer // an ACCEPT of this offer is signed, and ctx has ended before the relay had answered; nil: none is
}

// Request opens a thread at the home that RELAYS R-11 chooses: the first usable one of the recipient's relays, or of
// the given ones. If the home does not take the REQUEST, the next one is tried. Errors: no relay is usable; a refusal
// of the REQUEST; ctx's error.
func (n *Network) Request(ctx context.Context, opts RequestOptions) (*NetworkCall, error) {
	j := n.job(opts)
	homes, err := n.homes(ctx, opts.Recipient)
	if err != nil {
		return nil, err
	}
	if err := j.open(ctx, homes[0], opts, envelope.Hash{}); err != nil {
		return nil, err
	}
	return j, nil
}

// job returns a NetworkCall without a thread.
func (n *Network) job(opts RequestOptions) *NetworkCall {
	return &NetworkCall{network: n, opts: opts, wake: make(chan struct{}, 1),
		order: deal.Order{Recipient: opts.Recipient, Silence: n.opts.Silence, OfferWait: n.opts.OfferWait}}
}

// Resume returns the NetworkCall of a thread that this identity has opened at one of the given relays. Errors: those of
// At, and of Client.Resume.
func (n *Network) Resume(ctx context.Context, threadID string) (*NetworkCall, error) {
	return n.ResumeKnown(ctx, Known{Thread: threadID})
}

// ResumeKnown does the same as Resume, for a caller that has saved more than the thread's id; see Client.ResumeKnown.
func (n *Network) ResumeKnown(ctx context.Context, known Known) (*NetworkCall, error) {
	c, err := n.At(ctx, known.Thread, n.me)
	if err != nil {
		return nil, err
	}
	call, err := c.ResumeKnown(ctx, known)
	if err != nil {
		return nil, err
	}
	var opts RequestOptions
	if r := call.request; r != nil {
		opts = RequestOptions{Intent: r.Intent, Title: r.Title, Description: r.Description, Constraints: r.Constraints,
			Params: r.Params, Recipient: call.recipient, Seal: call.Seal, AllowPlain: call.AllowPlain}
	}
	j := n.job(opts)
	l := &leg{Leg: &deal.Leg{Opened: time.Now(), Decided: call.agent != ""}, peer: c, call: call}
	if request := call.links.Request; request != nil {
		j.begin(request)
		if request.Home != nil {
			l.home, l.Home = *request.Home, request.Home.DID
		}
	}
	j.order.Agent, j.order.Price, call.stored = call.agent, call.acceptedPrice(), call.agent != ""
	j.add(l)
	return j, nil
}

// begin sets what the first known REQUEST of the job decides.
func (j *NetworkCall) begin(request *envelope.Envelope) {
	if j.root = request.Continues; j.root == (envelope.Hash{}) {
		j.root = request.Hash()
	}
	j.expires, j.order.Ends = request.ExpiresAt(), request.ExpiresAt()
	if limits := j.opts.Constraints; limits != nil && limits.Deadline != nil && limits.Deadline.Before(j.expires) {
		j.order.Ends = *limits.Deadline
	}
}

// open posts a REQUEST at a relay and adds its thread. It repeats the same bytes for as long as a home may be silent.
// It returns an error if the REQUEST was refused or ctx has ended. If the relay does not answer, the thread is added
// as silent, because the relay may have the REQUEST. If ctx ends, the thread of a continuation is added too: openAgain
// posts its REQUEST once more.
func (j *NetworkCall) open(ctx context.Context, p *Client, opts RequestOptions, continues envelope.Hash) error {
	a, err := p.conn.About(ctx, conn.AboutAge)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, j.network.opts.Silence)
	defer cancel()
	began := time.Now()
	call, err := p.request(within, opts, a.Home, continues)
	if call == nil {
		return err
	}
	err = j.insist(within, p, call.links.Request, err)
	l := &leg{Leg: &deal.Leg{Home: a.Home.DID, Opened: time.Now()}, call: call, peer: p, home: *a.Home}
	switch {
	case err == nil:
	case ctx.Err() != nil && continues == (envelope.Hash{}):
		return ctx.Err()
	case ctx.Err() != nil:
		l.cut = true
	case Unanswered(err) || within.Err() != nil:
		l.Sent(began)
	default:
		return err
	}
	if continues == (envelope.Hash{}) {
		j.begin(call.links.Request)
	}
	j.add(l)
	return ctx.Err()
}

// insist posts an envelope again while the relay does not answer, until ctx ends. err is the error of the last post.
func (j *NetworkCall) insist(ctx context.Context, p *Client, e *envelope.Envelope, err error) error {
	var pause pacing.Backoff
	for Unanswered(err) && pause.Wait(ctx, 0, pacing.MaxPause) == nil {
		_, err = p.PostEnvelope(ctx, e)
	}
	return err
}

func (j *NetworkCall) add(l *leg) {
	l.call.wait = max(j.network.opts.Silence/3, time.Second)
	l.call.polled = func(due time.Time, err error) {
		j.mu.Lock()
		defer j.mu.Unlock()
		if now := time.Now(); now.Before(due) {
			due = now
		}
		l.Read(due, !Unanswered(err))
		j.notify()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.limits != nil {
		l.call.Limit(j.limits)
	}
	j.legs = append(j.legs, l)
	j.order.Add(l.Leg)
	j.notify()
}

// notify makes run look at the job again.
func (j *NetworkCall) notify() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// newest returns the newest thread.
func (j *NetworkCall) newest() *leg {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.legs[len(j.legs)-1]
}

// Thread returns the id of the newest thread of the job, and its home.
func (j *NetworkCall) Thread() (id string, home envelope.Home) {
	l := j.newest()
	return l.call.Thread, l.home
}

// Offers yields the offers of the newest thread, as Call.Offers does, also after the job was continued. It ends as
// Call.Offers does.
func (j *NetworkCall) Offers(ctx context.Context) iter.Seq2[Offer, error] {
	return func(yield func(Offer, error) bool) {
		within, stop := context.WithCancel(ctx)
		offers := make(chan Offer)
		ended := make(chan error, 1)
		go func() {
			ended <- j.run(within, func(ctx context.Context, l *leg) error { return j.passOffers(ctx, l, offers) })
		}()
		more := true
		for {
			select {
			case offer := <-offers:
				if more = more && yield(offer, nil); !more {
					stop()
				}
			case err := <-ended:
				stop()
				if more && !errors.Is(err, errDone) {
					yield(Offer{}, err)
				}
				return
			}
		}
	}
}

// passOffers sends the offers of a thread to offers, until an offer has been accepted (errDone).
func (j *NetworkCall) passOffers(ctx context.Context, l *leg, offers chan<- Offer) error {
	for offer, err := range l.call.Offers(ctx) {
		if err != nil {
			return j.fatal(ctx, l, err)
		}
		j.mu.Lock()
		l.Offered = true
		newest := l == j.legs[len(j.legs)-1]
		j.mu.Unlock()
		if !newest {
			continue
		}
		select {
		case offers <- offer:
		case <-ctx.Done():
			return nil
		}
	}
	return errDone
}

// Collect does the same as Call.Collect, for the newest thread.
func (j *NetworkCall) Collect(ctx context.Context, d time.Duration) ([]Offer, error) {
	return collect(ctx, d, j.Offers)
}

// Accept accepts an offer as Call.Accept does. From then on only this agent can do the job, at this price at most
// (RELAYS R-16). If the home does not answer, Accept returns nil, and Result continues the job elsewhere. Errors:
// ErrUnacceptable; a refusal.
func (j *NetworkCall) Accept(ctx context.Context, offer Offer) error {
	j.mu.Lock()
	i := slices.IndexFunc(j.legs, func(l *leg) bool { return l.call.requestID == offer.RequestID })
	var l *leg
	if i >= 0 {
		l = j.legs[i]
	}
	err := j.decide(l, offer)
	j.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnacceptable, err)
	}
	if err = j.accept(ctx, l, offer); envelope.CodeOf(err) == envelope.CodeThreadNotFound {
		return j.fatal(ctx, l, err) // the job continues elsewhere, with the same agent
	}
	return err
}

// decide records that an ACCEPT of an offer is signed, or returns an error with the reason why none can be. The caller
// holds j.mu.
func (j *NetworkCall) decide(l *leg, offer Offer) error {
	if l == nil {
		return errors.New("the offer belongs to another request")
	}
	if _, err := l.call.Acceptance(offer); err != nil {
		return err
	}
	amount, _ := offer.Amount()
	return j.order.Decide(l.Leg, offer.Agent, amount)
}

// accept signs and posts an ACCEPT. It repeats the same bytes for as long as the home may be silent, also after an
// accept that ctx has ended.
func (j *NetworkCall) accept(ctx context.Context, l *leg, offer Offer) error {
	within, cancel := context.WithTimeout(ctx, j.network.opts.Silence)
	defer cancel()
	began := time.Now()
	var err error
	if l.open == nil {
		err = l.call.Accept(within, offer)
	} else {
		_, err = l.peer.PostEnvelope(within, l.call.links.Accept)
	}
	if l.call.links.Accept != nil {
		err = j.insist(within, l.peer, l.call.links.Accept, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	l.call.agent = offer.Agent // also if it is unknown whether the relay has the ACCEPT
	l.open = nil
	switch {
	case err == nil:
		l.call.stored = true
		return nil
	case ctx.Err() != nil:
		l.open = &offer
		return ctx.Err()
	case Unanswered(err) || within.Err() != nil:
		l.Sent(began)
		j.notify()
		return nil
	}
	l.Refused = true
	return err
}

// Result waits for the RESULT of the agent whose offer was accepted, in all threads of the job. If the home of the
// newest thread is silent, the job continues at another relay, and the agent's offer there is accepted if it costs no
// more. Errors: those of Call.Result.
func (j *NetworkCall) Result(ctx context.Context) (*Result, error) {
	j.mu.Lock()
	agent := j.order.Agent
	j.mu.Unlock()
	if agent == "" {
		return nil, errNoAccept
	}
	var mu sync.Mutex
	var result *Result
	err := j.run(ctx, func(ctx context.Context, l *leg) error {
		if err := j.acceptAgain(ctx, l); err != nil {
			return j.fatal(ctx, l, err)
		}
		j.mu.Lock()
		decided := l.Decided && !l.Refused
		j.mu.Unlock()
		if !decided {
			return nil
		}
		r, err := l.call.Result(ctx)
		if err != nil {
			return j.fatal(ctx, l, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if result == nil {
			result = r
		}
		return errDone
	})
	if errors.Is(err, errDone) {
		return result, nil
	}
	return nil, err
}

// Cancel cancels the newest thread, as Call.Cancel does.
func (j *NetworkCall) Cancel(ctx context.Context, reason string) error {
	return j.newest().call.Cancel(ctx, reason)
}
