package channel_test

import (
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
)

func newKey(t testing.TB) didkey.Key {
	t.Helper()
	k, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signedToken returns the token for a request.
func (f *fixture) signedToken(k didkey.Key, method, path, body string) string {
	f.t.Helper()
	token, err := envelope.Call{Body: sha256.Sum256([]byte(body)), Read: envelope.Read{Audience: gatetest.PublicURL,
		Method: method, Target: "/channel" + path, TS: f.Now()}}.Sign(k)
	if err != nil {
		f.t.Fatal(err)
	}
	return token
}

// signed sends a signed request to the gateway.
func (f *fixture) signed(k didkey.Key, method, path, body string) answer {
	f.t.Helper()
	c := call{method, path, "", body, map[string]string{"Authorization": "Agora " + f.signedToken(k, method, path, body)}}
	if body == "" {
		c.Body = nil
	}
	return f.do(c)
}

// owner is an agent with an inbox. Nobody can reach it: it has no listening socket.
type owner struct {
	*gatetest.Agent
	f   *fixture
	key didkey.Key
	id  string // of its inbox
	url string // its connection string
}

func (f *fixture) owner(t testing.TB) *owner {
	t.Helper()
	a := f.NewAgent()
	o := &owner{Agent: a, f: f, key: a.Key}
	created := f.want(f.signed(o.key, "POST", "/inboxes", `{"label":"mine"}`), 201, "")
	o.id, o.url = text(created, "inbox", "id"), text(created, "url")
	return o
}

// handed is a REQUEST that an owner has got.
type handed struct {
	envelope *envelope.Envelope // opened
	Inbox    string
	Channel  struct{ ID, Name, Context string }
	Message  struct{ ID, Sender, Content string }
	Callback string
	MCP      []struct {
		Name, URL string
		Headers   map[string]string
	}
}

// mail returns the envelopes of the gateway to the owner, opened.
func (o *owner) mail() []*envelope.Envelope {
	o.f.t.Helper()
	return o.Mail(o.f.t)
}

// requests returns the deliveries that the owner got.
func (o *owner) requests() (all []handed) {
	o.f.t.Helper()
	for _, m := range o.mail() {
		if m.Type != envelope.TypeRequest {
			continue
		}
		var request envelope.Request
		h := handed{envelope: m}
		if err := m.DecodePayload(&request); err != nil {
			o.f.t.Fatal(err)
		}
		if err := json.Unmarshal(request.Params, &h); err != nil || request.Intent != "chorus.channel.message" {
			o.f.t.Fatalf("the REQUEST %+v: %v", request, err)
		}
		all = append(all, h)
	}
	return all
}

// request returns the only delivery.
func (o *owner) request() handed {
	o.f.t.Helper()
	all := o.requests()
	if len(all) != 1 {
		o.f.t.Fatalf("the owner got %d deliveries, want 1", len(all))
	}
	return all[0]
}

// send posts a message of the owner in the thread of a delivery.
func (o *owner) send(h handed, p envelope.Payload, change ...func(*envelope.Draft)) error {
	o.f.t.Helper()
	return o.Post(h.envelope.Thread, p, change...)
}

// must fails the test after an error.
func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// service is another service of the protocol, not a relay: it delivers messages, and takes events at its callbacks.
type service struct {
	f    *fixture
	base string // of the callbacks

	mu     sync.Mutex
	answer func(path, body string) int // nil: 200
	hangs  bool                        // it never answers
	got    []serviceCall
}

// serviceCall is an event that came to a callback.
type serviceCall struct {
	path, body, id string
	at             time.Time
}

// newService starts a service in a bubble.
func newService(f *fixture) *service {
	l := gatetest.NewPipeListener("")
	s := &service{f: f, base: "http://" + l.Addr().String() + "/callback/"}
	server := &http.Server{Handler: s}
	go server.Serve(l)
	f.t.Cleanup(func() {
		if err := server.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return s
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := readAll(r)
	s.mu.Lock()
	s.got = append(s.got, serviceCall{r.URL.Path, body, r.Header.Get("Idempotency-Key"), time.Now()})
	answer, hangs := s.answer, s.hangs
	s.mu.Unlock()
	status := 200
	if answer != nil {
		status = answer(r.URL.Path, body)
	}
	if hangs {
		<-r.Context().Done()
		return
	}
	w.WriteHeader(status)
}

// answerWith changes what the service answers.
func (s *service) answerWith(answer func(path, body string) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// calls returns the calls of the callbacks so far.
func (s *service) calls() []serviceCall {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// wantEvents checks the bodies of the calls so far.
func (s *service) wantEvents(what string, want ...string) {
	s.f.t.Helper()
	var got []string
	for _, c := range s.calls() {
		got = append(got, c.body)
	}
	if !slices.Equal(got, want) {
		s.f.t.Errorf("%s: the service got\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// body returns the body of a delivery of the service. change may change it.
func (s *service) body(id, content string, change ...func(object)) object {
	body := object{
		"channel":  object{"id": "C1", "name": "general", "service": "Test", "context": "a test"},
		"message":  object{"id": id, "sender": "zoe-the-sender", "content": content},
		"callback": s.base + id,
		"mcp":      object{"url": "https://tools.example/mcp", "headers": object{"Authorization": "Bearer mcp-secret"}},
	}
	for _, c := range change {
		c(body)
	}
	return body
}

// deliver posts a delivery to a connection string.
func (s *service) deliver(to string, body any) answer {
	s.f.t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		s.f.t.Fatal(err)
	}
	return s.f.do(call{"POST", strings.TrimPrefix(u.Path, "/channel"), "", body, nil})
}
