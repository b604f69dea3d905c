package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// Faults of servers. A faulty server is this project's own, with a middleware that changes, drops, delays, repeats or
// forges what goes in and out.

// object is a JSON object.
type object = map[string]any

// middleware wraps the handler of a server.
type middleware = func(http.Handler) http.Handler

// fault is a server with one fault.
type fault struct {
	name  string
	store func(relay.Store) relay.Store // wraps the store of a relay; may be nil
	front middleware                    // wraps the server; may be nil
	hook  middleware                    // stands between the server and what it calls; may be nil
	// fails has the checks that must fail, each with a text that Result.Got must contain.
	fails map[string]string
	also  []string // other checks of the same themes that fail too, or may fail
}

// suite is the checks of one kind of server.
type suite struct {
	checks []conformance.Check
	slow   []string // checks that run only where a fault names them
	idle   bool     // its runs mostly wait, so that many of them may run at the same time
	shares bool     // faults without a hook have the same server, each behind its own address
	// start runs a server behind a front, which may be nil, until the test ends. It returns its URL.
	start func(t *testing.T, front middleware) string
	alone func(t *testing.T, front middleware) string // start, if faults share a server
	// run runs these checks at a server. listen and listenURL are where the run takes calls of the server.
	run func(t *testing.T, url string, only []string, listen, listenURL string) (conformance.Report, error)
}

// testFaults tests that each fault fails its checks, and that the results describe the fault. With each fourth fault,
// but not in short mode, the other checks of the same themes run too and must pass.
func (s suite) testFaults(t *testing.T, faults []fault) {
	if s.shares {
		s.share(t)
	}
	for i, f := range faults {
		if racing.Detector && i%8 != 0 {
			continue // the race detector makes them slow
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s.testFault(t, f, *thorough || !racing.Detector && !testing.Short() && i%4 == 0)
		})
	}
}

// share lets faults without a hook share one server, because it takes long to start one.
func (s *suite) share(t *testing.T) {
	var server http.Handler
	start := s.start
	base, err := url.Parse(start(t, func(h http.Handler) http.Handler {
		server = h
		return h
	}))
	if err != nil {
		t.Fatal(err)
	}
	addr, err := net.ResolveTCPAddr("tcp", base.Host)
	if err != nil {
		t.Fatal(err)
	}
	s.start = func(t *testing.T, front middleware) string {
		faulty := front(server)
		own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host == fmt.Sprint(r.Context().Value(http.LocalAddrContextKey)) {
				r.Host = base.Host
			}
			faulty.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr)))
		}))
		t.Cleanup(own.Close)
		return own.URL + base.Path
	}
	s.alone = start
}

// testFault runs the checks that must find the fault f. withThemes adds the other checks of their themes.
func (s suite) testFault(t *testing.T, f fault, withThemes bool) {
	var only []string
	themes := map[string]bool{}
	for _, c := range s.checks {
		if _, named := f.fails[c.Number]; named {
			themes[c.Theme] = withThemes
		}
	}
	waits := false
	for _, c := range s.checks {
		slow := slices.Contains(s.slow, c.Number)
		if _, named := f.fails[c.Number]; named || themes[c.Theme] && !slow {
			only = append(only, c.Number)
			waits = waits || slow
		}
	}
	if !waits && !s.idle {
		takeTurn(t)
	}
	wrong := f.judge(s.report(t, f, only))
	if len(wrong) > 0 { // as in passChecks
		t.Logf("runs once more: %s", strings.Join(wrong, "\n"))
		wrong = f.judge(s.report(t, f, only))
	}
	for _, text := range wrong {
		t.Error(text)
	}
}

