// Package admission decides which requests a relay takes on, and when. It counts what each client uses: a Gate admits a
// request or refuses it, charges what it has cost, refunds what does not count, and gives clients their turns. Clients
// are told apart by network, and verified senders by identity (PROTOCOL §5). What exceeds a limit is refused with
// CodeRateLimited.
//
// The package does no I/O. Everything it remembers is bounded, for any number of clients.
package admission

import (
	"context"
	"log/slog"
	"math"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/turns"
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

	Reader didkey.DID // who signed the read, see relay.Relay.VerifyRead; empty: it is not signed
}

// IsClient reports whether p is a client. The zero Peer is one; the relay itself and its operator are not.
func (p Peer) IsClient() bool { return !p.Operator && (!p.Local || p.Addr.IsValid()) }

// Unlimited, in place of a number, means that there is no limit.
const Unlimited = -1

// Kind is the kind of a request.
type Kind int

const (
	Reads Kind = iota
	Posts
)

// Site returns the network that counts as one source of requests: an IPv4 address, or the /48 of an IPv6 address. It is
// invalid if the address is not known.
func (p Peer) Site() netip.Prefix { return siteNetwork(p.Addr) }

// Options has what New needs.
type Options struct {
	Limits Limits
	Bans   Bans
	Now    func() time.Time    // the relay's clock
	Log    *slog.Logger        // gets a line when a limit begins to refuse a network
	Queued func(time.Duration) // is told how long each message waited that could not be stored at once
	// Banned is called after each change of the bans. It must end the polls and streams of peers that check refuses.
	Banned func(check func(Peer) error)
}

// Gate counts what clients have asked of a relay recently, for each of its limits. Run must be running while it is used.
// Any number of goroutines may call its methods.
type Gate struct {
	now    func() time.Time
	queued func(time.Duration)
	banned func(check func(Peer) error)
	limits atomic.Pointer[Limits]
	bans   atomic.Pointer[bans] // nil: nobody is banned

	posts, reads, broadcasts, connects *AddressRate
	agents                             *buckets[didkey.DID]
	callers                            *buckets[string]
	connections, requests              *slots
	polls, bulks                       *slots

	reading  *turns.Queue[Source] // reads of the store
	viewing  *turns.Queue[Source] // those reads that are Views; a View then also waits in reading
	checking *turns.Queue[Source] // parsing and verifying bodies, which needs a hundred times their size in memory
	writes   *turns.Queue[Source] // writes to the store
	refusals *refusals
}

// New returns a Gate with the limits of o, whose zero fields get their defaults.
func New(o Options) *Gate {
	l := o.Limits.WithDefaults()
	cores := max(2, runtime.GOMAXPROCS(0))
	g := &Gate{now: o.Now, queued: o.Queued, banned: o.Banned, refusals: newRefusals(o.Log),
		posts: NewAddressRate(envelope.LimitPostsPerAddress, "posts", l.PostsPerAddress),
		reads: NewAddressRate(envelope.LimitReadsPerAddress, "sends requests", l.ReadsPerAddress),
		broadcasts: NewAddressRate(envelope.LimitBroadcastsPerAddress, "posts REQUESTs without a recipient",
			l.BroadcastsPerAddress),
		connects: NewAddressRate(envelope.LimitNewConnectionsPerAddress, "opens connections", l.NewConnectionsPerAddress),
		agents:   newBuckets[didkey.DID](l.PostsPerAgent, nil), callers: newBuckets[string](l.PostsPerAgent, nil),
		connections: newSlots(slotLimit{l.ConnectionsPerAddress, envelope.LimitConnectionsPerAddress,
			"%d connections of %s are open, which is the limit; use one of them"}, slotLimit{most: Unlimited}),
		requests: newSlots(slotLimit{l.RequestsPerAddress, envelope.LimitRequestsPerAddress,
			"%d requests of %s are in progress, which is the limit; wait for their answers"}, slotLimit{most: Unlimited}),
		polls: newSlots(slotLimit{l.PollsPerAddress, envelope.LimitPollsPerAddress,
			"%d polls of %s are waiting, which is the limit; end one of them, or poll with timeout=0"},
			slotLimit{l.Polls, envelope.LimitPolls, "%d polls are waiting, which is the limit of this relay; " +
				"try again in a few seconds, or poll with timeout=0"}),
		bulks: newSlots(slotLimit{l.BulksPerAddress, envelope.LimitBulks,
			"%d bulk requests of %s are in progress, which is the limit; wait for their answers"},
			slotLimit{maxBulks, envelope.LimitBulks, "%d bulk requests are in progress, which is the limit of this relay; " +
				"try again in a few seconds, or post the messages one by one"}),
		reading: NewTurns(maxConcurrentReads, 1), viewing: NewTurns(maxConcurrentViews, 1),
		checking: NewTurns(cores, (cores+1)/2)}
	g.limits.Store(&l)
	g.bans.Store(newBans(o.Bans))
	g.writes = turns.New(math.MaxInt, func(s Source) int {
		if n := g.limits.Load().WritesPerAddress; n != Unlimited && !s.local {
			return n
		}
		return math.MaxInt
	})
	return g
}

// Run logs which networks the limits refuse, until ctx ends.
func (g *Gate) Run(ctx context.Context) { g.refusals.run(ctx) }

// SetLimits changes the limits for clients while the relay runs. What a client has used so far still counts. Requests
// and polls that are in progress continue.
func (g *Gate) SetLimits(l Limits) {
	l = l.WithDefaults()
	now := g.now()
	g.limits.Store(&l)
	g.posts.buckets.setRate(now, l.PostsPerAddress)
	g.reads.buckets.setRate(now, l.ReadsPerAddress)
	g.broadcasts.buckets.setRate(now, l.BroadcastsPerAddress)
	g.agents.setRate(now, l.PostsPerAgent)
	g.callers.setRate(now, l.PostsPerAgent)
	g.connects.buckets.setRate(now, l.NewConnectionsPerAddress)
	g.connections.setLimits(l.ConnectionsPerAddress, Unlimited)
	g.requests.setLimits(l.RequestsPerAddress, Unlimited)
	g.polls.setLimits(l.PollsPerAddress, l.Polls)
	g.bulks.setLimits(l.BulksPerAddress, maxBulks)
}

// Limits returns the limits for clients, with defaults filled in.
func (g *Gate) Limits() Limits { return *g.limits.Load() }

// MaxReported bounds each map of a Report. Entries beyond it are known to this node only.
const MaxReported = 1 << 12

// Report says how many tokens were taken at a node from each bucket of a Rate since its last report. A number is
// negative if more tokens were refunded. A nil map is empty.
type Report struct {
	Posts      map[netip.Prefix]int
	Broadcasts map[netip.Prefix]int
	Agents     map[didkey.DID]int
}

// Report returns what was counted since the last call. The first call returns nothing and starts the recording.
func (g *Gate) Report() Report {
	return Report{Posts: g.posts.buckets.report(), Broadcasts: g.broadcasts.buckets.report(), Agents: g.agents.report()}
}

// Apply counts what other nodes have reported.
func (g *Gate) Apply(others Report) {
	g.posts.buckets.applyRemote(g.now, others.Posts)
	g.broadcasts.buckets.applyRemote(g.now, others.Broadcasts)
	g.agents.applyRemote(g.now, others.Agents)
}
