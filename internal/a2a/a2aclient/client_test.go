package a2aclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/a2a/a2atest"
	"github.com/agora-relay/agora/internal/jsontext"
)

// servers are all versions and bindings that the client speaks.
var servers = [][2]string{{"JSONRPC", "1.0"}, {"HTTP+JSON", "1.0"}, {"JSONRPC", "0.3"}}

func open(t *testing.T, at string, o a2aclient.Options) (*a2aclient.Client, error) {
	t.Helper()
	base, err := a2aclient.CheckURL(at)
	if err != nil {
		t.Fatal(err)
	}
	c, err := a2aclient.Open(t.Context(), base, o)
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

func text(words string) a2a.Send {
	return a2a.Send{Message: a2a.Message{MessageID: "m", Role: a2a.User, Parts: []a2a.Part{a2a.TextPart(words)}, ContextID: "ctx"}}
}

// collect returns the events of a stream as lines.
func collect(events *[]string) func(a2a.Stream) error {
	return func(e a2a.Stream) error {
		switch {
		case e.Task != nil:
			*events = append(*events, "task "+string(e.Task.Status.State))
		case e.Message != nil:
			*events = append(*events, "message "+*e.Message.Parts[0].Text)
		case e.StatusUpdate != nil:
			line := "status " + string(e.StatusUpdate.Status.State)
			if m := e.StatusUpdate.Status.Message; m != nil {
				line += " " + *m.Parts[0].Text
			}
			*events = append(*events, line)
		case e.ArtifactUpdate != nil:
			*events = append(*events, fmt.Sprintf("artifact %s %v", *e.ArtifactUpdate.Artifact.Parts[0].Text, e.ArtifactUpdate.Append))
		}
		return nil
	}
}

// TestCalls makes every call at a server of each version and binding.
func TestCalls(t *testing.T) {
	for _, kind := range servers {
		t.Run(strings.Join(kind[:], " "), func(t *testing.T) {
			s := a2atest.New(kind[0], kind[1])
			defer s.Close()
			s.Bearer = "secret"
			c, err := open(t, s.URL, a2aclient.Options{Bearer: "secret"})
			if err != nil {
				t.Fatal(err)
			}
			if u := c.Upstream; u.Card.Name != "Double" || u.Card.Version != "7" || !u.Streaming || u.Card.Description != "Double" {
				t.Errorf("the card: %+v", u)
			}
			answer, err := c.Send(t.Context(), text("echo hello"))
			if err != nil || answer.Task == nil || answer.Task.Status.State != a2a.Completed || answer.Task.ContextID != "ctx" || *answer.Task.Artifacts[0].Parts[0].Text != "hello" {
				t.Errorf("send: %s, %v", jsontext.Compact(answer), err)
			}
			if answer, err = c.Send(t.Context(), text("direct hi")); err != nil || answer.Message == nil || answer.Message.Role != a2a.Agent {
				t.Errorf("direct: %s, %v", jsontext.Compact(answer), err)
			}
			var events []string
			err = c.Stream(t.Context(), text("chunks a b"), collect(&events))
			want := "[task TASK_STATE_SUBMITTED status TASK_STATE_WORKING artifact a false artifact b true status TASK_STATE_COMPLETED done]"
			if fmt.Sprint(events) != want || err != nil {
				t.Errorf("stream: %s, %v", events, err)
			}
			asked, err := c.Send(t.Context(), text("ask"))
			if err != nil || asked.Task.Status.State != a2a.InputRequired {
				t.Fatalf("ask: %s, %v", jsontext.Compact(asked), err)
			}
			more := text("blue")
			more.Message.TaskID = asked.Task.ID
			if answer, err = c.Send(t.Context(), more); err != nil || *answer.Task.Artifacts[0].Parts[0].Text != "blue" {
				t.Errorf("more: %s, %v", jsontext.Compact(answer), err)
			}
			if task, err := c.Get(t.Context(), asked.Task.ID); err != nil || task.Status.State != a2a.Completed {
				t.Errorf("get: %+v, %v", task, err)
			}
			var subscribed []string
			if err := c.Subscribe(t.Context(), asked.Task.ID, collect(&subscribed)); err != nil || !strings.Contains(fmt.Sprint(subscribed), "task TASK_STATE_COMPLETED") {
				t.Errorf("subscribe: %v, %v", subscribed, err)
			}
			held := make(chan string, 1)
			err = c.Stream(t.Context(), text("hold x"), func(e a2a.Stream) error {
				if e.StatusUpdate != nil {
					held <- e.StatusUpdate.TaskID
					return errors.New("enough")
				}
				return nil
			})
			if err == nil || err.Error() != "enough" {
				t.Errorf("hold: %v", err)
			}
			if task, err := c.Cancel(t.Context(), <-held); err != nil || task.Status.State != a2a.Canceled {
				t.Errorf("cancel: %+v, %v", task, err)
			}
			_, err = c.Get(t.Context(), "none")
			if refused, ok := errors.AsType[*a2a.Error](err); !ok || refused.Code != a2a.TaskNotFound {
				t.Errorf("unknown task: %v", err)
			}
			_, err = c.Send(t.Context(), text("refuse"))
			if refused, ok := errors.AsType[*a2a.Error](err); !ok || refused.Code != a2a.ContentTypeNotSupported || refused.Message != "only pictures" {
				t.Errorf("refused: %v", err)
			}
			if err := c.Stream(t.Context(), text("cut"), collect(&events)); err == nil || !a2aclient.Unanswered(err) {
				t.Errorf("cut: %v", err)
			}
			without, err := open(t, s.URL, a2aclient.Options{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = without.Send(t.Context(), text("echo x"))
			if refused, ok := errors.AsType[*a2a.Error](err); !ok || refused.HTTP != http.StatusUnauthorized {
				t.Errorf("without a bearer: %v", err)
			}
		})
	}
}

// TestHostile checks what a client refuses of servers that are strangers.
func TestHostile(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another origin was called: %s, %q", r.URL, r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	card := func(at string) string {
		return `{"name":"Evil","supportedInterfaces":[{"url":"` + at + `","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}`
	}
	endless := "data: " + strings.Repeat("x", 9<<20)
	for name, c := range map[string]struct {
		card   string
		answer http.HandlerFunc
		want   string
	}{
		"other origin": {card: card(elsewhere.URL + "/rpc"), want: "--allow-origin"},
		"no interface": {card: `{"name":"x","supportedInterfaces":[{"url":"/","protocolBinding":"GRPC","protocolVersion":"1.0"}]}`, want: "no address"},
		"no JSON":      {card: `{`, want: "not I-JSON"},
		"number":       {card: `{"name":"x","capabilities":{"extensions":[{"uri":"u","params":{"a":[{"b":1}]}}]}}`, want: `"u" has a number at params.a[0].b`},
		"redirect": {card: card("/rpc"), answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, want: "status 307"},
		"deep":      {card: card("/rpc"), answer: write(strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)), want: "deeper than 48"},
		"too large": {card: card("/rpc"), answer: write(`{"a":"` + strings.Repeat("x", 9<<20) + `"}`), want: "8388608 bytes"},
		"shape":     {card: card("/rpc"), answer: write(`{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"t"}}}`), want: "task.status is missing"},
		"neither":   {card: card("/rpc"), answer: write(`{"jsonrpc":"2.0","id":1}`), want: "neither result nor error"},
		"long event": {card: card("/rpc"), answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, endless)
		}, want: "event has more than 8388608 bytes"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == a2a.CardPath {
				_, _ = fmt.Fprint(w, c.card)
				return
			}
			c.answer(w, r)
		}))
		opened, err := open(t, s.URL, a2aclient.Options{Bearer: "secret"})
		if err == nil && name == "long event" {
			err = opened.Stream(t.Context(), text("x"), func(a2a.Stream) error { return nil })
		} else if err == nil {
			_, err = opened.Send(t.Context(), text("x"))
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		s.Close()
	}
}

