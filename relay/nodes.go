package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admission"
)

// A relay may run as several nodes over one store. Two things in the memory of a node matter to the other nodes. The
// first is whether a signed read was used. This must be exact, so a node asks Nonces each time. The second is who is
// online and how often a client posts. This may be a moment late, so a node decides by its own memory and exchanges
// reports with its Siblings. No request waits for an exchange.

// Nonces remembers which signed reads were used (PROTOCOL §8). A signed call of a gateway counts as a signed read here.
// All nodes of a relay share one Nonces. Any number of goroutines may call it at the same time. A remote one may answer
// several calls together.
type Nonces interface {
	// Use records that the read with this id and ts is used at now, by the node's clock. id stands for the reader and
	// the nonce. Nonces must remember id until no node accepts ts as fresh any more. That is 2*ReadSkew after the use.
	// It is longer if a node's clock may differ from the clock of Nonces, or may be set back.
	//
	// Errors: ErrReadUsed if id is known. ErrReadTime if id may have been known and forgotten, for example because
	// Nonces has lost it or because ts is too old. After any other error, the relay refuses the read with
	// CodeUnavailable.
	Use(ctx context.Context, id [16]byte, ts, now time.Time) error
}

// Errors of Nonces.Use.
var (
	ErrReadUsed = errors.New("the signed read was used before")
	ErrReadTime = errors.New("the signed read may have been used before")
)

// Siblings connects a node to the other nodes of its relay.
type Siblings interface {
	// Exchange hands mine to the other nodes. It returns the sum of what the other nodes have handed over since this
	// node's last call, without mine. The relay calls it several times a second, and never twice at once. It does not
	// change a Report after handing it over. A Report that cannot be handed over is lost. Until Exchange succeeds
	// again, each node uses only its own memory.
	Exchange(ctx context.Context, mine Report) (others Report, err error)
}

// Report says what has happened at a node since its last report. A nil map is empty.
type Report struct {
	Seen map[didkey.DID]time.Time // who signed a read, and in which minute
	admission.Report
}

// Add adds what happened at another node to r.
func (r *Report) Add(other Report) {
	r.Seen = sumOf(r.Seen, other.Seen, func(a, b time.Time) time.Time {
		if b.After(a) {
			return b
		}
		return a
	})
	plus := func(a, b int) int { return a + b }
	r.Posts = sumOf(r.Posts, other.Posts, plus)
	r.Broadcasts = sumOf(r.Broadcasts, other.Broadcasts, plus)
	r.Agents = sumOf(r.Agents, other.Agents, plus)
}

// sumOf adds the entries of from to into, which may be nil.
func sumOf[K comparable, V any](into, from map[K]V, join func(V, V) V) map[K]V {
	if into == nil {
		into = make(map[K]V, len(from))
	}
	for k, v := range from {
		into[k] = join(into[k], v)
	}
	return into
}

const (
	exchangeEvery = 200 * time.Millisecond
	// nodeTimeout limits each call of Nonces and Siblings.
	nodeTimeout = 5 * time.Second
	// outageLogInterval is the time between two lines in the log about the same failure.
	outageLogInterval = time.Minute
)

// exchange exchanges reports with the other nodes until ctx ends.
func (r *Relay) exchange(ctx context.Context) {
	tick := time.NewTicker(exchangeEvery)
	defer tick.Stop()
	unreachable := outage{message: "cannot exchange reports with the other nodes; until it works again, limits and " +
		"presence count only what this node has seen; check the connection to what the nodes share, such as the database"}
	for {
		if err := r.exchangeOnce(ctx); err != nil && ctx.Err() == nil {
			unreachable.report(r.log, err)
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
	others, err := r.siblings.Exchange(ctx, Report{Seen: r.presence.report(), Report: r.gate.Report()})
	if err != nil {
		return err
	}
	r.presence.applyRemote(others.Seen, r.now())
	r.gate.Apply(others.Report)
	return nil
}

// markReadUsed records that a signed read or a signed call is used. idHash is the hash of its signer and nonce.
// Refusals: CodeUnauthorized if it was used before; CodeUnavailable if Nonces cannot say.
func (r *Relay) markReadUsed(ctx context.Context, idHash [32]byte, ts, now time.Time) error {
	err := r.nonces.Use(ctx, [16]byte(idHash[:16]), ts, now)
	if err == nil {
		return nil // before anything is allocated
	}
	switch {
	case errors.Is(err, ErrReadUsed):
		return unauthorized(envelope.ReasonUsed, "this signer has used a token with this nonce before; "+
			"sign a new token for each request")
	case errors.Is(err, ErrReadTime):
		return readTimeError(now)
	case envelope.CodeOf(err) == envelope.CodeUnavailable:
		return err
	}
	if ctx.Err() == nil {
		r.nonceOutage.report(r.log, err)
	}
	refusal := envelope.Errorf(envelope.CodeUnavailable, "the relay cannot check at the moment whether this token was "+
		"used before; try again later with a new token")
	refusal.RetryAfter = nodeTimeout
	return refusal
}

// timedNonces limits each call of Nonces to nodeTimeout.
type timedNonces struct{ Nonces }

func (n timedNonces) Use(ctx context.Context, id [16]byte, ts, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	return n.Nonces.Use(ctx, id, ts, now)
}

// outage logs a failure that repeats, at most once in outageLogInterval.
type outage struct {
	message  string
	loggedAt atomic.Int64 // when it was last logged, in Unix nanoseconds; 0: never
}

func (o *outage) report(log *slog.Logger, err error) {
	now, loggedAt := time.Now().UnixNano(), o.loggedAt.Load()
	if now-loggedAt >= int64(outageLogInterval) && o.loggedAt.CompareAndSwap(loggedAt, now) {
		log.Error(o.message, "err", err)
	}
}
