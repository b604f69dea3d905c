package relay

import (
	"context"
	"math"
	"net/netip"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Peer says where a request comes from, as far as its transport can tell. The zero Peer is an unknown client. All
// unknown clients share one allowance.
type Peer struct {
	Addr  netip.Addr
	Local bool // certainly from the relay's own machine; no rate limit and no limit on polls applies (PROTOCOL §5)
	// OwnPage means that a web page of this relay has sent the request, in a browser on the relay's own machine. The
	// limits of remote clients apply.
	OwnPage bool
	// Operator means that the request comes over the admin socket, or from a task of the operator. Pause does not stop it.
	Operator bool

	Reader didkey.DID // who signed the read, see Relay.VerifyRead; empty: it is not signed
}

// isClient reports whether p is a client. The zero Peer is one; the relay itself and its operator are not.
func (p Peer) isClient() bool { return !p.Operator && (!p.Local || p.Addr.IsValid()) }

// Limits bound what one client may ask of a relay (PROTOCOL §5). A field that is zero means its default.
type Limits struct {
	PostsPerAddress Rate // requests by any method that may change something, valid or not
	ReadsPerAddress Rate // all other requests
	PostsPerAgent   Rate // messages signed by one DID
	// BroadcastsPerAddress limits the REQUESTs without a recipient. The reason is that every agent that offers a
	// service reads all of them.
	BroadcastsPerAddress     Rate
	NewConnectionsPerAddress Rate
	// Limits on concurrent connections, requests and polls. Unlimited: any number.
	ConnectionsPerAddress int // including idle ones
	RequestsPerAddress    int
	PollsPerAddress       int // only those that wait
	Polls                 int // waiting polls of all addresses together
	// WritesPerAddress limits the messages, and the changes at gateways, that are being stored at a time. Here an address is
	// one IPv4 address or one IPv6 /48. Others wait for their turn.
	WritesPerAddress int
}

// Rate limits how often something may be done: Burst times at once, and then PerSecond times a second.
type Rate struct {
	PerSecond float64 // Unlimited: any number
	Burst     int     // 0: twice PerSecond, or four times PerSecond for BroadcastsPerAddress
}

// Unlimited, in place of a number, means that there is no limit.
const Unlimited = -1

// Kind is the kind of a request.
type Kind int

const (
	Reads Kind = iota
	Posts
)

// limiter counts what clients have asked of a relay recently, for each of its limits.
type limiter struct {
	posts, reads, broadcasts, connects *buckets[netip.Prefix]
	agents                             *buckets[didkey.DID]
	callers                            *buckets[string]

	connections, requests, polls *slots
}

func newLimiter(l Limits) *limiter {
	return &limiter{
		posts: newBuckets(l.PostsPerAddress, networkFactor), reads: newBuckets(l.ReadsPerAddress, networkFactor),
		broadcasts: newBuckets(l.BroadcastsPerAddress, networkFactor), agents: newBuckets[didkey.DID](l.PostsPerAgent, nil),
		callers:  newBuckets[string](l.PostsPerAgent, nil),
		connects: newBuckets(l.NewConnectionsPerAddress, networkFactor),
		connections: newSlots(envelope.LimitConnectionsPerAddress,
			"%d connections of %s are open, which is the limit; use one of them", l.ConnectionsPerAddress, Unlimited),
		requests: newSlots(envelope.LimitRequestsPerAddress,
			"%d requests of %s are in progress, which is the limit; wait for their answers", l.RequestsPerAddress, Unlimited),
		polls: newSlots(envelope.LimitPollsPerAddress,
			"%d polls of %s are waiting, which is the limit; end one of them, or poll with timeout=0",
			l.PollsPerAddress, l.Polls),
	}
}

// set changes the limits to l.
func (m *limiter) set(now time.Time, l Limits) {
	m.posts.setRate(now, l.PostsPerAddress)
	m.reads.setRate(now, l.ReadsPerAddress)
	m.broadcasts.setRate(now, l.BroadcastsPerAddress)
	m.agents.setRate(now, l.PostsPerAgent)
	m.callers.setRate(now, l.PostsPerAgent)
	m.connects.setRate(now, l.NewConnectionsPerAddress)
	m.connections.setLimits(l.ConnectionsPerAddress, Unlimited)
	m.requests.setLimits(l.RequestsPerAddress, Unlimited)
	m.polls.setLimits(l.PollsPerAddress, l.Polls)
}

// SetLimits changes the limits for clients while the relay runs. What a client has used so far still counts. Requests
// and polls that are in progress go on.
func (r *Relay) SetLimits(l Limits) {
	l = l.WithDefaults()
	r.limits.Store(&l)
	r.limiter.set(r.now(), l)
}

// Limits returns the limits for clients, with defaults filled in.
func (r *Relay) Limits() Limits { return *r.limits.Load() }

// Admit counts a request against the allowance of p's address. A transport calls it once for every request, before it
// reads more of the request than necessary. Refusals: CodeRateLimited, CodeForbidden if the address is banned.
func (r *Relay) Admit(p Peer, k Kind) error {
	if p.Local {
		return nil
	}
	if err := r.checkBan(p.Addr); err != nil {
		return err
	}
	var err error
	if k == Posts {
		err = takeForAddress(r.limiter.posts, r.now, envelope.LimitPostsPerAddress, "posts", p)
	} else {
		err = takeForAddress(r.limiter.reads, r.now, envelope.LimitReadsPerAddress, "sends requests", p)
	}
	r.noteRefusal(p, "", err)
	return err
}

// TrafficUnit is how many bytes count as one more request, see ChargeTraffic.
const TrafficUnit = 16 << 10

// ChargeTraffic charges units of TrafficUnit that p has sent over a connection to the allowance of p's address for
// reads, whether or not they were requests. It refuses p if the address is in debt. Refusals: CodeRateLimited.
func (r *Relay) ChargeTraffic(p Peer, units int) error {
	if p.Local {
		return nil
	}
	var buf [len(widths)]netip.Prefix
	prefixes := networks(p.Addr, &buf)
	r.limiter.reads.charge(r.now, units, prefixes...)
	err := r.readDebt(prefixes)
	r.noteRefusal(p, "", err)
	return err
}

// AnswerUnit is how many bytes of an answer count as one more request, see ChargeAnswer.
const AnswerUnit = 64 << 10

// ChargeAnswer charges units of AnswerUnit that were sent to p in an answer to the allowance of p's address for reads. A
// long list costs more to send than to ask for.
func (r *Relay) ChargeAnswer(p Peer, units int) {
	if !p.Local && units > 0 {
		var buf [len(widths)]netip.Prefix
		r.limiter.reads.charge(r.now, units, networks(p.Addr, &buf)...)
	}
}

// readDebt refuses reads if a network is in debt. Refusals: CodeRateLimited.
func (r *Relay) readDebt(prefixes []netip.Prefix) error {
	wait, index := r.limiter.reads.debtWait(r.now, prefixes...)
	if wait == 0 {
		return nil
	}
	return rateLimitError(envelope.LimitReadsPerAddress, wait, describeNetwork(prefixes[index])+" sends requests",
		r.Limits().ReadsPerAddress, networkFactor(prefixes[index]))
}

// takeForAddress takes one token for each of p's networks. If one of them has no token, it returns a refusal. action
// says what p does too often.
func takeForAddress(b *buckets[netip.Prefix], now func() time.Time, limit, action string, p Peer) error {
	var buf [len(widths)]netip.Prefix
	prefixes := networks(p.Addr, &buf)
	wait, index := b.take(now, prefixes...)
	if wait == 0 {
		return nil
	}
	return rateLimitError(limit, wait, describeNetwork(prefixes[index])+" "+action, b.currentRate(),
		networkFactor(prefixes[index]))
}

// AdmitCaller counts a request that may change something against the allowance of the caller who sent it. Each caller
// may send as many requests as an agent may post messages, see Limits.PostsPerAgent. A gateway calls AdmitCaller after
// it has found out who the caller is. caller is a short text that names the caller and its gateway, not a key.
// Refusals: CodeRateLimited.
func (r *Relay) AdmitCaller(from Peer, caller string) error {
	if from.Local {
		return nil
	}
	wait, _ := r.limiter.callers.take(r.now, caller)
	if wait == 0 {
		return nil
	}
	err := rateLimitError(envelope.LimitRequests, wait, "this caller sends requests", r.Limits().PostsPerAgent, 1)
	r.noteRefusal(from, from.Reader, err)
	return err
}

// AddressRate limits how often something may be done from one address, such as a registration at a gateway. It counts
// the networks of an address as the relay's own limits do (PROTOCOL §5).
type AddressRate struct {
	limit, action string
	buckets       *buckets[netip.Prefix]
}

// NewAddressRate returns an AddressRate of r, whose Burst must not be 0. limit is the name of the limit, for
// envelope.DetailLimit. action completes the sentence "this address …" in refusals, such as "registers agents".
func NewAddressRate(limit, action string, r Rate) *AddressRate {
	return &AddressRate{limit: limit, action: action, buckets: newBuckets(r, networkFactor)}
}

// Take counts what p does now. now is the relay's clock, see Relay.Now. Local peers are not counted. Refusals:
// CodeRateLimited.
func (a *AddressRate) Take(p Peer, now func() time.Time) error {
	if p.Local {
		return nil
	}
	return takeForAddress(a.buckets, now, a.limit, a.action, p)
}

// CallerRate limits how often one user of a gateway may do something, or how often something may be done to one user,
// such as the deliveries to an inbox. Unlike an AddressRate, it also counts what the relay's own machine does.
type CallerRate struct {
	limit, action string
	buckets       *buckets[int64]
}

// NewCallerRate returns a CallerRate of r, whose Burst must not be 0. limit is the name of the limit, for
// envelope.DetailLimit. action is a sentence without its end, such as "this inbox gets deliveries".
func NewCallerRate(limit, action string, r Rate) *CallerRate {
	return &CallerRate{limit: limit, action: action, buckets: newBuckets[int64](r, nil)}
}

// Take counts what the user with this number does now. now is the relay's clock, see Relay.Now. Refusals:
// CodeRateLimited.
func (c *CallerRate) Take(user int64, now func() time.Time) error {
	wait, _ := c.buckets.take(now, user)
	if wait == 0 {
		return nil
	}
	return rateLimitError(c.limit, wait, c.action, c.buckets.currentRate(), 1)
}

// admitMessage counts a message against the allowance of its sender. A REQUEST without a recipient also counts against
// the allowance of p's address. Call it only after the signature is verified. Otherwise anybody could use up the
// allowance of another sender.
func (r *Relay) admitMessage(p Peer, e *envelope.Envelope) error {
	if p.Local {
		return nil
	}
	if wait, _ := r.limiter.agents.take(r.now, e.Sender.ID); wait > 0 {
		return rateLimitError(envelope.LimitPostsPerAgent, wait, "this sender posts", r.Limits().PostsPerAgent, 1)
	}
	if !isBroadcastRequest(e) {
		return nil
	}
	err := takeForAddress(r.limiter.broadcasts, r.now, envelope.LimitBroadcastsPerAddress,
		"posts REQUESTs without a recipient", p)
	if err != nil {
		r.limiter.agents.refund(r.now, e.Sender.ID)
	}
	return err
}

// isBroadcastRequest reports whether e is a REQUEST to all agents.
func isBroadcastRequest(e *envelope.Envelope) bool {
	return e.Type == envelope.TypeRequest && e.Recipient == ""
}

// refundMessage undoes admitMessage for a duplicate. Anybody may post a copy of a message, so a copy must not use up
// the sender's allowance.
func (r *Relay) refundMessage(p Peer, e *envelope.Envelope) {
	if p.Local {
		return
	}
	r.limiter.agents.refund(r.now, e.Sender.ID)
	if isBroadcastRequest(e) {
		var buf [len(widths)]netip.Prefix
		r.limiter.broadcasts.refund(r.now, networks(p.Addr, &buf)...)
	}
}

// An expensive request counts as more than one request. It counts as one more for each postUnit of its body, for each
// workUnit of time spent on a body that is then refused, for each workUnit that the store's writer worked on a post,
// and for each readUnit that the store worked on a read.
//
// These times are those of a clock, because the CPU time of a goroutine cannot be measured. So they are also long if
// the whole machine stood still, for example because its disk was slow. The client has not caused that. So one piece of
// work costs at most the burst of the rate, however long it took. By default, an address gets that many back in two
// seconds. A View costs all of its time, because it is not split into slices. It is interrupted after viewTime.
const (
	postUnit = 8 << 10 // bytes
	workUnit = 2 * time.Millisecond
	readUnit = 5 * time.Millisecond
)

// chargePost charges a large body to its address. Otherwise a few posts could fill a disk. If the address is already in
// debt, the body is refused: the relay may have admitted many large bodies before it charged the first one. Refusals:
// CodeRateLimited.
func (r *Relay) chargePost(p Peer, size int) error {
	n := size / postUnit
	if p.Local || n == 0 {
		return nil
	}
	if err := r.checkPostDebt(p); err != nil {
		r.noteRefusal(p, "", err)
		return err
	}
	var buf [len(widths)]netip.Prefix
	r.limiter.posts.charge(r.now, n, networks(p.Addr, &buf)...)
	return nil
}

// checkPostDebt refuses a post if its address is in debt for other posts. Refusals: CodeRateLimited.
func (r *Relay) checkPostDebt(p Peer) error {
	var buf [len(widths)]netip.Prefix
	prefixes := networks(p.Addr, &buf)
	wait, index := r.limiter.posts.debtWait(r.now, prefixes...)
	if wait == 0 {
		return nil
	}
	return rateLimitError(envelope.LimitPostsPerAddress, wait, describeNetwork(prefixes[index])+" posts",
		r.Limits().PostsPerAddress, networkFactor(prefixes[index]))
}

// maxWriteWait is how long a message waits for its turn to be stored. Then it is refused: a disk that is so slow must not
// collect the requests of one address.
const maxWriteWait = 10 * time.Second

// takeWrite waits until another message of p may be stored, see Limits.WritesPerAddress. The caller must call
// writeQueue.Release when it is stored. queued is how long it has waited. Refusals: CodeRateLimited.
func (r *Relay) takeWrite(ctx context.Context, p Peer) (queued time.Duration, err error) {
	src := p.source()
	if r.writeQueue.TryAcquire(src) {
		return 0, nil
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, maxWriteWait)
	defer cancel()
	err = r.writeQueue.Acquire(waiting, src)
	queued = time.Since(began)
	r.observer.Queued(queued)
	if err != nil && ctx.Err() == nil {
		refused := envelope.Errorf(envelope.CodeRateLimited, "%d messages of %s are being stored, which is the limit, and this one "+
			"has waited for %v; send fewer at a time", r.Limits().WritesPerAddress, describeNetwork(siteNetwork(p.Addr)), maxWriteWait)
		refused.RetryAfter, refused.Details = time.Second, map[string]any{envelope.DetailLimit: envelope.LimitWritesPerAddress}
		err = refused
	}
	return queued, err
}

// chargeWork charges work on a post to its address: the time spent on a body that was refused, or the time of the
// store's only writer. It charges at most the burst.
func (r *Relay) chargeWork(p Peer, took time.Duration) {
	if !p.Local {
		var buf [len(widths)]netip.Prefix
		units := int((took + workUnit/2) / workUnit) // rounded to the nearest unit
		r.limiter.posts.charge(r.now, min(units, r.limits.Load().PostsPerAddress.Burst), networks(p.Addr, &buf)...)
	}
}

// isRateLimit reports whether err is a refusal with CodeRateLimited.
func isRateLimit(err error) bool {
	return envelope.CodeOf(err) == envelope.CodeRateLimited
}

func rateLimitError(limit string, wait time.Duration, subject string, rate Rate, factor int) error {
	often, unit := rate.PerSecond*float64(factor), "a second"
	if often < 0.25 {
		often, unit = often*3600, "an hour"
	}
	if often < 1 {
		often, unit = often*24, "a day"
	}
	if unit != "a second" {
		often = math.Round(often)
	}
	e := envelope.Errorf(envelope.CodeRateLimited, "%s faster than this relay allows (%v %s, after %d at once); "+
		"wait for the time in Retry-After", subject, often, unit, rate.Burst*factor)
	e.RetryAfter, e.Details = wait, map[string]any{envelope.DetailLimit: limit}
	return e
}
