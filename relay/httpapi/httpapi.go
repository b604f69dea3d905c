// Package httpapi is the relay's HTTP wire: routes, one JSON shape for every answer, one table from codes to statuses.
//
// A handler reads, calls the relay, and maps; it holds no rules. Deadlines are set per request, because a long poll
// lives longer than anything else may.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"
	"github.com/rs/cors"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Options are what the wire needs beyond the relay. The zero value works.
type Options struct {
	Build          string         // the program's version, for /health and the well-known document
	Demo           bool           // open POST /seed to everybody
	PublicURL      string         // the configured origin, in relay.ParseOrigin's form; if set, no request counts as local
	Loopback       bool           // only this machine can connect; if not, no request counts as local
	LimitLocal     bool           // no request counts as local
	TrustedProxies []netip.Prefix // proxies whose X-Forwarded-For tells the address of a client
	Origins        []string       // web pages that may use the relay, in relay.ParseOrigin's form, or "*" for all; none: CORS is off
	Log            *slog.Logger
}

type server struct {
	relay   *relay.Relay
	options Options
	log     *slog.Logger
	cors    *cors.Cors // nil: off

	mu       sync.Mutex
	stopping bool           // from then on polls are not counted: they are refused at once
	polls    sync.WaitGroup // those that have not been answered yet; must not be added to while it is waited for
}

// enter counts a poll until leave is called.
func (s *server) enter() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return func() {}
	}
	s.polls.Add(1)
	return s.polls.Done
}

func (s *server) stop() {
	s.relay.Drain()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
}

// Server serves a relay. Give Serve a listener, and end it with Shutdown.
type Server struct {
	http.Server
	api *server
}

// Time limits of one request. A long poll may wait beyond them; reading a body and writing an answer may not.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // headers and body
	writeTimeout      = 30 * time.Second
	idleTimeout       = 75 * time.Second
	maxHeaderBytes    = 16 << 10
)

// NewServer returns an HTTP server for r.
func NewServer(r *relay.Relay, o Options) *Server {
	api := newAPI(r, o)
	return &Server{api: api, Server: http.Server{
		Handler:           api.routes(),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         newConnections(api).changed,

		DisableGeneralOptionsHandler: true, // it would answer OPTIONS * with an empty 200
		ErrorLog:                     slog.NewLogLogger(api.log.Handler(), slog.LevelDebug),
	}}
}

// Shutdown drains the relay, so that every waiting poll is answered while the listener is still open, and then closes
// the server as http.Server.Shutdown does. If ctx ends first, requests are cut off and its error is returned.
func (s *Server) Shutdown(ctx context.Context) error {
	s.api.stop()
	answered := make(chan struct{})
	go func() { // ends with the last poll, which its write deadline bounds
		s.api.polls.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-ctx.Done():
	}
	if err := s.Server.Shutdown(ctx); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// New returns the routes of r as a handler.
func New(r *relay.Relay, o Options) http.Handler { return newAPI(r, o).routes() }

func newAPI(r *relay.Relay, o Options) *server {
	s := &server{relay: r, options: o, log: o.Log}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.cors = newCORS(o.Origins)
	return s
}

func (s *server) routes() http.Handler {
	// SkipClean: the router would redirect //events to /events, and a client repeats a redirected POST as a GET.
	router := mux.NewRouter().SkipClean(true)
	for _, route := range []struct {
		path    string
		allowed methods
	}{ // tried in this order
		{"/events", methods{http.MethodGet: s.reading(s.getEvents), http.MethodPost: s.postEvent}},
		{"/threads/{id}", methods{http.MethodGet: s.reading(s.getThread)}},
		{"/agents", methods{http.MethodGet: s.reading(s.getAgents)}},
		{"/agents/{did}", methods{http.MethodGet: s.reading(s.getAgent)}},
		{healthPath, methods{http.MethodGet: s.getHealth, http.MethodHead: s.getHealth}},
		{"/.well-known/agora.json", methods{http.MethodGet: s.getWellKnown}},
		{"/seed", methods{http.MethodPost: s.postSeed}},
		// Names that clients written before this relay use.
		{"/v1/messages", methods{http.MethodGet: s.reading(s.getEvents), http.MethodPost: s.postEvent}},
		{"/v1/agents", methods{http.MethodGet: s.reading(s.getAgents)}},
		{"/v1/agents/{did}", methods{http.MethodGet: s.reading(s.getAgent)}},
	} {
		router.Handle(route.path, route.allowed.handler(s))
	}
	router.NotFoundHandler = s.handle(func(http.ResponseWriter, *http.Request) error {
		return envelope.Errorf(envelope.CodeNotFound, "there is nothing at this path; mind trailing and double slashes. "+
			"The relay answers at /events, /threads/{id}, /agents, /health and /.well-known/agora.json")
	})
	if s.cors != nil {
		return s.cors.Handler(router)
	}
	return router
}

const healthPath = "/health"

// handler is one route's work; an error it returns becomes the answer.
type handler func(http.ResponseWriter, *http.Request) error

// methods are the handlers of one path. gorilla/mux answers 405 without the Allow header that RFC 9110 asks for.
type methods map[string]handler

func (m methods) handler(s *server) http.Handler {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	allow := strings.Join(names, ", ")
	return s.handle(func(w http.ResponseWriter, r *http.Request) error {
		if h, ok := m[r.Method]; ok {
			return h(w, r)
		}
		w.Header().Set("Allow", allow)
		return envelope.Errorf(envelope.CodeMethodNotAllowed, "this path takes %s", allow)
	})
}

// handle admits a request, answers its errors and survives its panics.
func (s *server) handle(h handler) http.Handler {
	admitted := s.admit(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		defer func() {
			if p := recover(); p == http.ErrAbortHandler {
				panic(p)
			} else if p != nil {
				s.log.Error("panic", "value", p, "path", r.URL.Path, "stack", string(debug.Stack()))
				s.answerError(w, r, envelope.Errorf(envelope.CodeInternal, "the relay failed at this request; it has been logged"))
			}
		}()
		if err := admitted(w, r); err != nil {
			s.answerError(w, r, err)
		}
		if s.log.Enabled(r.Context(), slog.LevelDebug) {
			s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "took", time.Since(started))
		}
	})
}
