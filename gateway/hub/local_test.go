package hub_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// local is a client that the relay takes for its own machine, to which no rates apply. It uses each connection once.
var local = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: -1}, CheckRedirect: remote.CheckRedirect}

// startLocal is like start, but the clients are on the relay's machine, and the relay's clock stands still. Only wait
// moves it.
func startLocal(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	return start(t, append(configure, func(f *fixture) { f.client, f.frozen = local, time.Now() })...)
}

// wait moves the relay's clock.
func (f *fixture) wait(d time.Duration) { f.ahead.Add(int64(d)) }

// moment is less than the times that tests wait for.
const moment = time.Second

func (f *fixture) get(path, key string) answer {
	f.t.Helper()
	return f.do(call{"GET", path, key, nil, nil})
}

func (f *fixture) post(path, key string, body any) answer {
	f.t.Helper()
	return f.do(call{"POST", path, key, body, nil})
}

func (f *fixture) remove(path, key string) answer {
	f.t.Helper()
	return f.do(call{"DELETE", path, key, nil, nil})
}

// has reports whether the body has this text.
func (a answer) has(text string) bool { return strings.Contains(string(a.body), text) }

// begins reports whether the body begins with this text.
func (a answer) begins(text string) bool { return strings.HasPrefix(string(a.body), text) }

// doFrom sends a request under the prefix from another machine, to which the limits apply.
func (f *fixture) doFrom(addr string, c call) answer {
	f.t.Helper()
	r, err := newRequest(f.t.Context(), publicURL+"/hub", c)
	if err != nil {
		f.t.Fatal(err)
	}
	r.RemoteAddr = net.JoinHostPort(addr, "1234")
	return f.serve(r)
}

// serve answers a request of a client, without a connection.
func (f *fixture) serve(r *http.Request) answer {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	f.front.Handler(false).ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.Bytes()}
}

// at sends a request to another base URL than that of the prefix.
func (f *fixture) at(base string, c call) answer {
	f.t.Helper()
	a, err := request(f.t.Context(), f.client, base, c)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// fixedHook is a server that gets webhooks. It answers all of them in the same way.
type fixedHook struct {
	*httptest.Server
	status  int
	reply   string
	headers chan http.Header // of the requests
	bodies  chan string
}

// newFixedHook returns a server that answers {"status":"ok"}.
func newFixedHook(t testing.TB) *fixedHook {
	h := &fixedHook{status: 200, reply: `{"status":"ok"}`, headers: make(chan http.Header, 100), bodies: make(chan string, 100)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a part is not what a test wants, so it fails
		h.headers <- r.Header
		h.bodies <- string(body)
		w.WriteHeader(h.status)
		_, _ = io.WriteString(w, h.reply) // if that fails, the client has left
	}))
	t.Cleanup(h.Close)
	return h
}
