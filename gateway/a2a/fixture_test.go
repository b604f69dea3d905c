package a2a_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

type (
	call   gatetest.Call // a type of this package, so that its literals need no names of fields
	answer = gatetest.Answer
	object = map[string]any
)

// fixture is a relay with an A2A gateway.
type fixture struct {
	*gatetest.Site
	t       testing.TB
	gateway *a2a.Gateway
	options a2a.Options
}

// start returns a running fixture. configure may change it before.
func start(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{Site: &gatetest.Site{Extensions: []relay.Extension{a2a.Extension}}, t: t,
		options: a2a.Options{Endpoints: 100, Retention: 7 * 24 * time.Hour, Wait: time.Minute}}
	f.Open = func(c *gateway.Core) (gatetest.Served, error) {
		g, err := a2a.New(t.Context(), c, f.options)
		if err != nil {
			return gatetest.Served{}, err
		}
		f.gateway = g
		return gatetest.Served{Prefix: "/a2a", API: a2a.API, Mounts: g.Mounts, Run: g.Run, Slash: true}, nil
	}
	for _, c := range configure {
		c(f)
	}
	f.Start(t)
	return f
}

// inBubble runs a test in a bubble of testing/synctest. There, time is fake, and connections are in memory.
func inBubble(t *testing.T, test func(t *testing.T, f *fixture), configure ...func(*fixture)) {
	t.Helper()
	racing.Skip(t, "one call after another")
	racesInBubble(t, test, configure...)
}

// racesInBubble is the same as inBubble for tests in which calls race.
func racesInBubble(t *testing.T, test func(t *testing.T, f *fixture), configure ...func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, start(t, append(configure, func(f *fixture) { f.Bubble = true })...))
	})
}

