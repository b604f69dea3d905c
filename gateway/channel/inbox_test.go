package channel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
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

// C-17: an agent without a listening socket gets the deliveries of a foreign service. C-19: the service has its 200
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
			h.Message.ID != "m1" || h.Message.Sender != "zoe" || h.Message.Content != "hello" {
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

// C-18: the agent's answers by callback and by thread reach the service in order, unchanged.
func TestAnswersReachTheService(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		synctest.Wait()
		raw := `{ "type":"status", "status":"reading…",  "n":1.0 }`
		f.want(f.post(h.Callback, raw), 200, "")
		f.want(f.post(h.Callback, message("by callback")), 200, "")
		f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"by thread"`)}))
		synctest.Wait()
		f.want(f.post(h.Callback, message("after the thread")), 200, "")
		s.wantEvents("at the end", processing, raw, `{"content":"by callback","type":"message"}`, said("by thread"), idle,
			`{"content":"after the thread","type":"message"}`)
		ids := map[string]bool{}
		for _, c := range s.calls() {
			if c.path != "/callback/m1" || ids[c.id] || !strings.HasPrefix(c.id, "msg_") {
				t.Errorf("the call %+v", c)
			}
			ids[c.id] = true
		}
	})
}

// A RESULT has a text, a content, or a list of events.
func TestOutputs(t *testing.T) {
	for output, want := range map[string][]string{
		`"a text"`:              {said("a text")},
		`{"content":"a text"}`:  {said("a text")},
		`{"events":[]}`:         {},
		`{"other":1}`:           {},
		`{"content":"","x":[]}`: {`{"code":"bad_result","message":"an event of the agent's result is not valid: content: must have 1 to 32768 bytes of UTF-8, and has 0","type":"error"}`},
		`{"events":[{"type":"status","status":"a"},{"type":"message","content":"b","extra":1}],"content":"c"}`: {
			`{"status":"a","type":"status"}`, `{"content":"b","extra":1,"type":"message"}`},
		`{"events":{}}`: {`{"code":"bad_result","message":"output.events of the agent's result is not a list","type":"error"}`},
		`{"events":[1,{"type":"message","content":"b"}]}`: {
			`{"code":"bad_result","message":"an event of the agent's result is not valid: the body must be one JSON object","type":"error"}`,
			said("b")},
	} {
		inBubble(t, func(t *testing.T, f *fixture) {
			o, s := f.owner(t), newService(f)
			f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
			h := o.request()
			f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID, Price: &envelope.Price{Currency: "USD"}}))
			synctest.Wait()
			f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(output)}))
			s.wantEvents(output, append(append([]string{processing}, want...), idle)...)
		})
	}
}

// An ERROR of the agent sends an error event, and then idle.
func TestAgentFails(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Failure{RequestID: h.envelope.ID, Code: "TIRED", Message: "not today"}))
		s.wantEvents("ERROR", `{"code":"TIRED","message":"not today","type":"error"}`, idle)
	})
}

// C-31: an OFFER with a price is cancelled, and sends an error event.
func TestPricedOffer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID, Price: &envelope.Price{Amount: 0.01, Currency: "USD"}}))
		synctest.Wait()
		s.wantEvents("a priced OFFER", `{"code":"price","message":"the agent asks for a price, and a channel pays none","type":"error"}`)
		mail := o.mail()
		if last := mail[len(mail)-1]; last.Type != envelope.TypeCancel || last.Thread != h.envelope.ID {
			t.Errorf("the last envelope is %s", last.Type)
		}
		f.wantThread(h, thread.Failed)
	})
}

// wantThread checks the state of the thread of a delivery.
func (f *fixture) wantThread(h handed, want thread.State) {
	f.t.Helper()
	v, err := f.Relay.Thread(f.t.Context(), relay.Peer{Local: true}, thread.Key{Client: f.Key.DID(), ID: h.envelope.ID})
	if err != nil || v.State != want {
		f.t.Errorf("the thread is %v, %v; want %v", v.State, err, want)
	}
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

// C-21: after rotate the old URL is 404 at once. C-22: another DID can neither list, rotate nor delete an inbox.
func TestInboxManagement(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s, other := f.owner(t), newService(f), newKey(t)
		if !regexp.MustCompile(`^https://relay\.example/channel/inbox/sk_[A-Za-z0-9_-]{43}$`).MatchString(o.url) {
			t.Errorf("the connection string is %s", o.url)
		}
		list := f.want(f.signed(o.key, "GET", "/inboxes", ""), 200, "")
		shown, _ := member(list, "inboxes").([]any)
		if len(shown) != 1 || strings.Contains(string(list.Body), "sk_") || shown[0].(object)["label"] != "mine" ||
			shown[0].(object)["owner"] != string(o.key.DID()) || shown[0].(object)["id"] != o.id {
			t.Errorf("the list is %v", list)
		}
		if got := f.want(f.signed(other, "GET", "/inboxes", ""), 200, ""); fmt.Sprint(member(got, "inboxes")) != "[]" {
			t.Errorf("the list of another DID is %v", got)
		}
		foreign := f.want(f.signed(other, "POST", "/inboxes/"+o.id+"/rotate", ""), 403, "FORBIDDEN")
		unknown := f.want(f.signed(other, "POST", "/inboxes/in_unknown/rotate", ""), 403, "FORBIDDEN")
		if !bytes.Equal(foreign.Body, unknown.Body) {
			t.Errorf("a foreign inbox is %v, an unknown one %v", foreign, unknown)
		}
		f.want(f.signed(other, "DELETE", "/inboxes/"+o.id, ""), 403, "FORBIDDEN")
		rotated := text(f.want(f.signed(o.key, "POST", "/inboxes/"+o.id+"/rotate", ""), 200, ""), "url")
		f.want(s.deliver(o.url, s.body("m1", "hello")), 404, "NOT_FOUND")
		f.want(s.deliver(rotated, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.want(f.signed(o.key, "DELETE", "/inboxes/"+o.id, ""), 200, "")
		f.want(s.deliver(rotated, s.body("m2", "hello")), 404, "NOT_FOUND")
		f.want(f.post(h.Callback, message("c")), 410, "GONE")
		synctest.Wait()
		f.wantThread(h, thread.Failed)
		if mail := o.mail(); mail[len(mail)-1].Type != envelope.TypeCancel {
			t.Error("the thread was not cancelled")
		}
		f.want(f.signed(o.key, "DELETE", "/inboxes/"+o.id, ""), 403, "FORBIDDEN")
	})
}

