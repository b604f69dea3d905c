package gatetest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
)

// queue is a queue of a gateway that strangers fill and its owner empties.
type queue struct {
	most int // elements
	// send sends one element from a network, and reports whether it was taken.
	send func(network string) bool
	// meet makes the owner know a network.
	meet func(network string)
}

// TestEveryGatewayIsListed checks that the tests that run over gateways run over all of them.
func TestEveryGatewayIsListed(t *testing.T) {
	files, err := filepath.Glob("../*/0001_initial.sql")
	if err != nil {
		t.Fatal(err)
	}
	var folders, listed []string
	for _, name := range files {
		folders = append(folders, filepath.Base(filepath.Dir(name)))
	}
	for _, g := range gateways {
		listed = append(listed, g.name)
		if (g.queue == nil) == (g.noQueue == "") {
			t.Errorf("%s needs either a queue for TestQueuesKeepHalfForPeers, or the reason why it has none", g.name)
		}
	}
	if slices.Sort(listed); !slices.Equal(listed, folders) {
		t.Errorf("the gateways are %q, but the list has %q", folders, listed)
	}
}

// G-37: strangers fill half of a queue, also from many networks. Peers that its owner knows can still send something.
func TestQueuesKeepHalfForPeers(t *testing.T) {
	const known = "203.0.113.1"
	for _, g := range gateways {
		if g.queue == nil {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			s := &listSite{Site: &gatetest.Site{Extensions: []relay.Extension{g.extension}, Open: g.open, Public: true,
				Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited},
					PostsPerAgent: relay.Rate{PerSecond: relay.Unlimited}}}, t: t}
			s.Start(t)
			q := g.queue(s)
			q.meet(known)
			taken := 0
			for n, first := 1, 0; n < 100; n++ {
				for first = taken; q.send(fmt.Sprintf("198.51.100.%d", n)); taken++ {
				}
				if taken == first {
					break
				}
			}
			if taken != q.most/2 {
				t.Errorf("strangers fill the queue with %d elements, want %d", taken, q.most/2)
			}
			if !q.send(known) {
				t.Error("then the owner gets nothing from a peer that it knows")
			}
		})
	}
}

// from sends a request from a network.
func (s *listSite) from(network string, c gatetest.Call) *httptest.ResponseRecorder {
	s.t.Helper()
	r, err := gatetest.NewRequest(s.t.Context(), gatetest.PublicURL, c)
	if err != nil {
		s.t.Fatal(err)
	}
	r.RemoteAddr, r.RequestURI = network+":1234", r.URL.RequestURI()
	w := httptest.NewRecorder()
	s.Front.Handler(false).ServeHTTP(w, r)
	return w
}

// hubQueue is the inbox of an agent. A network is known when the agent has received a message from there.
func hubQueue(s *listSite) queue {
	join := func(network, name string) (key string) {
		var made struct {
			Data struct {
				Key string `json:"api_key"`
			}
		}
		if err := json.Unmarshal(s.from(network, register(name)).Body.Bytes(), &made); err != nil || made.Data.Key == "" {
			s.t.Fatalf("%s is not registered: %v", name, err)
		}
		return made.Data.Key
	}
	bob := join("192.0.2.1", "bob@b")
	keys := map[string]string{}
	send := func(network string) bool {
		name := "a" + strings.ReplaceAll(network, ".", "-") + "@b"
		if keys[network] == "" {
			keys[network] = join(network, name)
		}
		return s.from(network, gatetest.Call{Method: "POST", Path: "/hub/messages", Key: keys[network], Body: object{
			"receiver_id": "bob@b", "envelope": object{"chorus_version": "0.4", "sender_id": name, "sender_culture": "en",
				"original_text": "hello"}}}).Code == 202
	}
	return queue{most: 1000, send: send, meet: func(network string) {
		send(network)
		s.do(gatetest.Call{Method: "GET", Path: "/hub/agent/messages", Key: bob})
	}}
}

// channelQueue is an inbox of an agent. A network is known when the agent has finished a delivery from there.
func channelQueue(s *listSite) queue {
	owner, err := didkey.Generate()
	if err != nil {
		s.t.Fatal(err)
	}
	url := s.do(s.signed(owner, "POST", "/channel/inboxes", `{}`))["url"].(string)
	sent := 0
	send := func(network string) bool {
		sent++
		return s.from(network, gatetest.Call{Method: "POST", Path: strings.TrimPrefix(url, gatetest.PublicURL), Body: object{
			"channel": object{"id": "ch_1"}, "message": object{"id": fmt.Sprint(sent), "sender": "alice", "content": "hello"},
			"callback": "https://service.example/callback"}}).Code == 200
	}
	return queue{most: 1000, send: send, meet: func(network string) {
		send(network)
		s.do(gatetest.Call{Method: "POST", Path: strings.TrimPrefix(s.callback(owner), gatetest.PublicURL),
			Body: object{"type": "lifecycle", "status": "idle"}})
	}}
}

// callback returns the callback of the only delivery that the owner of an inbox has got.
func (s *listSite) callback(owner didkey.Key) string {
	s.t.Helper()
	mail, err := s.Relay.Events(s.t.Context(), &relay.Poll{Peer: relay.Peer{Local: true, Reader: owner.DID()}, Limit: 10,
		Filter: relay.Filter{Recipient: owner.DID()}})
	if err != nil {
		s.t.Fatal(err)
	}
	var params struct{ Callback string }
	for piece, err := range mail.Pieces() {
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range piece {
			sealed, err := envelope.Parse(e.Body, e.Size)
			if err != nil {
				s.t.Fatal(err)
			}
			opened, err := sealed.Open(owner)
			if err != nil {
				s.t.Fatal(err)
			}
			var request envelope.Request
			err = opened.DecodePayload(&request)
			if err := errors.Join(err, json.Unmarshal(request.Params, &params)); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return params.Callback
}

// a2aQueue are the unfinished tasks of an endpoint. The owner knows a caller to whom it has given a key.
func a2aQueue(s *listSite) queue {
	owner, path := s.endpoint("")
	keys := map[string]string{}
	sent := 0
	send := func(network string) bool {
		sent++
		return s.from(network, gatetest.Call{Method: "POST", Path: path + "/message:send", Key: keys[network], Body: object{
			"message":       object{"messageId": fmt.Sprint(sent), "role": "ROLE_USER", "parts": []object{{"text": "hello"}}},
			"configuration": object{"returnImmediately": true}}}).Code == 200
	}
	return queue{most: 1000, send: send, meet: func(network string) {
		keys[network] = s.do(s.signed(owner, "POST", path+"/keys", `{"name":"alice"}`))["key"].(string)
	}}
}
