package channel_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

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
