package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// gateway is the smallest gateway. It has routes, its own format of errors and a stream, and it calls the relay.
type gateway struct{ relay *relay.Relay }

// goneError is an error that only gateway.errors knows.
type goneError struct{ item string }

func (e goneError) Error() string { return "the item " + e.item + " is gone" }

func (g gateway) mount(prefix string) httpapi.Mount {
	return httpapi.Mount{
		Prefix: prefix, Errors: g.errors, Methods: []string{http.MethodDelete}, Headers: []string{"Idempotency-Key"},
		Unlimited: func(r *http.Request) bool { return r.URL.Path == "/ping" },
		Handler: httpapi.Routes("The items are at /items/{item}.",
			httpapi.Route{Path: "/", Methods: map[string]httpapi.Handler{http.MethodGet: g.describe}},
			httpapi.Route{Path: "/ping", Methods: map[string]httpapi.Handler{http.MethodGet: g.describe}},
			httpapi.Route{Path: "/items/{item}", Methods: map[string]httpapi.Handler{
				http.MethodGet: g.item, http.MethodPost: g.post, http.MethodDelete: g.item}},
			httpapi.Route{Path: "/stream", Methods: map[string]httpapi.Handler{http.MethodGet: g.stream}},
		),
	}
}

func (g gateway) errors(err error) (httpapi.ErrorAnswer, bool) {
	if e, ok := errors.AsType[goneError](err); ok {
		return httpapi.ErrorAnswer{Status: http.StatusGone, Body: map[string]string{"item": e.item}}, true
	}
	if e, ok := errors.AsType[*envelope.Error](err); ok {
		return httpapi.ErrorAnswer{Status: http.StatusUnprocessableEntity, RetryAfter: e.RetryAfter,
			Body: map[string]any{"failure": e.Code}}, true
	}
	return httpapi.ErrorAnswer{}, false
}

func (g gateway) describe(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return httpapi.WriteJSON(w, http.StatusOK, map[string]any{"path": r.URL.Path, "from": from.Addr, "local": from.Local})
}

func (g gateway) item(w http.ResponseWriter, r *http.Request, _ relay.Peer) error {
	switch item := mux.Vars(r)["item"]; item {
	case "first":
		return httpapi.WriteJSON(w, http.StatusOK, map[string]string{"item": item})
	case "panics":
		panic("a panic in a handler")
	case "fails":
		return errors.New("an internal reason")
	default:
		return goneError{item}
	}
}

func (g gateway) post(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	body, err := httpapi.ReadBody(w, r, 2000)
	if err != nil {
		return err
	}
	receipt, err := g.relay.Post(r.Context(), from, body)
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusCreated, map[string]string{"id": receipt.ID})
}

// stream writes until the relay drains.
func (g gateway) stream(w http.ResponseWriter, r *http.Request, _ relay.Peer) error {
	out := http.NewResponseController(w)
	for g.relay.Health() == nil {
		httpapi.ExtendWrite(w)
		if _, err := io.WriteString(w, "tick\n"); err != nil || out.Flush() != nil {
			return nil // the client has left
		}
		time.Sleep(time.Second)
	}
	_, err := io.WriteString(w, "end\n")
	return err
}

