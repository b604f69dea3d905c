package hub_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
)

// local is a client that the relay takes for its own machine, to which no rates apply. It uses each connection once.
var local = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: -1},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// startLocal is like start, but the clients are on the relay's machine, and the relay's clock stands still. Only wait
// moves it.
func startLocal(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	return start(t, append(configure, func(f *fixture) { f.Client, f.Frozen = local, time.Now() })...)
}

// wait moves the relay's clock.
func (f *fixture) wait(d time.Duration) { f.Ahead.Add(int64(d)) }

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
func (a answer) has(text string) bool { return strings.Contains(string(a.Body), text) }

// begins reports whether the body begins with this text.
func (a answer) begins(text string) bool { return strings.HasPrefix(string(a.Body), text) }

// doFrom sends a request under the prefix from another machine, to which the limits apply.
func (f *fixture) doFrom(addr string, c call) answer {
	f.t.Helper()
	r, err := gatetest.NewRequest(f.t.Context(), gatetest.PublicURL+"/hub", gatetest.Call(c))
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
	f.Front.Handler(false).ServeHTTP(w, r)
	return answer{gatetest.Answer{Status: w.Code, Header: w.Header(), Body: w.Body.Bytes()}}
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
