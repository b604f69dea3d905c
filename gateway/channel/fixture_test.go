package channel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

type (
	call   gatetest.Call // a type of this package, so that its literals need no names of fields
	answer = gatetest.Answer
	object = map[string]any
)

// fixture is a relay with a channel gateway.
type fixture struct {
	*gatetest.Site
	t       testing.TB
	gateway *channel.Gateway
	small   int64 // see SetLimits; 0: the limits are as always
}

// start returns a running fixture. configure may change it before.
func start(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{Site: &gatetest.Site{Extensions: []relay.Extension{channel.Extension}}, t: t}
	f.Open = func(c *gateway.Core) (gatetest.Served, error) {
		g, err := channel.New(t.Context(), c)
		if err != nil {
			return gatetest.Served{}, err
		}
		if f.gateway = g; f.small > 0 {
			g.SetLimits(f.small)
		}
		return gatetest.Served{Prefix: "/channel", API: channel.API, Mounts: g.Mounts, Run: g.Run}, nil
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

// pass sets the relay's clock forward, and waits until the relay has noticed it. To sleep for so long would take the
// test some seconds for each hour.
func (f *fixture) pass(d time.Duration) {
	f.Ahead.Add(int64(d))
	time.Sleep(2 * time.Minute)
	synctest.Wait()
}

// do sends a request to the gateway.
func (f *fixture) do(c call) answer {
	f.t.Helper()
	a, err := gatetest.Do(f.t.Context(), f.Client, f.URL+"/channel", gatetest.Call(c))
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// member returns a member of an answer.
func member(a answer, path ...string) any {
	var value any
	_ = json.Unmarshal(a.Body, &value) // then the value is nil
	for _, name := range path {
		o, _ := value.(object)
		value = o[name]
	}
	return value
}

func text(a answer, path ...string) string {
	value, _ := member(a, path...).(string)
	return value
}

// want checks a status and, for an error, its code and its form.
func (f *fixture) want(a answer, status int, code string) answer {
	f.t.Helper()
	if a.Status != status || text(a, "error") != code || member(a, "ok") != (code == "") {
		f.t.Fatalf("the answer is %v, want %d %s", a, status, code)
	}
	return a
}

// room is a channel with its key.
type room struct {
	f       *fixture
	id, key string
}

func (f *fixture) channel(name string) room {
	f.t.Helper()
	a := f.want(f.do(call{"POST", "/channels", f.Operator, object{"name": name, "context": "about " + name}, nil}), 201, "")
	return room{f, text(a, "channel", "id"), text(a, "key")}
}

// do sends a request about the channel, with the channel's key.
func (r room) do(method, path string, body any) answer {
	r.f.t.Helper()
	return r.f.do(call{method, "/channels/" + r.id + path, r.key, body, nil})
}

// member adds a member and returns its key.
func (r room) member(name string) string {
	r.f.t.Helper()
	return text(r.f.want(r.do("POST", "/members", object{"name": name}), 201, ""), "key")
}

// connect adds a connection. more are further members of the body.
func (r room) connect(name, url string, mcp ...string) {
	r.f.t.Helper()
	body := object{"name": name, "url": url}
	if len(mcp) > 0 {
		body["mcp"] = mcp[0]
	}
	r.f.want(r.do("POST", "/connections", body), 201, "")
}

// connection returns a connection as the channel's key sees it.
func (r room) connection(name string) object {
	r.f.t.Helper()
	all, _ := member(r.f.want(r.do("GET", "/connections", nil), 200, ""), "connections").([]any)
	for _, c := range all {
		if c := c.(object); c["name"] == name {
			return c
		}
	}
	r.f.t.Fatalf("there is no connection %s", name)
	return nil
}

// wantConnection checks the status and the counts of a connection.
func (r room) wantConnection(what, name, want string) {
	r.f.t.Helper()
	synctest.Wait()
	c := r.connection(name)
	if got := fmt.Sprintf("%v, %v queued, %v dead", c["status"], c["queued"], c["dead"]); got != want {
		r.f.t.Errorf("%s: the connection is %s, want %s", what, got, want)
	}
}

// say posts a message of a member and returns the number of its deliveries.
func (r room) say(key, content string) int {
	r.f.t.Helper()
	a := r.f.do(call{"POST", "/channels/" + r.id + "/messages", key, object{"content": content}, nil})
	deliveries, _ := member(r.f.want(a, 201, ""), "deliveries").(float64)
	return int(deliveries)
}

// events returns all events of the channel.
func (r room) events() (all []object) {
	r.f.t.Helper()
	for after := 0; ; {
		a := r.f.want(r.do("GET", fmt.Sprintf("/events?limit=200&after=%d", after), nil), 200, "")
		list, _ := member(a, "events").([]any)
		for _, e := range list {
			all = append(all, e.(object))
		}
		if len(list) == 0 {
			return all
		}
		after = int(member(a, "cursor").(float64))
	}
}

// said returns the senders and the texts of all messages.
func (r room) said() string {
	r.f.t.Helper()
	var all []string
	for _, e := range r.events() {
		if e["type"] == "message" {
			all = append(all, fmt.Sprintf("%v: %v", e["sender"], e["content"]))
		}
	}
	return strings.Join(all, "\n")
}

// delivery is a request that an agent has got.
type delivery struct {
	ctx     context.Context // of the request
	at      time.Time
	path    string
	header  http.Header
	body    string
	Channel struct{ ID, Name, Service, Context string }
	Message struct{ ID, Sender, Content string }
	// The callback.
	Callback string
	MCP      json.RawMessage
}

// token returns the token for the MCP server.
func (d delivery) token() string {
	_, after, _ := strings.Cut(string(d.MCP), "Bearer ")
	return after[:min(len(after), len("mt_")+43)]
}

// agent is an agent of the protocol: a server that takes deliveries.
type agent struct {
	t   testing.TB
	url string // its connection string

	mu     sync.Mutex
	answer func(http.ResponseWriter, delivery)
	got    []delivery
}

// newAgent starts an agent in a bubble. answer answers deliveries; nil: 200.
func newAgent(t testing.TB, answer func(http.ResponseWriter, delivery)) *agent {
	l := gatetest.NewPipeListener("")
	a := &agent{t: t, url: "http://" + l.Addr().String() + "/inbox/sk_agent", answer: answer}
	server := &http.Server{Handler: a}
	go server.Serve(l)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	d := delivery{ctx: r.Context(), at: time.Now(), path: r.URL.Path, header: r.Header, body: string(body)}
	if err := json.Unmarshal(body, &d); err != nil {
		a.t.Errorf("the delivery %s: %v", body, err)
	}
	a.mu.Lock()
	a.got = append(a.got, d)
	answer := a.answer
	a.mu.Unlock()
	if answer != nil {
		answer(w, d)
	}
}

// answerWith changes what the agent answers.
func (a *agent) answerWith(answer func(http.ResponseWriter, delivery)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// status returns an answer for an agent.
func status(code int) func(http.ResponseWriter, delivery) {
	return func(w http.ResponseWriter, _ delivery) { w.WriteHeader(code) }
}

// deliveries returns what the agent got so far.
func (a *agent) deliveries() []delivery {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got)
}

// contents returns the contents of the messages that the agent got so far.
func (a *agent) contents() string {
	var all []string
	for _, d := range a.deliveries() {
		all = append(all, d.Message.Content)
	}
	return strings.Join(all, " ")
}

// wantContents waits until nothing happens any more, and checks what the agent got.
func (a *agent) wantContents(what, want string) {
	a.t.Helper()
	synctest.Wait()
	if got := a.contents(); got != want {
		a.t.Errorf("%s: the agent got %q, want %q", what, got, want)
	}
}

// last returns the last delivery.
func (a *agent) last() delivery {
	a.t.Helper()
	synctest.Wait()
	all := a.deliveries()
	if len(all) == 0 {
		a.t.Fatal("the agent got no delivery")
	}
	return all[len(all)-1]
}

// post posts an event to a URL that the gateway has handed out.
func (f *fixture) post(url string, event any) answer {
	f.t.Helper()
	path, ours := strings.CutPrefix(url, gatetest.PublicURL+"/channel")
	if !ours {
		f.t.Fatalf("the URL %s is not one of the gateway", url)
	}
	return f.do(call{"POST", path, "", event, nil})
}

func message(content string) object { return object{"type": "message", "content": content} }
