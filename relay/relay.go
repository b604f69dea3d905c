// Package relay is the relay without wires: it takes envelopes in, keeps threads honest, and hands events to those who
// wait for them.
//
// Post is the only way in, for every wire and gateway; Events, Thread and Agents are the ways out. Storage is behind
// the interface Store, which this package declares; it knows neither HTTP nor SQL. The time comes from Config.Now.
package relay

import (
	"cmp"
	"context"
	"crypto/cipher"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Config is what a Relay is made of. Store and Key are required. The relay's Policy is the one its Store was opened with.
type Config struct {
	Limits  Limits
	Store   Store
	Key     didkey.Key       // the relay's own, signs the notices of timeouts
	Origin  string           // the public URL's origin; messages bound to other relays by meta.relay are refused
	Reads   Visibility       // to whom directed messages are shown; needs an Origin if not to all
	MaxBody int              // bytes of a body; 0: envelope.DefaultMaxBytes
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger     // nil: slog.Default

	Observer Observer // nil: NoObserver

	// Of a relay that runs as several nodes.
	Nonces   Nonces   // nil: this process remembers which signed reads were used
	Siblings Siblings // nil: there are no other nodes
}

// Relay is one node. Run must be running while it is used; any number of goroutines may call the other methods.
type Relay struct {
	policy   Policy // the store's
	store    Store
	key      didkey.Key
	origin   string
	reads    Visibility
	maxBody  int
	limits   Limits
	siblings Siblings
	now      func() time.Time
	log      *slog.Logger
	observer Observer

	hub     *hub
	limiter *limiter
	cursors cipher.Block // see FormatCursor
	tokens  *tokens      // by which the times of signed reads are checked
	nonces  Nonces       // tokens, if there are no others
	keys    didkey.Verifiers

	nonceless outage // of nonces
	presence  presence
	start     Cursor // the store's end when the relay was made; Run watches from here
	reading   *turns // of the store
	parsing   *turns // and verifying bodies, which takes a hundred times their size
	writing   *turns // to the store
	refusals  *refusals
	drained   chan struct{}
	drain     sync.Once
	polls     atomic.Int64
	trouble   atomic.Pointer[envelope.Error] // why the last sweep failed; nil: it did not
}

// New returns a relay over c.Store. It fails if the store's Policy is not valid.
func New(ctx context.Context, c Config) (*Relay, error) {
	policy := c.Store.Policy().WithDefaults()
	if err := policy.Validate(); err != nil {
		return nil, fmt.Errorf("the store's policy: %w", err)
	}
	c.Limits = c.Limits.WithDefaults()
	if c.MaxBody <= 0 {
		c.MaxBody = envelope.DefaultMaxBytes
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = NoObserver{}
	}
	end, err := c.Store.Read(ctx, Query{})
	if err != nil {
		return nil, err
	}
	if c.Reads == ToParties && c.Origin == "" {
		return nil, errors.New("a relay that asks for signed reads needs an origin, which they name")
	}
	cursors, err := cursorCipher(c.Key)
	if err != nil {
		return nil, err
	}
	tokens := newTokens(c.Now())
	var nonces Nonces = tokens
	if c.Nonces != nil {
		nonces = inTime{c.Nonces}
	}
	places := max(2, runtime.GOMAXPROCS(0))
	return &Relay{policy: policy, store: c.Store, key: c.Key, origin: c.Origin, reads: cmp.Or(c.Reads, ToAll), maxBody: c.MaxBody,
		limits: c.Limits, siblings: c.Siblings, now: c.Now, log: c.Log, observer: c.Observer,
		hub: newHub(), limiter: newLimiter(c.Limits), cursors: cursors, start: end.Cursor,
		tokens: tokens, nonces: nonces, nonceless: outage{what: "signed reads are refused: the memory of their nonces fails"},
		reading: newTurns(readsAtOnce, 1), parsing: newTurns(places, (places+1)/2),
		writing: newTurns(math.MaxInt, writesAtOnce), refusals: newRefusals(c.Log),
		drained: make(chan struct{})}, nil
}

// DID returns the relay's own identity, which signs the notices of timeouts.
func (r *Relay) DID() didkey.DID { return r.key.DID() }

// Origin returns the origin of the relay's public URL, in ParseOrigin's form.
func (r *Relay) Origin() string { return r.origin }

// Reads returns to whom directed messages are shown.
func (r *Relay) Reads() Visibility { return r.reads }

// MaxBody returns how many bytes a body may have.
func (r *Relay) MaxBody() int { return r.maxBody }

// Limits returns the limits of what one party may ask, defaults filled in.
func (r *Relay) Limits() Limits { return r.limits }

// Policy returns what the store decides by, defaults filled in.
func (r *Relay) Policy() Policy { return r.policy }

// Observer returns who is told what the relay does.
func (r *Relay) Observer() Observer { return r.observer }

// Now returns the time by the relay's clock.
func (r *Relay) Now() time.Time { return r.now() }

// Run wakes waiting polls, sweeps what is due and exchanges reports with siblings, until ctx ends or the store fails. It blocks; when it returns, its
// goroutines have ended.
func (r *Relay) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	tasks.Go(func() { cancel(r.store.Watch(ctx, r.start, r.hub.publish)) })
	tasks.Go(func() { r.sweep(ctx) })
	tasks.Go(func() { r.refusals.run(ctx) })
	if r.siblings != nil {
		tasks.Go(func() { r.exchange(ctx) })
	}
	tasks.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Drain answers every waiting poll with what it has, nothing, and refuses what comes after with CodeUnavailable. It
// is the first step of a shutdown, while answers can still be sent.
func (r *Relay) Drain() { r.drain.Do(func() { close(r.drained) }) }

func (r *Relay) draining() error {
	select {
	case <-r.drained:
		return ErrShuttingDown
	default:
		return nil
	}
}

// Health returns why the relay takes nothing in, as far as the last sweep could tell; nil if it does.
func (r *Relay) Health() error {
	if e := r.trouble.Load(); e != nil {
		return e
	}
	return r.draining()
}

// Waiting returns how many polls wait at the moment.
func (r *Relay) Waiting() int { return int(r.polls.Load()) }

// Post checks a body and stores the envelope in it. What is returned without an error is on disk and will be
// delivered until Receipt.ExpiresAt. Cheap checks come before costly ones, and nothing has an effect before the
// signature holds (PROTOCOL §1). The wire has admitted the request, see Admit; its sender's allowance is counted here.
func (r *Relay) Post(ctx context.Context, from Peer, body []byte) (Receipt, error) {
	report := PostReport{Bytes: len(body)}
	receipt, err := r.post(ctx, from, body, &report)
	report.Code, report.Duplicate = envelope.CodeOf(err), receipt.Duplicate
	r.observer.Posted(report)
	return receipt, err
}

// post does what Post does, and notes the times it takes.
func (r *Relay) post(ctx context.Context, from Peer, body []byte, report *PostReport) (Receipt, error) {
	if err := r.draining(); err != nil {
		return Receipt{}, err
	}
	began := time.Now()
	entry, err := r.accept(from, body)
	checked := time.Now()
	report.Check = checked.Sub(began)
	if err != nil {
		return Receipt{}, err
	}
	receipt, err := r.append(ctx, from, entry)
	report.Store = time.Since(checked)
	r.noteRefusal(from, entry.Envelope.Sender.ID, err)
	if receipt.Duplicate {
		r.giveBack(from, entry.Envelope)
	}
	receipt = Viewer{Limited: r.reads == ToParties}.receipt(receipt, entry.Envelope)
	return receipt, r.hideThread(ctx, from, err, entry)
}

// accept does what Post does before it stores.
func (r *Relay) accept(from Peer, body []byte) (Entry, error) {
	if err := r.chargePost(from, len(body)); err != nil {
		r.noteRefusal(from, "", err)
		return Entry{}, err
	}
	entry, err := r.checkInTurn(from, body)
	if err != nil {
		return Entry{}, err
	}
	if err := r.admitMessage(from, entry.Envelope); err != nil {
		r.noteRefusal(from, entry.Envelope.Sender.ID, err)
		return Entry{}, err
	}
	entry.Local = from.Local
	// Presence must not tell of what only its parties see.
	entry.Unseen = r.reads == ToParties && entry.Envelope.Recipient != ""
	entry.Network = r.networkTag(from)
	return entry, nil
}

// append stores an entry. The store has one writer, and takes what comes in its order. So an address may have few entries
// waiting there, pays for each as soon as it is stored or refused, and gets no further while it owes.
// Refusals: CodeRateLimited, those of Store.Append.
func (r *Relay) append(ctx context.Context, from Peer, entry Entry) (Receipt, error) {
	if from.Local {
		return r.store.Append(ctx, entry)
	}
	turn := from.origin()
	if err := r.writing.take(ctx, turn); err != nil {
		return Receipt{}, err
	}
	defer r.writing.leave(turn)
	if err := r.owesPosts(from); err != nil {
		r.giveBack(from, entry.Envelope)
		return Receipt{}, err
	}
	receipt, err := r.store.Append(ctx, entry)
	r.chargeWork(from, receipt.Took)
	return receipt, err
}

// checkInTurn checks a body when it is from's turn. The time spent on a body that is refused is charged to from.
func (r *Relay) checkInTurn(from Peer, body []byte) (Entry, error) {
	turn := from.origin()
	_ = r.parsing.take(context.Background(), turn) // which never ends
	defer r.parsing.leave(turn)
	began := time.Now()
	entry, err := r.check(body)
	if err != nil {
		r.chargeWork(from, time.Since(began))
	}
	return entry, err
}

// check parses and verifies a body.
func (r *Relay) check(body []byte) (Entry, error) {
	e, err := envelope.Parse(body, r.maxBody)
	if err != nil {
		return Entry{}, err
	}
	now := r.now()
	if err := r.policy.Window.Check(e.TS, e.TTL, now); err != nil {
		return Entry{}, err
	}
	if e.Relays != nil && !slices.ContainsFunc(e.Relays, r.isOrigin) {
		return Entry{}, envelope.Errorf(envelope.CodeForbidden, "meta.relay binds this message to other relays than this one")
	}
	if err := e.VerifyWith(r.keys.Parse); err != nil {
		return Entry{}, err
	}
	entry := Entry{Envelope: e, Received: now}
	if e.Type == envelope.TypeManifest {
		if entry.Listing, err = list(e); err != nil {
			return Entry{}, err
		}
	}
	return entry, nil
}

func (r *Relay) isOrigin(text string) bool {
	origin, err := ParseOrigin(text)
	return err == nil && origin == r.origin
}

// ParseOrigin returns the origin of a URL in its one form: scheme and host in lower case, no default port, no path
// (RFC 6454). Config.Origin has this form.
func ParseOrigin(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("want an origin such as https://relay.example, without a path")
	}
	host := strings.ToLower(u.Host)
	if u.Scheme == "http" {
		host = strings.TrimSuffix(host, ":80")
	} else {
		host = strings.TrimSuffix(host, ":443")
	}
	return u.Scheme + "://" + host, nil
}