// A DID has at most 20 inboxes. A label has at most 80 bytes.
func TestInboxLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		k := newKey(t)
		var first string
		for i := range 20 {
			a := f.want(f.signed(k, "POST", "/inboxes", `{}`), 201, "")
			if i == 0 {
				first = text(a, "inbox", "id")
			}
			time.Sleep(time.Second)
		}
		got := f.want(f.signed(k, "POST", "/inboxes", `{}`), 429, "RATE_LIMITED")
		if text(got, "details", "limit") != "inboxes" {
			t.Errorf("%v", got)
		}
		f.want(f.signed(k, "DELETE", "/inboxes/"+first, ""), 200, "")
		f.want(f.signed(k, "POST", "/inboxes", `{"label":"`+strings.Repeat("x", 81)+`"}`), 400, "INVALID_REQUEST")
		f.want(f.signed(k, "POST", "/inboxes", `{"label":"`+strings.Repeat("x", 80)+`"}`), 201, "")
	})
	inBubble(t, func(t *testing.T, f *fixture) { // 20 an hour from one address
		for i := range 20 {
			f.want(f.signed(newKey(t), "POST", "/inboxes", `{}`), 201, "")
			if i%5 == 0 {
				time.Sleep(time.Second)
			}
		}
		got := f.want(f.signed(newKey(t), "POST", "/inboxes", `{}`), 429, "RATE_LIMITED")
		if text(got, "details", "limit") != "inboxes" {
			t.Errorf("%v", got)
		}
		time.Sleep(3 * time.Minute)
		f.want(f.signed(newKey(t), "POST", "/inboxes", `{}`), 201, "")
	}, func(f *fixture) { f.From = "203.0.113.9:9" })
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

