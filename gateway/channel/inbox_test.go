package channel_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/store/storetest/engine"
)

func readAll(r *http.Request) string {
	b, _ := io.ReadAll(r.Body) // a body that breaks off is short, and the test fails
	return string(b)
}

const (
	processing = `{"status":"processing","type":"lifecycle"}`
	idle       = `{"status":"idle","type":"lifecycle"}`
)

// said returns the event for a message.
func said(content string) string {
	b, _ := json.Marshal(content) // a text can always be encoded
	return `{"content":` + string(b) + `,"type":"message"}`
}

// C-17: an agent without a listening socket gets the deliveries of another service. C-19: the service has its 200
// before the agent is there.
func TestInboxGetsDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		f.Restart() // what was answered with 200 is on disk
		time.Sleep(time.Hour)
		h := o.request()
		e := h.envelope
		if !regexp.MustCompile(`^dlv_[a-z2-7]{26}$`).MatchString(e.ID) || e.Thread != e.ID || e.RequestID != e.ID ||
			e.TTL != 24*time.Hour || len(e.Relays) != 1 || e.Relays[0] != gatetest.PublicURL {
			t.Errorf("the envelope is %+v", e)
		}
		if h.Inbox != o.id || h.Channel.ID != "C1" || h.Channel.Name != "general" || h.Channel.Context != "a test" ||
			h.Message.ID != "m1" || h.Message.Sender != "zoe-the-sender" || h.Message.Content != "hello" {
			t.Errorf("the delivery is %+v", h)
		}
		if !regexp.MustCompile(`^https://relay\.example/channel/out/tok_[A-Za-z0-9_-]{43}$`).MatchString(h.Callback) {
			t.Errorf("the callback is %s", h.Callback)
		}
		if len(h.MCP) != 1 || h.MCP[0].Name != "mcp1" || h.MCP[0].URL != "https://tools.example/mcp" ||
			h.MCP[0].Headers["Authorization"] != "Bearer mcp-secret" {
			t.Errorf("mcp is %+v", h.MCP)
		}
	})
}

// C-20: a repeated delivery sends no second envelope within 7 days. It replaces the callback.
func TestRepeatedDelivery(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		to := func(callback string) func(object) { return func(b object) { b["callback"] = s.base + callback } }
		f.want(s.deliver(o.url, s.body("m1", "hello", to("one"))), 200, "")
		s.answerWith(func(path, _ string) int { return map[bool]int{true: 503, false: 200}[path == "/callback/one"] })
		h := o.request()
		f.want(f.post(h.Callback, message("a")), 200, "")
		synctest.Wait()
		f.want(s.deliver(o.url, s.body("m1", "hello", to("two"))), 200, "")
		f.want(s.deliver(o.url, s.body("m1", "changed", to("three"))), 200, "")
		o.request()
		f.want(f.post(h.Callback, message("b")), 200, "")
		calls := s.calls()
		if last := calls[len(calls)-1]; last.path != "/callback/three" || !strings.Contains(last.body, `"b"`) {
			t.Errorf("the last call is %+v", last)
		}
		other := func(b object) { b["channel"] = object{"id": "C2"} }
		f.want(s.deliver(o.url, s.body("m1", "hello", other)), 200, "")
		if n := len(o.requests()); n != 2 {
			t.Errorf("%d envelopes, want 2", n)
		}
		f.pass(6 * 24 * time.Hour)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		if n := len(o.requests()); n != 0 { // the others have expired
			t.Errorf("%d envelopes after 6 days, want 0", n)
		}
		f.pass(24 * time.Hour)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		o.request()
	})
}

// C-20: many copies of one delivery at the same time lead to one envelope.
func TestRacingDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		for range 10 {
			go s.deliver(o.url, s.body("m1", "hello"))
		}
		synctest.Wait()
		o.request()
	})
}

