package a2a_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	threads "github.com/agora-relay/agora/thread"
)

// pushedStatus is an event that an A2A server pushes.
const pushedStatus = `{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}`

// hook makes a hook, and returns its URL.
func (f *fixture) hook(owner didkey.Key) string {
	f.t.Helper()
	return text(f.want(f.signed(owner, "POST", "/hooks", object{"label": "mine"}), 201, "").Body, "url")
}

// notify pushes an event to the URL of a hook. header is in pairs.
func (f *fixture) notify(url, body string, header ...string) answer {
	f.t.Helper()
	h := map[string]string{"Content-Type": "application/a2a+json"}
	for i := 0; i+1 < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	return f.do(call{"POST", strings.TrimPrefix(url, gatetest.PublicURL+"/a2a"), "", body, h})
}

// notified returns what the owner of hooks got, and the thread of the first REQUEST.
func (f *fixture) notified(owner didkey.Key) (all []wire.Notification, thread string) {
	f.t.Helper()
	synctest.Wait()
	d, err := f.Relay.Events(f.t.Context(), &relay.Poll{Peer: relay.Peer{Local: true, Reader: owner.DID()}, Limit: 100,
		Filter: relay.Filter{Recipient: owner.DID()}})
	f.must(err)
	for piece, err := range d.Pieces() {
		f.must(err)
		for _, e := range piece {
			m, err := envelope.Parse(e.Body, e.Size)
			f.must(err)
			if m.Type != envelope.TypeRequest {
				continue
			}
			opened, err := m.Open(owner)
			f.must(err)
			var request envelope.Request
			f.must(opened.DecodePayload(&request))
			var n wire.Notification
			f.must(json.Unmarshal(request.Params, &n))
			if request.Intent != wire.NotificationIntent || m.Sender.ID != f.Key.DID() || !strings.HasPrefix(m.Thread, "ntf_") {
				f.t.Errorf("the owner got %s with %s", m.Thread, request.Intent)
			}
			if all = append(all, n); thread == "" {
				thread = m.Thread
			}
		}
	}
	return all, thread
}

// through a hook, an agent that nobody can reach gets pushes. A push to a hook of this relay makes no HTTP
// request.
func TestHook(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		owner := newKey(t)
		made := f.want(f.signed(owner, "POST", "/hooks", object{"label": "mine"}), 201, "")
		id, url := text(made.Body, "id"), text(made.Body, "url")
		a := f.stepper(wire.Keys)
		c := caller{agent: a.agent, key: a.newKey("alice")}
		c.pushed("hello", object{"url": url, "token": "t", "authentication": object{"scheme": "Basic", "credentials": "k"}})
		turn := <-a.turns
		f.want(a.progress(turn, chunk("a", "1", false, false)), 200, "")
		a.end("success", "null")
		got, _ := f.notified(owner)
		var events []string
		for _, n := range got {
			events = append(events, strings.SplitN(string(n.Event), `"`, 3)[1])
			if n.Hook != id || n.Token != "t" || n.Authorization != "Basic k" {
				t.Errorf("the owner got %+v", n)
			}
		}
		if want := "[task statusUpdate artifactUpdate statusUpdate]"; fmt.Sprint(events) != want {
			t.Errorf("the owner got %v, want %v", events, want)
		}
		other := newKey(t)
		outside := f.hook(other)
		f.want(f.notify(outside, pushedStatus, "X-A2A-Notification-Token", "x", "Idempotency-Key", "1"), 200, "")
		f.want(f.notify(outside+"/", pushedStatus, "X-A2A-Notification-Token", "x", "Idempotency-Key", "1"), 200, "")
		if got, _ := f.notified(other); len(got) != 1 || string(got[0].Event) != string(canonical(t, []byte(pushedStatus))) ||
			got[0].Token != "x" || got[0].Authorization != "" {
			t.Errorf("from outside the owner got %+v", got)
		}
		events2, err := gatetest.Do(t.Context(), f.Client, f.URL, gatetest.Call{Method: "GET", Path: "/events?limit=100"})
		f.must(err)
		if key := outside[strings.LastIndex(outside, "/")+1:]; strings.Contains(f.Logged()+string(events2.Body), key) {
			t.Error("the log or /events has the key of the hook (A-38)")
		}
	}, func(f *fixture) {
		f.Outgoing.Dial = func(_ context.Context, _, addr string) (net.Conn, error) {
			t.Errorf("the relay connects to %s", addr)
			return nil, net.ErrClosed
		}
	})
}