// judge returns what a report of checks that must find the fault f says wrongly.
func (f fault) judge(report conformance.Report) (wrong []string) {
	failed := 0
	for _, r := range report.Results {
		want, named := f.fails[r.Number]
		switch {
		case named && r.Status == conformance.Failed && strings.Contains(r.Got, want):
			failed++
		case named:
			wrong = append(wrong, fmt.Sprintf("want failed with %q:\n%s", want, r.Finding()))
		case r.Status != conformance.Passed && r.Status != conformance.NotTested && !slices.Contains(f.also, r.Number):
			wrong = append(wrong, "must not fail:\n"+r.Finding())
		}
	}
	if failed != len(f.fails) || report.Holds() {
		wrong = append(wrong, fmt.Sprintf("%d checks failed, want %d; Holds returns %v", failed, len(f.fails), report.Holds()))
	}
	return wrong
}

// wantNamed tests that each check but those of elsewhere is named by a fault.
func (s suite) wantNamed(t *testing.T, faults []fault, elsewhere ...string) {
	for _, c := range s.checks {
		named := slices.ContainsFunc(faults, func(f fault) bool {
			_, named := f.fails[c.Number]
			return named
		})
		if !named && !slices.Contains(elsewhere, c.Number) {
			t.Errorf("no fault shows that %s can fail", c.Number)
		}
	}
}

// ofTheme returns the checks of a theme.
func (s suite) ofTheme(theme string) (numbers []string) {
	for _, c := range s.checks {
		if c.Theme == theme {
			numbers = append(numbers, c.Number)
		}
	}
	return numbers
}

// report runs checks at a server with the fault f.
func (s suite) report(t *testing.T, f fault, only []string) conformance.Report {
	t.Helper()
	if f.hook == nil {
		report, err := s.run(t, s.start(t, f.front), only, "127.0.0.1:0", "")
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	start := s.start
	if s.alone != nil {
		start = s.alone
	}
	server := start(t, f.front)
	for {
		address := freeAddress(t)
		report, err := s.run(t, server, only, address, f.startHook(t, address))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue // another test has taken the free address meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
}

// startHook runs the hook of f in front of an address until the test ends.
func (f fault) startHook(t *testing.T, address string) (reached string) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: address}) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { // the run is over, or the server gave up
			w.WriteHeader(http.StatusBadGateway)
		}}
	server := httptest.NewServer(f.hook(proxy))
	t.Cleanup(server.Close)
	return server.URL
}

// recorded returns the answer of a handler.
func recorded(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func send(w http.ResponseWriter, from *httptest.ResponseRecorder, body []byte) {
	for name, values := range from.Header() {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(from.Code)
	_, _ = w.Write(body) // the client may be gone
}

// readBody returns the body of a request. The body can be read again afterwards.
func readBody(r *http.Request) []byte {
	body, _ := io.ReadAll(r.Body) // an incomplete body is passed on as it is
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// setBody replaces the body of a request.
func setBody(r *http.Request, body []byte) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Del("Content-Length")
}

// decode returns a JSON object, or nil if the text is none. Its numbers keep their spelling.
func decode(text []byte) object {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v object
	if decoder.Decode(&v) != nil {
		return nil
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil
	}
	return v
}

func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return body
}

// wholeNumber returns a value that is a whole number of JSON.
func wholeNumber(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	whole, err := n.Int64()
	return whole, err == nil
}

// editsRequests is a middleware that changes requests. body is nil if the body is not a JSON object.
func editsRequests(edit func(r *http.Request, body object)) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text := readBody(r)
			body := decode(text)
			before := encode(body)
			edit(r, body)
			if after := encode(body); !bytes.Equal(before, after) {
				setBody(r, after)
			}
			h.ServeHTTP(w, r)
		})
	}
}

// exchange is a request and its answer, which a middleware may change. Its header is the recorder's header.
type exchange struct {
	*httptest.ResponseRecorder
	raw  []byte // the body of the request
	sent object // the same; nil: it is not a JSON object
	body object // the body of the answer; nil: it is not a JSON object
	text []byte // replaces the body, if it is not nil
}

// setAnswer replaces the answer.
func setAnswer(a *exchange, status int, text []byte) { a.Code, a.text = status, text }

