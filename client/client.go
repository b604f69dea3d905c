// Package client speaks to an Agora relay: it signs and posts messages, follows what arrives, and runs a thread from
// either side (Client.Request asks, Client.Serve answers).
//
// The rule: the relay is a carrier, not a witness. Every envelope is parsed strictly and verified, and checked against
// what was asked for, before anything is done with it; what the relay says on its own (a thread's state, who is
// online) only steers what to ask next. And nothing is sent twice by mistake: a message is repeated byte for byte, and
// signed anew only if all its earlier copies were provably not taken.
//
// Limits: delivery to a handler is at least once, as a process can die between handling an event and saving the
// cursor. A relay can withhold messages; only its clock is believed, and by at most a day (see Options.Now).
// One Client serves any number of goroutines; none of its methods leaves one behind.
package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Options of a Client. The zero value works.
type Options struct {
	// HTTPClient sends the requests. nil: a client with Go's defaults that reads at most 64 KiB of headers. Its Timeout
	// is not used, because every exchange has its own. Redirects are not followed: a redirected POST would become a
	// GET.
	HTTPClient *http.Client
	// Now is the clock for timestamps, deadlines and offers; nil: time.Now. Once a relay has refused a message as stale
	// and said what time it is, the client corrects its readings by the difference, unless that is more than a day.
	Now func() time.Time
	// Logger is told of what is skipped, repeated or given up; nil: nothing is logged.
	Logger *slog.Logger
	// RequireParties keeps to relays that show directed messages to their parties only (PROTOCOL §8): nothing is read
	// from another, nor posted to it.
	RequireParties bool

	SenderName string // sender.name of drafts that have none
	SenderURL  string // sender.url likewise
	Attempts   int    // how often Post sends a message before it gives up; 0: 8, which takes about 30 s of pauses
}

const defaultAttempts = 8

// maxCorrection bounds how far a relay may set our clock: wide enough for a wrong time zone, too narrow to obtain
// signatures for a distant future.
const maxCorrection = 24 * time.Hour

// Client talks to one relay, as one identity or as none.
type Client struct {
	base       string // the relay's URL, without a slash at the end
	signer     envelope.Signer
	http       *http.Client
	rawNow     func() time.Time
	correction atomic.Int64 // nanoseconds to add to rawNow
	log        *slog.Logger
	opts       Options
	relay      atomic.Pointer[didkey.DID] // the relay's own identity, once it was asked for
	rate       atomic.Pointer[postRate]   // how often this client may post; nil: the relay has not said so yet
	reading    reading
	unopened   once                   // sealed messages that did not open
	own        atomic.Pointer[string] // the relay's own address in place of base, once it is known (§8)
}

// errReadOnly is what posting without a signer gives.
var errReadOnly = errors.New("client: posting needs a signer; give one to New")

// New returns a client of the relay at relayURL, such as https://relay.example; a path in it is kept. Without a
// signer (nil) the client can only read.
func New(relayURL string, signer envelope.Signer, opts Options) (*Client, error) {
	u, err := url.Parse(relayURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("client: a relay's URL looks like https://relay.example, not like %q", relayURL)
	}
	c := &Client{base: strings.TrimRight(u.String(), "/"), signer: signer, rawNow: opts.Now, log: opts.Logger, opts: opts,
		reading: reading{asking: make(chan struct{}, 1)}}
	c.http = new(http.Client)
	if opts.HTTPClient != nil {
		*c.http = *opts.HTTPClient
	}
	if c.http.Transport == nil {
		c.http.Transport = transport()
	}
	c.http.Timeout = 0
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
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

// me returns the client's own identity.
func (c *Client) me() (didkey.DID, error) {
	if c.signer == nil {
		return "", errReadOnly
	}
	return c.signer.DID(), nil
}

// now is the corrected clock.
func (c *Client) now() time.Time { return c.rawNow().Add(time.Duration(c.correction.Load())) }

// correctClock sets the clock by a STALE_TIMESTAMP refusal and reports whether it may be believed.
func (c *Client) correctClock(stale *envelope.Error) bool {
	relayNow, ok := stale.Now()
	if !ok {
		return false
	}
	correction := relayNow.Sub(c.rawNow())
	if correction.Abs() > maxCorrection {
		c.log.Warn("the relay's clock is more than a day from ours; not followed", "relay", envelope.FormatTime(relayNow))
		return false
	}
	c.correction.Store(int64(correction))
	c.log.Warn("timestamps corrected by the relay's clock", "by", correction)
	return true
}

// relayDID returns the relay's own identity, which signs its notices of timeouts.
func (c *Client) relayDID(ctx context.Context) (didkey.DID, error) {
	if known := c.relay.Load(); known != nil {
		return *known, nil
	}
	info, err := c.Info(ctx)
	if err != nil {
		return "", err
	}
	c.relay.Store(&info.DID)
	return info.DID, nil
}
