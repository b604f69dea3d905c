// Package httpapi is the HTTP front of a relay, and the relay's own routes on it.
//
// A Front checks the limits of each request, tells the handler which client sent it, writes the errors that handlers
// return, and recovers from their panics. Before it stops, it answers the requests that have begun. Gateways, web pages
// and metrics mount their handlers on the same Front, see Mount. A handler parses the request, calls the relay, and
// writes the result. The rules of the protocol are in package relay, not in handlers.
//
// Deadlines are set for each request, because a long poll may take longer than any other request.
package httpapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/cors"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
	"github.com/agora-relay/agora/relay/witness"
)

// Options are the settings of a Front. The zero value works.
type Options struct {
	Build     string // the program's version, for /health and the well-known document
	Demo      bool   // accept POST /seed from every address, not only from this machine
	PublicURL string // the configured origin, in relay.ParseOrigin's form; if set, no request counts as local
	// Hosts are further host names of this relay. A listener on a loopback address accepts them, like that of PublicURL.
	Hosts      []string
	LimitLocal bool    // no request counts as local
	Proxies    Proxies // proxies whose X-Forwarded-For is used; it contains the address of the client
	// Origins are the origins of web pages that may use the relay, in relay.ParseOrigin's form, or "*" for all. Empty:
	// CORS is off.
	Origins []string
	Mounts  []Mount // handlers in addition to the relay's own routes; each needs a Prefix
	Root    Handler // answers GET / and HEAD /; nil: the answer is 404
	// Redact returns what is logged in place of the path of a request. It hides the keys that some gateways have in their
	// paths. nil: paths are logged as they are.
	Redact func(path string) string
	// Gateways is the member "gateways" of the well-known document. It says which gateways are on. nil: there is no such
	// member.
	Gateways any
	// APIs are the parts of /openapi.json and /llms.txt that describe the gateways which are on.
	APIs []apidocs.Part
	// Durability is the member "durability" of the well-known document. It says where a message is stored when its sender
	// gets the receipt. Empty: there is no such member.
	Durability string
	Witness    *witness.Witness // signs the logs of other relays; nil: the relay is no witness
	// Node returns the member "node" of /health, which describes this node of a relay with several nodes. nil: there is no
	// such member.
	Node  func() any
	Grace time.Duration // how long Run, when it ends, waits for requests that have begun; 0: 4 seconds
	Log   *slog.Logger  // nil: slog.Default
	// AccessLog means that the line about each request has the level Info; otherwise it has the level Debug. The line has
	// no query, no header except User-Agent, and no body, and Redact is applied to its path.
	AccessLog bool
	// Wrap wraps the handler of each listener. Tests use it to check all requests and answers. nil: it is not wrapped.
	Wrap func(http.Handler) http.Handler
}

// Proxies are the proxies that a Front trusts.
type Proxies struct {
	Networks    []netip.Prefix
	UnixSockets bool // every client of a Unix socket is a proxy
}

// Handler answers a request that comes from a peer. If it returns an error, it must not have written anything. The
// Front then writes the error in the format of the Mount. A Handler that writes a stream calls ExtendWrite before each
// write, and flushes after it with http.ResponseController.
type Handler func(w http.ResponseWriter, r *http.Request, from relay.Peer) error

// Mount is a set of routes with one format of errors. Its requests are checked like those to the relay's own routes.
type Mount struct {
	// Prefix is the beginning of the mount's paths, such as "/hub". The Handler sees the path without the Prefix; it
	// starts with a slash. A mount with an empty Prefix gets every path that no other mount of the listener has.
	Prefix  string
	Handler Handler
	// Errors returns the answer to an error of the Handler or of the Front. ok is false if Errors does not know err.
	// Then the Front logs err and calls Errors with an error of envelope.CodeInternal, which Errors must know. nil: the
	// format of the relay's own routes.
	Errors func(err error) (answer ErrorAnswer, ok bool)
	// Methods and Headers are the methods and headers that web pages may use in this mount, in addition to GET, HEAD,
	// POST, Content-Type, Authorization and Last-Event-ID.
	Methods, Headers []string
	// Unlimited reports whether a request is exempt from the limits on requests, as health checks are. nil: no request
	// is exempt.
	Unlimited func(*http.Request) bool
}

