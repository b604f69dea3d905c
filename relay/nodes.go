package relay

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// A relay may run as several nodes over one store. Two things in a node's memory matter to the others. Whether a signed
// read was used must be exact, so a node asks Nonces each time. Who is online and how often somebody posts may be late
// by a moment, so a node decides by its own memory and exchanges reports with its Siblings. No request waits for that.

// Nonces remembers which signed reads were used (PROTOCOL §8). The nodes of a relay share one. It takes calls from any
// number of goroutines; one that is far away may answer several of them together.
type Nonces interface {
	// Use remembers that a read with this id and ts is used at now, by the node's clock. id stands for the reader and the
	// nonce. It must be remembered until no node takes ts for fresh any more, which is 2*ReadSkew after its use; longer if
	// a node's clock may differ from that of Nonces, or be set back.
	//
	// Errors: ErrReadUsed if id is known. ErrReadTime if id may have been known and forgotten: Nonces has lost it, say, or
	// ts is too old. After any other error the relay refuses the read with CodeUnavailable.
	Use(ctx context.Context, id [16]byte, ts, now time.Time) error
}

// Errors of Nonces.Use.
var (
	ErrReadUsed = errors.New("the signed read was used before")
	ErrReadTime = errors.New("the signed read may have been used before")
)

// Siblings are the other nodes of a relay.
type Siblings interface {
	// Exchange hands mine to the other nodes and returns the sum of what they have handed over since this node's last
	// call; nothing of mine. The relay calls it several times a second, and never twice at once. A Report is not changed
	// after it was handed over. A Report that cannot be handed over is lost: until Exchange succeeds again, each node
	// goes by its own memory.
	Exchange(ctx context.Context, mine Report) (others Report, err error)
}

// Report is what a node tells its siblings: what has happened there since its last report. Nil maps are empty.
type Report struct {
	Seen map[didkey.DID]time.Time // who signed a read, in which minute
	// How many tokens were taken from each bucket of a Rate; negative if more were given back.
	Posts      map[netip.Prefix]int
	Broadcasts map[netip.Prefix]int
	Agents     map[didkey.DID]int
}

const (
	exchangeEvery = 200 * time.Millisecond
	// nodeTimeout is how long Nonces and Siblings may take.
	nodeTimeout = 5 * time.Second
	// maxReported bounds each map of a report. What is beyond is known to this node only.
	maxReported = 1 << 12
)

// exchange exchanges reports with the siblings until ctx ends.
func (r *Relay) exchange(ctx context.Context) {
	tick := time.NewTicker(exchangeEvery)
	defer tick.Stop()
	failing := outage{what: "the other nodes cannot be reached; until then, limits and presence are by this node alone"}
	for {
		if err := r.exchangeOnce(ctx); err != nil && ctx.Err() == nil {
			failing.note(r.log, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Relay) exchangeOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	others, err := r.siblings.Exchange(ctx, Report{Seen: r.presence.report(), Posts: r.limiter.posts.report(),
		Broadcasts: r.limiter.broadcasts.report(), Agents: r.limiter.agents.report()})
	if err != nil {
		return err
	}
	r.presence.hear(others.Seen, r.now())
	r.limiter.posts.hear(r.now, others.Posts)
	r.limiter.broadcasts.hear(r.now, others.Broadcasts)
	r.limiter.agents.hear(r.now, others.Agents)
	return nil
}

// useRead remembers a signed read, by the hash of its reader and nonce.
// Refusals: CodeUnauthorized if it was used before; CodeUnavailable if that is not known.
func (r *Relay) useRead(ctx context.Context, hash [32]byte, ts, now time.Time) error {
	err := r.nonces.Use(ctx, [16]byte(hash[:16]), ts, now)
	if err == nil {
		return nil // before anything is allocated
	}
	switch {
	case errors.Is(err, ErrReadUsed):
		return unauthorized(envelope.ReasonUsed, "a token of this reader with this nonce was used before; sign each read anew")
	case errors.Is(err, ErrReadTime):
		return outOfTime(now)
	case envelope.CodeOf(err) == envelope.CodeUnavailable:
		return err
	}
	if ctx.Err() == nil {
		r.nonceless.note(r.log, err)
	}
	refusal := envelope.Errorf(envelope.CodeUnavailable, "the relay cannot tell for now whether this token was used before; "+
		"sign the read anew in a moment")
	refusal.RetryAfter = nodeTimeout
	return refusal
}

// inTime bounds how long a relay waits for Nonces.
type inTime struct{ Nonces }

func (n inTime) Use(ctx context.Context, id [16]byte, ts, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	return n.Nonces.Use(ctx, id, ts, now)
}

// outage tells the log of a failure, once in refusalPause.
type outage struct {
	what string
	told atomic.Int64 // when, in nanoseconds; 0: never
}

func (o *outage) note(log *slog.Logger, err error) {
	now, told := time.Now().UnixNano(), o.told.Load()
	if now-told >= int64(refusalPause) && o.told.CompareAndSwap(told, now) {
		log.Error(o.what, "err", err)
	}
}