// C-23: no limit at /inbox answers 429.
func TestInboxAnswers503(t *testing.T) {
	limits := map[string]func(f *fixture){
		"its own rate": func(*fixture) {},
		"the front": func(f *fixture) {
			f.Limits.PostsPerAddress = relay.Rate{PerSecond: 0.01, Burst: 10}
			f.From = "203.0.113.9:9"
		},
		"connections": func(f *fixture) { f.Limits.RequestsPerAddress = 1; f.From = "203.0.113.9:9" },
	}
	for what, configure := range limits {
		inBubble(t, func(t *testing.T, f *fixture) {
			o, s := f.owner(t), newService(f)
			refused := 0
			var group []chan answer
			for i := range 60 {
				done := make(chan answer, 1)
				group = append(group, done)
				go func() { done <- s.deliver(o.url, s.body(fmt.Sprint("m", i), "hello")) }()
			}
			for _, done := range group {
				switch got := <-done; got.Status {
				case 200:
				case 503:
					refused++
					if got.Header.Get("Retry-After") == "" || text(got, "error") != "UNAVAILABLE" {
						t.Errorf("%s: %v %v", what, got, got.Header)
					}
				default:
					t.Errorf("%s: %v", what, got)
				}
			}
			if n := len(o.requests()); n == 0 || refused == 0 && what != "connections" || n+refused != 60 {
				t.Errorf("%s: %d were taken, %d refused", what, n, refused)
			}
		}, configure)
	}
}

// An inbox with too many deliveries that the agent has not finished takes no more. Finished ones do not count.
func TestOpenDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		deliver := func(i int) answer {
			time.Sleep(200 * time.Millisecond)
			return s.deliver(o.url, s.body(fmt.Sprint("m", i), "hello"))
		}
		for i := range 100 {
			f.want(deliver(i), 200, "")
		}
		f.want(deliver(100), 503, "UNAVAILABLE")
		f.want(deliver(5), 200, "") // a repeat
		h := o.requests()[0]
		f.want(f.post(h.Callback, object{"type": "lifecycle", "status": "idle"}), 200, "")
		f.want(deliver(100), 200, "")
		f.want(deliver(101), 503, "UNAVAILABLE")
		f.pass(24 * time.Hour)
		f.want(deliver(101), 200, "")
	}, func(f *fixture) { f.small = 100 })
}

// A full Agora inbox of the owner is 503 too.
func TestFullInbox(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		stranger := newKey(t)
		for i := range 20 {
			e, err := envelope.Draft{Recipient: o.key.DID(), Payload: envelope.Request{Intent: "x", RequestID: fmt.Sprint("r", i)}}.
				Sign(stranger, f.Now())
			f.must(err)
			if _, err = f.Relay.Post(t.Context(), relay.Peer{}, e.Canonical()); err != nil {
				f.want(s.deliver(o.url, s.body("m1", "hello")), 503, "UNAVAILABLE")
				return
			}
		}
		t.Error("the inbox is never full")
	}, func(f *fixture) {
		f.Policy.Inbox = relay.Quota{Events: 10}
	})
}

// C-24: a lifecycle that is refused with 400 costs nothing.
func TestServiceWithoutLifecycle(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		for _, refusal := range []int{400, 401, 403, 404, 410, 422, 429} {
			s.answerWith(func(_, body string) int {
				return map[bool]int{true: refusal, false: 200}[strings.Contains(body, "lifecycle")]
			})
			id := fmt.Sprint("m", refusal)
			f.want(s.deliver(o.url, s.body(id, "hello")), 200, "")
			all := o.requests()
			h := all[len(all)-1]
			for _, event := range []object{{"type": "lifecycle", "status": "processing"}, message(id),
				{"type": "lifecycle", "status": "idle"}, message("again")} {
				f.want(f.post(h.Callback, event), 200, "")
			}
			calls := s.calls()
			if last := calls[len(calls)-1]; len(calls)%4 != 0 || last.path != "/callback/"+id || !strings.Contains(last.body, "again") {
				t.Errorf("with %d the last of %d calls is %+v", refusal, len(calls), last)
			}
		}
	})
}

