package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
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

// NetworkCall is the client's side of a job: one thread, or several if the job was continued at other relays. Its methods
// are those of Call. While Offers, Collect or Result run, they watch the home of the newest thread, and continue the job
// elsewhere if the home is silent, caught, or shows no OFFER of the named agent (RELAYS ). Only one goroutine
// may use it at a time.
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
	peer  *peer
	home  envelope.Home
	ended error // with Lost: the error if no other relay takes the job
}

// Request opens a thread at the home that RELAYS R-11 chooses: the first usable one of the recipient's relays, or of the
// given ones. If the home does not take the REQUEST, the next one is tried. Errors: no relay is usable; a refusal of the
// REQUEST; ctx's error.
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

// ResumeKnown is Resume for a caller that has saved more than the thread's id; see Client.ResumeKnown.
func (n *Network) ResumeKnown(ctx context.Context, known Known) (*NetworkCall, error) {
	c, err := n.At(ctx, known.Thread, n.me)
	if err != nil {
		return nil, err
	}
	p := n.given[slices.IndexFunc(n.given, func(p *peer) bool { return p.Client == c })]
	call, err := p.ResumeKnown(ctx, known)
	if err != nil {
		return nil, err
	}
	var opts RequestOptions
	if r := call.request; r != nil {
		opts = RequestOptions{Intent: r.Intent, Title: r.Title, Description: r.Description, Constraints: r.Constraints,
			Params: r.Params, Recipient: call.recipient, Seal: call.Seal, AllowPlain: call.AllowPlain}
	}
	j := n.job(opts)
	l := &leg{Leg: &deal.Leg{Opened: time.Now(), Decided: call.agent != ""}, peer: p, call: call}
	if request := call.links.request; request != nil {
		j.begin(request)
		if request.Home != nil {
			l.home, l.Home = *request.Home, request.Home.DID
		}
	}
	j.order.Agent = call.agent
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

// homes returns the relays that can be the home of a REQUEST to this recipient, or to everybody if it is empty, the
// preferred one first (RELAYS R-11). All of them have answered now.
func (n *Network) homes(ctx context.Context, recipient didkey.DID) ([]*peer, error) {
	var named []envelope.Home
	if recipient != "" {
		agent, err := n.Agent(ctx, recipient)
		if err != nil && envelope.CodeOf(err) != envelope.CodeAgentNotFound {
			return nil, err
		}
		named = relaysOf(agent)
	}
	found := make([]*peer, max(len(named), len(n.given)))
	ask := func(i int, p *peer) {
		ctx, cancel := context.WithTimeout(ctx, n.opts.Silence/3)
		defer cancel()
		a, err := p.about(ctx, time.Nanosecond)
		if err == nil && recipient != "" && len(named) == 0 {
			_, err = p.Agent(ctx, recipient)
		}
		if err != nil {
			n.log.Warn("a relay cannot be the home", "relay", p.url, "error", err)
			return
		}
		if a.home != nil && !n.state.isCaught(a.did) {
			found[i] = p
		}
	}
	var asking sync.WaitGroup
	for i, home := range named {
		asking.Go(func() {
			if p, err := n.at(ctx, home); err != nil {
				n.log.Warn("a relay of the recipient is not used", "relay", home.URL, "error", err)
			} else {
				ask(i, p)
			}
		})
	}
	if len(named) == 0 {
		for i, p := range n.given {
			asking.Go(func() { ask(i, p) })
		}
	}
	asking.Wait()
	found = slices.DeleteFunc(found, func(p *peer) bool { return p == nil })
	if len(found) == 0 {
		return nil, errNoHome
	}
	return found, nil
}

var errNoHome = errors.New("client: no relay can be the home of this request: those of the recipient, or the given ones, do " +
	"not answer, do not have the recipient, or lack the feature home")

// relaysOf returns the relays in an agent's newest manifest (RELAYS R-10).
func relaysOf(a Agent) []envelope.Home {
	var payload struct {
		Relays []envelope.Home `json:"relays"`
	}
	if len(a.Manifests) == 0 || a.Manifests[0].DecodePayload(&payload) != nil || len(payload.Relays) > MaxManifestRelays {
		return nil
	}
	return slices.DeleteFunc(payload.Relays, func(h envelope.Home) bool {
		_, err := didkey.Parse(string(h.DID))
		return err != nil || !envelope.ValidOrigin(h.URL)
	})
}

// open posts a REQUEST at a relay and adds its thread. It repeats the same bytes for as long as a home may be silent. It
// returns an error if the REQUEST was refused or ctx has ended. If the relay does not answer, the thread is added as
// silent, because the relay may have the REQUEST.
func (j *NetworkCall) open(ctx context.Context, p *peer, opts RequestOptions, continues envelope.Hash) error {
	a, err := p.about(ctx, aboutAge)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, j.network.opts.Silence)
	defer cancel()
	began := time.Now()
	call, err := p.request(within, opts, a.home, continues)
	if call == nil {
		return err
	}
	err = j.insist(within, p, call.links.request, err)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l := &leg{Leg: &deal.Leg{Home: a.home.DID, Opened: time.Now()}, call: call, peer: p, home: *a.home}
	switch {
	case err == nil:
	case Unanswered(err) || within.Err() != nil:
		l.Sent(began)
	default:
		return err
	}
	if continues == (envelope.Hash{}) {
		j.begin(call.links.request)
	}
	j.add(l)
	return nil
}