// pass sets the relay's clock forward, and waits until the relay has noticed it.
func (f *fixture) pass(d time.Duration) {
	f.Ahead.Add(int64(d))
	time.Sleep(2 * time.Minute)
	synctest.Wait()
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// do sends a request to the gateway.
func (f *fixture) do(c call) answer {
	f.t.Helper()
	a, err := gatetest.Do(f.t.Context(), f.Client, f.URL+"/a2a", gatetest.Call(c))
	f.must(err)
	return a
}

// token returns the token of a signed request.
func (f *fixture) token(k didkey.Key, method, path, body string) string {
	f.t.Helper()
	token, err := envelope.Call{Body: sha256.Sum256([]byte(body)), Read: envelope.Read{Audience: gatetest.PublicURL,
		Method: method, Target: "/a2a" + path, TS: f.Now()}}.Sign(k)
	f.must(err)
	return "Agora " + token
}

// signed sends a signed request to the gateway.
func (f *fixture) signed(k didkey.Key, method, path string, body any) answer {
	f.t.Helper()
	text := ""
	switch b := body.(type) {
	case nil:
	case string:
		text = b
	default:
		encoded, err := json.Marshal(b)
		f.must(err)
		text = string(encoded)
	}
	c := call{method, path, "", text, map[string]string{"Authorization": f.token(k, method, path, text),
		"Content-Type": "application/json"}}
	if body == nil {
		c.Body = nil
	}
	return f.do(c)
}

// member returns a member of JSON; numbers are indexes of lists.
func member(text []byte, path ...any) any {
	var value any
	_ = json.Unmarshal(text, &value) // then the value is nil
	for _, step := range path {
		switch step := step.(type) {
		case string:
			o, _ := value.(object)
			value = o[step]
		case int:
			list, _ := value.([]any)
			if value = nil; step < len(list) {
				value = list[step]
			}
		}
	}
	return value
}

func text(body []byte, path ...any) string {
	value, _ := member(body, path...).(string)
	return value
}

// want checks a status, and the code of an error in the relay's form.
func (f *fixture) want(a answer, status int, code string) answer {
	f.t.Helper()
	if a.Status != status || text(a.Body, "error") != code {
		f.t.Fatalf("the answer is %v, want %d %s", a, status, code)
	}
	return a
}

func newKey(t testing.TB) didkey.Key {
	t.Helper()
	k, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// agent is an agent with an endpoint. Nobody can reach it: it has no listening socket.
type agent struct {
	f    *fixture
	key  didkey.Key
	at   wire.Endpoint
	path string // of the endpoint, below /a2a

	mu    sync.Mutex
	turns []wire.Turn // that it has worked on
}

// card returns the signed card of an agent. change may change it before.
func (f *fixture) card(k didkey.Key, access wire.Access, change func(*wire.Card)) string {
	f.t.Helper()
	at := wire.NewEndpoint(gatetest.PublicURL+"/a2a", k.DID())
	c := at.FromManifest(envelope.Manifest{Name: "echo", Version: "1", Intents: []envelope.Intent{{ID: "demo.echo"}}}, access)
	if change != nil {
		change(&c)
	}
	text, err := at.Sign(c, access, k)
	f.must(err)
	return string(text)
}

// agent publishes an endpoint with this access, in the mode message.
func (f *fixture) agent(access wire.Access) *agent {
	f.t.Helper()
	return f.agentWith(newKey(f.t), access, wire.ModeMessage, nil)
}

// agentWith publishes an endpoint.
func (f *fixture) agentWith(k didkey.Key, access wire.Access, mode wire.Mode, change func(*wire.Card)) *agent {
	f.t.Helper()
	a := &agent{f: f, key: k, at: wire.NewEndpoint(gatetest.PublicURL+"/a2a", k.DID()), path: "/" + k.DID().Multibase()}
	f.want(a.publish(f.card(k, access, change), access, mode), 200, "")
	return a
}

// publish publishes a card.
func (a *agent) publish(card string, access wire.Access, mode wire.Mode) answer {
	a.f.t.Helper()
	body := fmt.Sprintf(`{"card":%s,"access":%q,"mode":%q,"listed":true,"intent":"demo.echo"}`, card, access, mode)
	return a.f.signed(a.key, "PUT", a.path+"/endpoint", body)
}

// newKey returns a new key of a caller.
func (a *agent) newKey(name string) string {
	a.f.t.Helper()
	return text(a.f.want(a.f.signed(a.key, "POST", a.path+"/keys", object{"name": name}), 201, "").Body, "key")
}

// work answers a turn.
type work func(ctx context.Context, t wire.Turn) (envelope.Result, error)

// serve runs the agent, as a plain client.Serve, until stop is called or the test ends.
func (a *agent) serve(do work) (stop func()) {
	return a.serveWith([]string{wire.MessageIntent}, client.Handler{Work: func(ctx context.Context, j client.Job) (envelope.Result, error) {
		turn, err := wire.ParseTurn(j.Request.Params)
		if err != nil {
			return envelope.Result{}, err
		}
		a.mu.Lock()
		a.turns = append(a.turns, turn)
		a.mu.Unlock()
		return do(ctx, turn)
	}})
}

// serveWith runs the agent with these intents.
func (a *agent) serveWith(intents []string, h client.Handler) (stop func()) {
	a.f.t.Helper()
	c, err := client.New(gatetest.PublicURL, a.key, client.Options{HTTPClient: &http.Client{Transport: toSite{a.f}}, Now: a.f.Now,
		Logger: slog.New(slog.DiscardHandler)})
	a.f.must(err)
	return a.run(func(ctx context.Context) error { return c.Serve(ctx, client.ServeOptions{Intents: intents}, h) })
}

// run runs serve until stop is called or the test ends.
func (a *agent) run(serve func(context.Context) error) (stop func()) {
	a.f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			a.f.t.Errorf("Serve ends with %v", err)
		}
	})
	a.f.t.Cleanup(stop)
	return stop
}

// toSite sends requests to the public URL of the relay to the site.
type toSite struct{ f *fixture }

// RoundTrip implements http.RoundTripper.
func (s toSite) RoundTrip(r *http.Request) (*http.Response, error) {
	to := *r
	to.URL, to.Host = &url.URL{}, ""
	*to.URL = *r.URL
	to.URL.Scheme, to.URL.Host = "http", s.f.Host()
	return s.f.Client.Transport.RoundTrip(&to)
}

// worked returns the turns that the agent has worked on.
func (a *agent) worked() []wire.Turn {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]wire.Turn(nil), a.turns...)
}

// result returns a RESULT.
func result(status, output string) (envelope.Result, error) {
	return envelope.Result{Status: status, Output: []byte(output)}, nil
}

// echo answers with the first text.
func echo(_ context.Context, t wire.Turn) (envelope.Result, error) {
	output, err := json.Marshal("echo: " + *t.Message.Parts[0].Text)
	return envelope.Result{Output: output}, err
}

// caller calls an endpoint. Its key may be empty.
type caller struct {
	*agent
	key string
	did *didkey.Key // signs the calls
}

// post sends a request to a path of the endpoint.
func (c caller) post(path string, body any, header ...string) answer {
	c.f.t.Helper()
	return c.send("POST", path, body, header...)
}