// ask sends a request to h and returns the status and the body of the answer.
func ask(t *testing.T, h http.Handler, method, target string, headers ...string) (int, string) {
	t.Helper()
	req := httptest.NewRequest(method, target, strings.NewReader("{}"))
	req.RemoteAddr, req.Host = "127.0.0.1:9", "localhost"
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestMount(t *testing.T) {
	r := unlimited(t)
	mount := gateway{r}.mount("/gateway")
	local := newFront(t, r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{mount, gateway{r}.mount("/gateway/inner")},
		Root: gateway{r}.describe, Origins: []string{"https://app.example"}}).Handler(true)
	plain := newFront(t, r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{mount}}).Handler(true)
	const described = `{"from":"127.0.0.1","local":true,"path":"%s"}`
	for _, c := range []struct {
		h              http.Handler
		method, target string
		status         int
		body           string
		headers        []string
	}{
		{local, "GET", "/gateway", 200, fmt.Sprintf(described, "/"), nil},
		{local, "GET", "/gateway/", 200, fmt.Sprintf(described, "/"), nil},
		{local, "GET", "/gateway/ping", 200, fmt.Sprintf(described, "/ping"), nil},
		{local, "GET", "/gateway/inner/ping", 200, fmt.Sprintf(described, "/ping"), nil},
		{local, "GET", "/gateway/items/first", 200, `{"item":"first"}`, nil},
		{local, "GET", "/gateway/items/%66irst", 200, `{"item":"first"}`, nil},
		{local, "GET", "/gateway/items/fi%2Frst", 422, `{"failure":"NOT_FOUND"}`, nil},
		{local, "GET", "/gatew%61y/items/first", 200, `{"item":"first"}`, nil},
		{local, "GET", "/gateway/items/removed", 410, `{"item":"removed"}`, nil},
		{local, "GET", "/gateway/items/panics", 422, `{"failure":"INTERNAL_ERROR"}`, nil},
		{local, "GET", "/gateway/items/fails", 422, `{"failure":"INTERNAL_ERROR"}`, nil},
		{local, "POST", "/gateway/items/first", 422, `{"failure":"UNSUPPORTED_VERSION"}`, nil},
		{local, "POST", "/gateway/items/first", 422, `{"failure":"UNSUPPORTED_MEDIA_TYPE"}`,
			[]string{"Content-Encoding", "gzip"}},
		{local, "PUT", "/gateway/items/first", 422, `{"failure":"METHOD_NOT_ALLOWED"}`, nil},
		{local, "GET", "/gateway//items/first", 422, `{"failure":"NOT_FOUND"}`, nil},
		{local, "GET", "/gateway/../events", 422, `{"failure":"NOT_FOUND"}`, nil},
		{local, "GET", "/gateway/items/first", 422, `{"failure":"FORBIDDEN"}`, []string{"Host", "evil.example"}},
		{local, "DELETE", "/gateway/items/first", 422, `{"failure":"FORBIDDEN"}`,
			[]string{"Origin", "https://evil.example"}},
		{local, "DELETE", "/gateway/items/first", 200, `{"item":"first"}`, []string{"Origin", "https://app.example"}},
		{local, "OPTIONS", "/gateway/items/first", 204, "",
			[]string{"Origin", "https://app.example", "Access-Control-Request-Method", "DELETE"}},
		{local, "GET", "/", 200, fmt.Sprintf(described, "/"), nil},
	} {
		status, body := ask(t, c.h, c.method, c.target, c.headers...)
		if status != c.status || body != c.body {
			t.Errorf("%s %s %q: %d %s, want %d %s", c.method, c.target, c.headers, status, body, c.status, c.body)
		}
	}
	// Paths without a mount are answered by the relay's own routes, in their format.
	for target, want := range map[string]int{
		"/gateways": 404, "/gate": 404, "//gateway": 404, "/events": 400, "/health": 200,
	} {
		if status, body := ask(t, local, "GET", target); status != want || !strings.HasPrefix(body, `{"ok":`) {
			t.Errorf("%s: %d %s, want %d", target, status, body, want)
		}
	}
	if status, _ := ask(t, local, "HEAD", "/"); status != 200 {
		t.Errorf("HEAD /: %d", status)
	}
	if status, body := ask(t, plain, "GET", "/"); status != 404 || !strings.Contains(body, "NOT_FOUND") {
		t.Errorf("GET / without a Root: %d %s", status, body)
	}
}