// ErrorAnswer is the answer that a client gets for an error.
type ErrorAnswer struct {
	Status     int
	Body       any           // written as JSON
	RetryAfter time.Duration // sent with status 429 and 503, rounded up to whole seconds, at least 1
	Challenge  string        // the header WWW-Authenticate; empty: none
}

// Front serves the routes of a relay and the mounts of Options. New creates one.
type Front struct {
	relay   *relay.Relay
	options Options
	log     *slog.Logger
	proxies atomic.Pointer[Proxies]
	pinned  string // the host for which browsers use only HTTPS once they have seen it, see pinnedHost

	mu       sync.Mutex
	draining bool           // if true, new requests are not added to requests
	requests sync.WaitGroup // requests that began before draining, so nothing is added during Wait
}

// New returns a Front for r.
func New(r *relay.Relay, o Options) *Front {
	f := &Front{relay: r, options: o, log: o.Log}
	if f.log == nil {
		f.log = slog.Default()
	}
	f.pinned = pinnedHost(o.PublicURL)
	if f.options.Grace == 0 {
		f.options.Grace = 4 * time.Second
	}
	f.SetProxies(o.Proxies)
	return f
}

// pinnedHost returns the host of a public URL, if browsers shall use only HTTPS for it (RFC 6797). They apply that to all
// ports of a host. So a relay on another port than 443 must not ask for it. Empty: there is no such host.
func pinnedHost(origin string) string {
	host, secure := strings.CutPrefix(origin, "https://")
	if !secure || strings.Contains(host, ":") || IsLoopbackName(host) {
		return ""
	}
	return host
}

// SetProxies replaces the trusted proxies while the Front runs. It holds for requests that come later.
func (f *Front) SetProxies(p Proxies) { f.proxies.Store(&p) }

// Handler returns the handler of the main listener, for callers that run their own http.Server. loopback means that
// only this machine can connect to that server.
func (f *Front) Handler(loopback bool) http.Handler {
	return f.handler(f.mounts(), listenerInfo{loopback: loopback})
}

// mounts returns the mounts of a listener that does not set its own.
func (f *Front) mounts() []Mount {
	return append([]Mount{newAPI(f).mount()}, f.options.Mounts...)
}

// handler passes each request to the mount with the longest Prefix that matches its path.
func (f *Front) handler(mounts []Mount, info listenerInfo) http.Handler {
	handlers := map[string]http.Handler{"": f.handle(Mount{Handler: notFound}, info)}
	for _, m := range mounts {
		handlers[m.Prefix] = f.handle(m, info)
	}
	find := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prefix := r.URL.Path
		for {
			if h, mounted := handlers[prefix]; mounted {
				h.ServeHTTP(w, r)
				return
			}
			prefix = prefix[:max(0, strings.LastIndexByte(prefix, '/'))]
		}
	})
	if f.options.Wrap != nil {
		return f.options.Wrap(find)
	}
	return find
}

// notFound answers the paths that no mount of a listener has.
func notFound(http.ResponseWriter, *http.Request, relay.Peer) error {
	return envelope.Errorf(envelope.CodeNotFound, "there is nothing at this path")
}

// handle returns the handler of one mount, with the checks that every request needs.
func (f *Front) handle(m Mount, info listenerInfo) http.Handler {
	if m.Errors == nil {
		m.Errors = RelayError
	}
	s := &site{Front: f, Mount: m, listenerInfo: info, cors: newCORS(f.options.Origins, m.Methods, m.Headers)}
	h := http.Handler(http.HandlerFunc(s.serve))
	if s.cors != nil {
		h = s.cors.Handler(h)
	}
	return h
}

// site is a mount on one listener.
type site struct {
	*Front
	Mount
	listenerInfo
	cors *cors.Cors // nil: off
}

