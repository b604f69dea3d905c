package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/discovery"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/client/internal/mark"
	"github.com/agora-relay/agora/client/internal/posting"
	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/netaddr"
	"github.com/agora-relay/agora/proof"
)

// NetworkOptions of a Network. The zero value works.
type NetworkOptions struct {
	Options // of the clients of all relays

	// State remembers the positions, the handled events, the jobs and the caught relays. nil: they are in memory.
	State *State
	// Discover lets the client contact further relays: those that verified manifests and the homes of threads name. It
	// uses https and public addresses only, and contacts at most 16 new relays an hour (RELAYS R-13). Otherwise it
	// contacts only the relays that it was given.
	Discover bool
	// Caught is called when a relay is caught, after State has it, with the reason. nil: not called.
	Caught func(relay didkey.DID, reason string)
	// Evidence is the folder for evidence against relays; empty: it is only logged.
	Evidence string
	// Silence is how long a home may give no valid answer before a job is continued elsewhere. 0: 30 s.
	Silence time.Duration
	// Moved is called when a job was continued at another relay. It must return quickly. nil: not called.
	Moved func(Move)
	// OfferWait is how long a directed REQUEST waits for an OFFER before it is continued elsewhere. 0: 60 s.
	OfferWait time.Duration
}

// Defaults of NetworkOptions (RELAYS R-15).
const (
	defaultSilence   = 30 * time.Second
	defaultOfferWait = 60 * time.Second
)

// MaxRelays is how many relays a Network can be given. A MANIFEST names the first envelope.MaxRelays of them.
const MaxRelays = 8

// Network talks to several relays with one identity, and trusts none of them. It follows all of them. A thread is
// decided by one of them, its home. If the home is silent, the job continues at another relay, and the agent does not
// work twice (RELAYS §3, §4). A Network is safe for concurrent use. No goroutine that a method starts is still
// running when the method returns.
type Network struct {
	signer envelope.Signer
	me     didkey.DID
	opts   NetworkOptions
	log    *slog.Logger
	state  *journal.Journal
	given  []*Client

	mu         sync.Mutex
	discovered map[didkey.DID]*Client
	arrived    map[mark.Mark]struct{}                 // events that are being handled
	seen       *recent.Map[recent.Message, mark.Mark] // the last events, to notice two with one id
	proofs     map[didkey.DID]*proof.Statement        // the last proof of each relay

	hosts discovery.Hosts // that were contacted in the last hour

	announcing sync.Mutex
	announced  *envelope.Envelope // the last MANIFEST
	named      []envelope.Home    // the relays that it names
}

// NewNetwork returns a client of these relays, the preferred one first. Errors: no relay or more than MaxRelays; those
// of New.
func NewNetwork(relays []string, signer envelope.Signer, opts NetworkOptions) (*Network, error) {
	if signer == nil {
		return nil, conn.ErrReadOnly
	}
	if len(relays) == 0 || len(relays) > MaxRelays {
		return nil, fmt.Errorf("client: a network has 1 to %d relays, not %d", MaxRelays, len(relays))
	}
	if opts.State == nil {
		opts.State = NewState()
	}
	if opts.Silence <= 0 {
		opts.Silence = defaultSilence
	}
	if opts.OfferWait <= 0 {
		opts.OfferWait = defaultOfferWait
	}
	n := &Network{signer: signer, me: signer.DID(), opts: opts, log: opts.Logger, state: opts.State.journal,
		discovered: map[didkey.DID]*Client{}, arrived: map[mark.Mark]struct{}{},
		seen: recent.New[recent.Message, mark.Mark](recent.Messages), proofs: map[didkey.DID]*proof.Statement{}}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	for _, u := range relays {
		p, err := n.newPeer(u, opts.HTTPClient)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(n.given, func(other *Client) bool { return other.conn.Base == p.conn.Base }) {
			return nil, fmt.Errorf("client: the relay %s was given twice", p.conn.Base)
		}
		n.given = append(n.given, p)
	}
	return n, nil
}

func (n *Network) newPeer(relayURL string, transport *http.Client) (*Client, error) {
	opts := n.opts.Options
	opts.HTTPClient = transport
	c, err := New(relayURL, n.signer, opts)
	if err != nil {
		return nil, err
	}
	c.poster.Watcher = posting.Watcher{
		Proved:  func(s *proof.Statement) { n.compare(s) },
		Invalid: func(relay didkey.DID, err error) { n.catch(relay, err.Error(), nil) },
	}
	return c, nil
}