// A preflight allows the methods and headers of the mount that it is for.
func TestMountsHavePreflightsOfTheirOwn(t *testing.T) {
	r := unlimited(t)
	h := newFront(t, r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{gateway{r}.mount("/gateway")},
		Origins: []string{"*"}}).Handler(false)
	for target, allowed := range map[string]bool{"/gateway/items/first": true, "/events": false} {
		for header, value := range map[string]string{
			"Access-Control-Request-Method": "DELETE", "Access-Control-Request-Headers": "idempotency-key",
		} {
			req := httptest.NewRequest("OPTIONS", target, nil)
			req.Header.Set("Origin", "https://any.example")
			req.Header.Set("Access-Control-Request-Method", "POST")
			req.Header.Set(header, value)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if got := w.Header().Get("Access-Control-Allow-Origin") != ""; got != allowed {
				t.Errorf("%s: %s %s is allowed: %v, want %v", target, header, value, got, allowed)
			}
		}
	}
}

// The limits are shared by all mounts. Requests that a mount exempts are not counted. Refusals have the mount's format.
func TestMountIsLimited(t *testing.T) {
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 3},
		PostsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 1}})
	h := newFront(t, r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{gateway{r}.mount("/gateway")}}).Handler(false)
	// No request reads the store, because a read that takes long counts as more than one.
	for i, c := range []struct {
		method, target string
		status         int
	}{
		{"GET", "/gateway/items/first", 200}, {"GET", "/.well-known/agora.json", 200}, {"GET", "/gateway/items/removed", 410},
		{"GET", "/gateway/items/first", 422}, {"GET", "/.well-known/agora.json", 429},
		{"GET", "/gateway/ping", 200}, {"GET", "/ping", 429},
		{"DELETE", "/gateway/items/first", 200}, {"POST", "/gateway/items/first", 422},
		{"DELETE", "/gateway/items/first", 422},
	} {
		if status, body := ask(t, h, c.method, c.target); status != c.status {
			t.Errorf("request %d, %s %s: %d %s, want %d", i, c.method, c.target, status, body, c.status)
		}
	}
}

// statusOf sends a request over c and returns the status of the answer.
func statusOf(t *testing.T, c net.Conn, target, host string) int {
	t.Helper()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, host)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// A listener with its own mounts serves only these. Which requests count as local is decided for each listener.
func TestListenersOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := unlimited(t)
		mount := gateway{r}.mount("")
		wide, local, own := newPipeListener(allInterfaces), newPipeListener(loopback), newPipeListener(allInterfaces)
		front := httpapi.New(r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{gateway{r}.mount("/gateway")}})
		stop := runFront(t, front, httpapi.Listener{Listener: wide}, httpapi.Listener{Listener: local},
			httpapi.Listener{Listener: own, Mounts: []httpapi.Mount{mount}})
		for _, c := range []struct {
			l            *pipeListener
			target, host string
			status       int
		}{
			{wide, "/health", "any.example", 200}, {local, "/health", "any.example", 403}, {local, "/health", "localhost", 200},
			{wide, "/gateway/ping", "x", 200}, {own, "/ping", "x", 200}, {own, "/gateway/ping", "x", 422},
			{own, "/health", "x", 422}, {own, "/events", "x", 422},
		} {
			conn := c.l.dial()
			if got := statusOf(t, conn, c.target, c.host); got != c.status {
				t.Errorf("host %s, path %s on listener %v: %d, want %d", c.host, c.target, c.l.addr, got, c.status)
			}
		}
		stop()
		for _, l := range []*pipeListener{wide, local, own} {
			select {
			case <-l.closed:
			default:
				t.Errorf("the listener on %v is still open", l.addr)
			}
		}
	})
}

