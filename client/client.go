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
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/posting"
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

// Client talks to one relay. It uses one identity, or none if it only reads.
type Client struct {
	conn   *conn.Conn
	poster *posting.Poster
}

// ErrOtherRelay is in the error of a post to a relay that is not the home of the thread: another relay answers at its
// address (RELAYS R-4). Nothing was sent.
var ErrOtherRelay = conn.ErrOtherRelay

// ErrOpenReads is the error of a client with Options.RequireParties if the relay shows directed messages to everybody,
// or does not say who can read them. The client then neither reads from that relay nor posts to it.
var ErrOpenReads = conn.ErrOpenReads

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
	c := conn.New(strings.TrimRight(u.String(), "/"), signer, conn.Options{
		HTTPClient: opts.HTTPClient, Now: opts.Now, Logger: opts.Logger, RequireParties: opts.RequireParties,
		Attempts: opts.Attempts})
	poster := &posting.Poster{Conn: c, Options: posting.Options{SenderName: opts.SenderName, SenderURL: opts.SenderURL,
		CheckProofs: opts.Proofs != ProofsOff, RequireProofs: opts.Proofs == ProofsRequired}}
	if opts.Proved != nil {
		poster.Proved = func(e *envelope.Envelope, r posting.Receipt) { opts.Proved(e, receiptOf(r)) }
	}
	return &Client{conn: c, poster: poster}, nil
}
