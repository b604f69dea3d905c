package gatetest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Agent is an agent with a DID that nobody can reach: it has no listening socket. It gets its work as REQUESTs of the
// gateway. Its site must run in a bubble.
type Agent struct {
	Key  didkey.Key
	site *Site
}

// NewAgent returns an agent with a new key.
func (s *Site) NewAgent() *Agent {
	s.t.Helper()
	key, err := didkey.Generate()
	s.must(err)
	return &Agent{key, s}
}

// DID returns the DID of the agent as a text.
func (a *Agent) DID() string { return string(a.Key.DID()) }

// Sign returns the header of a signed call to the gateway with this prefix, such as "/jobs".
func (a *Agent) Sign(prefix, method, path, body string) map[string]string {
	a.site.t.Helper()
	token, err := envelope.Call{Body: sha256.Sum256([]byte(body)), Read: envelope.Read{Audience: PublicURL, Method: method,
		Target: prefix + path, TS: a.site.Now()}}.Sign(a.Key)
	a.site.must(err)
	return map[string]string{"Authorization": "Agora " + token}
}

// Call sends a signed call. body may be nil.
func (a *Agent) Call(t testing.TB, prefix, method, path string, body any) Answer {
	t.Helper()
	c := Call{Method: method, Path: path}
	text := ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
		c.Body = text
	}
	c.Header = a.Sign(prefix, method, path, text)
	answer, err := Do(t.Context(), a.site.Client, a.site.URL+prefix, c)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// Mail returns the envelopes of the gateway to the agent, opened. Each must be sealed. It does not count as a read.
func (a *Agent) Mail(t testing.TB) (all []*envelope.Envelope) {
	t.Helper()
	synctest.Wait()
	found, err := a.site.Relay.Events(t.Context(), &relay.Poll{Peer: relay.Peer{Local: true, Reader: a.Key.DID()}, Limit: 1000,
		Filter: relay.Filter{Recipient: a.Key.DID()}})
	if err != nil {
		t.Fatal(err)
	}
	for piece, err := range found.Pieces() {
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range piece {
			m, err := envelope.Parse(e.Body, e.Size)
			if err != nil {
				t.Fatal(err)
			}
			if m.Sender.ID != a.site.Key.DID() {
				continue
			}
			if !m.Sealed() {
				t.Errorf("%s %s of the gateway is not sealed", m.Type, m.ID)
				continue
			}
			if m, err = m.Open(a.Key); err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
	}
	return all
}

// Types returns the types of the envelopes of a thread that the agent got, such as "REQUEST ACCEPT".
func (a *Agent) Types(t testing.TB, thread string) (types []envelope.Type) {
	t.Helper()
	for _, m := range a.Mail(t) {
		if m.Thread == thread {
			types = append(types, m.Type)
		}
	}
	return types
}

// WantTypes checks what the agent got in a thread, such as "REQUEST ACCEPT".
func (a *Agent) WantTypes(what, thread, want string) {
	a.site.t.Helper()
	if got := strings.Trim(fmt.Sprint(a.Types(a.site.t, thread)), "[]"); got != want {
		a.site.t.Errorf("%s: the agent got %s, want %s", what, got, want)
	}
}

// Requests returns the REQUESTs that the agent got.
func (a *Agent) Requests(t testing.TB) (all []*envelope.Envelope) {
	t.Helper()
	for _, m := range a.Mail(t) {
		if m.Type == envelope.TypeRequest {
			all = append(all, m)
		}
	}
	return all
}

// about returns a payload with the request_id of a thread of the gateway, unless it has one.
func about(thread string, p envelope.Payload) envelope.Payload {
	switch v := p.(type) {
	case envelope.Offer:
		v.RequestID = cmp.Or(v.RequestID, thread)
		return v
	case envelope.Result:
		v.RequestID = cmp.Or(v.RequestID, thread)
		return v
	case envelope.Failure:
		v.RequestID = cmp.Or(v.RequestID, thread)
		return v
	}
	return p
}

// Post posts a message of the agent in a thread of the gateway, sealed.
func (a *Agent) Post(thread string, p envelope.Payload, change ...func(*envelope.Draft)) error {
	d := envelope.Draft{Thread: thread, Recipient: a.site.Key.DID(), Seal: true, Payload: about(thread, p)}
	for _, c := range change {
		c(&d)
	}
	e, err := d.Sign(a.Key, a.site.Now())
	if err != nil {
		return err
	}
	_, err = a.site.Relay.Post(context.Background(), relay.Peer{Local: true}, e.Canonical())
	return err
}

// Says posts a message in a thread, and waits until the gateway has handled it.
func (a *Agent) Says(thread string, p envelope.Payload) {
	a.site.t.Helper()
	a.site.must(a.Post(thread, p))
	synctest.Wait()
}

// Polls makes the relay hear from the agent, as a signed read does.
func (a *Agent) Polls() {
	a.site.t.Helper()
	token, err := envelope.Read{Audience: PublicURL, Method: "GET", Target: "/events", TS: a.site.Now()}.Sign(a.Key)
	a.site.must(err)
	a.site.Relay.MarkPresent(own, token, "GET", "/events")
}

// Crash stops the relay, whose Updates may fail since Site.Broken was set, and starts it again.
func (s *Site) Crash() {
	s.t.Helper()
	s.Stop()
	s.Broken.Store(false)
	s.Run()
	time.Sleep(2 * time.Second)
	synctest.Wait()
}