// A stream of a mount can end itself when the relay drains, because the listeners are still open then.
func TestStreamsAreDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := unlimited(t)
		l := newPipeListener(allInterfaces)
		stop := runFront(t, httpapi.New(r, httpapi.Options{Log: quiet}),
			httpapi.Listener{Listener: l, Mounts: []httpapi.Mount{gateway{r}.mount("")}})
		c := l.dial()
		fmt.Fprint(c, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
		text := make(chan string, 1)
		go func() {
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				text <- err.Error()
				return
			}
			body, err := io.ReadAll(response.Body)
			text <- fmt.Sprint(string(body), err)
		}()
		time.Sleep(2500 * time.Millisecond)
		stop()
		if got := <-text; got != "tick\ntick\ntick\nend\n<nil>" {
			t.Errorf("the stream was %q", got)
		}
	})
}

// failingListener fails after a second.
type failingListener struct{ *pipeListener }

func (l failingListener) Accept() (net.Conn, error) {
	time.Sleep(time.Second)
	return nil, errors.New("this listener fails")
}

// If one listener fails, the others are closed too, and Run returns the reason.
func TestFailingListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := newPipeListener(allInterfaces)
		front := newFront(t, unlimited(t), httpapi.Options{Log: quiet})
		failing := failingListener{newPipeListener(allInterfaces)}
		err := front.Run(t.Context(), httpapi.Listener{Listener: good}, httpapi.Listener{Listener: failing})
		if err == nil || !strings.Contains(err.Error(), "this listener fails") {
			t.Errorf("Run: %v", err)
		}
		select {
		case <-good.closed:
		default:
			t.Error("the other listener is still open")
		}
	})
}

// Peers on a Unix socket are remote and share the limits of one address, unless the listener says that they are local.
func TestUnixSocket(t *testing.T) {
	for _, local := range []bool{false, true} {
		r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 2}})
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		stop := runFront(t, httpapi.New(r, httpapi.Options{Log: quiet}), httpapi.Listener{Listener: l, Local: local,
			Mounts: []httpapi.Mount{gateway{r}.mount("")}})
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", path)
			}}}
		for i := range 3 {
			response, err := client.Get("http://any.example/")
			if err != nil {
				t.Fatal(err)
			}
			var answer struct{ Local bool }
			err = json.NewDecoder(response.Body).Decode(&answer)
			if want := local || i < 2; err != nil || (response.StatusCode == 200) != want || answer.Local != local {
				t.Errorf("local %v, request %d: %d %+v %v", local, i, response.StatusCode, answer, err)
			}
			if err := response.Body.Close(); err != nil {
				t.Fatal(err)
			}
		}
		stop()
	}
}

// TestStrictTransportSecurity checks that browsers are told to use only HTTPS, by answers over TLS under the public URL of
// a relay on port 443, and by no others.
func TestStrictTransportSecurity(t *testing.T) {
	engine.OnlySQLite(t, "it is about HTTP, not about what is stored")
	racing.Skip(t, "one thing after another")
	for _, c := range []struct {
		public, target, host string
		want                 bool
	}{
		{"https://relay.example", "https://relay.example/health", "relay.example", true},
		{"https://relay.example", "https://relay.example/nothing", "Relay.Example", true},
		{"https://relay.example", "http://relay.example/health", "relay.example", false},
		{"https://relay.example", "https://other.example/health", "other.example", false},
		{"https://relay.example", "https://relay.example:8790/health", "relay.example:8790", false},
		{"https://relay.example:8443", "https://relay.example:8443/health", "relay.example:8443", false},
		{"http://relay.example", "https://relay.example/health", "relay.example", false},
		{"https://localhost", "https://localhost/health", "localhost", false},
		{"", "https://relay.example/health", "relay.example", false},
	} {
		h := newFront(t, start(t), httpapi.Options{Log: quiet, PublicURL: c.public}).Handler(false)
		r := httptest.NewRequest("GET", c.target, nil) // sets TLS for https
		r.Host = c.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Strict-Transport-Security") != ""; got != c.want {
			t.Errorf("%s at %s, Host %s: %t", c.public, c.target, c.host, got)
		}
	}
}
