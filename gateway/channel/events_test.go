package channel_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A message has 1 to 32,768 bytes. G-21, G-22, G-23: an Idempotency-Key belongs to one member and one channel.
func TestMessages(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, other := f.channel("ops"), f.channel("other")
		alice, bob, carol := r.member("alice"), r.member("bob"), other.member("carol")
		post := func(r room, key, id string, body any) answer {
			return f.do(call{"POST", "/channels/" + r.id + "/messages", key, body, map[string]string{"Idempotency-Key": id}})
		}
		for _, body := range []any{object{}, object{"content": ""}, object{"content": 1}, object{"content": strings.Repeat("x", 32769)},
			`{"content":"a","content":"b"}`, `{"content":"\ud800"}`, `{"content":"a"} x`, `[]`, ``} {
			f.want(post(r, alice, "k", body), 400, "INVALID_REQUEST")
		}
		for _, id := range []string{strings.Repeat("x", 257), "ä"} {
			f.want(post(r, alice, id, object{"content": "x"}), 400, "INVALID_REQUEST")
		}
		first := f.want(post(r, alice, "k", object{"content": "x"}), 201, "")
		want := `^{"ok":true,"event":{"content":"x","depth":0,"id":"msg_[a-z2-7]{26}","kind":"member","sender":"alice","seq":1,` +
			`"ts":"2000-01-01T00:00:00.000Z","type":"message","via":"api"},"deliveries":0}\n$`
		if !regexp.MustCompile(want).Match(first.Body) {
			t.Errorf("the answer is %v, want %s", first, want)
		}
		f.Restart()
		again := f.want(post(r, alice, "k", ` { "content" : "x" } `), 201, "")
		if !bytes.Equal(first.Body, again.Body) || again.Header.Get("Idempotent-Replay") != "true" {
			t.Errorf("%v, again %v", first, again)
		}
		f.want(post(r, alice, "k", object{"content": "y"}), 409, "CONFLICT")
		f.want(post(r, bob, "k", object{"content": "y"}), 201, "")
		f.want(post(other, carol, "k", object{"content": "z"}), 201, "")
		f.want(post(r, alice, "l", object{"content": strings.Repeat("x", 32768)}), 201, "")
		f.pass(24 * time.Hour)
		f.want(post(r, alice, "k", object{"content": "y"}), 201, "")
		if n := len(r.events()); n != 4 {
			t.Errorf("%d events, want 4", n)
		}
	})
}

// GET events has pages, and waits for the next event.
func TestGetEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		get := func(query string) answer {
			return f.do(call{"GET", "/channels/" + r.id + "/events" + query, alice, nil, nil})
		}
		page := func(query string) string {
			a := f.want(get(query), 200, "")
			list := member(a, "events").([]any)
			if len(list) == 0 {
				return fmt.Sprint("none ", member(a, "cursor"))
			}
			return fmt.Sprint(list[0].(object)["seq"], "-", list[len(list)-1].(object)["seq"], " ", member(a, "cursor"))
		}
		if got := page(""); got != "none 0" {
			t.Errorf("an empty channel has %s", got)
		}
		for i := range 230 {
			r.say(alice, fmt.Sprint(i))
		}
		for query, want := range map[string]string{"": "1-50 50", "?after=0": "1-50 50", "?after=10&limit=5": "11-15 15",
			"?limit=200": "1-200 200", "?after=229": "230-230 230", "?after=230": "none 230", "?after=999": "none 999",
			"?limit=1&unknown=x&unknown=y": "1-1 1", "?after=9223372036854775807": "none 9.223372036854776e+18"} {
			if got := page(query); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		for _, query := range []string{"?limit=0", "?limit=201", "?limit=x", "?limit=", "?after=-1", "?after=1.0", "?wait=61", "?wait=x",
			"?wait=-1", "?after=1&after=2", "?after=%zz", "?after=9223372036854775808", "?limit=+1"} {
			f.want(get(query), 400, "INVALID_REQUEST")
		}
		began := time.Now()
		if got := page("?after=230&wait=60"); got != "none 230" || time.Since(began) != time.Minute {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		go func() {
			time.Sleep(10 * time.Second)
			r.say(alice, "news")
		}()
		began = time.Now()
		if got := page("?after=230&wait=60"); got != "231-231 231" || time.Since(began) != 10*time.Second {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		go func() {
			time.Sleep(10 * time.Second)
			f.want(r.do("DELETE", "", nil), 200, "")
		}()
		f.want(get("?after=231&wait=60"), 401, "UNAUTHORIZED")
		synctest.Wait()
	})
}

