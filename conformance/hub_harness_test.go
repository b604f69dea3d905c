package conformance_test

import (
	"context"
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
	"github.com/agora-relay/agora/store/storetest/engine"
)

// runningHub is this project's hub.
type runningHub struct {
	url      string
	operator string // the operator's key
}

// operatorKey is the key of the operator of all gateways here. So middlewares can do what only the operator may.
var operatorKey = gateway.NewKey(gateway.Operator)

// hubTurns limits how many tests run at the same time that keep a hub busy. Otherwise answers come too late on a slow
// machine.
var hubTurns = make(chan struct{}, 3)

// takeTurn waits until the test may keep a hub busy.
func takeTurn(t *testing.T) {
	hubTurns <- struct{}{}
	t.Cleanup(func() { <-hubTurns })
}

// startHub runs this project's hub until the test ends. middleware wraps the HTTP handler of its relay. It may be nil.
func startHub(t *testing.T, middleware middleware) runningHub {
	t.Helper()
	url := startGateway(t, middleware, hub.Extension,
		func(core *gateway.Core) (mounts []httpapi.Mount, run func(context.Context), err error) {
			served, err := hub.New(t.Context(), core, hub.Options{})
			if err != nil {
				return nil, nil, err
			}
			return []httpapi.Mount{served.Mount("/hub"), served.Document()}, served.Run, nil
		})
	return runningHub{url + "/hub", operatorKey}
}

// startGateway runs a relay of this project with a gateway until the test ends. The gateway may call this machine.
// create returns its mounts and the function that does its work in the background. startGateway returns the URL of the
// relay. The key of the operator is operatorKey.
func startGateway(t *testing.T, front middleware, tables relay.Extension,
	create func(*gateway.Core) ([]httpapi.Mount, func(context.Context), error),
) (url string) {
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
	core, err := gateway.NewCore(t.Context(), gateway.CoreOptions{Relay: r, Key: key, Operator: operatorKey, Build: "test",
		Log: quiet, Outgoing: gateway.OutgoingOptions{Destinations: gateway.Destinations{
			Exceptions: []gateway.Exception{loopback}}}})
	must(err)
	mounts, run, err := create(core)
	must(err)
	server.Config.Handler = httpapi.New(r, httpapi.Options{Log: quiet, Redact: gateway.Redact, Mounts: mounts,
		Gateways: object{"did": key.DID(), tables.Name: map[string]string{
			"url": "http://" + server.Listener.Addr().String() + "/" + tables.Name}}}).Handler(true)
	if front != nil {
		server.Config.Handler = front(server.Config.Handler)
	}
	stop := engine.Run(t, r, db, core.Run, run)
	server.Start()
	t.Cleanup(func() {
		r.Drain()
		server.Close()
		stop()
	})
	return server.URL
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

func (a exchange) data() object {
	data, _ := a.body["data"].(object)
	return data
}

func (a exchange) list() []any {
	list, _ := a.body["data"].([]any)
	return list
}

// code returns the error code.
func (a exchange) code() any {
	e, _ := a.body["error"].(object)
	return e["code"]
}

// editsFrames is a middleware that changes the frames of streams. start is called for each stream. It returns a
// function that returns what to send instead of a frame.
func editsFrames(start func(r *http.Request) func(frame string) string) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isInbox(r) {
				h.ServeHTTP(w, r)
				return
			}
			edited := &editedAnswer{ResponseWriter: w, frame: start(r)}
			h.ServeHTTP(edited, r)
			edited.end()
		})
	}
}

// atHub does the same as internally, for a path of the hub.
func atHub(h http.Handler, from *http.Request, method, path, key string, body any) *exchange {
	return internally(h, from, method, "/hub"+path, key, body)
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
func withKeys(middleware func(h http.Handler, keys *keyring) http.Handler) middleware {
	return func(h http.Handler) http.Handler {
		k := &keyring{keys: map[string]string{}, agents: map[string]string{}}
		return middleware(editsAnswers(func(r *http.Request, a *exchange) {
			if key, ok := a.data()["api_key"].(string); ok {
				k.mu.Lock()
				id := a.data()["agent_id"].(string)
				k.keys[id], k.agents[key] = key, id
				k.mu.Unlock()
			}
		})(h), k)
	}
}
