package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
)

// runningHub is this project's hub.
type runningHub struct {
	url      string
	operator string // the operator's key
}

// hubTurns limits how many tests run at the same time that keep a hub busy. Otherwise answers come too late on a slow
// machine.
var hubTurns = make(chan struct{}, 3)

// takeTurn waits until the test may keep a hub busy.
func takeTurn(t *testing.T) {
	hubTurns <- struct{}{}
	t.Cleanup(func() { <-hubTurns })
}

// startHub runs this project's hub until the test ends. middleware wraps the HTTP handler of its relay. It may be nil.
func startHub(t *testing.T, middleware func(http.Handler) http.Handler) runningHub {
	t.Helper()
	url, operator := startGateway(t, middleware, hub.Extension,
		func(core *gateway.Core) (mounts []httpapi.Mount, run func(context.Context), err error) {
			served, err := hub.New(t.Context(), core, hub.Options{})
			if err != nil {
				return nil, nil, err
			}
			return []httpapi.Mount{served.Mount("/hub"), served.Document()}, served.Run, nil
		})
	return runningHub{url + "/hub", operator}
}

// startGateway runs a relay of this project with a gateway until the test ends. The gateway may call this machine.
// create returns its mounts and the function that does its work in the background. startGateway returns the URL of the
// relay and the operator's key.
func startGateway(t *testing.T, middleware func(http.Handler) http.Handler, tables relay.Extension,
	create func(*gateway.Core) ([]httpapi.Mount, func(context.Context), error),
) (url, operator string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"),
		sqlite.Options{Reserve: 1 << 20, Extensions: []relay.Extension{gateway.Extension, tables}})
	must(err)
	key, err := didkey.Generate()
	must(err)
	server := httptest.NewUnstartedServer(nil)
	// The time that the store works for a client counts as posts. On a busy machine, that could be seconds.
	r, err := relay.New(t.Context(), relay.Config{Store: db, Key: key, Log: quiet,
		Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}},
		Origin: "http://" + server.Listener.Addr().String()})
	must(err)
	loopback, err := gateway.ParseException("127.0.0.1")
	must(err)
	operator = gateway.NewKey(gateway.Operator)
	core, err := gateway.NewCore(t.Context(), gateway.CoreOptions{Relay: r, Key: key, Operator: operator, Build: "test",
		Log: quiet, Outgoing: gateway.OutgoingOptions{Destinations: gateway.Destinations{
			Exceptions: []gateway.Exception{loopback}}}})
	must(err)
	mounts, run, err := create(core)
	must(err)
	server.Config.Handler = httpapi.New(r, httpapi.Options{Log: quiet, Redact: gateway.Redact, Mounts: mounts,
		Gateways: map[string]any{"did": key.DID(), tables.Name: map[string]string{
			"url": "http://" + server.Listener.Addr().String() + "/" + tables.Name}}}).Handler(true)
	if middleware != nil {
		server.Config.Handler = middleware(server.Config.Handler)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	var work sync.WaitGroup
	work.Go(func() { core.Run(ctx) })
	work.Go(func() { run(ctx) })
	server.Start()
	t.Cleanup(func() {
		r.Drain()
		server.Close()
		stop()
		work.Wait()
		if err := errors.Join(<-ended, db.Close()); err != nil {
			t.Error(err)
		}
	})
	return server.URL, operator
}

// hubPath returns the path of a request relative to the hub. It is empty if the request is for something else.
func hubPath(r *http.Request) string {
	path, ok := strings.CutPrefix(r.URL.Path, "/hub")
	if !ok {
		return ""
	}
	return path
}

func isInbox(r *http.Request) bool { return hubPath(r) == "/agent/inbox" }

func isTo(r *http.Request, method, path string) bool { return r.Method == method && hubPath(r) == path }

func isSend(r *http.Request) bool { return isTo(r, http.MethodPost, "/messages") }

func isHistory(r *http.Request) bool { return isTo(r, http.MethodGet, "/agent/messages") }

// setBody replaces the body of a request.
func setBody(r *http.Request, body []byte) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
}