// ErrCaught is in the error of a call that would need a relay that was caught lying (RELAYS R-17).
var ErrCaught = errors.New("this relay was caught: it has given a wrong proof, or signed two things that contradict " +
	"each other; agora relays --forgive lets it be used again")

// at returns the client of the relay with this identity, which must answer at home.URL or at a given address, and
// must be one that may be contacted (RELAYS ). Errors: ErrCaught, ErrOtherRelay, those of reading the
// relay's document.
func (n *Network) at(ctx context.Context, home envelope.Home) (*Client, error) {
	if n.state.IsCaught(home.DID) {
		return nil, fmt.Errorf("client: %s: %w", home.DID, ErrCaught)
	}
	for _, p := range n.given {
		known := p.conn.Known()
		if known != nil && known.DID == home.DID || known == nil && netaddr.SameOrigin(home.URL, p.conn.Base) {
			return p, p.conn.CheckHome(ctx, &home)
		}
	}
	n.mu.Lock()
	p := n.discovered[home.DID]
	n.mu.Unlock()
	if p == nil {
		return n.discover(ctx, home)
	}
	return p, p.conn.CheckHome(ctx, &home)
}

// discover contacts a relay that was not given.
func (n *Network) discover(ctx context.Context, home envelope.Home) (*Client, error) {
	if !n.opts.Discover {
		return nil, fmt.Errorf("client: the relay %s is not one of those that were given; give it too, or allow the "+
			"client to discover relays", home.URL)
	}
	if err := discovery.CheckOrigin(home.URL); err != nil {
		return nil, err
	}
	if err := n.hosts.Count(time.Now()); err != nil {
		return nil, err
	}
	p, err := n.newPeer(home.URL, &http.Client{Transport: discovery.Transport()})
	if err == nil {
		err = p.conn.CheckHome(ctx, &home) // the first valid answer, before any other connection
	}
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if known := n.discovered[home.DID]; known != nil {
		return known, nil
	}
	n.discovered[home.DID] = p
	return p, nil
}

// RelayStatus is what a Network knows of one of its relays.
type RelayStatus struct {
	URL  string
	DID  didkey.DID // empty: it does not answer
	Home bool       // it can be the home of threads
	Log  bool       // it keeps a log
	// Witnesses are the names of those that have signed its published checkpoint, as it says; see proof.Witness.
	Witnesses []string
	Caught    string // why it is not used any more; empty: it is used
	Err       error  // why it gives no valid answer now; nil: it does
}

// askAll calls f for each of these relays, at the same time. It returns the answers and the errors in their order.
func askAll[T any](relays []*Client, f func(*Client) (T, error)) ([]T, []error) {
	answers, errs := make([]T, len(relays)), make([]error, len(relays))
	var asking sync.WaitGroup
	for i, p := range relays {
		asking.Go(func() { answers[i], errs[i] = f(p) })
	}
	asking.Wait()
	return answers, errs
}

// Relays asks all relays who they are, at the same time.
func (n *Network) Relays(ctx context.Context) []RelayStatus {
	peers := slices.Clone(n.given)
	n.mu.Lock()
	for _, p := range n.discovered {
		peers = append(peers, p)
	}
	n.mu.Unlock()
	caught := n.state.Caught()
	all, errs := askAll(peers, func(p *Client) (RelayStatus, error) {
		s := RelayStatus{URL: p.conn.Base}
		a, err := p.conn.About(ctx, time.Nanosecond)
		if err != nil {
			return s, err
		}
		s.DID, s.Home, s.Log, s.Caught = a.DID, a.Home != nil, a.Proofs, caught[a.DID]
		if s.Log {
			s.Witnesses = p.witnesses(ctx)
		}
		return s, nil
	})
	for i, err := range errs {
		all[i].Err = err
	}
	return all
}

// usable yields the given relays that answer, can be homes and were not caught, in their order.
func (n *Network) usable(ctx context.Context) iter.Seq[*Client] {
	return func(yield func(*Client) bool) {
		for _, p := range n.given {
			a, err := p.conn.About(ctx, conn.AboutAge)
			if err != nil {
				n.log.Warn("a relay does not answer", "relay", p.conn.Base, "error", err)
				continue
			}
			if a.Home != nil && !n.state.IsCaught(a.DID) && !yield(p) {
				return
			}
		}
	}
}