// 401, 403, 404 or 410 to another event ends the callback. Another 4xx ends the event.
func TestServiceRefusesEvents(t *testing.T) {
	for refusal, ends := range map[int]bool{400: false, 401: true, 403: true, 404: true, 410: true, 422: false} {
		inBubble(t, func(t *testing.T, f *fixture) {
			o, s := f.owner(t), newService(f)
			s.answerWith(func(_, body string) int {
				return map[bool]int{true: refusal, false: 200}[strings.Contains(body, "bad")]
			})
			f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
			h := o.request()
			f.want(f.post(h.Callback, message("bad")), 200, "")
			synctest.Wait()
			after := f.post(h.Callback, message("after"))
			if ends {
				f.want(after, 410, "GONE")
			} else {
				f.want(after, 200, "")
			}
			if n := len(s.calls()); ends != (n == 1) {
				t.Errorf("with %d the service got %d events", refusal, n)
			}
			if f.want(s.deliver(o.url, s.body("m1", "hello")), 200, ""); ends { // a repeated delivery has a new callback
				f.want(f.post(h.Callback, message("again")), 200, "")
			}
		})
	}
}

// C-25: events survive a restart and an hour without the service.
func TestServiceIsDown(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		s.answerWith(func(string, string) int { return 502 })
		var want []string
		for i := range 5 {
			want = append(want, said(fmt.Sprint(i)))
			f.want(f.post(h.Callback, said(fmt.Sprint(i))), 200, "")
		}
		f.pass(time.Hour)
		f.Restart()
		first := s.calls()[0]
		s.mu.Lock()
		s.got = nil
		s.mu.Unlock()
		s.answerWith(nil)
		f.pass(time.Hour)
		s.wantEvents("when the service is back", want...)
		if again := s.calls()[0]; again.id != first.id || again.body != first.body {
			t.Errorf("%+v comes again as %+v", first, again)
		}
	})
}

// C-3: services that never answer take only the share of their inbox's owner. Other owners and channels do not wait.
func TestServicesThatHang(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		hanging, o, quick := f.owner(t), f.owner(t), newService(f)
		var services []*service // each has a host of its own
		for i := range 40 {
			s := newService(f)
			s.hangs, s.base = true, strings.Replace(s.base, "127.0.0.1", fmt.Sprint("127.0.1.", i), 1)
			services = append(services, s)
			f.want(s.deliver(hanging.url, s.body(fmt.Sprint("m", i), "hello")), 200, "")
		}
		for _, h := range hanging.requests() {
			f.want(f.post(h.Callback, message("x")), 200, "")
		}
		calls := 0
		for _, s := range services {
			calls += len(s.calls())
		}
		if calls != 8 {
			t.Errorf("%d calls of hanging services at a time, want 8", calls)
		}
		f.want(quick.deliver(o.url, quick.body("m", "hello")), 200, "")
		f.want(f.post(o.request().Callback, said("x")), 200, "")
		quick.wantEvents("at once", said("x"))
	}, func(f *fixture) {
		exception, err := gateway.ParseException("127.0.1.0/24")
		f.must(err)
		f.Outgoing.Exceptions = append(f.Outgoing.Exceptions, exception)
		f.Outgoing.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return gatetest.DialPipe(ctx, network, "127.0.0.1:"+port)
		}
	})
}

