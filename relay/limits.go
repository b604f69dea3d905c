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
	PostsPerAddress Rate // requests that post, valid or not
	ReadsPerAddress Rate // all others
	PostsPerAgent   Rate // messages signed by one DID
	// What may go on at a time; Unlimited: any number.
	ConnectionsPerAddress int // idle ones too
	RequestsPerAddress    int
	PollsPerAddress       int // those that wait
	Polls                 int // … of all addresses together
}

// Rate is how often something may be done: so many times a second, after Burst times at once.
type Rate struct {
	PerSecond float64 // Unlimited: any number
	Burst     int     // 0: twice PerSecond
}

// Unlimited takes the place of a number that does not limit.
const Unlimited = -1

// WithDefaults returns l with its zero fields replaced.
func (l Limits) WithDefaults() Limits {
	for _, f := range []struct {
		rate      *Rate
		perSecond float64
	}{{&l.PostsPerAddress, 50}, {&l.ReadsPerAddress, 100}, {&l.PostsPerAgent, 20}} {
		if f.rate.PerSecond == 0 {
			f.rate.PerSecond = f.perSecond
		}
		if f.rate.Burst == 0 {
			f.rate.Burst = int(math.Ceil(2 * f.rate.PerSecond))
		}
	}
	l.ConnectionsPerAddress = cmp.Or(l.ConnectionsPerAddress, 256)
	l.RequestsPerAddress = cmp.Or(l.RequestsPerAddress, 64)
	l.PollsPerAddress = cmp.Or(l.PollsPerAddress, 32)
	l.Polls = cmp.Or(l.Polls, 10_000)
	return l
}

// Names of the limits, in the details of a refusal and in a relay's description of itself.
const (
	PostsPerAddress = "postsPerAddress"
	ReadsPerAddress = "readsPerAddress"
	PostsPerAgent   = "postsPerAgent"

	ConnectionsPerAddress = "connectionsPerAddress"
	RequestsPerAddress    = "requestsPerAddress"
	PollsPerAddress       = "pollsPerAddress"
	Polls                 = "polls"
)

// Kind is what a request is about to do.
type Kind int

const (
	Reads Kind = iota
	Posts
)

// limiter is a relay's memory of what was asked of it lately.
type limiter struct {
	posts, reads *buckets[netip.Addr]
	agents       *buckets[didkey.DID]

	connections, requests, polls *places
}

func newLimiter(l Limits) *limiter {
	return &limiter{
		posts: newBuckets[netip.Addr](l.PostsPerAddress), reads: newBuckets[netip.Addr](l.ReadsPerAddress),
		agents:      newBuckets[didkey.DID](l.PostsPerAgent),
		connections: newPlaces(l.ConnectionsPerAddress, Unlimited),
		requests:    newPlaces(l.RequestsPerAddress, Unlimited), polls: newPlaces(l.PollsPerAddress, l.Polls),
	}
}

// Admit counts a request against the allowance of p's address. A wire calls it once for every request, before it reads
// more of it than it must. Refusals: CodeRateLimited.
func (r *Relay) Admit(p Peer, k Kind) error {
	if p.Local {
		return nil
	}
	if k == Posts {
		if wait := r.limiter.posts.take(network(p.Addr), r.Now); wait > 0 {
			return tooFast(PostsPerAddress, wait, "this address posts", r.Limits.PostsPerAddress)
		}
		return nil
	}
	if wait := r.limiter.reads.take(network(p.Addr), r.Now); wait > 0 {
		return tooFast(ReadsPerAddress, wait, "this address asks", r.Limits.ReadsPerAddress)
	}
	return nil
}

// admitAgent counts a message against its sender's allowance, once its signature has shown who that is: earlier,
// anybody could use up another's.
func (r *Relay) admitAgent(p Peer, sender didkey.DID) error {
	if p.Local {
		return nil
	}
	if wait := r.limiter.agents.take(sender, r.Now); wait > 0 {
		return tooFast(PostsPerAgent, wait, "this sender posts", r.Limits.PostsPerAgent)
	}
	return nil
}

// What is dear counts as more than one request: each postUnit of a body, each readUnit that the store worked on a read.
const (
	postUnit = 8 << 10 // bytes
	readUnit = 10 * time.Millisecond
	// appendUnit is far more than any post takes that does not search for its thread.
	appendUnit = 2 * time.Millisecond
)

// chargePost counts a body against its address, which could fill a disk with few posts otherwise.
func (r *Relay) chargePost(p Peer, size int) {
	if !p.Local {
		r.limiter.posts.charge(network(p.Addr), r.Now, size/postUnit)
	}
}

// chargeAppend counts a post against its address by the time that it took the store's only writer.
func (r *Relay) chargeAppend(p Peer, took time.Duration) {
	if !p.Local {
		r.limiter.posts.charge(network(p.Addr), r.Now, int(took/appendUnit))
	}
}

// chargeRead counts a read against its address by the store's time, of which all readers have one share.
func (r *Relay) chargeRead(p Peer, took time.Duration) {
	if !p.Local {
		r.limiter.reads.charge(network(p.Addr), r.Now, int(took/readUnit))
	}
}

func tooFast(limit string, wait time.Duration, who string, allowed Rate) error {
	e := envelope.Errorf(envelope.CodeRateLimited, "%s faster than this relay allows, %v a second after %d at once; "+
		"wait as long as Retry-After says", who, allowed.PerSecond, allowed.Burst)
	e.RetryAfter, e.Details = wait, map[string]any{"limit": limit}
	return e
}

// network returns what of an address is counted together: an IPv4 address, the /64 of an IPv6 one, because whoever has
// one of its addresses has them all. The zero Addr stays what it is.
func network(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() {
		prefix, err := a.Prefix(64)
		if err == nil { // as it is for every IPv6 address
			return prefix.Addr()
		}
	}
	return a
}
