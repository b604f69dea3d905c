package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agora-relay/agora/internal/hostname"
	"github.com/agora-relay/agora/internal/turns"
)

// Limits of one request to another server.
const (
	defaultWait = 10 * time.Second // see Call.Wait

	maxResponseHeader = 16 << 10
	maxResponseBody   = 64 << 10

	maxCalls        = 512 // at a time
	maxCallsPerHost = 4   // by default, see OutgoingOptions.PerHost
)

// callTimeouts are the longest times that the steps of a call may take.
type callTimeouts struct {
	connect time.Duration // including the lookup of the name
	tls     time.Duration
	send    time.Duration // the request
	body    time.Duration // of the response
}

var usualTimeouts = callTimeouts{5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second}

// Outgoing sends the HTTP requests of one gateway to servers that its users have named. It follows no redirect, uses no
// proxy, keeps no cookies, and connects to no address that Destinations excludes. Each request uses a connection of its
// own, so net/http never sends one twice.
type Outgoing struct {
	destinations Destinations
	client       *http.Client
	userAgent    string
	timeouts     callTimeouts

	slots *turns.Queue[string] // hosts take turns
}

// OutgoingOptions are the settings of an Outgoing.
type OutgoingOptions struct {
	Destinations
	UserAgent string
	PerHost   int           // calls to one host at a time; 0: 4
	Resolver  *net.Resolver // nil: the system's resolver
	TLS       *tls.Config   // nil: the roots of the system
	// Dial makes the connections in tests. If it is set, addresses are not checked when dialling. nil: the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// NewOutgoing returns an Outgoing.
func NewOutgoing(o OutgoingOptions) *Outgoing {
	perHost := cmp.Or(o.PerHost, maxCallsPerHost)
	out := &Outgoing{destinations: o.Destinations, userAgent: o.UserAgent, timeouts: usualTimeouts,
		slots: turns.New(maxCalls, func(string) int { return perHost })}
	secure := o.TLS.Clone()
	if secure == nil {
		secure = &tls.Config{}
	}
	secure.MinVersion = tls.VersionTLS12
	out.client = &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if o.Dial != nil {
					return o.Dial(ctx, network, addr)
				}
				return out.dial(ctx, net.Dialer{Timeout: out.timeouts.connect, Resolver: o.Resolver}, network, addr)
			},
			TLSClientConfig: secure, TLSHandshakeTimeout: out.timeouts.tls,
			MaxResponseHeaderBytes: maxResponseHeader, DisableCompression: true, DisableKeepAlives: true,
		},
	}
	return out
}

// dial connects to a host. If the host is no exception, each address that it resolves to is checked right before the
// connection is made.
func (o *Outgoing) dial(ctx context.Context, d net.Dialer, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if !o.destinations.exceptsHost(hostname.Map(host)) {
		d.ControlContext = func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err != nil || !o.destinations.allows(to.Addr()) {
				return errExcluded
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, addr)
}

// Failure is why a request got no response, in one word. Third parties may learn no more, because more would tell them
// about the relay's network.
type Failure string

// The failures.
const (
	Blocked     Failure = "blocked"     // the relay must not call this address
	Unreachable Failure = "unreachable" // no connection, or it broke
	Timeout     Failure = "timeout"
)

func (f Failure) Error() string { return string(f) }

// Call is a POST to another server.
type Call struct {
	ID     string        // for Idempotency-Key: the same for each attempt
	Body   []byte        // JSON
	Header http.Header   // further headers, or nil
	Wait   time.Duration // for the header of the response; 0: 10 seconds
}

// Response is what another server answered.
type Response struct {
	Status     int
	Body       []byte // nil: the body was too long, too slow, or broke off
	RetryAfter string // the header Retry-After
	Sent       bool   // the request was sent; also set beside a Failure
}

// slot is the right to make a call to a URL. Slots are limited, in all and for each host.
type slot struct {
	out *Outgoing
	url *url.URL
}

// reserve waits for a slot for a URL. The caller must call free when it no longer needs the slot. A call that waits
// only because there are too many calls to its host takes no slot from other hosts. The error is Blocked, or that of
// ctx if ctx has ended.
func (o *Outgoing) reserve(ctx context.Context, url string) (s slot, waited bool, err error) {
	u, err := o.destinations.Check(url)
	if err != nil {
		return slot{}, false, Blocked
	}
	waited, err = acquire(ctx, o.slots, hostname.Of(u))
	return slot{o, u}, waited, err
}

// acquire waits for a turn of a source. waited is false if it was there at once. The error is ctx's error.
func acquire(ctx context.Context, q *turns.Queue[string], source string) (waited bool, err error) {
	if q.Acquire(ended, source) == nil { // does not wait, because ended has ended
		return false, nil
	}
	return true, q.Acquire(ctx, source)
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (s slot) free() { s.out.slots.Release(hostname.Of(s.url)) }

// post makes a call to the slot's URL. The error is a Failure, or that of ctx if ctx has ended.
func (s slot) post(ctx context.Context, c Call) (Response, error) {
	o := s.out
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	untilHeader := time.AfterFunc(o.timeouts.connect+o.timeouts.tls+o.timeouts.send, cancel)
	defer untilHeader.Stop()
	var sent atomic.Bool
	call = httptrace.WithClientTrace(call, &httptrace.ClientTrace{WroteRequest: func(w httptrace.WroteRequestInfo) {
		sent.Store(w.Err == nil)
		untilHeader.Reset(cmp.Or(c.Wait, defaultWait))
	}})
	req, err := http.NewRequestWithContext(call, http.MethodPost, s.url.String(), bytes.NewReader(c.Body))
	if err != nil {
		return Response{}, Blocked
	}
	req.Header.Set("Content-Type", "application/json")
	for name, values := range c.Header {
		req.Header[name] = values
	}
	req.Header.Set("Idempotency-Key", c.ID)
	req.Header.Set("User-Agent", o.userAgent)
	answered, err := o.client.Do(req)
	if err != nil {
		return Response{Sent: sent.Load()}, failureOf(ctx, err)
	}
	defer answered.Body.Close()
	untilHeader.Stop()
	defer time.AfterFunc(o.timeouts.body, cancel).Stop()
	if answered.StatusCode == http.StatusSwitchingProtocols {
		return Response{Status: answered.StatusCode, Sent: true}, nil // its body is the connection, and has no time limit
	}
	body, err := io.ReadAll(io.LimitReader(answered.Body, maxResponseBody+1))
	if err != nil || len(body) > maxResponseBody {
		body = nil
	}
	return Response{answered.StatusCode, body, answered.Header.Get("Retry-After"), true}, ctx.Err()
}

// failureOf returns the Failure for an error of net/http.
func failureOf(ctx context.Context, err error) error {
	timeout, _ := errors.AsType[net.Error](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errExcluded):
		return Blocked
	case errors.Is(err, context.Canceled) || timeout != nil && timeout.Timeout(): // canceled by the call's own timer
		return Timeout
	default:
		return Unreachable
	}
}
