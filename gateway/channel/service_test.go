package channel_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// C-1: a delivery has the bytes of the protocol, with each form of mcp.
func TestDeliveryBytes(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		for _, mcp := range []string{"object", "array", "none"} {
			a := newAgent(t, nil)
			r.connect("bot-"+mcp, a.url, mcp)
			content := "What's <new> & \"quoted\", 天气\n?"
			r.say(alice, content)
			d := a.last()
			tools := fmt.Sprintf(`{"url":"https://relay.example/channel/mcp/%s","headers":{"Authorization":"Bearer %s"}}`,
				r.id, d.token())
			last := map[string]string{
				"object": `,"mcp":` + tools,
				"array":  `,"mcp":[{"name":"agora",` + tools[1:] + `]`,
				"none":   "",
			}[mcp]
			want := fmt.Sprintf(`{"channel":{"id":"%s","name":"ops","service":"Agora relay relay.example","context":"about ops"},`+
				`"message":{"id":"%s","sender":"alice","content":"What's <new> & \"quoted\", 天气\n?"},"callback":"%s"%s}`,
				r.id, d.Message.ID, d.Callback, last)
			if d.body != want {
				t.Errorf("with %s the delivery is\n%s\nwant\n%s", mcp, d.body, want)
			}
			if d.header.Get("Content-Type") != "application/json" || d.header.Get("Idempotency-Key") != d.Message.ID ||
				d.header.Get("Authorization") != "" {
				t.Errorf("the delivery has the headers %v", d.header)
			}
			callback := regexp.MustCompile(`^https://relay\.example/channel/channels/` + r.id + `/inbox/tok_[A-Za-z0-9_-]{43}$`)
			if !callback.MatchString(d.Callback) || !regexp.MustCompile(`^msg_[a-z2-7]{26}$`).MatchString(d.Message.ID) {
				t.Errorf("the callback is %s, the id is %s", d.Callback, d.Message.ID)
			}
		}
	})
}

// C-2: a connection gets the messages one after the other, in order, also if it is slow or fails for a while.
func TestDeliveriesComeInOrder(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		busy, overlaps := 0, 0
		a := newAgent(t, nil)
		a.answerWith(func(w http.ResponseWriter, d delivery) {
			a.mu.Lock()
			busy++
			overlaps += busy - 1
			count := len(a.got)
			a.mu.Unlock()
			time.Sleep(time.Second)
			a.mu.Lock()
			busy--
			a.mu.Unlock()
			if count%3 == 0 {
				w.WriteHeader(503)
			}
		})
		r.connect("bot", a.url)
		for i := range 6 {
			r.say(alice, fmt.Sprint(i))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		var accepted []string
		for i, d := range a.deliveries() {
			if (i+1)%3 != 0 {
				accepted = append(accepted, d.Message.Content)
			}
		}
		if got := strings.Join(accepted, " "); got != "0 1 2 3 4 5" || overlaps > 0 {
			t.Errorf("the agent has accepted %s, with %d overlaps", got, overlaps)
		}
	})
}

// C-3: a slow connection delays no other. A member's own channel does not wait for it either.
func TestSlowConnection(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		slow := newAgent(t, func(http.ResponseWriter, delivery) { time.Sleep(9 * time.Second) })
		quick := newAgent(t, nil)
		r.connect("slow", slow.url)
		r.connect("quick", quick.url)
		for i := range 5 {
			if n := r.say(alice, fmt.Sprint(i)); n != 2 {
				t.Errorf("%d deliveries, want 2", n)
			}
		}
		quick.wantContents("at once", "0 1 2 3 4")
		slow.wantContents("at once", "0")
		time.Sleep(time.Minute)
		slow.wantContents("later", "0 1 2 3 4")
	})
}

// C-4: the id is the same in every attempt. C-5: the tokens differ in every attempt, and each works.
func TestEachAttemptHasItsTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		a := newAgent(t, status(500))
		r.connect("bot", a.url)
		r.say(alice, "hello")
		time.Sleep(20 * time.Second)
		a.answerWith(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		all := a.deliveries()
		if len(all) < 3 {
			t.Fatalf("%d attempts", len(all))
		}
		seen := map[string]bool{}
		for _, d := range all {
			if d.Message.ID != all[0].Message.ID || seen[d.Callback] || seen[d.token()] {
				t.Errorf("an attempt has the id %s and old tokens: %v, %v", d.Message.ID, seen[d.Callback], seen[d.token()])
			}
			seen[d.Callback], seen[d.token()] = true, true
			f.want(f.post(d.Callback, message("by "+d.Callback[len(d.Callback)-5:])), 200, "")
			if got := f.tool(d, "set_status", object{"status": "here"}); got.Status != 200 {
				t.Errorf("the MCP token: %v", got)
			}
		}
		r.wantConnection("at the end", "bot", "active, 0 queued, 0 dead")
	})
}

