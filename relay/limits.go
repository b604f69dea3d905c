package relay

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Peer is who a request comes from, as far as its wire can tell. The zero Peer is somebody unknown; all who are share
// one allowance.
type Peer struct {
	Addr  netip.Addr
	Local bool // certainly the relay's own machine, which no rate and no limit of polls holds (PROTOCOL §5)

	Reader didkey.DID // who has signed the read, see Relay.VerifyRead; empty: nobody
}

// Limits bound what one party may ask of a relay (PROTOCOL §5). A field that is zero means its default.
type Limits struct {
	PostsPerAddress Rate // requests by any method that may change something, valid or not
	ReadsPerAddress Rate // all others
	PostsPerAgent   Rate // messages signed by one DID
	// Broadcast REQUESTs that one address posts: every agent that offers its service reads them all.
	BroadcastsPerAddress Rate
	// What may go on at a time; Unlimited: any number.
	ConnectionsPerAddress int // idle ones too
	RequestsPerAddress    int
	PollsPerAddress       int // those that wait
	Polls                 int // … of all addresses together
}

// Rate is how often something may be done: so many times a second, after Burst times at once.
type Rate struct {
	PerSecond float64 // Unlimited: any number
	Burst     int     // 0: twice PerSecond, four times for BroadcastsPerAddress
}

// Unlimited takes the place of a number that does not limit.
const Unlimited = -1

// WithDefaults returns l with its zero fields replaced.
func (l Limits) WithDefaults() Limits {
	for _, f := range []struct {
		rate             *Rate
		perSecond, times float64
	}{{&l.PostsPerAddress, 50, 2}, {&l.ReadsPerAddress, 100, 2}, {&l.PostsPerAgent, 20, 2}, {&l.BroadcastsPerAddress, 5, 4}} {
		if f.rate.PerSecond == 0 {
			f.rate.PerSecond = f.perSecond
		}
		if f.rate.Burst == 0 {
			f.rate.Burst = int(math.Ceil(f.times * f.rate.PerSecond))
		}
	}
	l.ConnectionsPerAddress = cmp.Or(l.ConnectionsPerAddress, 256)
	l.RequestsPerAddress = cmp.Or(l.RequestsPerAddress, 64)
	l.PollsPerAddress = cmp.Or(l.PollsPerAddress, 32)
	l.Polls = cmp.Or(l.Polls, 10_000)
	return l
}

// Kind is what a request is about to do.
type Kind int

const (
	Reads Kind = iota
	Posts
)

// limiter is a relay's memory of what was asked of it lately.
type limiter struct {
	posts, reads, broadcasts *buckets[netip.Prefix]
	agents                   *buckets[didkey.DID]

	connections, requests, polls *places
}

func newLimiter(l Limits) *limiter {
	return &limiter{
		posts: newBuckets(l.PostsPerAddress, share), reads: newBuckets(l.ReadsPerAddress, share),
		broadcasts: newBuckets(l.BroadcastsPerAddress, share), agents: newBuckets[didkey.DID](l.PostsPerAgent, nil),
		connections: newPlaces(envelope.LimitConnectionsPerAddress, "%d connections of %s are open, and no more may be; use those",
			l.ConnectionsPerAddress, Unlimited),
		requests: newPlaces(envelope.LimitRequestsPerAddress, "%d requests of %s are under way, and no more may be; wait for their answers",
			l.RequestsPerAddress, Unlimited),
		polls: newPlaces(envelope.LimitPollsPerAddress, "%d polls of %s wait already, and no more may; end one, or ask with timeout=0",
			l.PollsPerAddress, l.Polls),
	}
}

// Admit counts a request against the allowance of p's address. A wire calls it once for every request, before it reads
// more of it than it must. Refusals: CodeRateLimited.
func (r *Relay) Admit(p Peer, k Kind) error {
	if p.Local {
		return nil
	}
	var err error
	if k == Posts {
		err = r.takeOfAddress(r.limiter.posts, envelope.LimitPostsPerAddress, "posts", p)
	} else {
		err = r.takeOfAddress(r.limiter.reads, envelope.LimitReadsPerAddress, "asks", p)
	}
	r.noteRefusal(p, "", err)
	return err
}