// C-26: no callback, MCP header or content of a delivery to an inbox, and no answer, is readable in GET /events or in
// the database.
func TestDeliveriesAreSecret(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		secrets := []string{"the-content", "callback-secret", "mcp-secret", "zoe", "general", "the-answer", "the-result", "tok_", "sk_",
			"cm_", "ck_", "mt_"}
		f.want(s.deliver(o.url, s.body("m1", "the-content", func(b object) { b["callback"] = s.base + "callback-secret" })), 200, "")
		h := o.request()
		s.answerWith(func(string, string) int { return 503 })
		f.want(f.post(h.Callback, message("the-answer")), 200, "")
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		synctest.Wait()
		f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"the-result"`)}))
		r := f.channel("other")
		r.member("alice")
		r.connect("inbox", o.url)
		synctest.Wait()
		got, err := gatetest.Do(t.Context(), f.Client, f.URL, gatetest.Call{Method: "GET", Path: "/events?cursor=0&timeout=0"})
		f.must(err)
		places := map[string][]byte{"GET /events": got.Body, "the log": []byte(f.Logged())}
		f.Stop()
		for _, suffix := range []string{"", "-wal"} {
			b, err := os.ReadFile(f.Path + suffix)
			if err != nil && suffix == "" {
				t.Fatal(err)
			}
			places["the database"+suffix] = b
		}
		for place, content := range places {
			for _, secret := range secrets {
				if place == "the log" && strings.Contains("zoe general", secret) {
					continue
				}
				// The names of kinds of keys are in the database; a key is longer.
				pattern := regexp.QuoteMeta(secret)
				if strings.HasSuffix(secret, "_") {
					pattern += "[A-Za-z0-9_-]{20}"
				}
				if found := regexp.MustCompile(pattern).Find(content); found != nil {
					t.Errorf("%s has %s", place, found)
				}
			}
		}
	})
}

// C-27: a plain RESULT sends nothing. C-28: a RESULT of another DID sends nothing.
func TestForeignAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		plain := func(d *envelope.Draft) { d.Seal = false }
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}, plain))
		s.wantEvents("after a plain OFFER")
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		s.wantEvents("after a sealed OFFER", processing)
		result := envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"x"`)}
		other := &owner{f: f, key: newKey(t)}
		if err := other.send(h, result); err == nil {
			t.Error("the relay takes a RESULT of another DID in this thread")
		}
		// A stranger opens a thread of its own with the same id, and says there that it has failed.
		for i, p := range []envelope.Payload{envelope.Request{RequestID: h.envelope.ID, Intent: "x"},
			envelope.Failure{RequestID: h.envelope.ID, Code: "X", Message: "x"}} {
			f.must(other.send(h, p, func(d *envelope.Draft) { d.ID = fmt.Sprint("foreign", i) }))
		}
		s.wantEvents("after foreign answers", processing)
		f.must(o.send(h, result, plain))
		s.wantEvents("after a plain RESULT", processing)
	})
}

// C-29: a silent agent makes one undelivered event.
func TestSilentAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		f.want(s.deliver(o.url, s.body("m2", "hello")), 200, "")
		all := o.requests()
		f.want(f.post(all[1].Callback, message("here")), 200, "")
		f.pass(23*time.Hour + 55*time.Minute)
		s.wantEvents("before", `{"content":"here","type":"message"}`)
		f.pass(5 * time.Minute)
		undelivered := `{"code":"undelivered","message":"the agent has not answered for 24 hours","type":"error"}`
		s.wantEvents("after a day", `{"content":"here","type":"message"}`, undelivered)
		f.want(f.post(all[0].Callback, message("late")), 410, "GONE")
		f.pass(48 * time.Hour)
		s.wantEvents("after three days", `{"content":"here","type":"message"}`, undelivered)
		f.pass(8 * 24 * time.Hour)
		f.want(f.post(all[0].Callback, message("forgotten")), 404, "NOT_FOUND")
	})
}

