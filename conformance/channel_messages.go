package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// sayWith posts a message with this Idempotency-Key.
func (h *channelProbe) sayWith(m *member, id string, body any) answer {
	return h.ask("Idempotency-Key: "+id, http.MethodPost, m.path("/messages"), m.key,
		http.Header{"Idempotency-Key": {id}}, body)
}

// wantReplay ends the check unless a repeats the first answer.
func (h *channelProbe) wantReplay(a, first answer) {
	h.want(a.status == first.status && string(a.body) == string(first.body) &&
		a.header.Get("Idempotent-Replay") == "true", a,
		"the first answer again, with Idempotent-Replay: true instead of %q: %s", a.header.Get("Idempotent-Replay"),
		first)
}

// channelMessageChecks test messages of members.
var channelMessageChecks = []channelCheck{
	{number: "N-41", title: "POST messages returns 201 with the whole event and the number of deliveries",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			const content = "<你好> & " + astral + " \"'\\\n\x01 e\u0301"
			a := h.write(alice.key, alice.path("/messages"), message{"content": content})
			row := h.said(a, 0)
			h.wantMemberMessage(row, "alice", content)
			h.want(row.number("seq") == 1, a, "the seq 1")
			h.wantMemberMessage(h.wantEvents(alice.channel, 1)[0], "alice", content)
			stored := h.events(alice.channel, "")[0]
			h.want(stored.text("id") == row.text("id") && stored.text("ts") == row.text("ts"), stored,
				"the same event as in the answer to POST")
		}},
	{number: "N-42", title: "content has 1 to 32,768 bytes", cites: `CHANNEL "The service"; G-25`, needs: needsOperator,
		run: func(h *channelProbe) {
			alice := h.talk()
			good := append(append(textsOf(32_768), textsOf(1)...), " ", "\n")
			for _, text := range good {
				row := h.eventAt(alice.channel, h.say(alice, text).number("seq"))
				h.want(row.text("content") == text, row, "the content as it was given")
			}
			bad := append([]any{"", nil}, notTexts...)
			for _, text := range textsOf(32_769) {
				bad = append(bad, text)
			}
			for _, value := range bad {
				h.wantInvalid(h.write(alice.key, alice.path("/messages"), message{"content": value}))
			}
			h.wantInvalid(h.write(alice.key, alice.path("/messages"), message{}))
			h.wantEvents(alice.channel, len(good))
		}},
	{number: "N-43", title: "Members of the body cannot change sender, kind, seq, id, ts, depth or via",
		cites: `CHANNEL "The service"; GATEWAYS "Bodies and errors"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			body := message{"content": "hello"}
			for name, value := range forged {
				body[name] = value
			}
			row := h.eventAt(alice.channel, h.said(h.write(alice.key, alice.path("/messages"), body), 0).number("seq"))
			h.wantGenuine(row, "alice", "member", "api", 0)
			h.want(row.text("type") == "message" && row.text("content") == "hello", row, "a message with its own content")
		}},
	{number: "N-44", title: "A repeated Idempotency-Key gets the first answer again, byte for byte",
		cites: `CHANNEL "The service"; GATEWAYS "Idempotency-Key"; G-21`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			id := newID("repeat")
			first := h.sayWith(alice, id, message{"content": "once", "x": []any{1, "y"}})
			h.said(first, 0)
			h.want(first.header.Get("Idempotent-Replay") == "", first, "no Idempotent-Replay in the first answer")
			h.say(alice, "in between")
			for _, body := range []string{`{"content":"once","x":[1,"y"]}`, ` { "x" : [ 1.0, "\u0079" ], "content":"once"}`} {
				h.wantReplay(h.sayWith(alice, id, []byte(body)), first)
			}
			h.wantEvents(alice.channel, 2)
		}},
	{number: "N-45", title: "An Idempotency-Key with another body gets 409, and changes nothing",
		cites: `GATEWAYS "Idempotency-Key"; G-22`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			id := newID("repeat")
			first := h.sayWith(alice, id, message{"content": "once"})
			h.said(first, 0)
			h.wantConflict(h.sayWith(alice, id, message{"content": "twice"}))
			h.wantReplay(h.sayWith(alice, id, message{"content": "once"}), first)
			h.wantEvents(alice.channel, 1)
		}},
	{number: "N-46", title: "The same Idempotency-Key of two callers is two keys",
		cites: `GATEWAYS "Idempotency-Key"; G-23`, needs: needsOperator, run: func(h *channelProbe) {
			alice, other := h.talk(), h.talk()
			carol := h.member(alice.channel, "carol")
			id := newID("repeat")
			for _, m := range []*member{alice, carol, other} {
				h.wantMemberMessage(h.said(h.sayWith(m, id, message{"content": "hello"}), 0), m.name, "hello")
			}
			h.wantConflict(h.sayWith(carol, id, message{"content": "twice"}))
			h.wantEvents(alice.channel, 2)
			h.wantEvents(other.channel, 1)
		}},
	{number: "N-47", title: "An Idempotency-Key has 1 to 256 printable characters; a refusal is not kept",
		cites: `GATEWAYS "Idempotency-Key"; G-24`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			for _, id := range []string{"", strings.Repeat("x", 257), "a\tb", "ä"} {
				h.wantInvalid(h.sayWith(alice, id, message{"content": "hello"}))
			}
			for _, id := range []string{"x", strings.Repeat("x", 256), `a "b" ~!`} {
				h.wantInvalid(h.sayWith(alice, id, message{"content": ""}))
				h.said(h.sayWith(alice, id, message{"content": "hello"}), 0)
			}
			h.wantEvents(alice.channel, 3)
		}},
	{number: "N-48", title: "Of several requests with one Idempotency-Key, one posts; all get its answer",
		cites: `GATEWAYS "Idempotency-Key"; G-21`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			id := newID("repeat")
			answers := h.inParallel(8, func(int) answer { return h.sayWith(alice, id, message{"content": "once"}) })
			for _, a := range answers {
				h.said(a, 0)
				h.want(string(a.body) == string(answers[0].body), a, "the same answer to all: %s", answers[0])
			}
			h.wantEvents(alice.channel, 1)
		}},
}

// forged are members of a body that must not become members of the event.
var forged = map[string]any{"sender": "mallory", "kind": "operator", "seq": 7_000_000, "ts": "2001-01-01T00:00:00.000Z",
	"depth": -3, "via": "forged"}

// wantGenuine ends the check unless the relay's own members of an event have these values.
func (h *channelProbe) wantGenuine(row answer, sender, kind, via string, depth int) {
	h.want(row.text("sender") == sender && row.text("kind") == kind && row.text("via") == via &&
		sameJSON(row.members["depth"], depth), row, `"sender":%q,"kind":%q,"via":%q,"depth":%d`, sender, kind, via, depth)
	h.want(row.number("seq") >= 1 && row.number("seq") < 7_000_000 && channelTimeForm.MatchString(row.text("ts")) &&
		!strings.HasPrefix(row.text("ts"), "2001"), row, "the service's own seq and ts")
}

// wantMemberMessage ends the check unless row is the event of a member's message.
func (h *channelProbe) wantMemberMessage(row answer, sender, content string) {
	h.wantMembers(row, map[string]any{"seq": anything, "id": anything, "ts": anything, "sender": sender, "kind": "member",
		"type": "message", "content": content, "depth": 0, "via": "api"})
	h.wantGenuine(row, sender, "member", "api", 0)
	h.want(eventIDForm.MatchString(row.text("id")), row, "an id such as msg_ and 26 characters of base32")
}

// channelEventChecks test GET events.
var channelEventChecks = []channelCheck{
	{number: "N-49", title: "after selects the events with a larger seq, in order; cursor continues the list",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: eventPages},
	{number: "N-50", title: "limit is 1 to 200, and 50 if it is not given",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			h.sayMany(alice, 52)
			for query, n := range map[string]int{"": 50, "?limit=1": 1, "?limit=51": 51, "?limit=200": 52,
				"?limit=3&after=50": 2} {
				rows := h.events(alice.channel, query)
				h.expect("%d events for %q", n, query)
				if len(rows) != n {
					h.failf("%d events", len(rows))
				}
			}
			for _, query := range []string{"?limit=0", "?limit=201", "?limit=-1"} {
				h.wantInvalid(h.read(alice.key, alice.path("/events"+query)))
			}
		}},
	{number: "N-51", title: "seq counts the events of each channel from 1", cites: `CHANNEL "The service"; C-10`,
		needs: needsOperator, run: func(h *channelProbe) {
			first, other := h.talk(), h.talk()
			for i := 1; i <= 3; i++ {
				for _, m := range []*member{first, other} {
					row := h.say(m, fmt.Sprint(i))
					h.want(row.number("seq") == float64(i), row, "the seq %d", i)
				}
			}
			h.inParallel(8, func(i int) answer {
				return h.write(first.key, first.path("/messages"), message{"content": fmt.Sprint(i)})
			})
			for i, row := range h.wantEvents(first.channel, 11) {
				h.want(row.number("seq") == float64(i+1), row, "the seq %d", i+1)
			}
			h.wantEvents(other.channel, 3)
		}},
	{number: "N-52", title: "wait holds the answer until there is an event", cites: `CHANNEL "The service"`,
		needs: needsOperator, wait: 2 * time.Second, run: func(h *channelProbe) {
			alice := h.talk()
			h.say(alice, "before")
			for _, key := range []string{alice.channel.key, alice.key} {
				var a answer
				for range 3 { // a reader that had to wait for its turn may begin after the message
					last := h.wantOK(h.read(key, alice.path("/events?limit=200")), http.StatusOK).number("cursor")
					answered := make(chan answer, 1)
					h.tasks.Go(func() {
						answered <- h.read(key, alice.path(fmt.Sprintf("/events?wait=20&after=%d", int(last))))
					})
					h.sleep(time.Second)
					row := h.say(alice, "while a reader waits")
					a = <-answered
					rows := h.eventsOf(a)
					h.want(len(rows) == 1 && rows[0].text("id") == row.text("id"), a, "the event %s", row.text("id"))
					if a.took > 200*time.Millisecond {
						break
					}
				}
				h.want(a.took > 200*time.Millisecond && a.took < time.Second+promptLimit, a,
					"the answer at once after the message, and not after %v", a.took.Round(second/10))
			}
			a := h.read(alice.key, alice.path("/events?wait=20"))
			h.want(len(h.eventsOf(a)) >= 3 && a.took < promptLimit, a, "3 events at once, and not after %v", a.took)
		}},
	{number: "N-53", title: "A wait without events ends with an empty list; wait is 0 to 60",
		cites: `CHANNEL "The service"`, needs: needsOperator, wait: 2 * time.Second, run: func(h *channelProbe) {
			alice := h.talk()
			for wait, query := range []string{"?wait=0", "?wait=1", "?wait=2"} {
				a := h.read(alice.key, alice.path("/events"+query))
				least := time.Duration(wait)*time.Second - 200*time.Millisecond
				h.want(len(h.eventsOf(a)) == 0 && a.took >= least && a.took < least+promptLimit, a,
					"no events, after %d s and not after %v", wait, a.took.Round(second/10))
			}
			for _, query := range []string{"?wait=61", "?wait=-1", "?wait=1e1"} {
				h.wantInvalid(h.read(alice.key, alice.path("/events"+query)))
			}
			h.say(alice, "hello")
			h.eventsOf(h.read(alice.key, alice.path("/events?wait=60")))
		}},
}

// sayMany posts n short messages.
func (h *channelProbe) sayMany(m *member, n int) {
	for i := 0; i < n; i += 4 {
		for _, a := range h.inParallel(min(4, n-i), func(int) answer {
			return h.write(m.key, m.path("/messages"), message{"content": "hello"})
		}) {
			h.said(a, -1)
		}
	}
}

func eventPages(h *channelProbe) {
	alice := h.talk()
	for i := range 5 {
		h.say(alice, fmt.Sprint(i))
	}
	for _, key := range []string{alice.channel.key, alice.key, h.service.OperatorKey} {
		after, got := 0.0, ""
		for page := 0; ; page++ {
			a := h.read(key, alice.path(fmt.Sprintf("/events?limit=2&after=%d", int(after))))
			rows := h.eventsOf(a)
			if len(rows) == 0 {
				break
			}
			for _, row := range rows {
				got += row.text("content")
			}
			h.want(a.number("cursor") == rows[len(rows)-1].number("seq"), a, "cursor is the seq of the last event")
			after = a.number("cursor")
			h.want(page < 4, a, "no more than 5 events")
		}
		h.expect("the contents 0 to 4, in this order")
		if got != "01234" {
			h.failf("the contents are %s", got)
		}
	}
	a := h.read(alice.key, alice.path("/events?after=1000"))
	h.want(len(h.eventsOf(a)) == 0, a, "no events")
}