// editsAnswers is a middleware that changes answers, except for the streams of a hub.
func editsAnswers(edit func(r *http.Request, a *exchange)) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isInbox(r) {
				h.ServeHTTP(w, r)
				return
			}
			a := &exchange{raw: readBody(r)}
			a.sent = decode(a.raw)
			a.ResponseRecorder = recorded(h, r)
			a.body = decode(a.Body.Bytes())
			before := encode(a.body)
			edit(r, a)
			switch after := encode(a.body); {
			case a.text != nil:
				send(w, a.ResponseRecorder, a.text)
			case bytes.Equal(before, after):
				send(w, a.ResponseRecorder, a.Body.Bytes())
			default:
				send(w, a.ResponseRecorder, after)
			}
		})
	}
}

// editedAnswer changes an answer: the frames of a stream one by one, and another body as a whole.
type editedAnswer struct {
	http.ResponseWriter
	frame  func(string) string
	body   func(string) string // nil: it stays as it is
	status int
	mu     sync.Mutex // held while it writes
	rest   string
}

func (e *editedAnswer) WriteHeader(status int) { e.status = status }

// Unwrap lets http.ResponseController set deadlines.
func (e *editedAnswer) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *editedAnswer) stream() bool {
	return strings.HasPrefix(e.Header().Get("Content-Type"), "text/event-stream")
}

func (e *editedAnswer) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.rest += string(p); e.stream(); {
		frame, rest, ok := strings.Cut(e.rest, "\n\n")
		if !ok {
			break
		}
		e.rest = rest
		if _, err := io.WriteString(e.ResponseWriter, e.frame(frame+"\n\n")); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush sends what a stream has.
func (e *editedAnswer) Flush() {
	if e.stream() {
		_ = http.NewResponseController(e.ResponseWriter).Flush() // the client may have left
	}
}

// add writes its own frame.
func (e *editedAnswer) add(frame string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = io.WriteString(e.ResponseWriter, frame) // the client may be gone
	e.Flush()
}

// end sends what is left when the handler has returned.
func (e *editedAnswer) end() {
	text := e.rest
	if !e.stream() {
		if e.body != nil {
			text = e.body(text)
			e.Header().Del("Content-Length")
		}
		if e.status != 0 {
			e.ResponseWriter.WriteHeader(e.status)
		}
	}
	_, _ = io.WriteString(e.ResponseWriter, text) // the client may have left
}

// internally sends a request to the server itself, like a middleware that does more than it should.
func internally(h http.Handler, from *http.Request, method, path, key string, body any) *exchange {
	var text []byte
	if body != nil {
		text = encode(body)
	}
	r := httptest.NewRequest(method, "http://"+from.Host+path, bytes.NewReader(text))
	r.RemoteAddr = from.RemoteAddr
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	a := &exchange{ResponseRecorder: recorded(h, r.WithContext(from.Context()))}
	a.body = decode(a.Body.Bytes())
	return a
}

// keyOf returns the key of a request.
func keyOf(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// accepts is a middleware that answers 200 instead of a refusal.
func accepts(when func(r *http.Request, a *exchange) bool) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		if a.Code >= 400 && when(r, a) {
			setAnswer(a, http.StatusOK, []byte(`{"ok":true}`))
		}
	})
}

// acceptsAt does the same as accepts, for a status, for a method unless it is empty, and for a part of the path.
func acceptsAt(status int, method, part string) middleware {
	return accepts(func(r *http.Request, a *exchange) bool { return a.Code == status && isFor(r, method, part) })
}

// acceptsWith does the same as accepts, for a status and a body that has this member.
func acceptsWith(status int, member string) middleware {
	return accepts(func(_ *http.Request, a *exchange) bool {
		_, has := a.sent[member]
		return has && a.Code == status
	})
}

// isFor reports whether a request has this method, unless it is empty, and a path with this part.
func isFor(r *http.Request, method, part string) bool {
	return (method == "" || r.Method == method) && strings.Contains(r.URL.Path, part)
}