// What is missing or malformed in a delivery is named.
func TestMalformedDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		set := func(path string, value any) func(object) {
			return func(b object) {
				name, rest, nested := strings.Cut(path, ".")
				if nested {
					b, name = b[name].(object), rest
				}
				if b[name] = value; value == nil {
					delete(b, name)
				}
			}
		}
		null := json.RawMessage("null")
		tool := object{"url": "https://a.example"}
		list := func(n int) (all []object) {
			for range n {
				all = append(all, tool)
			}
			return all
		}
		for i, c := range []struct {
			path  string
			value any
			names string // the member in the message; empty: the delivery is taken
		}{
			{"channel", nil, "channel"}, {"channel", "C1", "channel"}, {"channel.id", nil, "channel.id"},
			{"channel.id", "", "channel.id"}, {"channel.id", strings.Repeat("x", 256), ""},
			{"channel.id", strings.Repeat("x", 257), "channel.id"}, {"channel.id", 5, "channel.id"},
			{"channel.name", nil, ""}, {"channel.name", null, ""}, {"channel.name", 5, "channel.name"},
			{"channel.context", strings.Repeat("x", 40000), ""}, {"channel.more", object{}, ""},
			{"message", nil, "message"}, {"message.id", nil, "message.id"}, {"message.sender", nil, "message.sender"},
			{"message.sender", strings.Repeat("x", 257), "message.sender"}, {"message.content", nil, "message.content"},
			{"message.content", "", "message.content"}, {"message.content", []string{}, "message.content"},
			{"callback", nil, "callback"}, {"callback", "x", "callback"}, {"callback", "http://a.example/", "callback"},
			{"callback", "https://10.0.0.1/", "callback"}, {"callback", gatetest.PublicURL + "/events", "callback"},
			{"callback", gatetest.PublicURL + "/channel/inbox/sk_" + strings.Repeat("A", 43), "callback"},
			{"callback", "https://a.example/" + strings.Repeat("x", 2048), "callback"},
			{"mcp", nil, ""}, {"mcp", null, ""}, {"mcp", []object{}, ""}, {"mcp", list(16), ""}, {"mcp", list(17), "mcp"},
			{"mcp", "x", "mcp"}, {"mcp", []string{"x"}, "mcp[0]"}, {"mcp", object{}, "mcp[0].url"},
			{"mcp", object{"url": 5}, "mcp[0].url"}, {"mcp", object{"url": "u", "name": 5}, "mcp[0].name"},
			{"mcp", []object{tool, {"url": "u", "headers": []string{}}}, "mcp[1].headers"},
			{"mcp", object{"url": "u", "headers": object{"a": nil}}, "mcp[0].headers"},
			{"mcp", object{"url": "u", "headers": object{"a": "x:null"}}, ""},
			{"more", 5, ""},
		} {
			got := s.deliver(o.url, s.body(fmt.Sprint("m", i), "hello", set(c.path, c.value)))
			if c.names == "" {
				f.want(got, 200, "")
			} else if f.want(got, 400, "INVALID_REQUEST"); !strings.HasPrefix(text(got, "message"), c.names) {
				t.Errorf("%s: %v", c.path, got)
			}
			time.Sleep(time.Second)
		}
		for _, key := range []string{"sk_" + strings.Repeat("A", 43), "sk_x", f.Operator} {
			f.want(s.deliver("/channel/inbox/"+key, s.body("m", "hello")), 404, "NOT_FOUND")
		}
		f.want(f.do(call{"GET", strings.TrimPrefix(o.url, gatetest.PublicURL+"/channel"), "", nil, nil}), 405, "METHOD_NOT_ALLOWED")
	})
}

// Unknown members are handed on. If they are too large or too deep for an envelope, they are left out (G-26).
func TestUnknownMembersOfDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		nested := json.RawMessage(strings.Repeat("[", 62) + strings.Repeat("]", 62))
		large := json.RawMessage("[" + strings.Repeat("1e20,", 12_800) + "1]")
		for i, more := range []any{"kept", nested, large} {
			f.want(s.deliver(o.url, s.body(fmt.Sprint("m", i), "hello", func(b object) { b["message"].(object)["more"] = more })), 200, "")
		}
		all := o.requests()
		for i, h := range all {
			if kept := bytes.Contains(h.envelope.Payload, []byte(`"more":`)); kept != (i == 0) || h.Message.Content != "hello" {
				t.Errorf("delivery %d has the unknown member: %v; %+v", i, kept, h.Message)
			}
		}
		if len(all) != 3 {
			t.Errorf("%d deliveries, want 3", len(all))
		}
	})
}

// The names of the MCP servers in a list stay; missing ones are added.
func TestMCPNames(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello", func(b object) {
			b["mcp"] = []object{{"url": "https://a.example", "name": "mine"}, {"url": "https://b.example"}}
		})), 200, "")
		if h := o.request(); len(h.MCP) != 2 || h.MCP[0].Name != "mine" || h.MCP[1].Name != "mcp2" || h.MCP[1].URL != "https://b.example" {
			t.Errorf("mcp is %+v", h.MCP)
		}
	})
}

// C-26: no callback, MCP header or content of a delivery to an inbox, and no answer, is readable in GET /events or in
// the database.
func TestDeliveriesAreSecret(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		secrets := []string{"the-content", "callback-secret", "mcp-secret", "zoe-the-sender", "general", "the-answer", "the-result", path.Base(o.url)}
		f.want(s.deliver(o.url, s.body("m1", "the-content", func(b object) { b["callback"] = s.base + "callback-secret" })), 200, "")
		h := o.request()
		s.answerWith(func(string, string) int { return 503 })
		f.want(f.post(h.Callback, message("the-answer")), 200, "")
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		synctest.Wait()
		f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"the-result"`)}))
		r := f.channel("other")
		// Encrypted texts are so long that some have a part with the form of a key. So the test looks for the keys themselves.
		secrets = append(secrets, path.Base(h.Callback), r.key, r.member("alice"))
		for _, key := range secrets[7:] {
			if len(key) < 43 {
				t.Errorf("%q is no key", key)
			}
		}
		r.connect("inbox", o.url)
		synctest.Wait()
		got, err := gatetest.Do(t.Context(), f.Client, f.URL, gatetest.Call{Method: "GET", Path: "/events?cursor=0&timeout=0"})
		f.must(err)
		places := map[string][]byte{"GET /events": got.Body, "the log": []byte(f.Logged())}
		f.Stop()
		for _, name := range engine.Files(t, f.Path) {
			b, err := os.ReadFile(name)
			f.must(err)
			places[name] = b
		}
		for place, content := range places {
			for _, secret := range secrets {
				if place == "the log" && strings.Contains("zoe-the-sender general", secret) {
					continue
				}
				if bytes.Contains(content, []byte(secret)) {
					t.Errorf("%s has %s", place, secret)
				}
			}
		}
	})
}