// takeOfAddress takes a token of each of p's networks. does says what p does too often if one has none.
func (r *Relay) takeOfAddress(b *buckets[netip.Prefix], limit, does string, p Peer) error {
	var array [len(widths)]netip.Prefix
	of := networks(p.Addr, &array)
	wait, short := b.take(r.now, of...)
	if wait == 0 {
		return nil
	}
	return tooFast(limit, wait, named(of[short])+" "+does, b.Rate, share(of[short]))
}

// admitMessage counts a message against the allowances of its sender and, if it is a REQUEST to all, of p's address. Its
// signature has shown who the sender is: earlier, anybody could use up another's allowance.
func (r *Relay) admitMessage(p Peer, e *envelope.Envelope) error {
	if p.Local {
		return nil
	}
	if wait, _ := r.limiter.agents.take(r.now, e.Sender.ID); wait > 0 {
		return tooFast(envelope.LimitPostsPerAgent, wait, "this sender posts", r.limits.PostsPerAgent, 1)
	}
	if !toAll(e) {
		return nil
	}
	err := r.takeOfAddress(r.limiter.broadcasts, envelope.LimitBroadcastsPerAddress, "posts REQUESTs without a recipient", p)
	if err != nil {
		r.limiter.agents.giveBack(r.now, e.Sender.ID)
	}
	return err
}

// toAll reports whether e asks all agents for a service.
func toAll(e *envelope.Envelope) bool { return e.Type == envelope.TypeRequest && e.Recipient == "" }

// giveBack takes back what admitMessage has counted, for a message that was here before: anybody may post it again.
func (r *Relay) giveBack(p Peer, e *envelope.Envelope) {
	if p.Local {
		return
	}
	r.limiter.agents.giveBack(r.now, e.Sender.ID)
	if toAll(e) {
		var array [len(widths)]netip.Prefix
		r.limiter.broadcasts.giveBack(r.now, networks(p.Addr, &array)...)
	}
}

// What is costly counts as more than one request: each postUnit of a body, each workUnit that was spent on a body which
// is then refused or that the store's writer worked on a post, each readUnit that the store worked on a read.
const (
	postUnit = 8 << 10 // bytes
	workUnit = 2 * time.Millisecond
	readUnit = 5 * time.Millisecond
)

// chargePost counts a body against its address, which could fill a disk with few posts otherwise. An address that owes
// for large bodies already is refused: many of them may have been admitted before the first was charged.
// Refusals: CodeRateLimited.
func (r *Relay) chargePost(p Peer, size int) error {
	n := size / postUnit
	if p.Local || n == 0 {
		return nil
	}
	if err := r.owesPosts(p); err != nil {
		return err
	}
	var array [len(widths)]netip.Prefix
	r.limiter.posts.charge(r.now, n, networks(p.Addr, &array)...)
	return nil
}

// owesPosts refuses a post of an address that owes for others. Refusals: CodeRateLimited.
func (r *Relay) owesPosts(p Peer) error {
	var array [len(widths)]netip.Prefix
	of := networks(p.Addr, &array)
	wait, short := r.limiter.posts.owes(r.now, of...)
	if wait == 0 {
		return nil
	}
	return tooFast(envelope.LimitPostsPerAddress, wait, named(of[short])+" posts", r.limits.PostsPerAddress, share(of[short]))
}

// writesAtOnce is how many messages of one address, or of one IPv6 /48, the store has to write at a time.
const writesAtOnce = 4

// chargeWork counts work on a post against its address: on a body that was refused, or of the store's only writer.
func (r *Relay) chargeWork(p Peer, took time.Duration) {
	if !p.Local {
		var array [len(widths)]netip.Prefix
		units := int((took + workUnit/2) / workUnit) // rounded
		r.limiter.posts.charge(r.now, units, networks(p.Addr, &array)...)
	}
}

// isRateLimit reports whether err is a refusal that a Rate has led to.
func isRateLimit(err error) bool {
	return envelope.CodeOf(err) == envelope.CodeRateLimited
}

func tooFast(limit string, wait time.Duration, who string, allowed Rate, times int) error {
	e := envelope.Errorf(envelope.CodeRateLimited, "%s faster than this relay allows, %v a second after %d at once; "+
		"wait as long as Retry-After says", who, allowed.PerSecond*float64(times), allowed.Burst*times)
	e.RetryAfter, e.Details = wait, map[string]any{envelope.DetailLimit: limit}
	return e
}