// editsRequests is a middleware that changes requests. body is nil if the body is not a JSON object.
func editsRequests(edit func(r *http.Request, body map[string]any)) func(http.Handler) http.Handler {
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

// hubAnswer is an answer of the hub that a middleware may change. Its header is that of the recorder.
type hubAnswer struct {
	*httptest.ResponseRecorder
	raw  []byte         // the body of the request
	sent map[string]any // the same; nil: it is not a JSON object
	body map[string]any // the body of the answer; nil: it is not a JSON object
	text []byte         // replaces the body, if it is not nil
}

func (a hubAnswer) data() map[string]any {
	data, _ := a.body["data"].(map[string]any)
	return data
}

func (a hubAnswer) list() []any {
	list, _ := a.body["data"].([]any)
	return list
}

// code returns the error code.
func (a hubAnswer) code() any {
	e, _ := a.body["error"].(map[string]any)
	return e["code"]
}

// editsHubAnswers is a middleware that changes answers, except for streams.
func editsHubAnswers(edit func(r *http.Request, a *hubAnswer)) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isInbox(r) {
				h.ServeHTTP(w, r)
				return
			}
			a := &hubAnswer{raw: readBody(r)}
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

// editsFrames is a middleware that changes the frames of streams. start is called for each stream. It returns a
// function that returns what to send instead of a frame.
func editsFrames(start func(r *http.Request) func(frame string) string) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isInbox(r) {
				w = &frameWriter{ResponseWriter: w, edit: start(r)}
			}
			h.ServeHTTP(w, r)
		})
	}
}

// frameWriter changes the frames that are written to it.
type frameWriter struct {
	http.ResponseWriter
	edit  func(frame string) string
	mu    sync.Mutex // held while it writes
	plain bool       // it is no stream
	rest  string
}

// add writes its own frame.
func (w *frameWriter) add(frame string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = io.WriteString(w.ResponseWriter, frame) // the client may be gone
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController flush the connection and set deadlines.
func (w *frameWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *frameWriter) WriteHeader(status int) {
	w.plain = status != http.StatusOK
	w.ResponseWriter.WriteHeader(status)
}

func (w *frameWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.plain {
		return w.ResponseWriter.Write(text)
	}
	w.rest += string(text)
	for {
		frame, rest, ok := strings.Cut(w.rest, "\n\n")
		if !ok {
			return len(text), nil
		}
		w.rest = rest
		if _, err := io.WriteString(w.ResponseWriter, w.edit(frame+"\n\n")); err != nil {
			return 0, err
		}
	}
}

// internally sends a request to the hub itself, as a middleware does that does more than it should.
func internally(h http.Handler, from *http.Request, method, path, key string, body any) *hubAnswer {
	var text []byte
	if body != nil {
		text = encode(body)
	}
	r := httptest.NewRequest(method, "http://"+from.Host+"/hub"+path, bytes.NewReader(text))
	r.RemoteAddr = from.RemoteAddr
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	a := &hubAnswer{ResponseRecorder: recorded(h, r.WithContext(from.Context()))}
	a.body = decode(a.Body.Bytes())
	return a
}

// keyOf returns the key of a request.
func keyOf(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// keyring knows the keys of the agents, because it has seen the answers to their registrations.
type keyring struct {
	mu     sync.Mutex
	keys   map[string]string // the newest key, by agent
	agents map[string]string // the agent, by each of its keys
}

func (k *keyring) of(id any) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	name, _ := id.(string)
	return k.keys[name]
}

// newest returns the newest key of the agent that has or had a key.
func (k *keyring) newest(key string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[k.agents[key]]
}

// all returns the newest keys of all agents.
func (k *keyring) all() (list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.keys {
		list = append(list, key)
	}
	return list
}

// withKeys is a middleware that knows the keys of the agents.
func withKeys(middleware func(h http.Handler, keys *keyring) http.Handler) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		k := &keyring{keys: map[string]string{}, agents: map[string]string{}}
		return middleware(editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if key, ok := a.data()["api_key"].(string); ok {
				k.mu.Lock()
				id := a.data()["agent_id"].(string)
				k.keys[id], k.agents[key] = key, id
				k.mu.Unlock()
			}
		})(h), k)
	}
}
