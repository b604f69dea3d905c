package hub_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// fixture is a relay with a hub.
type fixture struct {
	*gatetest.Site
	t       testing.TB
	options hub.Options
	hub     *hub.Hub
}

// start returns a running hub. configure may change the fixture before.
func start(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{Site: &gatetest.Site{Extensions: []relay.Extension{hub.Extension}}, t: t}
	f.Open = func(c *gateway.Core) (served gatetest.Served, err error) {
		if f.hub, err = hub.New(context.Background(), c, f.options); err != nil {
			return served, err
		}
		mounts := func(prefix string) []httpapi.Mount { return []httpapi.Mount{f.hub.Mount(prefix)} }
		return gatetest.Served{Prefix: "/hub", API: hub.API, Mounts: mounts, Root: []httpapi.Mount{f.hub.Document()}, Run: f.hub.Run}, nil
	}
	for _, c := range configure {
		c(f)
	}
	f.Start(t)
	return f
}

// answer is what the hub has answered.
type answer struct{ gatetest.Answer }

// data returns a member of data, or data itself for the empty name.
func (a answer) data(name string) any {
	var body struct{ Data any }
	if json.Unmarshal(a.Body, &body) != nil {
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
	_ = json.Unmarshal(a.Body, &body) // another form has no error
	return body.Error[name]
}

type call gatetest.Call // a type of this package, so that its literals need no names of fields

// do sends a request under the prefix.
func (f *fixture) do(c call) answer {
	f.t.Helper()
	return f.at(f.URL+"/hub", c)
}

// at sends a request to another base URL than the prefix.
func (f *fixture) at(base string, c call) answer {
	f.t.Helper()
	a, err := gatetest.Do(f.t.Context(), f.Client, base, gatetest.Call(c))
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{a}
}

// try is the same as do, but returns the error.
func (f *fixture) try(ctx context.Context, c call) (answer, error) {
	a, err := gatetest.Do(ctx, f.Client, f.URL+"/hub", gatetest.Call(c))
	return answer{a}, err
}

// want checks a status and, for an error, its code.
func (f *fixture) want(a answer, status int, code string) answer {
	f.t.Helper()
	if a.Status != status || a.code() != code {
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
	if a.Status != 200 && a.Status != 202 {
		f.t.Fatalf("sending %q: %v", text, a)
	}
	return a
}

// history returns the rows of an agent's history.
func (f *fixture) history(key, query string) (rows []object) {
	f.t.Helper()
	a := f.want(f.do(call{"GET", "/agent/messages" + query, key, nil, nil}), 200, "")
	var body struct{ Data []object }
	if err := json.Unmarshal(a.Body, &body); err != nil {
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
	r, err := gatetest.NewRequest(f.t.Context(), f.URL+"/hub",
		gatetest.Call{Method: "GET", Path: path, Key: key, Header: header})
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := f.Client.Do(r)
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

// listen opens and closes a stream. No other stream may have ended before. The end of a stream is recorded if the stream has
// caught up. No client can see when that is so. Each round gives a stream a moment to do it; if that is too short, the next
// round tries again.
func (f *fixture) listen(key string) {
	f.t.Helper()
	others := f.hub.Streams()
	eventually(f.t, "the end of a stream is recorded", func() bool {
		i := f.open(key, nil)
		i.frame()
		time.Sleep(20 * time.Millisecond)
		i.close()
		eventually(f.t, "the stream ends", func() bool { return f.hub.Streams() == others })
		return f.stored("hub_use WHERE stream_ended > 0") == 1
	})
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
	for range 6000 { // a minute, because the machine may be busy
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: this does not happen", what)
}