// Agent returns an agent with the manifests that all given relays have of it, the newest first. Errors: the error of
// the last relay, if no relay has the agent; ctx's error.
func (n *Network) Agent(ctx context.Context, id didkey.DID) (Agent, error) {
	found, errs := askAll(n.given, func(p *Client) (Agent, error) { return p.Agent(ctx, id) })
	if ctx.Err() != nil { // a relay that was cut off may have newer manifests
		return Agent{}, ctx.Err()
	}
	merged, last := Agent{}, error(nil)
	for i, a := range found {
		if errs[i] != nil {
			last = errs[i]
			continue
		}
		merged.ID = id
		merged.Online = merged.Online || a.Online
		if a.LastSeen.After(merged.LastSeen) {
			merged.LastSeen = a.LastSeen
		}
		merged.Manifests = append(merged.Manifests, a.Manifests...)
	}
	if merged.ID == "" {
		return Agent{}, last
	}
	slices.SortStableFunc(merged.Manifests, func(a, b *envelope.Envelope) int { return b.TS.Compare(a.TS) })
	merged.Manifests = slices.CompactFunc(merged.Manifests,
		func(a, b *envelope.Envelope) bool { return a.Hash() == b.Hash() })
	return merged, nil
}

// Directory yields the agents in the directories of all given relays that match q, each manifest once. A relay that
// does not answer is left out and logged. It ends with an error if no relay answers, or ctx ends.
func (n *Network) Directory(ctx context.Context, q AgentQuery) iter.Seq2[Agent, error] {
	return func(yield func(Agent, error) bool) {
		seen := recent.New[mark.Mark, struct{}](1 << 16)
		answered, last := false, error(nil)
		for _, p := range n.given {
			failed := false
			for a, err := range p.Directory(ctx, q) {
				if err != nil && ctx.Err() != nil {
					yield(Agent{}, ctx.Err())
					return
				}
				if err != nil {
					failed, last = true, err
					n.log.Warn("the directory of a relay cannot be read", "relay", p.conn.Base, "error", err)
					break
				}
				if seen.Add(mark.Of(a.Manifests[0]), struct{}{}) && !yield(a, nil) {
					return
				}
			}
			answered = answered || !failed
		}
		if !answered {
			yield(Agent{}, last)
		}
	}
}

// Post signs d and posts it. A draft with a home goes to that relay. A REQUEST without one goes to the home that RELAYS
// R-11 chooses. A MANIFEST goes to all given relays, with the same bytes; if its payload names no relays, it names those
// that answer now. Any other draft goes to the first given relay that answers. Errors: those of Client.Post. If
// no relay has taken a MANIFEST, the error is from the last relay.
func (n *Network) Post(ctx context.Context, d envelope.Draft) (*envelope.Envelope, Receipt, error) {
	if d.Home != nil {
		p, err := n.at(ctx, *d.Home)
		if err != nil {
			return nil, Receipt{}, err
		}
		return p.Post(ctx, d)
	}
	switch envelope.TypeOf(d.Payload) {
	case envelope.TypeManifest:
		return n.postManifest(ctx, d)
	case envelope.TypeRequest:
		homes, err := n.homes(ctx, d.Recipient)
		if err != nil {
			return nil, Receipt{}, err
		}
		d.Home = homes[0].conn.Home(ctx)
		return homes[0].Post(ctx, d)
	}
	return n.first(ctx).Post(ctx, d)
}

func (n *Network) postManifest(ctx context.Context, d envelope.Draft) (e *envelope.Envelope, _ Receipt, err error) {
	if d.Payload, err = envelope.WithRelays(d.Payload, n.ownRelays(ctx)); err == nil {
		e, err = d.Sign(n.signer, n.given[0].conn.Now())
	}
	if err != nil {
		return nil, Receipt{}, err
	}
	receipt, err := n.postToAll(ctx, e)
	return e, receipt, err
}

// postToAll posts an envelope to all given relays, and returns the first receipt.
func (n *Network) postToAll(ctx context.Context, e *envelope.Envelope) (Receipt, error) {
	receipts, errs := askAll(n.given, func(p *Client) (Receipt, error) { return p.PostEnvelope(ctx, e) })
	for i, err := range errs {
		if err == nil {
			return receipts[i], nil
		}
	}
	return Receipt{}, errs[len(errs)-1]
}
