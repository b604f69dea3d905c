package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// received returns the newest envelope as the agent's Follow passes it on.
func received(t *testing.T, agent *client.Client, sent *envelope.Envelope) *envelope.Envelope {
	t.Helper()
	stop := errors.New("stop")
	var last *envelope.Envelope
	err := agent.Follow(t.Context(), client.FollowOptions{FromOldest: true}, func(_ context.Context, e *envelope.Envelope) error {
		if last = e; e.ID == sent.ID {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	return last
}

// TestChannelDelivery reads a delivery, and refuses everything that is not a sealed REQUEST of the gateway.
func TestChannelDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, bob := newFakeChannel(), newKey(t)
		agent := f.client(t, bob)
		d, err := agent.ChannelDelivery(t.Context(), received(t, agent, f.deliver(t, f.key, bob, sampleDelivery, true)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(d)
		want := `{"id":"dlv_1",` + sampleDelivery[1:]
		if err != nil || string(text) != want {
			t.Errorf("got %s, want %s, %v", text, want, err)
		}

		for name, change := range map[string][2]string{
			"no channel.id":      {`"id":"ch_1"`, `"i":""`},
			"no message.id":      {`"id":"msg_1"`, `"id":""`},
			"no content":         {`"content":"hello"`, `"content":""`},
			"no callback":        {`"callback":"http://`, `"callback":"ftp://`},
			"a list of a number": {`"mcp":[`, `"mcp":[7,`},
			"17 servers":         {`"mcp":[`, `"mcp":[` + strings.Repeat(`{"url":"https://x.example"},`, 16)},
		} {
			f.relay.wipe()
			params := strings.Replace(sampleDelivery, change[0], change[1], 1)
			e := received(t, agent, f.deliver(t, f.key, bob, params, true))
			expectRefusal(t, name, envelope.AgentInvalidRequest)(agent.ChannelDelivery(t.Context(), e))
		}
		f.relay.wipe()
		plain := received(t, agent, f.deliver(t, f.key, bob, sampleDelivery, false))
		expectRefusal(t, "plain", envelope.AgentForbidden)(agent.ChannelDelivery(t.Context(), plain))
		f.relay.wipe()
		forged := received(t, agent, f.deliver(t, newKey(t), bob, sampleDelivery, true))
		expectRefusal(t, "forged", envelope.AgentForbidden)(agent.ChannelDelivery(t.Context(), forged))
		if _, _, err := newClient(t, f.relay, newKey(t), client.Options{}).Post(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		expectRefusal(t, "intent", envelope.AgentIntentNotSupported)(agent.ChannelDelivery(t.Context(), f.relay.last()))

		f.relay.wipe()
		foreign := received(t, agent, f.deliver(t, f.key, bob, sampleDelivery, true))
		expectRefusal(t, "another recipient", envelope.AgentForbidden)(f.client(t, newKey(t)).ChannelDelivery(t.Context(), foreign))
		delete(f.document, "gateways")
		if _, err := f.client(t, bob).ChannelDelivery(t.Context(), foreign); !errors.Is(err, client.ErrNoChannel) {
			t.Errorf("without a gateway: %v", err)
		}
	})
}

func expectRefusal(t *testing.T, name string, code envelope.AgentCode) func(client.ChannelDelivery, error) {
	return func(d client.ChannelDelivery, err error) {
		t.Helper()
		if refused, ok := errors.AsType[*client.AgentError](err); !ok || refused.Code != code || d.ID != "" {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

// reply returns the agent's reply to the sample delivery.
func reply(t *testing.T, f *fakeChannel) *client.ChannelReply {
	t.Helper()
	r, err := f.client(t, newKey(t)).Reply(client.ChannelDelivery{Callback: "http://relay.test/channel/out/tok_secret"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReply posts one event of each type, through failures. Each is stored once, in order.
func TestReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeChannel()
		unavailable := answering(503, `{"ok":false,"error":"UNAVAILABLE","message":"later"}`, "Retry-After", "7")
		f.faults = []fault{lost, nil, reset, answering(502, "bad gateway"), nil, unavailable, unavailable, nil}
		r, began := reply(t, f), time.Now()
		events := []client.ChannelEvent{{Type: "lifecycle", Status: "processing"}, {Type: "status", Status: "searching"},
			{Type: "tool_call", Name: "web", ID: "1", Args: json.RawMessage(`{"q":"oslo"}`)}, {Type: "tool_result", ID: "1"},
			{Type: "tool_call", Name: "now", ID: "2"}, {Type: "message", Content: "3°C", Key: "own-key"},
			{Type: "error", Message: "no wind"}, {Type: "error", Message: "no wind", Code: "tool_error"}}
		for _, e := range events {
			if err := r.Post(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		var bodies []string
		for _, record := range f.posted {
			_, body, _ := strings.Cut(record, " ")
			bodies = append(bodies, body)
		}
		want := []string{`{"status":"processing","type":"lifecycle"}`, `{"status":"searching","type":"status"}`,
			`{"args":{"q":"oslo"},"id":"1","name":"web","type":"tool_call"}`, `{"content":"","id":"1","type":"tool_result"}`,
			`{"args":{},"id":"2","name":"now","type":"tool_call"}`, `{"content":"3°C","type":"message"}`,
			`{"message":"no wind","type":"error"}`, `{"code":"tool_error","message":"no wind","type":"error"}`}
		if !slices.Equal(bodies, want) || !strings.HasPrefix(f.posted[5], "own-key ") {
			t.Errorf("got %q\nwant %q", f.posted, want)
		}
		if waited := time.Since(began); waited < 14*time.Second {
			t.Errorf("waited %v, although Retry-After was 7 s twice", waited)
		}
		if f.keys[0] != f.keys[1] || f.keys[0] == f.keys[5] || f.keys[0] == "" {
			t.Errorf("the keys are %q", f.keys)
		}
		if err := r.Post(t.Context(), client.ChannelEvent{Type: "dance"}); err == nil {
			t.Error("an event of an unknown type was posted")
		}
	})
}

// TestReplyEnds checks which failures end a reply, and that no error shows the token of the callback.
func TestReplyEnds(t *testing.T) {
	say := client.ChannelEvent{Type: "message", Content: "hi"}
	const invalid, gone = `{"ok":false,"error":"INVALID_REQUEST","message":"no"}`, `{"ok":false,"error":"GONE","message":"expired"}`
	for name, test := range map[string]struct {
		faults   []fault
		unknown  bool
		ended    bool
		requests int
	}{
		"refused":             {[]fault{answering(400, invalid)}, false, false, 2},
		"lost, then refused":  {[]fault{lost, answering(400, invalid)}, false, false, 3},
		"expired":             {[]fault{answering(410, gone)}, false, true, 1},
		"a proxy's 410":       {[]fault{answering(410, "gone")}, false, true, 1},
		"silent":              {slices.Repeat([]fault{reset}, 8), true, false, 9},
		"busy for long":       {[]fault{answering(429, invalid, "Retry-After", "3600")}, false, false, 2},
		"lost, busy for long": {[]fault{lost, answering(429, invalid, "Retry-After", "3600")}, true, false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeChannel()
				f.faults = test.faults
				r := reply(t, f)
				err := r.Post(t.Context(), say)
				if err == nil || errors.Is(err, client.ErrUnknownOutcome) != test.unknown || errors.Is(err, client.ErrCallbackEnded) != test.ended {
					t.Errorf("got %v", err)
				}
				if err != nil && strings.Contains(err.Error(), "tok_secret") {
					t.Errorf("the error shows the token: %v", err)
				}
				next := r.Post(t.Context(), say)
				if errors.Is(next, client.ErrCallbackEnded) != test.ended || (next == nil) == test.ended || len(f.calls) != test.requests {
					t.Errorf("the next event: %v, after %d requests", next, len(f.calls))
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := reply(t, newFakeChannel()).Post(ctx, say); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	c, err := client.New("http://relay.test", nil, client.Options{HTTPClient: &http.Client{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reply(client.ChannelDelivery{Callback: "file:///etc/passwd"}); err == nil {
		t.Error("a callback that is not a URL was taken")
	}
}
