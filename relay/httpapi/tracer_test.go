package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// spans is a Tracer and an Observer that records what it is told.
type spans struct {
	relay.NoObserver
	mu     sync.Mutex
	seen   []string
	served []string
	inside int // reports of the relay with a context of Start
}

type spanKey struct{}

func (s *spans) Start(r *http.Request, route string) (context.Context, func(int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.seen)
	s.seen = append(s.seen, route+" not ended")
	return context.WithValue(r.Context(), spanKey{}, i), func(status int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.seen[i] != route+" not ended" {
			route += " ended twice"
		}
		s.seen[i] = fmt.Sprint(route, " ", status)
	}
}

func (s *spans) Served(mount string, k relay.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served = append(s.served, mount+map[relay.Kind]string{relay.Reads: " read", relay.Posts: " post"}[k])
}

func (s *spans) Posted(ctx context.Context, _ relay.PostReport)        { s.report(ctx) }
func (s *spans) Delivered(ctx context.Context, _ relay.DeliveryReport) { s.report(ctx) }

func (s *spans) report(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Value(spanKey{}) != nil {
		s.inside++
	}
}

// take returns what was recorded, and forgets it.
func (s *spans) take() (seen, served []string, inside int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, served, inside = s.seen, s.served, s.inside
	s.seen, s.served, s.inside = nil, nil, 0
	return seen, served, inside
}

// fragile is a store that panics or fails when a test wants it.
type fragile struct {
	relay.Store
	panics, fails bool
}

func (f *fragile) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	if f.panics {
		panic("a panic of the store")
	}
	if f.fails {
		return relay.Receipt{}, errors.New("secret of the store")
	}
	return f.Store.Append(ctx, e)
}

// TestTracerAndObserver sends requests over HTTP/1.1 and HTTP/2. Each post and each poll has one span, which ends once
// with the status that the client gets, also after refusals and panics. No other request has a span. The relay's
// reports about a post and a poll have the context of the span. The observer gets one report about each request.
func TestTracerAndObserver(t *testing.T) {
	for _, useHTTP2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, store := &spans{}, &fragile{}
			wrap := func(s relay.Store) relay.Store { store.Store = s; return store }
			r := startWith(t, wrap, relay.Config{Observer: s,
				Limits: relay.Limits{PollsPerAddress: 1, PostsPerAddress: relay.Rate{PerSecond: 0.001, Burst: 6}}})
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet, Tracer: s, Mounts: []httpapi.Mount{gateway{r}.mount("/gateway")}})
			c := l.client(t, stranger, useHTTP2)
			alice := key(t)
			message := func() string {
				return string(sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical())
			}
			for _, request := range []struct {
				method, target, body string
				status               int
				span, served         string
				inside               int
				before               func()
			}{
				{"POST", "/events", message(), 200, "POST /events 200", " post", 1, nil},
				{"POST", "/v1/messages", message(), 200, "POST /events 200", " post", 1, nil},
				{"POST", "/events?x", "{}", 400, "POST /events 400", " post", 0, nil},
				{"POST", "/events", message(), 500, "POST /events 500", " post", 0, func() { store.panics = true }},
				{"POST", "/events", message(), 500, "POST /events 500", " post", 1, func() { store.panics, store.fails = false, true }},
				{"PUT", "/events", "", 405, "", " post", 0, nil},
				{"POST", "/events", message(), 429, "", " post", 0, nil},
				{"GET", "/events?cursor=0&timeout=0", "", 200, "GET /events 200", " read", 1, nil},
				{"GET", "/events?cursor=0&timeout=2&type=RESULT", "", 200, "GET /events 200", " read", 1, nil},
				{"GET", "/v1/messages?before=end", "", 200, "GET /events 200", " read", 1, nil},
				{"GET", "/events", "", 400, "GET /events 400", " read", 0, nil},
				{"HEAD", "/events", "", 405, "", " read", 0, nil},
				{"OPTIONS", "/events", "", 405, "", " read", 0, nil},
				{"GET", "/agents", "", 200, "", " read", 0, nil},
				{"GET", "/health", "", 200, "", " read", 0, nil},
				{"GET", "/nowhere", "", 404, "", " read", 0, nil},
				{"GET", "/gateway/items/panics", "", 422, "", "/gateway read", 0, nil},
				{"GET", "/gateway/items/first", "", 200, "", "/gateway read", 0, nil},
				{"DELETE", "/gateway/items/first", "", 422, "", "/gateway post", 0, nil},
			} {
				if request.before != nil {
					request.before()
				}
				req, err := http.NewRequest(request.method, "https://localhost"+request.target, strings.NewReader(request.body))
				if err != nil {
					t.Fatal(err)
				}
				response, body := fetch(t, c, req)
				seen, served, inside := s.take()
				got := fmt.Sprintf("%d %q %q %d", response.StatusCode, strings.Join(seen, ", "), strings.Join(served, ", "), inside)
				want := fmt.Sprintf("%d %q %q %d", request.status, request.span, request.served, request.inside)
				if got != want {
					t.Errorf("%s %s %s: status, spans, reports of Served, and reports in a span are %s, want %s: %s",
						response.Proto, request.method, request.target, got, want, body)
				}
			}
			// A poll over the limit, and the poll of a client that leaves. It gets 503, if it still reads.
			leave := startPoll(t, c, "https://localhost/events?cursor=0&type=RESULT&timeout=60")
			second, err := c.Get("https://localhost/events?cursor=0&timeout=60")
			if err != nil || second.StatusCode != 429 {
				t.Errorf("%v %v", second, err)
			} else if err := second.Body.Close(); err != nil {
				t.Error(err)
			}
			leave()
			seen, served, _ := s.take()
			if strings.Join(seen, ", ") != "GET /events 503, GET /events 429" || len(served) != 2 {
				t.Errorf("spans %q, reports %q", seen, served)
			}
		})
	}
}