// insist posts an envelope again while the relay does not answer, until ctx ends. err is the error of the last post.
func (j *NetworkCall) insist(ctx context.Context, p *peer, e *envelope.Envelope, err error) error {
	var pause backoff
	for Unanswered(err) && pause.wait(ctx, 0, maxPause) == nil {
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

// due returns when the job is to be continued elsewhere, and why; zero: it need not be.
func (j *NetworkCall) due() (at time.Time, reason string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.order.Newest().Home == "" || j.opts.Intent == "" { // a thread without a home, or one whose REQUEST is not known
		return time.Time{}, ""
	}
	at, reason = j.order.Due(time.Now(), j.network.state.isCaught)
	if !at.IsZero() && at.Before(j.retry) {
		at = j.retry
	}
	return at, reason
}

// run calls on for each thread of the job, also for those that are added meanwhile, and continues the job when that is
// due. It ends with the first error of on, or with ctx's error.
func (j *NetworkCall) run(ctx context.Context, on func(context.Context, *leg) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	started := 0
	for {
		j.mu.Lock()
		added := j.legs[started:]
		left := slices.Clone(j.legs[:len(j.legs)-1])
		j.mu.Unlock()
		for _, l := range left[min(max(started-1, 0), len(left)):] {
			running.Go(func() { j.cancelLeft(ctx, l) })
		}
		for _, l := range added {
			running.Go(func() {
				if err := on(ctx, l); err != nil {
					stop(err)
				}
			})
		}
		started += len(added)
		at, reason := j.due()
		timer := time.NewTimer(time.Until(at))
		if at.IsZero() {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-j.wake:
		case <-timer.C:
			if err := j.move(ctx, reason); err != nil {
				return err
			}
		}
		timer.Stop()
	}
}

// move continues the job at the next relay (RELAYS R-15). If there is none, it is tried again a little later.
func (j *NetworkCall) move(ctx context.Context, reason string) error {
	from := j.newest()
	opts := j.opts
	j.mu.Lock()
	opts.Recipient = j.order.For()
	j.mu.Unlock()
	defer func() {
		if ctx.Err() == nil {
			j.mu.Lock()
			j.retry = time.Now().Add(retryMove)
			j.mu.Unlock()
		}
	}()
	opts.Thread = ""
	if opts.TTL = j.expires.Sub(from.peer.now()).Truncate(time.Second); opts.TTL < time.Second {
		return from.ended
	}
	homes, err := j.network.homes(ctx, opts.Recipient)
	if err != nil {
		j.network.log.Warn("a job cannot be continued now", "thread", from.call.Thread, "error", err)
		return errors.Join(ctx.Err(), from.ended)
	}
	next := nextHome(homes, from.peer)
	if next == nil {
		return from.ended
	}
	if err := j.open(ctx, next, opts, j.root); err != nil {
		j.network.log.Warn("a relay does not take the continued job", "relay", next.url, "error", err)
		return ctx.Err()
	}
	to := j.newest()
	if j.network.opts.Moved == nil {
		j.network.log.Warn("a job was continued at another relay", "from", from.home.URL, "to", to.home.URL, "reason", reason)
	} else {
		j.network.opts.Moved(Move{From: from.home, To: to.home, Thread: to.call.Thread, Reason: reason})
	}
	return nil
}

// nextHome returns the relay after the present one, in a circle; nil: there is no other. If the present one is not in
// the list, because it does not answer, that is the first of the list.
func nextHome(homes []*peer, present *peer) *peer {
	i := slices.Index(homes, present)
	next := homes[(i+1)%len(homes)]
	if next == present {
		return nil
	}
	return next
}

// cancelLeft cancels a thread that the job has left, unless it has an ACCEPT (RELAYS R-16). It tries until the relay
// answers, or ctx ends.
func (j *NetworkCall) cancelLeft(ctx context.Context, l *leg) {
	j.mu.Lock()
	may := j.order.MayCancel(l.Leg)
	j.mu.Unlock()
	var pause backoff
	for may && ctx.Err() == nil {
		err := l.call.Cancel(ctx, "continued at another relay")
		if !Unanswered(err) || pause.wait(ctx, 0, maxPause) != nil {
			return
		}
	}
}

// fatal returns the error if it ends the job. An error of a thread that the job has left does not, and a relay that has
// lost the thread makes the job continue elsewhere.
func (j *NetworkCall) fatal(ctx context.Context, l *leg, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	refusal, refused := errors.AsType[*AgentError](err)
	switch {
	case refused && refusal.From == j.order.For() && l.call.agent == "": // the named agent declines
		return err
	case l != j.legs[len(j.legs)-1]:
		j.network.log.Info("a thread that the job has left has ended", "thread", l.call.Thread, "reason", err)
		return nil
	case len(j.legs) > deal.MaxContinued:
		return err
	case envelope.CodeOf(err) == envelope.CodeThreadNotFound:
		l.Lost = "has lost the thread"
	case errors.Is(err, errLost):
		l.Lost = "has lost the ACCEPT"
	case refused && refusal.Code == envelope.AgentTimeout && !l.Offered && j.order.For() != "": // perhaps it withholds it
		l.Lost = "shows no offer"
	default:
		return err
	}
	l.ended = err
	j.notify()
	return nil
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

// Collect is Call.Collect for the newest thread.
func (j *NetworkCall) Collect(ctx context.Context, d time.Duration) ([]Offer, error) {
	return collect(ctx, d, j.Offers)
}

// Accept accepts an offer as Call.Accept does. From then on only this agent can do the job, at this price at most (RELAYS
// If the home does not answer, Accept returns nil, and Result continues the job elsewhere. Errors: ErrUnacceptable;
// a refusal.
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
	return j.accept(ctx, l, offer)
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

// accept signs and posts an ACCEPT. It repeats the same bytes for as long as the home may be silent.
func (j *NetworkCall) accept(ctx context.Context, l *leg, offer Offer) error {
	within, cancel := context.WithTimeout(ctx, j.network.opts.Silence)
	defer cancel()
	began := time.Now()
	err := l.call.Accept(within, offer)
	if l.call.links.accept != nil {
		err = j.insist(within, l.peer, l.call.links.accept, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	l.call.agent = offer.Agent // also if it is unknown whether the relay has the ACCEPT
	switch {
	case err == nil:
		l.call.stored = true
		return nil
	case Unanswered(err) || within.Err() != nil:
		l.Sent(began)
		j.notify()
		return nil
	}
	l.Refused = true
	return err
}

// Result waits for the RESULT of the agent whose offer was accepted, in all threads of the job. If the home of the newest
// thread is silent, the job continues at another relay, and the agent's offer there is accepted if it costs no more.
// Errors: those of Call.Result.
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

// acceptAgain accepts the agent's offer in a thread that continues the job, and returns nil. It returns nil at once in a
// thread with an ACCEPT.
func (j *NetworkCall) acceptAgain(ctx context.Context, l *leg) error {
	j.mu.Lock()
	decided := l.Decided
	j.mu.Unlock()
	if decided {
		return nil
	}
	for offer, err := range l.call.Offers(ctx) {
		if err != nil {
			return err
		}
		j.mu.Lock()
		l.Offered = true
		err = j.decide(l, offer)
		j.mu.Unlock()
		if err != nil {
			j.network.log.Warn("an offer was not accepted", "agent", offer.Agent, "reason", err)
			continue
		}
		if err := j.accept(ctx, l, offer); err != nil {
			j.mu.Lock()
			l.Lost = "has refused the ACCEPT"
			j.notify()
			j.mu.Unlock()
			j.network.log.Warn("the ACCEPT of a continued job was refused", "thread", l.call.Thread, "error", err)
		}
		return nil
	}
	return nil
}

// Cancel cancels the newest thread, as Call.Cancel does.
func (j *NetworkCall) Cancel(ctx context.Context, reason string) error {
	return j.newest().call.Cancel(ctx, reason)
}
