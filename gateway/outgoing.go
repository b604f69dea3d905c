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
	"strings"
	"sync"
	"syscall"
	"time"
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

	mu      sync.Mutex
	perHost int
	calls   int            // that run now
	hosts   map[string]int // the calls to each host that run now
	freed   chan struct{}  // is closed when a call ends
}

// OutgoingOptions are the settings of an Outgoing.
type OutgoingOptions struct {
	Destinations
	UserAgent string
	PerHost   int           // calls to one host at a time; 0: 4
	Resolver  *net.Resolver // nil: that of the system
	TLS       *tls.Config   // nil: the roots of the system
}

// NewOutgoing returns an Outgoing.
func NewOutgoing(o OutgoingOptions) *Outgoing {
	out := &Outgoing{destinations: o.Destinations, userAgent: o.UserAgent, perHost: o.PerHost, hosts: map[string]int{},
		freed: make(chan struct{}), timeouts: usualTimeouts}
	if out.perHost == 0 {
		out.perHost = maxCallsPerHost
	}
	secure := o.TLS.Clone()
	if secure == nil {
		secure = &tls.Config{}
	}
	secure.MinVersion = tls.VersionTLS12
	out.client = &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
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
	if !o.destinations.exceptsHost(strings.TrimSuffix(strings.ToLower(host), ".")) {
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

// Call is a request to another server.
type Call struct {
	URL    string
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
}

// Post sends a POST. It waits while there are too many calls at a time, in all or to this host. The error is a Failure,
// or that of ctx if ctx has ended.
func (o *Outgoing) Post(ctx context.Context, c Call) (Response, error) {
	u, err := o.destinations.Check(c.URL)
	if err != nil {
		return Response{}, Blocked
	}
	leave, err := o.enter(ctx, hostOf(u))
	if err != nil {
		return Response{}, err
	}
	defer leave()
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	untilHeader := time.AfterFunc(o.timeouts.connect+o.timeouts.tls+o.timeouts.send, cancel)
	defer untilHeader.Stop()
	call = httptrace.WithClientTrace(call, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		untilHeader.Reset(cmp.Or(c.Wait, defaultWait))
	}})
	req, err := http.NewRequestWithContext(call, http.MethodPost, u.String(), bytes.NewReader(c.Body))
	if err != nil {
		return Response{}, Blocked
	}
	for name, values := range c.Header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", c.ID)
	req.Header.Set("User-Agent", o.userAgent)
	answered, err := o.client.Do(req)
	if err != nil {
		return Response{}, failureOf(ctx, err)
	}
	defer answered.Body.Close()
	untilHeader.Stop()
	defer time.AfterFunc(o.timeouts.body, cancel).Stop()
	body, err := io.ReadAll(io.LimitReader(answered.Body, maxResponseBody+1))
	if err != nil || len(body) > maxResponseBody {
		body = nil
	}
	return Response{answered.StatusCode, body, answered.Header.Get("Retry-After")}, ctx.Err()
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

// enter waits for a slot for a call to host.
func (o *Outgoing) enter(ctx context.Context, host string) (leave func(), err error) {
	for {
		o.mu.Lock()
		if o.calls < maxCalls && o.hosts[host] < o.perHost {
			o.calls++
			o.hosts[host]++
			o.mu.Unlock()
			return func() { o.leave(host) }, nil
		}
		freed := o.freed
		o.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (o *Outgoing) leave(host string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls--
	if o.hosts[host]--; o.hosts[host] == 0 {
		delete(o.hosts, host)
	}
	close(o.freed)
	o.freed = make(chan struct{})
}