// serve checks a request, calls its handler, writes the handler's error and recovers from its panic.
func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	defer s.begin()()
	clearWriteDeadline(w)
	if r.TLS != nil && s.pinned != "" && strings.EqualFold(r.Host, s.pinned) {
		w.Header().Set("Strict-Transport-Security", "max-age=31536000")
	}
	if level := s.accessLevel(); s.log.Enabled(r.Context(), level) {
		logged := newLoggedAnswer(w, s.requestID(r))
		w = logged
		defer func() { s.logAccess(r, logged, level) }()
	}
	defer s.relay.Observer().Served(s.Prefix, kindOf(r))
	defer func() {
		if p := recover(); p != nil {
			s.breakOff(r, p)
			s.log.Error("panic", "value", p, "path", s.loggedPath(r), "id", s.nameAnswer(w, r), "stack", string(debug.Stack()))
			s.answerError(w, r, envelope.Errorf(envelope.CodeInternal,
				"the relay failed while it answered this request; the reason is in its log, under the X-Request-Id of this answer"))
		}
	}()
	if err := s.admit(w, s.withoutPrefix(r)); err != nil {
		s.answerError(w, r, err)
	}
}

// kindOf returns the kind of a request.
func kindOf(r *http.Request) admission.Kind {
	if isSafe(r.Method) {
		return admission.Reads
	}
	return admission.Posts
}

// loggedPath returns the path of a request as it may be logged.
func (f *Front) loggedPath(r *http.Request) string {
	if f.options.Redact == nil {
		return r.URL.Path
	}
	return f.options.Redact(r.URL.Path)
}

// withoutPrefix returns r as the mount's handler sees it.
func (s *site) withoutPrefix(r *http.Request) *http.Request {
	if s.Prefix == "" {
		return r
	}
	u := *r.URL
	u.Path, u.RawPath = cmp.Or(strings.TrimPrefix(u.Path, s.Prefix), "/"), ""
	within := *r
	within.URL = &u
	return &within
}

// begin counts a request until end is called. Requests that begin while the Front drains are not counted, because they
// end soon: the relay refuses them.
func (f *Front) begin() (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return func() {}
	}
	f.requests.Add(1)
	return f.requests.Done
}

// admit passes a request to the handler if the limits allow it. The limits are checked before everything else.
func (s *site) admit(w http.ResponseWriter, r *http.Request) error {
	from := s.peer(r)
	if s.Unlimited == nil || !s.Unlimited(r) {
		if err := s.relay.Gate().Admit(from, kindOf(r)); err != nil {
			return err
		}
		leave, err := s.relay.Gate().Enter(from)
		if err != nil {
			return err
		}
		defer leave()
	}
	if err := s.guard(r); err != nil {
		return err
	}
	if s.cors != nil && r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
		ExtendWrite(w)
		w.WriteHeader(http.StatusNoContent) // package cors has set the headers
		return nil
	}
	return s.Mount.Handler(w, r, from)
}

// isSafe reports whether a method is safe, so that its requests change nothing (RFC 9110 §9.2.1).
func isSafe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// clientLeft reports whether a handler has returned err because its client has left. The answer is then CodeUnavailable.
func clientLeft(r *http.Request, err error) bool {
	return errors.Is(err, context.Canceled) && r.Context().Err() != nil
}

// answerError writes err in the mount's format. An error that Mount.Errors does not know is an internal error: it is
// logged, and the client only learns that there was one.
func (s *site) answerError(w http.ResponseWriter, r *http.Request, err error) {
	left := clientLeft(r, err)
	if left {
		// The client has left, or it has closed only its sending side and still reads. Without an answer of ours,
		// net/http would send an empty 200.
		err = envelope.Errorf(envelope.CodeUnavailable,
			"the relay stopped waiting because the client closed its side of the connection")
	}
	answer, known := s.Errors(err)
	if !known {
		s.log.Error("request failed", "method", r.Method, "path", s.loggedPath(r), "id", s.nameAnswer(w, r), "err", err)
		err = envelope.Errorf(envelope.CodeInternal,
			"the relay could not answer this request; the reason is in its log, under the X-Request-Id of this answer")
		answer, _ = s.Errors(err)
	}
	if !left { // nobody was refused
		s.observe(answer.Status, err)
	}
	if err := answer.Write(w); err != nil {
		s.log.Error("an error answer cannot be encoded as JSON", "err", err)
	}
}

// observe reports a refusal to the observer. Status 0 means that the connection is closed without an answer.
func (f *Front) observe(status int, err error) {
	var code envelope.Code
	var limit string
	if e, ok := errors.AsType[*envelope.Error](err); ok { // otherwise err is of the mount's own type
		code, limit = e.Code, e.Limit()
	}
	f.relay.Observer().Refused(status, code, limit)
}