// swallows is a middleware that answers requests as if they had arrived.
func swallows(when func(r *http.Request, body object) bool) middleware {
	return refuses(http.StatusOK, []byte(`{"status":"ok"}`), when)
}

// refuses is a middleware that does not pass on some requests, but answers them with this status and text.
func refuses(status int, text []byte, when func(r *http.Request, body object) bool) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !when(r, decode(readBody(r))) {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write(text) // the client may be gone
		})
	}
}

// replaces is a middleware that replaces a text in answers to requests with this part in their path.
func replaces(part, from, to string) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		if strings.Contains(r.URL.Path, part) {
			a.text = bytes.ReplaceAll(a.Body.Bytes(), []byte(from), []byte(to))
		}
	})
}

// statuses is a middleware that changes the status of answers.
func statuses(change func(status int) int) middleware {
	return editsAnswers(func(_ *http.Request, a *exchange) { a.Code = change(a.Code) })
}

// otherStatus is a middleware that answers with another status.
func otherStatus(from, to int) middleware {
	return statuses(func(status int) int {
		if status == from {
			return to
		}
		return status
	})
}

// changesHeader is a middleware that changes the header of requests.
func changesHeader(change func(r *http.Request)) middleware {
	return editsRequests(func(r *http.Request, _ object) { change(r) })
}

// dropsHeader is a middleware that removes a header from requests.
func dropsHeader(name string) middleware {
	return changesHeader(func(r *http.Request) { r.Header.Del(name) })
}

// comparesSchemes is a middleware that takes no other spelling of Bearer.
func comparesSchemes() middleware {
	return changesHeader(func(r *http.Request) {
		scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if strings.EqualFold(scheme, "Bearer") && scheme != "Bearer" {
			r.Header.Del("Authorization")
		}
	})
}

// takesAnyScheme is a middleware that takes the last word of Authorization as the key.
func takesAnyScheme() middleware {
	return changesHeader(func(r *http.Request) {
		if text := r.Header.Get("Authorization"); text != "" {
			r.Header.Set("Authorization", "Bearer "+text[strings.LastIndexByte(text, ' ')+1:])
		}
	})
}

// hidesHeader is a middleware that removes a header from answers. It also works for streams.
func hidesHeader(name string) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(&headerHider{ResponseWriter: w, name: name}, r)
		})
	}
}

type headerHider struct {
	http.ResponseWriter
	name string
}

func (w *headerHider) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *headerHider) WriteHeader(status int) {
	w.Header().Del(w.name)
	w.ResponseWriter.WriteHeader(status)
}

func (w *headerHider) Write(text []byte) (int, error) {
	w.Header().Del(w.name) // no effect if the header is written
	return w.ResponseWriter.Write(text)
}

// requiresContentType is a middleware that refuses bodies that do not say that they are JSON.
func requiresContentType(text []byte) middleware {
	return refuses(http.StatusUnsupportedMediaType, text, func(r *http.Request, _ object) bool {
		return r.Method == http.MethodPost && r.Header.Get("Content-Type") != "application/json"
	})
}

// takesLevels32 is a middleware that refuses bodies with more than 32 levels.
func takesLevels32(status int, text []byte) middleware {
	return refuses(status, text, func(r *http.Request, _ object) bool {
		return strings.Contains(string(readBody(r)), strings.Repeat("[", 32))
	})
}

// refusesMembers is a middleware that refuses bodies with the unknown member x.
func refusesMembers(status int, text []byte) middleware {
	return refuses(status, text, func(_ *http.Request, body object) bool { return body["x"] != nil })
}

// withQuery is a middleware that changes the parameters of GET requests to paths with this end.
func withQuery(end string, change func(q url.Values)) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, end) {
				q := r.URL.Query()
				change(q)
				r.URL.RawQuery = q.Encode()
			}
			h.ServeHTTP(w, r)
		})
	}
}

