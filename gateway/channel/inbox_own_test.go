package channel_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
)

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
