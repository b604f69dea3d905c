package admission

import (
	"context"
	"math"
	"net/netip"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Admit counts a request against the allowance of p's address. A transport calls it once for every request, before it
// reads more of the request than necessary. Refusals: CodeRateLimited, CodeForbidden if the address is banned.
func (g *Gate) Admit(p Peer, k Kind) error {
	if p.Local {
		return nil
	}
	if err := g.checkAddress(p.Addr); err != nil {
		return err
	}
	var err error
	if k == Posts {
		err = g.posts.Take(p, g.now)
	} else {
		err = g.reads.Take(p, g.now)
	}
	g.NoteRefusal(p, "", err)
	return err
}

// AdmitLine counts a line of size bytes of a bulk request as a post of p's address. The first line counts with its
// request, see Admit. Lines from Limits.BulkFrom are not counted. Refusals: CodeRateLimited, CodeForbidden if the
// address is banned.
func (g *Gate) AdmitLine(p Peer, size int, first bool) error {
	if isWithin(p.Addr, g.limits.Load().BulkFrom) {
		return g.CheckPeer(p)
	}
	if !first {
		if err := g.Admit(p, Posts); err != nil {
			return err
		}
	}
	return g.ChargeBody(p, size)
}

// TrafficUnit is how many bytes count as one more request, see ChargeTraffic.
const TrafficUnit = 16 << 10

// ChargeTraffic charges units of TrafficUnit that p has sent over a connection to the allowance of p's address for
// reads, whether or not they were requests. It refuses p if the address is in debt. Refusals: CodeRateLimited.
func (g *Gate) ChargeTraffic(p Peer, units int) error {
	g.reads.charge(p, g.now, units)
	err := g.reads.debt(p, g.now)
	g.NoteRefusal(p, "", err)
	return err
}

// AnswerUnit is how many bytes of an answer count as one more request, see ChargeAnswer.
const AnswerUnit = 64 << 10

// ChargeAnswer charges units of AnswerUnit that were sent to p in an answer to the allowance of p's address for reads. A
// long list costs more to send than to ask for.
func (g *Gate) ChargeAnswer(p Peer, units int) { g.reads.charge(p, g.now, units) }

// AdmitCaller counts a request that may change something against the allowance of the caller who sent it. Each caller
// may send as many requests as an agent may post messages, see Limits.PostsPerAgent. A gateway calls AdmitCaller after
// it has found out who the caller is. caller is a short text that names the caller and its gateway, not a key.
// Refusals: CodeRateLimited.
func (g *Gate) AdmitCaller(from Peer, caller string) error {
	if from.Local {
		return nil
	}
	wait, _ := g.callers.take(g.now, caller)
	if wait == 0 {
		return nil
	}
	err := rateLimitError(envelope.LimitRequests, wait, "this caller sends requests", g.Limits().PostsPerAgent, 1)
	g.NoteRefusal(from, from.Reader, err)
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

// Take counts what p does now. now is the relay's clock. Local peers are not counted. Refusals: CodeRateLimited.
func (a *AddressRate) Take(p Peer, now func() time.Time) error {
	if p.Local {
		return nil
	}
	var buf [len(widths)]netip.Prefix
	prefixes := networks(p.Addr, &buf)
	if wait, index := a.buckets.take(now, prefixes...); wait > 0 {
		return a.refusal(prefixes[index], wait)
	}
	return nil
}

// debt refuses p if one of its networks is in debt, and counts nothing. Refusals: CodeRateLimited.
func (a *AddressRate) debt(p Peer, now func() time.Time) error {
	if p.Local {
		return nil
	}
	var buf [len(widths)]netip.Prefix
	prefixes := networks(p.Addr, &buf)
	if wait, index := a.buckets.debtWait(now, prefixes...); wait > 0 {
		return a.refusal(prefixes[index], wait)
	}
	return nil
}

// refusal tells a client of network n how long it must wait.
func (a *AddressRate) refusal(n netip.Prefix, wait time.Duration) error {
	return rateLimitError(a.limit, wait, describeNetwork(n)+" "+a.action, a.buckets.currentRate(), networkFactor(n))
}

// charge counts n more for a request of p that turned out to be expensive. p may get into debt.
func (a *AddressRate) charge(p Peer, now func() time.Time, n int) {
	if !p.Local {
		var buf [len(widths)]netip.Prefix
		a.buckets.charge(now, n, networks(p.Addr, &buf)...)
	}
}

// refund undoes a Take of p.
func (a *AddressRate) refund(p Peer, now func() time.Time) {
	if !p.Local {
		var buf [len(widths)]netip.Prefix
		a.buckets.refund(now, networks(p.Addr, &buf)...)
	}
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

// Take counts what the user with this number does now. now is the relay's clock. Refusals:
// CodeRateLimited.
func (c *CallerRate) Take(user int64, now func() time.Time) error {
	wait, _ := c.buckets.take(now, user)
	if wait == 0 {
		return nil
	}
	return rateLimitError(c.limit, wait, c.action, c.buckets.currentRate(), 1)
}

// AdmitMessage counts a message against the allowance of its sender. A REQUEST without a recipient also counts against
// the allowance of p's address. Call it only after the signature is verified. Otherwise anybody could use up the
// allowance of another sender.
func (g *Gate) AdmitMessage(p Peer, e *envelope.Envelope) error {
	if p.Local {
		return nil
	}
	if wait, _ := g.agents.take(g.now, e.Sender.ID); wait > 0 {
		return rateLimitError(envelope.LimitPostsPerAgent, wait, "this sender posts", g.Limits().PostsPerAgent, 1)
	}
	if !isBroadcastRequest(e) {
		return nil
	}
	err := g.broadcasts.Take(p, g.now)
	if err != nil {
		g.agents.refund(g.now, e.Sender.ID)
	}
	return err
}

// isBroadcastRequest reports whether e is a REQUEST to all agents.
func isBroadcastRequest(e *envelope.Envelope) bool {
	return e.Type == envelope.TypeRequest && e.Recipient == ""
}

// RefundMessage undoes AdmitMessage for a duplicate. Anybody may post a copy of a message, so a copy must not use up
// the sender's allowance.
func (g *Gate) RefundMessage(p Peer, e *envelope.Envelope) {
	if p.Local {
		return
	}
	g.agents.refund(g.now, e.Sender.ID)
	if isBroadcastRequest(e) {
		g.broadcasts.refund(p, g.now)
	}
}

// An expensive request counts as more than one request. It counts as one more for each postUnit of its body, for each
// workUnit of time spent on a body that is then refused, for each workUnit that the store's writer worked on a post,
// and for each readUnit that the store worked on a read.
//
// A clock measures these times, because the CPU time of a goroutine cannot be measured. So they are also long if the
// whole machine stood still, for example because its disk was slow. The client has not caused that. So one piece of
// work costs at most the burst of the rate, however long it took. By default, an address gets that many back in two
// seconds. A View costs all of its time, because it is not split into slices. It is interrupted after viewTime.
const (
	postUnit = 8 << 10 // bytes
	workUnit = 2 * time.Millisecond
	readUnit = 5 * time.Millisecond
)

// ChargeBody charges a large body to its address. Otherwise a few posts could fill a disk. If the address is already in
// debt, the body is refused: the relay may have admitted many large bodies before it charged the first one. Refusals:
// CodeRateLimited.
func (g *Gate) ChargeBody(p Peer, size int) error {
	n := size / postUnit
	if p.Local || n == 0 {
		return nil
	}
	if err := g.CheckPostDebt(p); err != nil {
		g.NoteRefusal(p, "", err)
		return err
	}
	g.posts.charge(p, g.now, n)
	return nil
}

// CheckPostDebt refuses a post if its address is in debt for other posts. Refusals: CodeRateLimited.
func (g *Gate) CheckPostDebt(p Peer) error { return g.posts.debt(p, g.now) }

// Checking calls check, which checks a body, when it is the turn of p. If check refuses the body, the time spent on it
// is charged to p.
func (g *Gate) Checking(p Peer, check func() error) error {
	src := p.Source()
	_ = g.checking.Acquire(context.Background(), src) // this context never ends
	defer g.checking.Release(src)
	began := time.Now()
	err := check()
	if err != nil {
		g.ChargeWork(p, time.Since(began))
	}
	return err
}

// maxWriteWait is how long a message waits for its turn to be stored. Then it is refused: a disk that is so slow must not
// collect the requests of one address.
const maxWriteWait = 10 * time.Second

// TakeWrite waits until another message of p may be stored, see Limits.WritesPerAddress. The caller must call
// ReleaseWrite when it is stored. queued is how long it has waited. Refusals: CodeRateLimited.
func (g *Gate) TakeWrite(ctx context.Context, p Peer) (queued time.Duration, err error) {
	src := p.Source()
	if g.writes.TryAcquire(src) {
		return 0, nil
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, maxWriteWait)
	defer cancel()
	err = g.writes.Acquire(waiting, src)
	queued = time.Since(began)
	g.queued(queued)
	if err != nil && ctx.Err() == nil {
		refused := envelope.Errorf(envelope.CodeRateLimited, "%d messages of %s are being stored, which is the limit, and this one "+
			"has waited for %v; send fewer at a time", g.Limits().WritesPerAddress, describeNetwork(p.Site()), maxWriteWait)
		refused.RetryAfter, refused.Details = time.Second, map[string]any{envelope.DetailLimit: envelope.LimitWritesPerAddress}
		err = refused
	}
	return queued, err
}

// WriteBatch returns how many of n messages of p may be stored together in one turn.
func (g *Gate) WriteBatch(p Peer, n int) int {
	if limit := g.limits.Load().WritesPerAddress; limit != Unlimited && !p.Local {
		return min(n, limit)
	}
	return n
}

// ReleaseWrite gives back what TakeWrite has taken.
func (g *Gate) ReleaseWrite(p Peer) { g.writes.Release(p.Source()) }

// ChargeWork charges work on a post to its address: the time spent on a body that was refused, or the time of the
// store's only writer. It charges at most the burst.
func (g *Gate) ChargeWork(p Peer, took time.Duration) {
	units := int((took + workUnit/2) / workUnit) // rounded to the nearest unit
	g.posts.charge(p, g.now, min(units, g.limits.Load().PostsPerAddress.Burst))
}

// TakeRead waits until another piece of a read of p may be done. The caller must call ReleaseRead when it is done.
// refusable means that p may still be refused, because its answer has not begun: then p is refused while its address is
// in debt for earlier reads. So most of the reads that an address in debt has waiting are never done. Refusals:
// CodeRateLimited, ctx's error.
func (g *Gate) TakeRead(ctx context.Context, p Peer, refusable bool) error {
	if err := g.reading.Acquire(ctx, p.Source()); err != nil || !refusable {
		return err
	}
	err := g.reads.debt(p, g.now)
	if err != nil {
		g.reading.Release(p.Source())
	}
	return err
}

// ReleaseRead gives back what TakeRead has taken, and charges the read to the address of p. took is how long the store
// has worked on this piece, and before how long on the pieces before it. A piece costs at most the burst.
func (g *Gate) ReleaseRead(p Peer, before, took time.Duration) {
	units := int((before+took)/readUnit - before/readUnit)
	g.releaseRead(p, min(units, g.limits.Load().ReadsPerAddress.Burst))
}

func (g *Gate) releaseRead(p Peer, units int) {
	g.reading.Release(p.Source())
	g.reads.charge(p, g.now, units)
}

// TakeView waits until p may do another View. At least one of the turns of reads is never used by a View, so Views
// cannot keep the relay's own reads waiting. The caller must call ReleaseView when it is done. Refusals: those of
// TakeRead.
func (g *Gate) TakeView(ctx context.Context, p Peer) error {
	if err := g.viewing.Acquire(ctx, p.Source()); err != nil {
		return err
	}
	err := g.TakeRead(ctx, p, true)
	if err != nil {
		g.viewing.Release(p.Source())
	}
	return err
}

// ReleaseView gives back what TakeView has taken, and charges all of the time to the address of p. A View is not split
// into pieces, so it may cost more than the burst.
func (g *Gate) ReleaseView(p Peer, took time.Duration) {
	g.releaseRead(p, int((took+readUnit/2)/readUnit)) // rounded to the nearest unit
	g.viewing.Release(p.Source())
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