// C-30: a delivery between two ends on one relay makes no HTTP request.
func TestDeliveryWithinTheRelay(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, o := f.channel("ops"), f.owner(t)
		alice := r.member("alice")
		r.connect("bot", o.url, "array")
		if host := r.connection("bot")["host"]; host != "relay.example" {
			t.Errorf("the host is %v", host)
		}
		r.say(alice, "hello")
		h := o.request() // the outgoing client cannot reach relay.example, so this came without HTTP
		if h.Message.Content != "hello" || h.Channel.Name != "ops" || len(h.MCP) != 1 || h.MCP[0].Name != "agora" {
			t.Errorf("the delivery is %+v", h)
		}
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		synctest.Wait()
		f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"hi"`)}))
		f.want(f.post(h.Callback, object{"type": "status", "status": "gone fishing"}), 200, "")
		synctest.Wait()
		if got := r.said(); got != "alice: hello\nbot: hi" {
			t.Errorf("the channel has\n%s", got)
		}
		r.wantConnection("at the end", "bot", "active, 0 queued, 0 dead")
		token := strings.TrimPrefix(h.MCP[0].Headers["Authorization"], "Bearer ")
		if got := f.rpc(r.id, token, "tools/list", nil); got.Status != 200 {
			t.Errorf("the MCP token: %v", got)
		}
		// An inbox that was rotated is 404 for the connection.
		f.want(f.signed(o.key, "POST", "/inboxes/"+o.id+"/rotate", ""), 200, "")
		r.say(alice, "anybody?")
		r.wantConnection("after rotate", "bot", "revoked, 0 queued, 1 dead")
	})
}

// The longest message reaches an inbox of the same relay, also if it has many characters that a delivery escapes.
func TestLongMessageWithinTheRelay(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, o := f.channel("ops"), f.owner(t)
		alice := r.member("alice")
		r.connect("bot", o.url)
		content := strings.Repeat("\u2028", 10922) + "xx"
		body := `{"content":"` + content + `"}`
		f.want(f.do(call{"POST", "/channels/" + r.id + "/messages", alice, body, nil}), 201, "")
		h := o.request()
		if h.Message.Content != content {
			t.Errorf("the message has %d bytes, want %d", len(h.Message.Content), len(content))
		}
	})
}

// An event that the relay sends to itself again after a crash is stored once.
func TestRepeatedEventWithinTheRelay(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, _, _, d := delivered(t, f)
		for _, id := range []string{"msg_1", "msg_1", "msg_2"} {
			answer, err := f.gateway.CallOwn(t.Context(), d.Callback, gateway.Call{ID: id, Body: []byte(said("again"))})
			if err != nil || answer.Status != 200 {
				t.Fatalf("%+v, %v", answer, err)
			}
		}
		if got := r.said(); got != "alice: hello\nbot: again\nbot: again" {
			t.Errorf("the channel has\n%s", got)
		}
	})
}

// Effects in a thread happen once, also if the relay restarts at any time.
func TestThreadIsFollowedAfterRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		f.Restart()
		synctest.Wait()
		s.wantEvents("after the OFFER", processing)
		f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"x"`)}))
		f.Restart()
		f.Restart()
		synctest.Wait()
		once := map[string]bool{} // an event that was being sent at the stop is sent again, with the same id
		s.mu.Lock()
		s.got = slices.DeleteFunc(s.got, func(c serviceCall) bool {
			seen := once[c.id]
			once[c.id] = true
			return seen
		})
		s.mu.Unlock()
		s.wantEvents("after the RESULT", processing, said("x"), idle)
		f.wantThread(h, thread.Completed)
	})
}

// The thread stays pending for 24 hours, and active for 24 hours. It makes no notices when it times out.
func TestThreadTimes(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		f.want(s.deliver(o.url, s.body("m2", "hello")), 200, "")
		all := o.requests()
		f.pass(23 * time.Hour)
		f.wantThread(all[0], thread.Pending)
		f.must(o.send(all[0], envelope.Offer{RequestID: all[0].envelope.ID}))
		synctest.Wait()
		f.pass(23 * time.Hour)
		f.wantThread(all[0], thread.Active)
		f.must(o.send(all[0], envelope.Result{RequestID: all[0].envelope.ID, Status: "success", Output: []byte(`"late"`)}))
		synctest.Wait()
		got := s.calls()
		if last := got[len(got)-1]; last.body != idle {
			t.Errorf("the last event is %s", last.body)
		}
		for _, m := range o.mail() {
			if m.Type == envelope.TypeError {
				t.Errorf("the owner got a notice: %s", m.Payload)
			}
		}
	})
}
