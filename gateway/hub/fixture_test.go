package hub_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
)

// fixture is a relay with a hub, on a port of its own, over a database in a temporary folder.
type fixture struct {
	t        testing.TB
	path     string
	key      didkey.Key
	operator string
	options  hub.Options
	limits   relay.Limits
	log      bytes.Buffer
	logMu    sync.Mutex
	ahead    atomic.Int64 // how far the relay's clock is ahead
	frozen   time.Time    // the relay's clock, without ahead; zero: the clock goes
	client   *http.Client
	outgoing gateway.OutgoingOptions             // run adds an exception for 127.0.0.1
	listen   func() (net.Listener, error)        // nil: on loopback
	wrap     func(relay.Extender) relay.Extender // nil: the store is used as it is
	from     string                              // the address of clients in a bubble; empty: 127.0.0.1:9

	relay *relay.Relay
	hub   *hub.Hub
	front *httpapi.Front
	url   string // of the main listener
	own   string // of the hub's own listener
	stop  func()
}

const publicURL = "https://relay.example"

// start returns a running hub. configure may change the fixture before.
func start(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "agora.db"), key: key, operator: gateway.NewKey(gateway.Operator),
		client: remote}
	for _, c := range configure {
		c(f)
	}
	f.run()
	t.Cleanup(func() {
		if f.stop != nil {
			f.stop()
		}
		f.checkDatabase()
	})
	return f
}

// now is the relay's clock.
func (f *fixture) now() time.Time {
	now := f.frozen
	if now.IsZero() {
		now = time.Now()
	}
	return now.Add(time.Duration(f.ahead.Load()))
}

// Write implements io.Writer for the log.
func (f *fixture) Write(b []byte) (int, error) {
	f.logMu.Lock()
	defer f.logMu.Unlock()
	return f.log.Write(b)
}

func (f *fixture) logged() string {
	f.logMu.Lock()
	defer f.logMu.Unlock()
	return f.log.String()
}

// run starts the relay and the hub on the database of the fixture.
func (f *fixture) run() {
	f.t.Helper()
	must := func(err error) {
		if err != nil {
			f.t.Helper()
			f.t.Fatal(err)
		}
	}
	log := slog.New(slog.NewJSONHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store := gatetest.Open(f.t, f.path,
		sqlite.Options{Log: log, Extensions: []relay.Extension{gateway.Extension, hub.Extension}})
	used := relay.Extender(store)
	if f.wrap != nil {
		used = f.wrap(store)
	}
	var err error
	f.relay, err = relay.New(context.Background(), relay.Config{Store: used, Key: f.key, Origin: publicURL, Log: log,
		Limits: f.limits, Now: f.now})
	must(err)
	exception, err := gateway.ParseException("127.0.0.1")
	must(err)
	outgoing := f.outgoing
	outgoing.Exceptions = append([]gateway.Exception{exception}, outgoing.Exceptions...)
	core, err := gateway.NewCore(context.Background(), gateway.CoreOptions{Relay: f.relay, Key: f.key, Operator: f.operator,
		Build: "test", Log: log, Outgoing: outgoing})
	must(err)
	f.hub, err = hub.New(context.Background(), core, f.options)
	must(err)
	f.front = httpapi.New(f.relay, httpapi.Options{Log: log, Grace: time.Second, Redact: gateway.Redact,
		Mounts: []httpapi.Mount{f.hub.Mount("/hub"), f.hub.Document()}})
	listen := f.listen
	if listen == nil {
		listen = func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	}
	main, err := listen()
	must(err)
	own, err := listen()
	must(err)
	f.url, f.own = "http://"+main.Addr().String(), "http://"+own.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	working, end := context.WithCancel(context.Background())
	var serving, work sync.WaitGroup
	work.Go(func() { core.Run(working) })
	work.Go(func() { f.hub.Run(working) })
	work.Go(func() {
		if err := f.relay.Run(working); err != nil {
			f.t.Error(err)
		}
	})
	serving.Go(func() {
		if err := f.front.Run(ctx, httpapi.Listener{Listener: main},
			httpapi.Listener{Listener: own, Mounts: []httpapi.Mount{f.hub.Mount("")}}); err != nil {
			f.t.Error(err)
		}
	})
	f.stop = func() {
		cancel()
		serving.Wait()
		end()
		work.Wait()
		if err := store.Close(); err != nil {
			f.t.Error(err)
		}
		f.stop = nil
	}
}

// restart stops the relay and starts it again.
func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.run()
}

// checkDatabase runs what `agora check` runs.
func (f *fixture) checkDatabase() {
	f.t.Helper()
	if _, err := check.Database(context.Background(), f.path, check.Options{
		Extensions: []relay.Extension{gateway.Extension, hub.Extension},
		Found:      func(found check.Finding) { f.t.Errorf("check: %v", found) }}); err != nil {
		f.t.Fatal(err)
	}
}

// answer is what the hub has answered.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// data returns a member of data, or data itself for the empty name.
func (a answer) data(name string) any {
	var body struct{ Data any }
	if json.Unmarshal(a.body, &body) != nil {
		return nil
	}
	if name == "" {
		return body.Data
	}
	object, _ := body.Data.(map[string]any)
	return object[name]
}

func (a answer) text(name string) string { text, _ := a.data(name).(string); return text }

// code returns the code of an error.
func (a answer) code() string { return a.errorMember("code") }

// errorMember returns a member of an error; empty: there is no error, or it does not have this member.
func (a answer) errorMember(name string) string {
	var body struct{ Error map[string]string }
	_ = json.Unmarshal(a.body, &body) // another form has no error
	return body.Error[name]
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, bytes.TrimSpace(a.body)) }

