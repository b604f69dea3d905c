// Package relay is the core of the relay, without a network transport. It accepts envelopes, applies the rules of
// threads, and hands events to the clients that wait for them.
//
// Transports and gateways store envelopes with Post, or with Check and Update, and in no other way. They read with
// Events, Thread, Agents, Agent, View and Watch. Storage is behind the interface Store, which this package declares.
// The package uses neither HTTP nor SQL. The time comes from Config.Now.
package relay

import (
	"cmp"
	"context"
	"crypto/cipher"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/hostname"
	"github.com/agora-relay/agora/relay/admission"
)

// Config has what New needs. Store and Key are required. The relay uses the Policy with which its Store was opened.
type Config struct {
	Limits  Limits
	Bans    Bans
	Store   Store
	Key     didkey.Key       // the relay's own key, which signs the notices of timeouts
	Origin  string           // origin of the public URL; a message is refused if its meta.relay names only other relays
	Reads   Visibility       // to whom directed messages are shown; ToParties needs an Origin
	MaxBody int              // maximum size of a body in bytes; 0: envelope.DefaultMaxBytes
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger     // nil: slog.Default

	Observer Observer // nil: NoObserver
	Screen   Screen   // decides about messages before they are stored; nil: all may be stored

	// Transparency keeps a log of the messages that the relay accepts, and proves them (docs/PROOFS.md). The Store must be
	// a LogStore.
	Transparency bool
	Witnesses    Witnesses // of the log; nil: none

	// Only for a relay that runs as several nodes.
	Nonces   Nonces   // nil: this process remembers which signed reads and calls were used
	Siblings Siblings // nil: there are no other nodes
}

// Relay is one node. Run must be running while the node is used. Any number of goroutines may call the other methods.
type Relay struct {
	policy   Policy                // the policy of the store, without changes of Inbox
	inbox    atomic.Pointer[Quota] // the quota that is in force
	store    Store
	key      didkey.Key
	origin   string
	reads    Visibility
	maxBody  int
	siblings Siblings
	now      func() time.Time
	log      *slog.Logger
	observer Observer

	hub          *hub
	gate         *admission.Gate
	cursorCipher cipher.Block // see FormatCursor
	localNonces  *nonceMemory // checks the times of tokens; without Config.Nonces it also remembers their nonces
	nonces       Nonces       // localNonces, unless Config.Nonces is set
	keys         didkey.Verifiers

	nonceOutage  outage // failures of nonces
	presence     presence
	startCursor  Cursor // end of the store when the relay was made; Run watches from here
	drained      chan struct{}
	drain        sync.Once
	paused       atomic.Bool // see Pause
	streams      streams
	screening    *screening // nil: all messages may be stored
	openPolls    atomic.Int64
	transparency *relayLog                      // nil: the relay keeps no log
	logs         []*relayLog                    // all that the store has, the oldest first; empty: it keeps no log
	sweepError   atomic.Pointer[envelope.Error] // why the last sweep failed; nil: it did not fail
}

