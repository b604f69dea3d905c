// Package mirror copies broadcasts from other relays (RELAYS §5): MANIFESTs that name the relays of their agent, and
// REQUESTs that the other relay decides. So agents and clients of one relay find those of another.
//
// A peer is not trusted. It can only hold messages back or deliver them late, because each one is signed by its
// sender and checked like a post (relay.CheckMirrored). What a peer sends is bounded in size, number and rate.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/thread"
)

// Extension has the table of how far each peer was read (RELAYS R-20).
var Extension = relay.Extension{Name: "mirror", Check: check, Migrations: []string{
	"CREATE TABLE mirror_peer (did TEXT PRIMARY KEY, url TEXT NOT NULL, cursor TEXT NOT NULL)"}}

// Limits for each peer (RELAYS ).
const (
	perSecond = 5 // messages
	burst     = 500
	batch     = 20 // messages of one answer, which are stored together
	minPause  = time.Second
	maxPause  = 5 * time.Minute
	recheck   = time.Hour // how often the document of a peer is read again
)

// copier is who stores the messages. No rate limit applies to it, but it is a client: the last part of the database's
// room is for the relay's own messages (G-36).
var copier = relay.Peer{Local: true, Addr: netip.IPv6Loopback()}

// Options has what New needs. Relay and Key are required.
type Options struct {
	Relay     *relay.Relay
	Key       didkey.Key        // of the relay; it signs the reads of private peers
	Peers     []witness.Peer    // the relays to copy from
	Log       *slog.Logger      // nil: slog.Default
	Transport http.RoundTripper // nil: http.DefaultTransport
}

// Mirror copies from its peers while Run runs.
type Mirror struct{ peers []*peer }

// peer is one relay that is read. It belongs to the goroutine of follow.
type peer struct {
	witness.Peer
	relay *relay.Relay
	key   didkey.Key
	log   *slog.Logger
	http  *http.Client
	limit *rate.Limiter
	pause time.Duration // after the next failure

	failing bool      // the last attempt failed, and this was logged
	met     time.Time // when the document was read; zero: read it before the next poll
	signed  bool      // reads are signed, because the peer is private
}

// New returns a mirror of o.Peers. It fails if a peer is the relay itself, or is named twice.
func New(o Options) (*Mirror, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	m := &Mirror{}
	named := map[didkey.DID]bool{o.Relay.DID(): true}
	for _, p := range o.Peers {
		if named[p.DID] {
			return nil, fmt.Errorf("the mirror %s is this relay, or is named twice; leave it out", p)
		}
		named[p.DID] = true
		m.peers = append(m.peers, &peer{Peer: p, relay: o.Relay, key: o.Key, log: o.Log.With("peer", p.DID), pause: minPause,
			limit: rate.NewLimiter(perSecond, burst), http: &http.Client{Transport: o.Transport,
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}})
	}
	return m, nil
}

// Run copies until ctx ends. When it returns, its goroutines have ended. The relay must be running.
func (m *Mirror) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	for _, p := range m.peers {
		tasks.Go(func() { p.follow(ctx) })
	}
	tasks.Wait()
}

// follow copies from p until ctx ends. After each failure it waits longer (RELAYS R-20).
func (p *peer) follow(ctx context.Context) {
	for {
		err := p.copyAll(ctx)
		if ctx.Err() != nil {
			return
		}
		p.relay.Observer().MirrorFailed()
		if !p.failing {
			p.log.Warn("messages of another relay cannot be copied at the moment; trying again, at least every 5 minutes",
				"url", p.URL, "err", err)
		}
		p.failing, p.met = true, time.Time{}
		timer := time.NewTimer(p.pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		p.pause = min(2*p.pause, maxPause)
	}
}

// copyAll copies from where the last call has ended, until an error.
func (p *peer) copyAll(ctx context.Context) error {
	cursor, err := p.cursor(ctx)
	for err == nil {
		if time.Since(p.met) >= recheck {
			if err := p.meet(ctx); err != nil {
				return err
			}
		}
		cursor, err = p.copyPage(ctx, cursor)
	}
	return err
}

// copyPage waits for messages after cursor and copies them. It returns the cursor after them.
func (p *peer) copyPage(ctx context.Context, cursor string) (string, error) {
	answer, err := p.poll(ctx, cursor)
	if errors.Is(err, errUnknownCursor) && cursor != first {
		p.log.Warn("the database of another relay was replaced; its messages are read from the first one on", "url", p.URL)
		return first, nil
	}
	if err != nil {
		return "", err
	}
	// An answer without messages counts too, so that a peer that answers at once is not asked all the time.
	if err := p.limit.WaitN(ctx, max(1, len(answer.events))); err != nil {
		return "", err
	}
	if len(answer.events) > 0 {
		if err := p.store(ctx, answer); err != nil {
			return "", err
		}
	}
	p.pause = minPause
	if p.failing {
		p.failing = false
		p.log.Info("messages of another relay are copied again", "url", p.URL)
	}
	return answer.cursor, nil
}

// store stores the messages of an answer that are to be copied, and the cursor after them (RELAYS R-20).
func (p *peer) store(ctx context.Context, a answer) error {
	var checked []relay.Checked
	for _, body := range a.events {
		if body == nil {
			continue // too large
		}
		c, err := p.relay.CheckMirrored(p.DID, body)
		switch {
		case err == nil:
			checked = append(checked, c)
		case errors.Is(err, relay.ErrNotCopied):
		case relay.Outcome{Err: err}.Decided():
			p.relay.Observer().Mirrored(envelope.CodeOf(err), false)
		default:
			return err
		}
	}
	var outcomes []relay.Outcome
	err := p.relay.Update(ctx, copier, func(tx relay.ExtTx) error {
		outcomes = outcomes[:0] // the function may run twice
		for _, c := range checked {
			receipt, err := tx.Append(c, thread.Terms{})
			o := relay.Outcome{Receipt: receipt, Err: err}
			if !o.Decided() {
				return err
			}
			outcomes = append(outcomes, o)
		}
		_, err := tx.Exec("INSERT INTO mirror_peer (did, url, cursor) VALUES (?, ?, ?) "+
			"ON CONFLICT (did) DO UPDATE SET url = excluded.url, cursor = excluded.cursor", string(p.DID), p.URL, a.cursor)
		return err
	})
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		p.relay.Observer().Mirrored(envelope.CodeOf(o.Err), o.Receipt.Duplicate)
	}
	return nil
}

// cursor returns where to read on.
func (p *peer) cursor(ctx context.Context) (cursor string, err error) {
	cursor = first
	err = p.relay.View(ctx, relay.Peer{Local: true}, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error { return scan(&cursor) },
			"SELECT cursor FROM mirror_peer WHERE did = ?", string(p.DID))
	})
	return cursor, err
}

// check is the Check of Extension.
func check(q relay.Querier, found func(where, what string)) error {
	return q.Query(func(scan func(...any) error) error {
		var did, url, cursor any // another program may have stored values of any type
		if err := scan(&did, &url, &cursor); err != nil {
			return err
		}
		where := fmt.Sprintf("mirror_peer did=%q", did)
		if _, err := witness.ParsePeer(fmt.Sprintf("%v@%v", did, url)); err != nil {
			found(where, fmt.Sprintf("it is not a relay (%v)", err))
		}
		if text, ok := cursor.(string); !ok || !validCursor(text) {
			found(where, "its cursor is not one")
		}
		return nil
	}, "SELECT did, url, cursor FROM mirror_peer")
}