// call is a request to the hub.
type call struct {
	method, path string
	key          string
	body         any // a string is sent as it is
	header       map[string]string
}

// do sends a request under the prefix.
func (f *fixture) do(c call) answer {
	f.t.Helper()
	a, err := f.try(c)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// try is the same as do, but returns the error.
func (f *fixture) try(c call) (answer, error) {
	return request(f.t.Context(), f.client, f.url+"/hub", c)
}

func newRequest(ctx context.Context, base string, c call) (*http.Request, error) {
	var body io.Reader
	switch b := c.body.(type) {
	case nil:
	case string:
		body = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, c.method, base+c.path, body)
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	for name, value := range c.header {
		r.Header.Set(name, value)
	}
	return r, nil
}

// remote is a client that the relay does not take for its own machine, because it closes its connections.
var remote = &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func request(ctx context.Context, client *http.Client, base string, c call) (answer, error) {
	r, err := newRequest(ctx, base, c)
	if err != nil {
		return answer{}, err
	}
	response, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, body}, err
}

// want checks a status and, for an error, its code.
func (f *fixture) want(a answer, status int, code string) answer {
	f.t.Helper()
	if a.status != status || a.code() != code {
		f.t.Fatalf("the answer is %v, want %d %s", a, status, code)
	}
	return a
}

type object = map[string]any

func registrationOf(name string) object {
	return object{"agent_id": name, "agent_card": object{"card_version": "0.3", "user_culture": "en",
		"supported_languages": []string{"en"}}}
}

// register registers an agent and returns its key. more are further members of the body.
func (f *fixture) register(name string, more ...object) (key string) {
	f.t.Helper()
	body := registrationOf(name)
	for _, m := range more {
		maps.Copy(body, m)
	}
	a := f.want(f.do(call{"POST", "/register", "", body, nil}), 201, "")
	return a.text("api_key")
}

func messageTo(receiver, sender, text string) object {
	return object{"receiver_id": receiver, "envelope": object{"chorus_version": "0.4", "sender_id": sender,
		"original_text": text, "sender_culture": "en"}}
}

// send sends a message and returns the answer, which must be a success.
func (f *fixture) send(key, from, to, text string) answer {
	f.t.Helper()
	a := f.do(call{"POST", "/messages", key, messageTo(to, from, text), nil})
	if a.status != 200 && a.status != 202 {
		f.t.Fatalf("sending %q: %v", text, a)
	}
	return a
}

// history returns the rows of an agent's history.
func (f *fixture) history(key, query string) (rows []object) {
	f.t.Helper()
	a := f.want(f.do(call{"GET", "/agent/messages" + query, key, nil, nil}), 200, "")
	var body struct{ Data []object }
	if err := json.Unmarshal(a.body, &body); err != nil {
		f.t.Fatal(err)
	}
	return body.Data
}

// states returns the states of the messages in a history, by their texts.
func (f *fixture) states(key string) map[string]string {
	f.t.Helper()
	states := map[string]string{}
	for _, row := range f.history(key, "") {
		states[row["envelope"].(object)["original_text"].(string)] = row["state"].(string)
	}
	return states
}

// inbox is an open stream.
type inbox struct {
	t      testing.TB
	body   io.ReadCloser
	lines  *bufio.Reader
	header http.Header
}

// open opens a stream. It fails the test unless the answer is 200.
func (f *fixture) open(key string, header map[string]string) *inbox {
	f.t.Helper()
	return f.openPath("/agent/inbox", key, header)
}

func (f *fixture) openPath(path, key string, header map[string]string) *inbox {
	f.t.Helper()
	r, err := newRequest(f.t.Context(), f.url+"/hub", call{"GET", path, key, nil, header})
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := f.client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	if response.StatusCode != 200 {
		body, _ := io.ReadAll(response.Body)
		f.t.Fatalf("the stream is answered with %d %s", response.StatusCode, body)
	}
	i := &inbox{f.t, response.Body, bufio.NewReader(response.Body), response.Header}
	f.t.Cleanup(i.close)
	return i
}

func (i *inbox) close() { _ = i.body.Close() } // only ends the stream

// frame returns the next frame, without its empty line; "" at the end of the stream.
func (i *inbox) frame() string {
	i.t.Helper()
	var text string
	for {
		line, err := i.lines.ReadString('\n')
		if err != nil {
			return text
		}
		if line == "\n" {
			return text
		}
		text += line
	}
}

// event is a message on a stream.
type event struct {
	ID        int64           `json:"id"`
	Trace     string          `json:"trace_id"`
	SenderID  string          `json:"sender_id"`
	Envelope  json.RawMessage `json:"envelope"`
	Timestamp string          `json:"timestamp"`
}

func (e event) text() string {
	var envelope struct {
		Text string `json:"original_text"`
	}
	_ = json.Unmarshal(e.Envelope, &envelope) // then the text is empty
	return envelope.Text
}

// message returns the next message. It skips the first frame and pings.
func (i *inbox) message() (e event) {
	i.t.Helper()
	for {
		frame := i.frame()
		_, data, isMessage := strings.Cut(frame, "data: ")
		switch {
		case strings.HasPrefix(frame, "event: message\n") && isMessage:
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				i.t.Fatalf("the frame %q: %v", frame, err)
			}
			return e
		case frame == ":ping\n", strings.Contains(frame, "event: connected\n"):
		default:
			i.t.Fatalf("the stream has %q, want a message", frame)
		}
	}
}

// texts returns the texts of the next n messages.
func (i *inbox) texts(n int) (texts []string) {
	i.t.Helper()
	for range n {
		texts = append(texts, i.message().text())
	}
	return texts
}

// eventually waits until f returns true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for range 500 {
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: this does not happen", what)
}