// New returns a relay over c.Store. It fails if the store's Policy is not valid, if the store cannot be read, or if
// c.Reads is ToParties and c.Origin is empty.
func New(ctx context.Context, c Config) (*Relay, error) {
	policy := c.Store.Policy().WithDefaults()
	if err := policy.Validate(); err != nil {
		return nil, fmt.Errorf("the store's policy: %w", err)
	}
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
	screening, err := newScreening(c.Screen, c.Store)
	if err != nil {
		return nil, err
	}
	end, err := c.Store.Read(ctx, Query{})
	if err != nil {
		return nil, err
	}
	if c.Reads == ToParties && c.Origin == "" {
		return nil, errors.New("Reads is ToParties, but Origin is empty; set Origin, because signed reads name it")
	}
	cursors, err := newCursorCipher(c.Key)
	if err != nil {
		return nil, err
	}
	localNonces := newNonceMemory(c.Now())
	var nonces Nonces = localNonces
	if c.Nonces != nil {
		nonces = timedNonces{c.Nonces}
	}
	r := &Relay{policy: policy, store: c.Store, key: c.Key, origin: c.Origin, reads: cmp.Or(c.Reads, ToAll),
		maxBody: c.MaxBody, siblings: c.Siblings, now: c.Now, log: c.Log, observer: c.Observer,
		hub: newHub(c.Key.DID()), cursorCipher: cursors, startCursor: end.Cursor, localNonces: localNonces, nonces: nonces,
		nonceOutage: outage{message: "signed reads and calls are refused, because the shared memory of used nonces has " +
			"failed; check it and the connection to it"},
		drained: make(chan struct{}), streams: streams{all: map[*Stream]struct{}{}}, screening: screening}
	r.gate = admission.New(admission.Options{Limits: c.Limits, Bans: c.Bans, Now: c.Now, Log: c.Log,
		Queued: c.Observer.Queued, Banned: r.endWaits})
	r.inbox.Store(&policy.Inbox)
	if c.Transparency {
		if err := r.openLog(ctx, c.Witnesses); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// DID returns the relay's own identity, which signs the notices of timeouts.
func (r *Relay) DID() didkey.DID { return r.key.DID() }

// Origin returns the origin of the relay's public URL, in the form of ParseOrigin.
func (r *Relay) Origin() string { return r.origin }

// Reads returns to whom directed messages are shown.
func (r *Relay) Reads() Visibility { return r.reads }

// MaxBody returns the maximum size of a body in bytes.
func (r *Relay) MaxBody() int { return r.maxBody }

// Policy returns the policy of the store, with defaults filled in.
func (r *Relay) Policy() Policy {
	p := r.policy
	p.Inbox = *r.inbox.Load()
	return p
}

// SetInbox changes the quota of inboxes while the relay runs.
func (r *Relay) SetInbox(ctx context.Context, q Quota) error {
	q = q.WithDefaults()
	if err := r.store.SetInbox(ctx, q); err != nil {
		return err
	}
	r.inbox.Store(&q)
	return nil
}

// Observer returns the observer that receives reports about the relay.
func (r *Relay) Observer() Observer { return r.observer }

// Now returns the time by the relay's clock.
func (r *Relay) Now() time.Time { return r.now() }

// Epoch returns the epoch of the store's cursors, see Cursor.
func (r *Relay) Epoch() uint32 { return r.startCursor.Epoch }

// Run wakes waiting polls, removes what has expired, ends threads whose time is over, and exchanges reports with the
// other nodes. It blocks until ctx ends or the store fails. When it returns, its goroutines have ended.
func (r *Relay) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	tasks.Go(func() { cancel(r.store.Watch(ctx, r.startCursor, r.hub.wanted, r.hub.publish)) })
	tasks.Go(func() { r.sweep(ctx) })
	tasks.Go(func() { r.gate.Run(ctx) })
	if r.siblings != nil {
		tasks.Go(func() { r.exchange(ctx) })
	}
	if r.transparency != nil {
		tasks.Go(func() { r.publishing(ctx) })
	}
	tasks.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Drain answers every waiting poll with an empty page. Later polls do not wait, and other later requests are refused
// with CodeUnavailable. So a poll that arrives while a node ends does not fail. Drain is the first step of a shutdown,
// while answers can still be sent.
func (r *Relay) Drain() {
	r.drain.Do(func() {
		close(r.drained)
		r.streams.end(func(Peer) error { return ErrShuttingDown })
	})
}

// Drained returns a channel that is closed when Drain is called.
func (r *Relay) Drained() <-chan struct{} { return r.drained }

func (r *Relay) draining() error {
	select {
	case <-r.drained:
		return ErrShuttingDown
	default:
	}
	return r.pausing()
}

// Health returns nil if the relay accepts posts, as far as the last sweep could tell. Otherwise it returns the reason.
func (r *Relay) Health() error {
	if e := r.sweepError.Load(); e != nil {
		return e
	}
	return r.draining()
}

// Waiting returns how many polls are in progress, including those that wait, and how many streams are open.
func (r *Relay) Waiting() int { return int(r.openPolls.Load()) }

// Post checks a body and stores its envelope. If Post returns no error, the envelope is on disk and will be delivered
// until Receipt.ExpiresAt. Cheap checks come before expensive ones, and nothing has a side effect before the signature
// is verified (PROTOCOL §1). The transport must have admitted the request, see Gate. Post counts the message against
// the allowance of its sender.
func (r *Relay) Post(ctx context.Context, from Peer, body []byte) (Receipt, error) {
	report := PostReport{Bytes: len(body)}
	receipt, err := r.post(ctx, from, body, &report)
	r.reportPost(report, receipt, err)
	return receipt, err
}

// reportPost tells the observer how a post ended.
func (r *Relay) reportPost(report PostReport, receipt Receipt, err error) {
	report.Code, report.Duplicate = envelope.CodeOf(err), receipt.Duplicate
	r.observer.Posted(report)
}

// post does the work of Post and records in report how long it takes.
func (r *Relay) post(ctx context.Context, from Peer, body []byte, report *PostReport) (Receipt, error) {
	if err := r.draining(); err != nil {
		return Receipt{}, err
	}
	began := time.Now()
	entry, err := r.prepare(from, body)
	checked := time.Now()
	report.Check = checked.Sub(began)
	if err != nil {
		return Receipt{}, err
	}
	if r.screening != nil {
		settled, err := r.screen(ctx, from, entry.Envelope)
		defer settled()
		report.Screen = time.Since(checked)
		checked = checked.Add(report.Screen)
		if err != nil {
			return Receipt{}, err
		}
	}
	receipt, err := r.appendEntry(ctx, from, entry)
	report.Store = time.Since(checked)
	if receipt, err = r.settle(ctx, from, entry, receipt, err); err == nil {
		r.Prove(&receipt)
	}
	return receipt, err
}

// settle turns what the store has answered into what the sender of an entry gets. It corrects the allowances.
func (r *Relay) settle(ctx context.Context, from Peer, entry Entry, receipt Receipt, err error) (Receipt, error) {
	r.gate.NoteRefusal(from, entry.Envelope.Sender.ID, err)
	if receipt.Duplicate {
		r.gate.RefundMessage(from, entry.Envelope)
	}
	receipt = Viewer{Limited: r.reads == ToParties}.visibleReceipt(receipt, entry.Envelope)
	return receipt, r.hideForeignThreads(ctx, from, err, entry)
}

// prepare does everything that Post does before it asks the Screen and stores the envelope.
func (r *Relay) prepare(from Peer, body []byte) (Entry, error) {
	if err := r.gate.ChargeBody(from, len(body)); err != nil {
		return Entry{}, err
	}
	entry, err := r.checkInTurn(from, body)
	if err == nil {
		err = r.admitEntry(from, &entry)
	}
	if err != nil {
		return Entry{}, err
	}
	return entry, nil
}

// checkInTurn calls check when it is the turn of from.
func (r *Relay) checkInTurn(from Peer, body []byte) (entry Entry, err error) {
	err = r.gate.Checking(from, func() (err error) {
		entry, err = r.check(body)
		return err
	})
	return entry, err
}

// admitEntry counts a checked message against the allowance of its sender, and notes who has brought it.
func (r *Relay) admitEntry(from Peer, entry *Entry) error {
	if err := r.gate.AdmitMessage(from, entry.Envelope); err != nil {
		r.gate.NoteRefusal(from, entry.Envelope.Sender.ID, err)
		return err
	}
	entry.Local = from.Local
	// The directory must not show that a private message was sent.
	entry.Unseen = r.reads == ToParties && entry.Envelope.Recipient != ""
	entry.Network = r.networkTag(from)
	return nil
}

// appendEntry stores an entry. It is charged to its address as soon as it is stored or refused. Refusals:
// CodeRateLimited, those of Store.Append.
func (r *Relay) appendEntry(ctx context.Context, from Peer, entry Entry) (Receipt, error) {
	queued, err := r.beginWrite(ctx, from)
	if err != nil {
		r.gate.RefundMessage(from, entry.Envelope)
		return Receipt{}, err
	}
	defer r.endWrite(from)
	// The entry may have waited here or for the Screen. A ban that was set meanwhile holds for it.
	if err := r.gate.CheckSender(from, entry.Envelope.Sender.ID); err != nil {
		return Receipt{}, err
	}
	receipt, err := r.store.Append(ctx, entry)
	r.gate.ChargeWork(from, receipt.Took)
	receipt.Queued = queued
	return receipt, err
}

// beginWrite waits until from may give the store's writer something. The store has one writer, which takes entries in
// the order in which they come. So an address may have only a few entries waiting there. While it is in debt, its other
// entries are refused. After a nil error the caller must call endWrite. Refusals: CodeRateLimited.
func (r *Relay) beginWrite(ctx context.Context, from Peer) (queued time.Duration, err error) {
	if from.Local {
		return 0, nil
	}
	if queued, err = r.gate.TakeWrite(ctx, from); err != nil {
		return 0, err
	}
	if err = r.gate.CheckPostDebt(from); err != nil {
		r.endWrite(from)
	}
	return queued, err
}

// endWrite ends what beginWrite has begun.
func (r *Relay) endWrite(from Peer) {
	if !from.Local {
		r.gate.ReleaseWrite(from)
	}
}

// Object parses the body of a request to a gateway. The body must be one JSON object of at most maxBytes bytes as it is
// sent, see envelope.ParseObject. The result is its RFC 8785 form, which can be longer. As with Post, a large body counts as more than one request.
// The time that is spent on a refused body counts too. The transport must have admitted the request, see Gate.
// Refusals: CodeRateLimited, CodeUnavailable if the relay drains, and those of envelope.ParseObject.
func (r *Relay) Object(from Peer, body []byte, maxBytes int) (canonical []byte, err error) {
	if err := r.draining(); err != nil {
		return nil, err
	}
	if err := r.gate.ChargeBody(from, len(body)); err != nil {
		return nil, err
	}
	err = r.gate.Checking(from, func() (err error) {
		canonical, err = envelope.ParseObject(body, maxBytes)
		return err
	})
	return canonical, err
}

// check parses a body, checks its envelope and verifies the signature.
func (r *Relay) check(body []byte) (Entry, error) {
	e, err := envelope.Parse(body, r.maxBody)
	if err != nil {
		return Entry{}, err
	}
	return r.checkEnvelope(Entry{Envelope: e, Received: r.now()}, r.DID())
}

// checkEnvelope checks the envelope of an entry and verifies its signature. home is the relay that meta.home may
// name. The result also has what the store needs to know.
func (r *Relay) checkEnvelope(entry Entry, home didkey.DID) (Entry, error) {
	e := entry.Envelope
	if err := r.checkTime(entry); err != nil {
		return Entry{}, err
	}
	if e.Relays != nil && !slices.ContainsFunc(e.Relays, r.isOwnOrigin) {
		return Entry{}, envelope.Errorf(envelope.CodeForbidden, "meta.relay does not name this relay; "+
			"post the message to a relay that it names")
	}
	if e.Home != nil && e.Home.DID != home {
		return Entry{}, &envelope.Error{Code: envelope.CodeForbidden,
			Message: "meta.home names another relay; post the message there",
			Details: map[string]any{envelope.DetailReason: envelope.ReasonHome, envelope.DetailHome: e.Home}}
	}
	if err := e.VerifyWith(r.keys.Parse); err != nil {
		return Entry{}, err
	}
	if err := r.gate.CheckAgent(e.Sender.ID); err != nil {
		return Entry{}, err
	}
	if r.transparency != nil {
		entry.Hash = e.Hash() // here, because the store's writer has less time
	}
	if e.Type == envelope.TypeManifest {
		var err error
		if entry.Listing, err = parseListing(e); err != nil {
			return Entry{}, err
		}
	}
	return entry, nil
}

func (r *Relay) isOwnOrigin(text string) bool {
	origin, err := ParseOrigin(text)
	return err == nil && origin == r.origin
}

// ParseOrigin returns the origin of a URL in its canonical form: the scheme in lower case, the host as in hostname.Map, no
// default port, no path (RFC 6454). Config.Origin must have this form.
func ParseOrigin(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("want an origin such as https://relay.example, without a path")
	}
	return hostname.Origin(u), nil
}