// ignoresParameter is a middleware that ignores a parameter of GET requests to paths with this end.
func ignoresParameter(end, name string) middleware {
	return withQuery(end, func(q url.Values) { q.Del(name) })
}

// keepsDuplicates parses bodies as many libraries do: the last of several members with one name counts.
func keepsDuplicates(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, body := readBody(r), object{}
		if len(text) <= 65_536 && json.Unmarshal(text, &body) == nil {
			setBody(r, encode(body))
		}
		h.ServeHTTP(w, r)
	})
}

// readsFirstValue reads one JSON value of a body and ignores the rest.
func readsFirstValue(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := readBody(r)
		var value json.RawMessage
		if len(text) <= 65_536 && json.NewDecoder(bytes.NewReader(text)).Decode(&value) == nil {
			setBody(r, value)
		}
		h.ServeHTTP(w, r)
	})
}

// sends reports whether the body of a request contains a text. It is a condition of accepts.
func sends(texts ...string) func(*http.Request, *exchange) bool {
	return func(_ *http.Request, a *exchange) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(string(a.raw), text) })
	}
}

// astral is a character of two code units and four bytes. The kits fill texts with it.
const astral = "\U0001F600"

// redirects is a middleware that redirects paths with double slashes.
func redirects(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "//") {
			http.Redirect(w, r, strings.ReplaceAll(r.URL.Path, "//", "/"), http.StatusMovedPermanently)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// before is a middleware that does something before a request.
func before(when func(r *http.Request) bool, do func(h http.Handler, r *http.Request)) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if when(r) {
				do(h, r)
			}
			h.ServeHTTP(w, r)
		})
	}
}

// forwards is a hook with one fault. forward passes on the request and returns the answer.
func forwards(serve func(w http.ResponseWriter, r *http.Request, forward func() *http.Response)) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := readBody(r)
			serve(w, r, func() *http.Response {
				again := r.Clone(r.Context())
				setBody(again, body)
				return recorded(h, again).Result()
			})
		})
	}
}

// passOn writes an answer.
func passOn(w http.ResponseWriter, answer *http.Response) {
	defer func() { _ = answer.Body.Close() }() // it was only read
	maps.Copy(w.Header(), answer.Header)
	w.Header().Del("Content-Length")
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body) // the server may be gone
}

// repeatsFirst is a middleware that answers a POST with an Idempotency-Key as the first one with the same name, if it
// has kept that answer.
func repeatsFirst(name func(r *http.Request, a *exchange) string, keep func(status int) bool) middleware {
	var mu sync.Mutex
	answers := map[string]*exchange{}
	return editsAnswers(func(r *http.Request, a *exchange) {
		if r.Method != http.MethodPost || r.Header.Get("Idempotency-Key") == "" || a.Code == http.StatusUnauthorized {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if first := answers[name(r, a)]; first != nil {
			a.Header().Set("Idempotent-Replay", "true")
			setAnswer(a, first.Code, first.Body.Bytes())
		} else if keep(a.Code) {
			answers[name(r, a)] = a
		}
	})
}

// takesAnyHost hides from a server that a request has another Host. Only a proxy may send
// that to a local server.
func takesAnyHost(h http.Handler) http.Handler {
	return changesHeader(func(r *http.Request) { r.Host = fmt.Sprint(r.Context().Value(http.LocalAddrContextKey)) })(h)
}

// repeatsHost uses the Host header of the request as its own address.
func repeatsHost(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, own := r.Host, r.Context().Value(http.LocalAddrContextKey)
		r.Host = fmt.Sprint(own)
		editsAnswers(func(_ *http.Request, a *exchange) {
			a.text = bytes.ReplaceAll(a.Body.Bytes(), []byte(fmt.Sprint(own)), []byte(host))
		})(h).ServeHTTP(w, r)
	})
}

// limitsRate is a middleware that refuses every tenth request with this text, because it limits their rate. It counts
// the requests.
func limitsRate(text []byte, requests *atomic.Int64) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1)%10 != 0 {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write(text) // the client may be gone
		})
	}
}