func write(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, text) }
}

// TestOrigins checks which origin gets the call, and that the bearer goes only to the card's origin.
func TestOrigins(t *testing.T) {
	got := make(chan string, 1)
	work := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Host + r.URL.Path + " " + r.Header.Get("Authorization")
		_, _ = fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"x"}]}}}`)
	}))
	defer work.Close()
	cards := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != a2a.CardPath {
			got <- r.Host + r.URL.Path + " " + r.Header.Get("Authorization")
		}
		_, _ = fmt.Fprintf(w, `{"name":"x","supportedInterfaces":[{"url":"%s/rpc","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],`+
			`"jsonrpc":"2.0","id":1,"result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"x"}]}}}`, work.URL)
	}))
	defer cards.Close()
	host := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }
	for name, c := range map[string]struct {
		o    a2aclient.Options
		want string
	}{
		"allowed": {a2aclient.Options{Bearer: "b", AllowOrigins: []string{work.URL}}, host(work) + "/rpc "},
		"here":    {a2aclient.Options{Bearer: "b", Here: true}, host(cards) + "/rpc Bearer b"},
	} {
		client, err := open(t, cards.URL, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Send(context.Background(), text("x")); err != nil {
			t.Error(err)
		}
		if called := <-got; called != c.want {
			t.Errorf("%s: called %s, want %s", name, called, c.want)
		}
	}
}

func TestCheckURL(t *testing.T) {
	for at, want := range map[string]string{
		"https://a.example/":                              "https://a.example",
		"https://a.example/x/.well-known/agent-card.json": "https://a.example/x",
		"http://127.0.0.1:8080":                           "http://127.0.0.1:8080",
		"http://[::1]:8080/":                              "http://[::1]:8080",
		"http://a.example/":                               "", "ftp://a.example": "", "https://u:p@a.example": "", "https://a.example/?x": "", "a.example": "",
	} {
		u, err := a2aclient.CheckURL(at)
		if (err == nil) != (want != "") || err == nil && u.String() != want {
			t.Errorf("%s: %v, %v", at, u, err)
		}
	}
}

// TestDID checks that a card without the wanted signature is not used.
func TestDID(t *testing.T) {
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	var card []byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(card) }))
	defer s.Close()
	e := a2a.NewEndpoint(s.URL, key.DID())
	m := envelope.Manifest{Name: "x", Intents: []envelope.Intent{{ID: "a"}}}
	if card, err = e.Sign(e.FromManifest(m, a2a.Public), a2a.Public, key); err != nil {
		t.Fatal(err)
	}
	base, err := url.Parse(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a2aclient.Open(t.Context(), base, a2aclient.Options{DID: key.DID()}); err != nil {
		t.Error(err)
	}
	other, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a2aclient.Open(t.Context(), base, a2aclient.Options{DID: other.DID()}); !errors.Is(err, a2a.ErrUnsigned) {
		t.Error(err)
	}
}
