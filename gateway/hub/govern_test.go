package hub_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// TestBans checks that a banned address can neither send nor read, on both listeners, and that its stream ends.
func TestBans(t *testing.T) {
	f := start(t)
	alice, bob := f.register("alice@h"), f.register("bob@h")
	f.send(alice, "alice@h", "bob@h", "before")
	stream := f.open(bob, nil)
	stream.message()
	f.Relay.Gate().SetBans(relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if frame := stream.frame(); frame != "event: closed\ndata: {\"reason\":\"banned\"}\n" {
		t.Errorf("the stream has %q", frame)
	}
	if frame := stream.frame(); frame != "" {
		t.Errorf("after the end, the stream has %q", frame)
	}
	for _, base := range []string{f.URL + "/hub", f.Own} {
		for _, c := range []call{
			{"POST", "/messages", alice, messageTo("bob@h", "alice@h", "after"), nil},
			{"POST", "/register", "", registrationOf("eve@h"), nil}, {"POST", "/agent/session", bob, nil, nil},
			{"GET", "/agent/inbox", bob, nil, nil}, {"GET", "/agent/messages", bob, nil, nil}, {"GET", "/discover", "", nil, nil},
		} {
			f.want(f.at(base, c), 403, "ERR_FORBIDDEN")
		}
	}
	f.Relay.Gate().SetBans(relay.Bans{})
	if rows := f.history(bob, ""); len(rows) != 1 {
		t.Errorf("bob has %v, want one message", rows)
	}
}

// TestRemove checks messages that the operator has removed, in each state. Nobody gets them any more, and both parties
// see that they were removed.
func TestRemove(t *testing.T) {
	f := startLocal(t)
	alice, bob := f.register("alice@h"), f.register("bob@h")
	f.send(alice, "alice@h", "bob@h", "delivered")
	f.history(bob, "")
	f.want(f.do(call{"POST", "/agent/ack", bob, object{"up_to": 1,
		"response": object{"status": "error", "error_code": "ERR_X", "detail": "a reply"}}, nil}), 200, "")
	f.send(alice, "alice@h", "bob@h", "sent")
	f.history(bob, "")
	trace := f.send(alice, "alice@h", "bob@h", "queued").text("trace_id")
	f.send(alice, "alice@h", "bob@h", "stays")
	if err := f.hub.Remove(t.Context(), "5"); envelope.CodeOf(err) != envelope.CodeNotFound {
		t.Errorf("a message that does not exist: %v", err)
	}
	f.Relay.Pause() // a paused relay can be governed
	for _, id := range []string{"1", "2", trace, trace} {
		if err := f.hub.Remove(context.Background(), id); err != nil {
			t.Errorf("removing %s: %v", id, err)
		}
	}
	f.Relay.Resume()
	stream := f.open(bob, map[string]string{"Last-Event-ID": "0"})
	if got := stream.message().text(); got != "stays" {
		t.Errorf("the stream has %q", got)
	}
	for _, key := range []string{alice, bob} {
		rows := f.history(key, "")
		for _, row := range rows[:3] {
			text := row["envelope"].(object)["original_text"]
			if text != "The operator of this hub has removed this message." || row["state"] != "failed" ||
				row["error_code"] != "ERR_FORBIDDEN" || row["receiver_response"] != nil {
				t.Errorf("a removed message is shown as %v", row)
			}
		}
		if len(rows) != 4 || rows[3]["envelope"].(object)["original_text"] != "stays" {
			t.Errorf("the history is %v", rows)
		}
	}
	// What a stream has written is recorded soon after.
	eventually(t, "the message that stays is delivered, and the others count as failed", func() bool {
		return f.get("/health", "").has(`"messages_stored":4,"messages_queued":0,"messages_failed":3`)
	})
}

// TestRemoveFromWebhook checks that the sender of a removed message learns of it at once, that a webhook does not get the
// message, and that a call that was being made changes nothing.
func TestRemoveFromWebhook(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, func(http.ResponseWriter, hookCall) { time.Sleep(10 * time.Second) })
		first := f.sendLater(key, alice, "bob", "a")
		synctest.Wait()
		second := f.sendLater(key, alice, "bob", "b")
		synctest.Wait()
		for i, answer := range []<-chan answer{second, first} {
			if err := f.hub.Remove(t.Context(), fmt.Sprint(2-i)); err != nil {
				t.Fatal(err)
			}
			if a := f.want(<-answer, 200, ""); a.text("delivery") != "failed" || a.text("error_code") != "ERR_FORBIDDEN" {
				t.Errorf("the sender of message %d gets %v", 2-i, a)
			}
		}
		time.Sleep(time.Minute)
		if got := hook.texts(); got != "a" {
			t.Errorf("the webhook got %q", got)
		}
		f.send(key, alice, "bob", "c")
		if got := hook.texts(); got != "a c" {
			t.Errorf("after a later message, the webhook got %q", got)
		}
		for _, row := range f.history(key, "")[:2] {
			if row["state"] != "failed" {
				t.Errorf("the history has %v", row)
			}
		}
	})
}

// TestRemoveSender checks that all messages of a sender are removed, or those since a time, and no others.
func TestRemoveSender(t *testing.T) {
	f := startLocal(t)
	alice, bob, eve := f.register("alice@h"), f.register("bob@h"), f.register("eve@h")
	for range 3 {
		f.send(eve, "eve@h", "bob@h", "watches")
	}
	f.send(alice, "alice@h", "bob@h", "stays")
	f.send(eve, "eve@h", "bob@h", "handbags")
	remove := func(sender string, since time.Time, limit, want int) {
		t.Helper()
		if n, err := f.hub.RemoveSender(t.Context(), sender, since, limit); err != nil || n != want {
			t.Errorf("%d messages of %s are removed, want %d, %v", n, sender, want, err)
		}
	}
	remove("eve@h", time.Now().Add(time.Hour), 9, 0)
	remove("nobody@h", time.Time{}, 9, 0)
	remove("did:key:z6Mk", time.Time{}, 9, 0)
	remove("eve@h", time.Time{}, 3, 3)
	remove("eve@h", time.Time{}, 3, 1)
	remove("eve@h", time.Time{}, 3, 0)
	text := fmt.Sprint(f.history(bob, ""))
	if strings.Contains(text, "watches") || strings.Contains(text, "handbags") || !strings.Contains(text, "stays") {
		t.Errorf("bob has %s", text)
	}
}
