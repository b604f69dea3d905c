// Package client is a client of an Agora relay. It signs and posts messages, receives events, and handles both sides of
// a thread: Client.Request asks for a service, Client.Serve offers services.
//
// The client does not trust the relay. It parses and verifies every envelope, and checks that the envelope matches the
// request, before it uses the envelope. Claims that only the relay makes (the state of a thread, which agents are
// online) only decide what the client asks next.
//
// The client does not send a message twice by mistake. A retry sends the same bytes. If the client must sign a message
// again, because its clock was wrong, the new message has the same id, and the relay never stores both.
//
// Limits: an event is delivered to a handler at least once, because a process can end after it handles an event and
// before it saves the cursor. A relay can withhold messages. The client uses the relay's time to correct its clock, but
// by at most a day (see Options.Now).
//
// A Client is safe for concurrent use. No goroutine that a method starts is still running when the method returns.
package client

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/readauth"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Options of a Client. The zero value works.
type Options struct {
	// HTTPClient sends the requests. nil: a client with Go's defaults that reads at most 64 KiB of headers. The Timeout
	// of the HTTPClient is ignored, because every request has its own timeout. Redirects are not followed, because a
	// redirected POST would become a GET.
	HTTPClient *http.Client
	// Now is the clock for timestamps, deadlines and offers; nil: time.Now. If a relay refuses a message as stale, it
	// sends its own time. The client then corrects the time of this clock by the difference, unless the difference is
	// more than a day.
	Now func() time.Time
	// Logger gets a line for each event that is skipped and each request that is retried or given up; nil: no log.
	Logger *slog.Logger
	// RequireParties allows only relays that show a directed message to its sender and its recipient only (PROTOCOL
	// §8). The client does not read from other relays and does not post to them.
	RequireParties bool

	// Proofs says whether the client checks that the relay has its messages in its log. An agent then begins to work only
	// after the relay has proved the ACCEPT. The zero value is ProofsPrefer.
	Proofs Proofs
	// Proved is called for each message whose proof was checked, with its receipt: those that the client posts, and the
	// ACCEPTs that an agent works for. For an ACCEPT, the receipt has only the proof. It may be called by several
	// goroutines at the same time. nil: not called.
	Proved func(e *envelope.Envelope, r Receipt)

	SenderName string // sender.name of drafts without a SenderName
	SenderURL  string // sender.url of drafts without a SenderURL
	Attempts   int    // how often Post sends a message before it gives up; 0: 8, with about 30 s of pauses in total
}

const defaultAttempts = 8

// Client talks to one relay. It uses one identity, or none if it only reads.
type Client struct {
	base       string // the URL given to New, without a slash at the end
	signer     envelope.Signer
	wire       *wire.Sender
	rawNow     func() time.Time
	correction atomic.Int64 // nanoseconds to add to rawNow
	log        *slog.Logger
	opts       Options
	known      atomic.Pointer[about]       // what the relay says about itself; nil: not read yet
	rate       atomic.Pointer[pacing.Rate] // how often this client may post; nil: unknown
	readAuth   readauth.Rules
	fetching   chan struct{}            // a semaphore: full while a goroutine fetches the relay's document for reads
	gateways   atomic.Pointer[gateways] // of the relay; nil: not read yet
	watcher    watcher                  // set by a Network before the client is used
	unopened   once                     // the sealed messages that could not be opened, and were logged
	ownURL     atomic.Pointer[string]   // used instead of base once the relay is known to be private (§8); nil: use base
}

// errReadOnly is the error of a method that needs a signer, on a Client without one.
var errReadOnly = errors.New("client: posting needs a signer; pass one to New")

// New returns a client of the relay at relayURL, such as https://relay.example. The URL may have a path. If signer is
// nil, the client can only read.
func New(relayURL string, signer envelope.Signer, opts Options) (*Client, error) {
	u, err := url.Parse(relayURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("client: %q is not a relay's URL; use a URL such as https://relay.example", relayURL)
	}
	if err := opts.Proofs.validate(); err != nil {
		return nil, err
	}
	c := &Client{base: strings.TrimRight(u.String(), "/"), signer: signer, rawNow: opts.Now, log: opts.Logger, opts: opts,
		fetching: make(chan struct{}, 1)}
	c.wire = wire.NewSender(opts.HTTPClient, c.now)
	if c.rawNow == nil {
		c.rawNow = time.Now
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.opts.Attempts == 0 {
		c.opts.Attempts = defaultAttempts
	}
	return c, nil
}

// me returns the client's own identity, or errReadOnly if it has none.
func (c *Client) me() (didkey.DID, error) {
	if c.signer == nil {
		return "", errReadOnly
	}
	return c.signer.DID(), nil
}

// now returns the time of the client's clock, corrected by correctClock.
func (c *Client) now() time.Time { return c.rawNow().Add(time.Duration(c.correction.Load())) }

// correctClock sets the clock to the relay's time in a STALE_TIMESTAMP error. It returns false if the error has no
// time, or if the correction would be larger than readauth.MaxCorrection.
func (c *Client) correctClock(stale *envelope.Error) bool {
	relayNow, ok := stale.Now()
	if !ok {
		return false
	}
	correction := relayNow.Sub(c.rawNow())
	if correction.Abs() > readauth.MaxCorrection {
		c.log.Warn("the client does not use the relay's time, because it differs from this machine's by more than a day",
			"relay", envelope.FormatTime(relayNow))
		return false
	}
	c.correction.Store(int64(correction))
	c.log.Warn("timestamps are corrected to the relay's clock; check this machine's clock", "by", correction)
	return true
}