// §8: what is no event of A2A is refused. A key of another kind, and one of a deleted hook, is 404. Only the owner lists and
// deletes a hook.
func TestHookIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		owner, other := newKey(t), newKey(t)
		url := f.hook(owner)
		padded := func(size int) string {
			const head, tail = `{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"`, `"}]}}`
			return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
		}
		f.want(f.notify(url, padded(64<<10)), 200, "")
		f.want(f.notify(url, padded(64<<10+1)), 413, "PAYLOAD_TOO_LARGE")
		for _, body := range []string{`{}`, `[]`, `{`, `{"statusUpdate":{}}`, `{"task":{"id":"t"},"message":{}}`} {
			f.want(f.notify(url, body), 400, "INVALID_REQUEST")
		}
		f.want(f.notify(url, pushedStatus, "Authorization", "Bearer "+strings.Repeat("x", 9000)), 400, "INVALID_REQUEST")
		key := f.agent(wire.Keys).newKey("alice")
		f.want(f.notify(gatetest.PublicURL+"/a2a/hook/"+key, pushedStatus), 404, "NOT_FOUND")
		list := f.want(f.signed(owner, "GET", "/hooks", nil), 200, "")
		id := text(list.Body, "hooks", 0, "id")
		if strings.Contains(string(list.Body), "ah_") || text(list.Body, "hooks", 0, "label") != "mine" {
			t.Errorf("the list is %v", list)
		}
		if list := f.want(f.signed(other, "GET", "/hooks", nil), 200, ""); member(list.Body, "hooks", 0) != nil {
			t.Errorf("another DID sees %v", list)
		}
		unknown := f.want(f.signed(other, "DELETE", "/hooks/hk_x", nil), 403, "FORBIDDEN")
		if got := f.want(f.signed(other, "DELETE", "/hooks/"+id, nil), 403, "FORBIDDEN"); got.String() != unknown.String() {
			t.Errorf("a hook of another DID: %v, want %v", got, unknown)
		}
		f.want(f.signed(owner, "DELETE", "/hooks/"+id, nil), 200, "")
		f.want(f.notify(url, pushedStatus), 404, "NOT_FOUND")
		f.want(f.signed(owner, "POST", "/hooks", object{"label": strings.Repeat("x", 81)}), 400, "INVALID_REQUEST")
		for range 20 {
			f.hook(owner)
		}
		f.want(f.signed(owner, "POST", "/hooks", object{}), 429, "RATE_LIMITED")
	})
}

// §8: over its limits, a hook answers 503, never 429. When the owner answers, there is room again. An OFFER of the
// owner is never accepted.
func TestHookLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.gateway.SetNotices(4)
		owner := newKey(t)
		url := f.hook(owner)
		n := 0
		push := func() answer {
			n++
			return f.notify(url, pushedStatus, "Idempotency-Key", fmt.Sprint(n))
		}
		f.want(push(), 200, "")
		f.want(push(), 200, "")
		if got := f.want(push(), 503, "UNAVAILABLE"); got.Header.Get("Retry-After") != "60" { // half is for networks that the owner knows
			t.Errorf("the headers are %v", got.Header)
		}
		_, first := f.notified(owner)
		a := &agent{f: f, key: owner}
		stop := a.serveWith([]string{wire.NotificationIntent}, client.Handler{
			Work: func(context.Context, client.Job) (envelope.Result, error) {
				t.Error("the owner works on a notification")
				return result("success", "null")
			}})
		time.Sleep(time.Minute)
		stop()
		v, err := f.Relay.Thread(t.Context(), relay.Peer{Local: true}, threads.Key{Client: f.Key.DID(), ID: first})
		if err != nil || v.State != threads.Failed {
			t.Errorf("the thread is %v, %v", v.State, err)
		}
		for range 4 { // now the owner knows the network
			f.want(push(), 200, "")
		}
		f.want(push(), 503, "UNAVAILABLE")
		f.pass(24 * time.Hour)
		f.want(push(), 200, "")
		f.gateway.SetNotices(1000)
		limited := 0
		for range 60 {
			if got := push(); got.Status == 503 {
				limited++
			} else {
				f.want(got, 200, "")
			}
		}
		if limited < 5 {
			t.Errorf("%d of 60 pushes at once were refused", limited)
		}
		f.pass(8 * 24 * time.Hour)
		f.wantRows(t, "a2a_notice", 0)
	}, func(f *fixture) { f.Public = true })
}
