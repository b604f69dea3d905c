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
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi"
)

// recorder is an Observer that records what it is told about requests.
type recorder struct {
	relay.NoObserver
	mu      sync.Mutex
	served  []string
	reports int // of posts and of answers to polls
}

func (r *recorder) Served(mount string, k admission.Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served = append(r.served, mount+map[admission.Kind]string{admission.Reads: " read", admission.Posts: " post"}[k])
}

func (r *recorder) Posted(relay.PostReport)        { r.report() }
func (r *recorder) Delivered(relay.DeliveryReport) { r.report() }

func (r *recorder) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports++
}

// take returns what was recorded, and forgets it.
func (r *recorder) take() (served []string, reports int) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	served, reports = r.served, r.reports
	r.served, r.reports = nil, 0
	return served, reports
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

// TestObserverSeesRequests sends requests over HTTP/1.1 and HTTP/2. The observer gets one report about each request, also after
// refusals and panics, and one about each post and each answer to a poll.
func TestObserverSeesRequests(t *testing.T) {
	for _, useHTTP2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			seen, store := &recorder{}, &fragile{}
			wrap := func(s relay.Store) relay.Store { store.Store = s; return store }
			r := startWith(t, wrap, relay.Config{Observer: seen,
				Limits: relay.Limits{PollsPerAddress: 1, PostsPerAddress: relay.Rate{PerSecond: 0.001, Burst: 6}}})
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{gateway{r}.mount("/gateway")}})
			c := l.client(t, stranger, useHTTP2)
			alice := key(t)
			message := func() string {
				return string(sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical())
			}
			for _, request := range []struct {
				method, target, body string
				status               int
				served               string
				reports              int
				before               func()
			}{
				{"POST", "/events", message(), 200, " post", 1, nil},
				{"POST", "/v1/messages", message(), 200, " post", 1, nil},
				{"POST", "/events?x", "{}", 400, " post", 0, nil},
				{"POST", "/events", message(), 500, " post", 0, func() { store.panics = true }},
				{"POST", "/events", message(), 500, " post", 1, func() { store.panics, store.fails = false, true }},
				{"PUT", "/events", "", 405, " post", 0, nil},
				{"POST", "/events", message(), 429, " post", 0, nil},
				{"GET", "/events?cursor=0&timeout=0", "", 200, " read", 1, nil},
				{"GET", "/events?cursor=0&timeout=2&type=RESULT", "", 200, " read", 1, nil},
				{"GET", "/v1/messages?before=end", "", 200, " read", 1, nil},
				{"GET", "/events", "", 400, " read", 0, nil},
				{"HEAD", "/events", "", 405, " read", 0, nil},
				{"OPTIONS", "/events", "", 405, " read", 0, nil},
				{"GET", "/agents", "", 200, " read", 0, nil},
				{"GET", "/health", "", 200, " read", 0, nil},
				{"GET", "/nowhere", "", 404, " read", 0, nil},
				{"GET", "/gateway/items/panics", "", 422, "/gateway read", 0, nil},
				{"GET", "/gateway/items/first", "", 200, "/gateway read", 0, nil},
				{"DELETE", "/gateway/items/first", "", 422, "/gateway post", 0, nil},
			} {
				if request.before != nil {
					request.before()
				}
				req, err := http.NewRequest(request.method, "https://localhost"+request.target, strings.NewReader(request.body))
				if err != nil {
					t.Fatal(err)
				}
				response, body := fetch(t, c, req)
				served, reports := seen.take()
				got := fmt.Sprintf("%d %q %d", response.StatusCode, strings.Join(served, ", "), reports)
				want := fmt.Sprintf("%d %q %d", request.status, request.served, request.reports)
				if got != want {
					t.Errorf("%s %s %s: status, reports of Served, and number of other reports are %s, want %s: %s",
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
			if served, _ := seen.take(); len(served) != 2 {
				t.Errorf("reports %q", served)
			}
		})
	}
}
