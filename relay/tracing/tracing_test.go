package tracing_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/tracing"
	"github.com/agora-relay/agora/store/sqlite"
)

// TestMain fails if a goroutine outlives the tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector is an OpenTelemetry collector that keeps what it gets.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	paths   []string
	headers http.Header
	body    string
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var in io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			in = unzipped
		}
		body, err := io.ReadAll(in)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paths, c.headers, c.body = append(c.paths, r.URL.Path), r.Header, c.body+string(body)
	}))
	t.Cleanup(c.Close)
	return c
}

// traced runs f with a relay that sends its traces, and returns when they are sent.
func traced(t *testing.T, o tracing.Options, f func(h http.Handler)) {
	t.Helper()
	o.Log, o.Build = slog.New(slog.DiscardHandler), "test"
	tracer, err := tracing.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 22, Log: o.Log})
	if err != nil {
		t.Fatal(err)
	}
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Observer: tracer, Log: o.Log,
		Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}}})
	if err != nil {
		t.Fatal(err)
	}
	f(httpapi.New(r, httpapi.Options{Tracer: tracer, Log: o.Log}).Handler(false))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	if err := tracer.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

func send(t *testing.T, h http.Handler, method, target, body string, headers ...string) int {
	t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// message returns a signed message whose payload has text.
func message(t *testing.T, text string) string {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	e, err := envelope.Draft{Thread: text, Payload: envelope.Request{Intent: text}}.Sign(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return string(e.Canonical())
}

// TestSpans sends posts, polls and other requests. The collector must get a span for each post and each poll. A span
// continues the client's trace, and it has nothing that is private.
func TestSpans(t *testing.T) {
	c := newCollector(t)
	const id = "0af7651916cd43dd8448eb211c80319c"
	parent, err := trace.TraceIDFromHex(id)
	if err != nil {
		t.Fatal(err)
	}
	traced(t, tracing.Options{URL: c.URL, Ratio: 1, Headers: map[string]string{"Authorization": "Bearer abc"}}, func(h http.Handler) {
		post := message(t, "secretpayload")
		for range 2 {
			if status := send(t, h, "POST", "/events", post, "Traceparent", "00-"+id+"-b7ad6b7169203331-01", "Authorization", "secrettoken"); status != 200 {
				t.Errorf("a post: %d", status)
			}
		}
		for target, want := range map[string]int{"/events?cursor=0&timeout=0&thread=secretquery": 200, "/events?cursor=secretquery": 400, "/agents?q=unseen": 200, "/health": 200} {
			if status := send(t, h, "GET", target, "", "Tracestate", "x=secretstate", "Traceparent", "garbage"); status != want {
				t.Errorf("%s: %d", target, status)
			}
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.paths) != 1 || c.paths[0] != "/v1/traces" || c.headers.Get("Authorization") != "Bearer abc" {
		t.Errorf("sent to %q with %v", c.paths, c.headers)
	}
	for text, want := range map[string]int{"POST /events": 2, "GET /events": 2, string(parent[:]): 2, "http.response.status_code": 4,
		"agora.duplicate": 2, "agora.store_seconds": 2, "agora.waited": 1, "service.name": 1,
		"/agents": 0, "/health": 0, "secret": 0, "did:key": 0, "traceparent": 0} {
		if n := strings.Count(c.body, text); n != want {
			t.Errorf("%q is sent %d times, want %d", text, n, want)
		}
	}
}

// TestRatio checks that a client cannot have more spans sent than the operator wants, whatever trace ids and flags it
// sends. With the flag that says no, none is sent.
func TestRatio(t *testing.T) {
	const posts = 400
	for flags, want := range map[string][2]int{"01": {posts / 8, 3 * posts / 8}, "00": {0, 0}} {
		c := newCollector(t)
		traced(t, tracing.Options{URL: c.URL, Ratio: 0.25}, func(h http.Handler) {
			for i := range posts {
				// A sampler that decides by the id sends either all or none of the traces with these ids.
				id := fmt.Sprintf("%032x", i+1)
				send(t, h, "POST", "/events", "{}", "Traceparent", "00-"+id+"-b7ad6b7169203331-"+flags)
			}
		})
		if n := strings.Count(c.body, "POST /events"); n < want[0] || n > want[1] {
			t.Errorf("with the flags %s, %d of %d spans are sent, want %d to %d", flags, n, posts, want[0], want[1])
		}
	}
	c := newCollector(t)
	traced(t, tracing.Options{URL: c.URL + "/own/path", Ratio: 0}, func(h http.Handler) {
		for range 20 {
			send(t, h, "POST", "/events", message(t, "x"), "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		}
	})
	if c.paths != nil {
		t.Errorf("sent to %q", c.paths)
	}
	traced(t, tracing.Options{URL: c.URL + "/own/path", Ratio: 1}, func(h http.Handler) {
		send(t, h, "POST", "/events", message(t, "x"))
	})
	if len(c.paths) != 1 || c.paths[0] != "/own/path" {
		t.Errorf("sent to %q", c.paths)
	}
}

// TestCollectorIsDown checks that posts do not wait for a collector that does not answer, and that its failure is logged
// once.
func TestCollectorIsDown(t *testing.T) {
	var log bytes.Buffer
	tracer, err := tracing.New(t.Context(), tracing.Options{URL: "http://127.0.0.1:1", Ratio: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 5_000 { // more than the queue holds
		_, end := tracer.Start(httptest.NewRequest("POST", "/events", nil), "POST /events")
		end(200)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("5,000 spans took %v", took)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 100*time.Millisecond)
	defer cancel()
	_ = tracer.Close(ctx) // it cannot send the spans
	if strings.Count(log.String(), "\n") > 1 {
		t.Errorf("logged %s", log.String())
	}
}