// C-6: 404 and 410 revoke the connection, another 4xx ends the delivery, and 5xx, timeouts and the like are tried again.
func TestAnswersOfAgents(t *testing.T) {
	engine.OnlySQLite(t, "it maps many answers; a smaller test stores one of each kind")
	for code, want := range map[int]string{
		200: "active, 0 queued, 0 dead", 204: "active, 0 queued, 0 dead", 202: "active, 0 queued, 0 dead",
		404: "revoked, 0 queued, 3 dead", 410: "revoked, 0 queued, 3 dead",
		400: "active, 0 queued, 3 dead", 401: "active, 0 queued, 3 dead", 403: "active, 0 queued, 3 dead",
		302: "active, 0 queued, 3 dead",
		408: "active, 3 queued, 0 dead", 425: "active, 3 queued, 0 dead", 429: "active, 3 queued, 0 dead",
		500: "active, 3 queued, 0 dead", 503: "active, 3 queued, 0 dead", 0: "active, 3 queued, 0 dead",
	} {
		if racing.Detector && code > 0 && code%100 != 0 && code != 404 {
			continue // one code of each kind is enough
		}
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fixture) {
				r := f.channel("ops")
				alice := r.member("alice")
				a := newAgent(t, func(w http.ResponseWriter, d delivery) {
					select {
					case <-time.After(time.Second): // so that all messages are queued
					case <-d.ctx.Done(): // the relay has stopped
					}
					w.WriteHeader(max(code, 200))
				})
				if code == 0 {
					a.answerWith(func(_ http.ResponseWriter, d delivery) { <-d.ctx.Done() })
				}
				r.connect("bot", a.url)
				for i := range 3 {
					r.say(alice, fmt.Sprint(i))
				}
				time.Sleep(30 * time.Second)
				r.wantConnection("after a while", "bot", want)
				tries := len(a.deliveries())
				if retried := strings.Contains(want, "3 queued"); retried != (tries > 1 && a.contents()[:3] == "0 0") {
					t.Errorf("the agent got %q", a.contents())
				}
				if revoked := strings.HasPrefix(want, "revoked"); revoked {
					if tries != 1 || r.say(alice, "more") != 0 {
						t.Errorf("a revoked connection got %q", a.contents())
					}
					a.answerWith(nil)
					f.want(r.do("PUT", "/connections/bot", object{}), 200, "")
					r.say(alice, "again")
					a.wantContents("active again", "0 again")
				}
			})
		})
	}
}

// C-6: when an agent is gone, all that is queued is dead at once, also if it is much. PUT revives nothing of it.
func TestRevokedWithLongQueue(t *testing.T) {
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		release := make(chan struct{})
		a := newAgent(t, func(w http.ResponseWriter, _ delivery) {
			<-release
			w.WriteHeader(410)
		})
		r.connect("bot", a.url)
		for i := range 350 {
			r.say(alice, fmt.Sprint(i))
		}
		synctest.Wait()
		a.answerWith(nil)
		close(release)
		for c := r.connection("bot"); c["status"] != "revoked"; c = r.connection("bot") {
			time.Sleep(time.Microsecond)
		}
		if c := r.connection("bot"); c["queued"] != 0. || c["dead"] != 350. {
			t.Errorf("the connection is %v", c)
		}
		f.want(r.do("PUT", "/connections/bot", object{}), 200, "")
		r.say(alice, "new")
		time.Sleep(time.Minute)
		a.wantContents("after PUT", "0 new")
		r.wantConnection("after PUT", "bot", "active, 0 queued, 350 dead")
	})
}

// A delivery that no agent has taken for 24 hours is dead.
func TestDeliveryDiesAfterADay(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		a := newAgent(t, status(503))
		r.connect("bot", a.url)
		r.say(alice, "old")
		f.pass(12 * time.Hour)
		r.say(alice, "new")
		f.pass(12 * time.Hour)
		r.wantConnection("after a day", "bot", "active, 1 queued, 1 dead")
		a.answerWith(nil)
		f.pass(2 * time.Hour)
		r.wantConnection("when the agent is back", "bot", "active, 0 queued, 1 dead")
		f.pass(8 * 24 * time.Hour)
		r.wantConnection("after a week", "bot", "active, 0 queued, 0 dead")
	})
}

// C-7: after PUT the queued messages go to the new URL only, and at once.
func TestNewURL(t *testing.T) {
	for _, code := range []int{500, 404, 400} {
		inBubble(t, func(t *testing.T, f *fixture) {
			r := f.channel("ops")
			alice := r.member("alice")
			old, next := newAgent(t, nil), newAgent(t, nil)
			release := make(chan struct{})
			old.answerWith(func(w http.ResponseWriter, _ delivery) { // the answer comes after the PUT
				<-release
				w.WriteHeader(code)
			})
			r.connect("bot", old.url)
			r.say(alice, "a")
			r.say(alice, "b")
			old.wantContents("before", "a")
			c := text(f.want(r.do("PUT", "/connections/bot", object{"url": next.url, "mcp": "none"}), 200, ""), "connection", "mcp")
			if c != "none" {
				t.Errorf("mcp is %q", c)
			}
			close(release)
			time.Sleep(5 * time.Second)
			old.wantContents("after", "a")
			next.wantContents("after", "a b")
			r.wantConnection("after", "bot", "active, 0 queued, 0 dead")
		})
	}
	// A lane that waits for its next attempt does not wait any longer.
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		old, next := newAgent(t, status(503)), newAgent(t, nil)
		r.connect("bot", old.url)
		r.say(alice, "a")
		f.pass(3 * time.Hour)
		f.want(r.do("PUT", "/connections/bot", object{"url": next.url}), 200, "")
		next.wantContents("at once", "a")
	})
}

// The sender of a message does not get it. After DELETE a connection gets nothing.
func TestWhoGetsAMessage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		one, two := newAgent(t, nil), newAgent(t, nil)
		r.connect("one", one.url)
		r.connect("two", two.url)
		r.say(alice, "a")
		f.want(f.post(one.last().Callback, message("b")), 200, "")
		one.wantContents("the sender", "a")
		two.wantContents("the other", "a b")
		two.answerWith(status(503))
		r.say(alice, "c")
		synctest.Wait()
		f.want(r.do("DELETE", "/connections/two", nil), 200, "")
		two.answerWith(nil)
		time.Sleep(time.Hour)
		two.wantContents("deleted", "a b c")
		if n := r.say(alice, "d"); n != 1 {
			t.Errorf("%d deliveries, want 1", n)
		}
		one.wantContents("at the end", "a c d")
	})
}