// A page of events has at most 1 MiB, or one longer event. The next page begins after it.
func TestPagesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, _, _, d := delivered(t, f)
		pad := strings.Repeat("x", 30_000)
		for i := range 40 {
			f.want(f.post(d.Callback, object{"type": "message", "content": fmt.Sprint(i), "pad": pad}), 200, "")
		}
		a := f.want(r.do("GET", "/events?limit=200", nil), 200, "")
		if n := len(member(a, "events").([]any)); n < 30 || n > 36 || len(a.Body) > 1<<20+10_000 {
			t.Errorf("a page has %d events and %d bytes", n, len(a.Body))
		}
		if n := len(r.events()); n != 41 {
			t.Errorf("all pages have %d events, want 41", n)
		}
		got, _ := called(t, f.session(t, d), "get_messages", object{"limit": 200, "after": 0})
		if all := got["messages"].([]any); len(all) > 36 || got["hasMore"] != true || all[0].(object)["content"] != "hello" {
			t.Errorf("the tool returns %d messages, more: %v", len(all), got["hasMore"])
		}
	})
}

// At most 10,000 events of a channel are kept, or a little more. While a message waits to be delivered, it stays, and so
// does what came after it.
func TestOldestEventsAreRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, other := f.channel("ops"), f.channel("other")
		alice := r.member("alice")
		other.say(other.member("bob"), "of another channel")
		a := newAgent(t, status(503))
		r.connect("bot", a.url)
		r.say(alice, "waits")
		synctest.Wait()
		first := a.deliveries()[0]
		post := func(from, to int) {
			for i := from; i < to; i++ {
				if got := f.post(first.Callback, object{"type": "status", "status": fmt.Sprint(i)}); got.Status != 200 {
					t.Fatal(got)
				}
			}
		}
		post(0, 300)
		if n := len(r.events()); n != 301 {
			t.Errorf("%d events while a message waits, want 301", n)
		}
		a.answerWith(nil)
		time.Sleep(10 * time.Minute)
		post(300, 450)
		all := r.events()
		if len(all) < 150 || len(all) > 251 || all[len(all)-1]["status"] != "449" || all[0]["seq"].(float64) < 200 ||
			len(other.events()) != 1 {
			t.Errorf("%d events are left, from %v to %v", len(all), all[0], all[len(all)-1])
		}
	}, func(f *fixture) { f.small = 150 })
}

// Events are kept for 30 days. The events of a deleted channel are removed.
func TestEventsAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, gone := f.channel("ops"), f.channel("gone")
		alice := r.member("alice")
		r.say(alice, "old")
		bob := gone.member("bob")
		for range 250 {
			gone.say(bob, "x")
		}
		f.pass(20 * 24 * time.Hour)
		r.say(alice, "new")
		f.want(gone.do("DELETE", "", nil), 200, "")
		f.pass(9 * 24 * time.Hour)
		if got := r.said(); got != "alice: old\nalice: new" {
			t.Errorf("after 29 days: %s", got)
		}
		f.pass(2 * 24 * time.Hour)
		if got := r.said(); got != "alice: new" {
			t.Errorf("after 31 days: %s", got)
		}
		for _, table := range []string{"channel_event WHERE channel = 2", "channel_channel WHERE n = 2", "channel_delivery"} {
			if n := f.stored(table); n != 0 {
				t.Errorf("%d rows of %s are left", n, table)
			}
		}
	})
}