func (c caller) send(method, path string, body any, header ...string) answer {
	c.f.t.Helper()
	h := map[string]string{"Content-Type": "application/json"}
	for i := 0; i+1 < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	if c.did != nil {
		return c.f.signed(*c.did, method, c.path+path, body)
	}
	return c.f.do(call{method, c.path + path, c.key, body, h})
}

// rpc calls a method of JSON-RPC and returns the answer without its envelope.
func (c caller) rpc(method string, params any, header ...string) rpcAnswer {
	c.f.t.Helper()
	a := c.post("/rpc", object{"jsonrpc": "2.0", "id": "q", "method": method, "params": params}, header...)
	if a.Status != 200 || text(a.Body, "jsonrpc") != "2.0" || member(a.Body, "id") != "q" {
		c.f.t.Fatalf("%s: the answer is %v", method, a)
	}
	var parsed rpcAnswer
	if err := json.Unmarshal(a.Body, &parsed); err != nil {
		c.f.t.Fatal(err)
	}
	parsed.header = a.Header
	return parsed
}

// rpcAnswer is an answer of JSON-RPC.
type rpcAnswer struct {
	Result json.RawMessage
	Error  struct {
		Code    int
		Message string
		Data    []json.RawMessage
	}
	header map[string][]string
}

// ok returns the result, and fails the test if there is none.
func (c caller) ok(a rpcAnswer) []byte {
	c.f.t.Helper()
	if a.Error.Code != 0 {
		c.f.t.Fatalf("the answer is the error %+v", a.Error)
	}
	return a.Result
}

// refused checks the code of an error.
func (c caller) refused(a rpcAnswer, code wire.Code) {
	c.f.t.Helper()
	if a.Error.Code != int(code) {
		c.f.t.Errorf("the answer is %s, error %+v; want %d", a.Result, a.Error, code)
	}
}

// message returns a message with one text. more are further members, in pairs.
func message(content string, more ...any) object {
	m := object{"messageId": "m-" + content, "role": "ROLE_USER", "parts": []object{{"text": content}}}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

// say sends a message and returns the task.
func (c caller) say(content string, more ...any) []byte {
	c.f.t.Helper()
	return []byte(raw(c.ok(c.rpc("SendMessage", object{"message": message(content, more...)})), "task"))
}

// sayAtOnce sends a message and returns the task, without waiting for the agent.
func (c caller) sayAtOnce(content string, more ...any) []byte {
	c.f.t.Helper()
	return []byte(raw(c.ok(c.rpc("SendMessage", object{"message": message(content, more...),
		"configuration": object{"returnImmediately": true}})), "task"))
}

// raw returns the JSON of a member.
func raw(body []byte, name string) string {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(body, &members)
	return string(members[name])
}

// task reads a task.
func (c caller) task(id string) []byte {
	c.f.t.Helper()
	return c.ok(c.rpc("GetTask", object{"id": id}))
}

// wantState checks the state of a task, and the texts of its artifacts and of its status message.
func (c caller) wantState(task []byte, state wire.State, texts ...string) {
	c.f.t.Helper()
	var parsed wire.Task
	parsed, err := wire.ParseTask("task", canonical(c.f.t, task))
	if err != nil {
		c.f.t.Fatalf("%s is not a task: %v", task, err)
	}
	var got []string
	for _, a := range parsed.Artifacts {
		got = append(got, partsText(a.Parts))
	}
	if parsed.Status.Message != nil {
		got = append(got, partsText(parsed.Status.Message.Parts))
	}
	if parsed.Status.State != state || strings.Join(got, "|") != strings.Join(texts, "|") {
		c.f.t.Errorf("the task is %s with %q, want %s with %q", parsed.Status.State, got, state, texts)
	}
}

// partsText returns the contents of parts.
func partsText(parts []wire.Part) string {
	var all []string
	for _, p := range parts {
		switch {
		case p.Text != nil:
			all = append(all, *p.Text)
		case len(p.Data) > 0:
			all = append(all, string(p.Data))
		default:
			all = append(all, p.URL+p.Raw)
		}
	}
	return strings.Join(all, "+")
}

func canonical(t testing.TB, text []byte) []byte {
	t.Helper()
	c, err := envelope.Canonicalize(bytes.Clone(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

// wantRows checks how many rows a table has.
func (f *fixture) wantRows(t testing.TB, table string, want int64) {
	t.Helper()
	var got int64
	f.must(f.Relay.View(t.Context(), relay.Peer{Local: true}, func(q relay.Querier) (err error) {
		got, err = gateway.Number(q, "SELECT COUNT(*) FROM "+table)
		return err
	}))
	if got != want {
		t.Errorf("%s has %d rows, want %d", table, got, want)
	}
}
