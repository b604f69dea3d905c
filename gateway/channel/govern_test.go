package channel_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// TestBannedAddress checks that a banned address can do nothing, and that its waiting request ends with a refusal.
func TestBannedAddress(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, o := f.channel("ops"), f.owner(t)
		alice := r.member("alice")
		waiting := make(chan answer, 1)
		go func() { waiting <- f.do(call{"GET", "/channels/" + r.id + "/events?wait=60", alice, nil, nil}) }()
		synctest.Wait()
		began := time.Now()
		f.Relay.Gate().SetBans(relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
		f.want(<-waiting, 403, "FORBIDDEN")
		if took := time.Since(began); took > time.Second {
			t.Errorf("the request of a banned client ends after %v", took)
		}
		f.want(f.do(call{"POST", "/channels/" + r.id + "/messages", alice, object{"content": "x"}, nil}), 403, "FORBIDDEN")
		f.want(f.do(call{"GET", "/channels/" + r.id + "/events", alice, nil, nil}), 403, "FORBIDDEN")
		f.want(f.signed(o.key, "GET", "/inboxes", ""), 403, "FORBIDDEN")
		f.Relay.Gate().SetBans(relay.Bans{})
		if got := r.said(); got != "" {
			t.Errorf("the channel has %q", got)
		}
	}, func(f *fixture) { f.From = "203.0.113.9:9" })
}

// TestBannedOwner checks that the owner of an inbox who is banned cannot use the inbox, nor the tokens that came to it.
func TestBannedOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, o := f.channel("ops"), f.owner(t)
		alice := r.member("alice")
		r.connect("bot", o.url, "array")
		r.say(alice, "hello")
		h := o.request()
		token := strings.TrimPrefix(h.MCP[0].Headers["Authorization"], "Bearer ")
		say := func() answer {
			return f.rpc(r.id, token, "tools/call", object{"name": "send_message", "arguments": object{"content": "spam"}})
		}
		f.Relay.Gate().SetBans(relay.Bans{Agents: []didkey.DID{o.key.DID()}})
		f.want(f.signed(o.key, "GET", "/inboxes", ""), 403, "FORBIDDEN")
		f.want(f.signed(o.key, "POST", "/inboxes", `{}`), 403, "FORBIDDEN")
		f.want(f.post(h.Callback, object{"type": "message", "content": "spam"}), 403, "FORBIDDEN")
		f.want(say(), 403, "FORBIDDEN")
		if err := o.send(h, envelope.Offer{RequestID: h.envelope.ID}); envelope.CodeOf(err) != envelope.CodeForbidden {
			t.Errorf("an OFFER: %v", err)
		}
		synctest.Wait()
		if got := r.said(); got != "alice: hello" {
			t.Errorf("the channel has %q", got)
		}
		f.Relay.Gate().SetBans(relay.Bans{})
		if a := say(); a.Status != 200 {
			t.Errorf("after the ban: %v", a)
		}
		f.want(f.post(h.Callback, object{"type": "message", "content": "sorry"}), 200, "")
		synctest.Wait()
		if got := r.said(); got != "alice: hello\nbot: spam\nbot: sorry" {
			t.Errorf("the channel has %q", got)
		}
	})
}

// TestRemove checks that nobody gets an event any more that the operator has removed.
func TestRemove(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		bot := newAgent(t, status(503))
		r.connect("bot", bot.url, "object")
		r.say(alice, "first")
		synctest.Wait()
		f.want(f.post(bot.deliveries()[0].Callback, object{"type": "status", "status": "secret status"}), 200, "")
		f.want(f.post(bot.deliveries()[0].Callback, object{"type": "tool_call", "id": "c1", "name": "secret tool"}), 200, "")
		r.say(alice, "second")
		r.say(alice, "third")
		roster := func() string {
			a := f.rpc(r.id, bot.deliveries()[0].token(), "tools/call", object{"name": "get_roster", "arguments": object{}})
			return string(a.Body)
		}
		if got := roster(); !strings.Contains(got, "secret status") {
			t.Errorf("the roster is %s", got)
		}
		f.Relay.Pause() // a paused relay can be governed
		for _, id := range []string{fmt.Sprint(r.events()[3]["id"]), r.id + "/2", r.id + "/3"} {
			f.must(f.gateway.Remove(t.Context(), id))
		}
		f.Relay.Resume()
		rosterAfter := roster()
		bot.answerWith(nil)
		time.Sleep(time.Hour)
		if got := bot.contents(); strings.Contains(got, "second") || !strings.HasSuffix(got, "first third") {
			t.Errorf("the agent got %q", got)
		}
		text := fmt.Sprint(r.events())
		for _, gone := range []string{"second", "secret"} {
			if strings.Contains(text, gone) {
				t.Errorf("the events still have %q: %s", gone, text)
			}
		}
		if n := strings.Count(text, "[removed by the operator]"); n != 4 { // a tool call has two texts
			t.Errorf("%d texts say that they were removed: %s", n, text)
		}
		if strings.Contains(rosterAfter, "secret") {
			t.Errorf("the roster still has the status: %s", rosterAfter)
		}
		for id, want := range map[string]envelope.Code{"msg_unknown": envelope.CodeNotFound, r.id + "/9": envelope.CodeNotFound,
			"ch_unknown/1": envelope.CodeNotFound, r.id + "/x": envelope.CodeInvalidRequest} {
			if err := f.gateway.Remove(t.Context(), id); envelope.CodeOf(err) != want {
				t.Errorf("removing %s: %v, want %s", id, err, want)
			}
		}
	})
}

// TestRemoveSender checks which events are removed: all of an agent with an inbox, or only those of one name in one
// channel, or only those since a time. All others must stay.
func TestRemoveSender(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, o, other := f.channel("ops"), f.owner(t), f.owner(t)
		alice := r.member("alice")
		r.connect("spammer", o.url, "object")
		r.connect("helper", other.url, "object")
		r.say(alice, "hello")
		synctest.Wait()
		h, fair := o.request(), other.request()
		for _, content := range []string{"watches", "handbags"} {
			f.want(f.post(h.Callback, object{"type": "message", "content": content}), 200, "")
			time.Sleep(time.Minute)
		}
		f.want(f.post(fair.Callback, object{"type": "message", "content": "help"}), 200, "")
		synctest.Wait()
		remove := func(sender string, since time.Time, limit, want int) {
			t.Helper()
			if n, err := f.gateway.RemoveSender(t.Context(), sender, since, limit); err != nil || n != want {
				t.Errorf("%d events of %s are removed, want %d, %v", n, sender, want, err)
			}
		}
		did := string(o.key.DID())
		remove(did, time.Now(), 9, 0)
		remove(did, time.Now().Add(-90*time.Second), 9, 1)
		remove(did, time.Time{}, 9, 1)
		remove(did, time.Time{}, 9, 0)
		remove("bob@relay.example", time.Time{}, 9, 0)
		removed := "[removed by the operator]"
		if got, want := r.said(), "alice: hello\nspammer: "+removed+"\nspammer: "+removed+"\nhelper: help"; got != want {
			t.Errorf("the channel has %q", got)
		}
		remove(r.id+"/alice", time.Time{}, 9, 1)
		remove("ch_unknown/alice", time.Time{}, 9, 0)
		if got := r.said(); !strings.HasPrefix(got, "alice: "+removed) {
			t.Errorf("the channel has %q", got)
		}
	})
}
