// Package httpapi is the HTTP front of a relay, and the relay's own routes on it.
//
// A Front admits each request, tells its handler whom it comes from, writes the errors that handlers return, survives
// their panics, and ends without cutting off what has begun. Gateways, the page and metrics mount their handlers on the
// same Front, see Mount. A handler reads, calls the relay, and maps; it holds no rules.
//
// Time limits are set for each request, because a long poll lives longer than anything else may.
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
	"time"

	"github.com/rs/cors"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Options are what a Front needs beside the relay. The zero value works.
type Options struct {
	Build          string         // the program's version, for /health and the well-known document
	Demo           bool           // open POST /seed to everybody
	PublicURL      string         // the configured origin, in relay.ParseOrigin's form; if set, no request counts as local
	LimitLocal     bool           // no request counts as local
	TrustedProxies []netip.Prefix // proxies whose X-Forwarded-For tells the address of a client
	Origins        []string       // web pages that may use the relay, in relay.ParseOrigin's form, or "*" for all; none: CORS is off
	Mounts         []Mount        // what answers beside the relay's own routes; each needs a Prefix
	Root           Handler        // answers GET and HEAD of the path /; nil: there is nothing
	Grace          time.Duration  // how long requests may take that have begun when Run is to end; 0: 4 seconds
	Log            *slog.Logger   // nil: slog.Default
}

// Handler answers a request that comes from a peer. If it returns an error, it has written nothing, and the Front writes
// the error in the form of the Mount.
type Handler func(w http.ResponseWriter, r *http.Request, from relay.Peer) error

// Mount is a set of routes with one form of errors. Its handlers pass the same checks as the relay's own routes.
type Mount struct {
	// Prefix is where the paths of the mount begin, such as "/hub". The handler sees the path without it, which begins
	// with a slash. An empty Prefix takes every path that no other mount of the same listener takes.
	Prefix  string
	Handler Handler
	// Errors returns the answer to an error of the handler or of the Front. ok is false if it does not know err; then the
	// Front logs err and asks again with one of envelope.CodeInternal, which Errors must know. nil: the relay's form.
	Errors func(err error) (answer ErrorAnswer, ok bool)
	// Methods and Headers are what web pages may use here, beside GET, HEAD, POST, Content-Type and Authorization.
	Methods, Headers []string
	// Unlimited reports whether a request counts against no limit, as a health check does. nil: none.
	Unlimited func(*http.Request) bool
}

// ErrorAnswer is an error as a client gets it.
type ErrorAnswer struct {
	Status     int
	Body       any           // written as JSON
	RetryAfter time.Duration // with a status of 429 or 503; a second at least is said
	Challenge  string        // the header WWW-Authenticate; empty: none
}

// Front serves a relay and what is mounted beside it. Make one with New.
type Front struct {
	relay   *relay.Relay
	options Options
	log     *slog.Logger

	mu       sync.Mutex
	draining bool           // from then on requests are not counted
	requests sync.WaitGroup // those that began before draining; it is not added to while it is waited for
}

// New returns a Front for r.
func New(r *relay.Relay, o Options) *Front {
	f := &Front{relay: r, options: o, log: o.Log}
	if f.log == nil {
		f.log = slog.Default()
	}
	if f.options.Grace == 0 {
		f.options.Grace = 4 * time.Second
	}
	return f
}

// Handler returns what answers on the main listener, for a server of the caller's. loopback says that only this machine
// can connect to that server.
func (f *Front) Handler(loopback bool) http.Handler {
	return f.handler(f.mounts(), place{loopback: loopback})
}

// mounts returns what answers on a listener that has no mounts of its own.
func (f *Front) mounts() []Mount {
	return append([]Mount{newAPI(f).mount()}, f.options.Mounts...)
}

// handler passes each request to the mount with the longest prefix of its path.
func (f *Front) handler(mounts []Mount, at place) http.Handler {
	handlers := map[string]http.Handler{"": f.handle(Mount{Handler: nothingHere}, at)}
	for _, m := range mounts {
		handlers[m.Prefix] = f.handle(m, at)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prefix := r.URL.Path
		for {
			if h, mounted := handlers[prefix]; mounted {
				h.ServeHTTP(w, r)
				return
			}
			prefix = prefix[:max(0, strings.LastIndexByte(prefix, '/'))]
		}
	})
}

// nothingHere answers on a listener where nothing is mounted at the root.
func nothingHere(http.ResponseWriter, *http.Request, relay.Peer) error {
	return envelope.Errorf(envelope.CodeNotFound, "there is nothing at this path")
}

// handle does for one mount what every request needs.
func (f *Front) handle(m Mount, at place) http.Handler {
	if m.Errors == nil {
		m.Errors = relayError
	}
	s := &site{Front: f, Mount: m, place: at, cors: newCORS(f.options.Origins, m.Methods, m.Headers)}
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
	place
	cors *cors.Cors // nil: off
}

// serve admits a request, answers its errors and survives its panics.
func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	defer s.begin()()
	started := time.Now()
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			panic(p)
		} else if p != nil {
			s.log.Error("panic", "value", p, "path", r.URL.Path, "stack", string(debug.Stack()))
			s.answerError(w, r, envelope.Errorf(envelope.CodeInternal, "the relay failed at this request; it has been logged"))
		}
	}()
	if err := s.admit(w, s.withoutPrefix(r)); err != nil {
		s.answerError(w, r, err)
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "took", time.Since(started))
	}
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

// begin counts a request until end is called. What begins while the Front drains is refused soon and not counted.
func (f *Front) begin() (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return func() {}
	}
	f.requests.Add(1)
	return f.requests.Done
}

// admit passes a request to the handler if the limits allow it. The limits come before all other checks.
func (s *site) admit(w http.ResponseWriter, r *http.Request) error {
	from := s.peer(r)
	if s.Unlimited == nil || !s.Unlimited(r) {
		kind := relay.Posts
		if isSafe(r.Method) {
			kind = relay.Reads
		}
		if err := s.relay.Admit(from, kind); err != nil {
			return err
		}
		leave, err := s.relay.Enter(from)
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

// isSafe reports whether a method asks for no change (RFC 9110 §9.2.1).
func isSafe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// answerError writes err in the mount's form. An error that the form does not know is the server's own trouble: it is
// logged, and the client learns no more than that.
func (s *site) answerError(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		// The client has left, or it has only closed its sending side and still listens. Then silence would be a 200.
		err = envelope.Errorf(envelope.CodeUnavailable, "the wait was given up, as the client closed its side of the connection")
	}
	answer, known := s.Errors(err)
	if !known {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		err = envelope.Errorf(envelope.CodeInternal, "the relay could not do this; the reason is in its log")
		answer, _ = s.Errors(err)
	}
	s.observe(answer.Status, err)
	if err := answer.write(w); err != nil {
		s.log.Error("an error cannot be written as JSON", "err", err)
	}
}

// observe reports an error that a client gets; status 0: its connection is closed instead.
func (f *Front) observe(status int, err error) {
	var code envelope.Code
	var limit string
	if e, ok := errors.AsType[*envelope.Error](err); ok { // else it is a mount's own
		code, limit = e.Code, e.Limit()
	}
	f.relay.Observer().Refused(status, code, limit)
}
