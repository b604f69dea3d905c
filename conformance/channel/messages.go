package channel

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// sayWith posts a message with this Idempotency-Key.
func (h *channelProbe) sayWith(m *member, id string, body any) kit.Answer {
	return h.Ask("Idempotency-Key: "+id, http.MethodPost, m.path("/messages"), m.key,
		http.Header{"Idempotency-Key": {id}}, body)
}

// wantReplay ends the check unless a repeats the first answer.
func (h *channelProbe) wantReplay(a, first kit.Answer) {
	h.Want(a.Status == first.Status && string(a.Body) == string(first.Body) &&
		a.Header.Get("Idempotent-Replay") == "true", a,
		"the first answer again, with Idempotent-Replay: true instead of %q: %s", a.Header.Get("Idempotent-Replay"),
		first)
}

// channelMessageChecks test messages of members.
var channelMessageChecks = []channelCheck{
	{Number: "N-41", Title: "POST messages returns 201 with the whole event and the number of deliveries",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			const content = "<你好> & " + kit.Astral + " \"'\\\n\x01 e\u0301"
			a := h.Write(alice.key, alice.path("/messages"), kit.Message{"content": content})
			row := h.said(a, 0)
			h.wantMemberMessage(row, "alice", content)
			h.Want(row.Number("seq") == 1, a, "the seq 1")
			h.wantMemberMessage(h.wantEvents(alice.channel, 1)[0], "alice", content)
			stored := h.events(alice.channel, "")[0]
			h.Want(stored.Text("id") == row.Text("id") && stored.Text("ts") == row.Text("ts"), stored,
				"the same event as in the answer to POST")
		}},
	{Number: "N-42", Title: "content has 1 to 32,768 bytes", Cites: `CHANNEL "The service"; G-25`,
		Needs: kit.NeedsOperator,
		Run: func(h *channelProbe) {
			alice := h.talk()
			good := append(append(kit.TextsOf(32_768), kit.TextsOf(1)...), " ", "\n")
			for _, text := range good {
				row := h.eventAt(alice.channel, h.say(alice, text).Number("seq"))
				h.Want(row.Text("content") == text, row, "the content as it was given")
			}
			bad := append([]any{"", nil}, kit.NotTexts...)
			for _, text := range kit.TextsOf(32_769) {
				bad = append(bad, text)
			}
			for _, value := range bad {
				h.wantInvalid(h.Write(alice.key, alice.path("/messages"), kit.Message{"content": value}))
			}
			h.wantInvalid(h.Write(alice.key, alice.path("/messages"), kit.Message{}))
			h.wantEvents(alice.channel, len(good))
		}},
	{Number: "N-43", Title: "Members of the body cannot change sender, kind, seq, id, ts, depth or via",
		Cites: `CHANNEL "The service"; GATEWAYS "Bodies and errors"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			body := kit.Message{"content": "hello"}
			for name, value := range forged {
				body[name] = value
			}
			row := h.eventAt(alice.channel, h.said(h.Write(alice.key, alice.path("/messages"), body), 0).Number("seq"))
			h.wantGenuine(row, "alice", "member", "api", 0)
			h.Want(row.Text("type") == "message" && row.Text("content") == "hello", row, "a message with its own content")
		}},
	{Number: "N-44", Title: "A repeated Idempotency-Key gets the first answer again, byte for byte",
		Cites: `CHANNEL "The service"; GATEWAYS "Idempotency-Key"; G-21`, Needs: kit.NeedsOperator,
		Run: func(h *channelProbe) {
			alice := h.talk()
			id := kit.NewID("repeat")
			first := h.sayWith(alice, id, kit.Message{"content": "once", "x": []any{1, "y"}})
			h.said(first, 0)
			h.Want(first.Header.Get("Idempotent-Replay") == "", first, "no Idempotent-Replay in the first answer")
			h.say(alice, "in between")
			for _, body := range []string{`{"content":"once","x":[1,"y"]}`, ` { "x" : [ 1.0, "\u0079" ], "content":"once"}`} {
				h.wantReplay(h.sayWith(alice, id, []byte(body)), first)
			}
			h.wantEvents(alice.channel, 2)
		}},
	{Number: "N-45", Title: "An Idempotency-Key with another body gets 409, and changes nothing",
		Cites: `GATEWAYS "Idempotency-Key"; G-22`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			id := kit.NewID("repeat")
			first := h.sayWith(alice, id, kit.Message{"content": "once"})
			h.said(first, 0)
			h.wantConflict(h.sayWith(alice, id, kit.Message{"content": "twice"}))
			h.wantReplay(h.sayWith(alice, id, kit.Message{"content": "once"}), first)
			h.wantEvents(alice.channel, 1)
		}},
	{Number: "N-46", Title: "The same Idempotency-Key of two callers is two keys",
		Cites: `GATEWAYS "Idempotency-Key"; G-23`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice, other := h.talk(), h.talk()
			carol := h.member(alice.channel, "carol")
			id := kit.NewID("repeat")
			for _, m := range []*member{alice, carol, other} {
				h.wantMemberMessage(h.said(h.sayWith(m, id, kit.Message{"content": "hello"}), 0), m.name, "hello")
			}
			h.wantConflict(h.sayWith(carol, id, kit.Message{"content": "twice"}))
			h.wantEvents(alice.channel, 2)
			h.wantEvents(other.channel, 1)
		}},
	{Number: "N-47", Title: "An Idempotency-Key has 1 to 256 printable characters; a refusal is not kept",
		Cites: `GATEWAYS "Idempotency-Key"; G-24`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			for _, id := range []string{"", strings.Repeat("x", 257), "a\tb", "ä"} {
				h.wantInvalid(h.sayWith(alice, id, kit.Message{"content": "hello"}))
			}
			for _, id := range []string{"x", strings.Repeat("x", 256), `a "b" ~!`} {
				h.wantInvalid(h.sayWith(alice, id, kit.Message{"content": ""}))
				h.said(h.sayWith(alice, id, kit.Message{"content": "hello"}), 0)
			}
			h.wantEvents(alice.channel, 3)
		}},
	{Number: "N-48", Title: "Of several requests with one Idempotency-Key, one posts; all get its answer",
		Cites: `GATEWAYS "Idempotency-Key"; G-21`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			id := kit.NewID("repeat")
			answers := h.InParallel(8, func(int) kit.Answer { return h.sayWith(alice, id, kit.Message{"content": "once"}) })
			for _, a := range answers {
				h.said(a, 0)
				h.Want(string(a.Body) == string(answers[0].Body), a, "the same answer to all: %s", answers[0])
			}
			h.wantEvents(alice.channel, 1)
		}},
}

// forged are members of a body that must not become members of the event.
var forged = map[string]any{"sender": "mallory", "kind": "operator", "seq": 7_000_000, "ts": "2001-01-01T00:00:00.000Z",
	"depth": -3, "via": "forged"}

// wantGenuine ends the check unless the relay's own members of an event have these values.
func (h *channelProbe) wantGenuine(row kit.Answer, sender, kind, via string, depth int) {
	h.Want(row.Text("sender") == sender && row.Text("kind") == kind && row.Text("via") == via &&
		kit.SameJSON(row.Members["depth"], depth), row, `"sender":%q,"kind":%q,"via":%q,"depth":%d`, sender, kind, via, depth)
	h.Want(row.Number("seq") >= 1 && row.Number("seq") < 7_000_000 && channelTimeForm.MatchString(row.Text("ts")) &&
		!strings.HasPrefix(row.Text("ts"), "2001"), row, "the service's own seq and ts")
}

// wantMemberMessage ends the check unless row is the event of a member's message.
func (h *channelProbe) wantMemberMessage(row kit.Answer, sender, content string) {
	h.wantMembers(row, map[string]any{"seq": anything, "id": anything, "ts": anything, "sender": sender, "kind": "member",
		"type": "message", "content": content, "depth": 0, "via": "api"})
	h.wantGenuine(row, sender, "member", "api", 0)
	h.Want(eventIDForm.MatchString(row.Text("id")), row, "an id such as msg_ and 26 characters of base32")
}

// channelEventChecks test GET events.
var channelEventChecks = []channelCheck{
	{Number: "N-49", Title: "after selects the events with a larger seq, in order; cursor continues the list",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: eventPages},
	{Number: "N-50", Title: "limit is 1 to 200, and 50 if it is not given",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			h.sayMany(alice, 52)
			for query, n := range map[string]int{"": 50, "?limit=1": 1, "?limit=51": 51, "?limit=200": 52,
				"?limit=3&after=50": 2} {
				rows := h.events(alice.channel, query)
				h.Expect("%d events for %q", n, query)
				if len(rows) != n {
					h.Failf("%d events", len(rows))
				}
			}
			for _, query := range []string{"?limit=0", "?limit=201", "?limit=-1"} {
				h.wantInvalid(h.Read(alice.key, alice.path("/events"+query)))
			}
		}},
	{Number: "N-51", Title: "seq counts the events of each channel from 1", Cites: `CHANNEL "The service"; C-10`,
		Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			first, other := h.talk(), h.talk()
			for i := 1; i <= 3; i++ {
				for _, m := range []*member{first, other} {
					row := h.say(m, fmt.Sprint(i))
					h.Want(row.Number("seq") == float64(i), row, "the seq %d", i)
				}
			}
			h.InParallel(8, func(i int) kit.Answer {
				return h.Write(first.key, first.path("/messages"), kit.Message{"content": fmt.Sprint(i)})
			})
			for i, row := range h.wantEvents(first.channel, 11) {
				h.Want(row.Number("seq") == float64(i+1), row, "the seq %d", i+1)
			}
			h.wantEvents(other.channel, 3)
		}},
	{Number: "N-52", Title: "wait holds the answer until there is an event", Cites: `CHANNEL "The service"`,
		Needs: kit.NeedsOperator, Wait: 2 * time.Second, Run: func(h *channelProbe) {
			alice := h.talk()
			h.say(alice, "before")
			for _, key := range []string{alice.channel.key, alice.key} {
				var a kit.Answer
				for range 3 { // a reader that had to wait for its turn may begin after the message
					last := h.wantOK(h.Read(key, alice.path("/events?limit=200")), http.StatusOK).Number("cursor")
					answered := make(chan kit.Answer, 1)
					h.Tasks.Go(func() {
						answered <- h.Read(key, alice.path(fmt.Sprintf("/events?wait=20&after=%d", int(last))))
					})
					h.Sleep(time.Second)
					row := h.say(alice, "while a reader waits")
					a = <-answered
					rows := h.eventsOf(a)
					h.Want(len(rows) == 1 && rows[0].Text("id") == row.Text("id"), a, "the event %s", row.Text("id"))
					if a.Took > 200*time.Millisecond {
						break
					}
				}
				h.Want(a.Took > 200*time.Millisecond && a.Took < time.Second+kit.PromptLimit, a,
					"the answer at once after the message, and not after %v", a.Took.Round(time.Second/10))
			}
			a := h.Read(alice.key, alice.path("/events?wait=20"))
			h.Want(len(h.eventsOf(a)) >= 3 && a.Took < kit.PromptLimit, a, "3 events at once, and not after %v", a.Took)
		}},
	{Number: "N-53", Title: "A wait without events ends with an empty list; wait is 0 to 60",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Wait: 2 * time.Second, Run: func(h *channelProbe) {
			alice := h.talk()
			for wait, query := range []string{"?wait=0", "?wait=1", "?wait=2"} {
				a := h.Read(alice.key, alice.path("/events"+query))
				least := time.Duration(wait)*time.Second - 200*time.Millisecond
				h.Want(len(h.eventsOf(a)) == 0 && a.Took >= least && a.Took < least+kit.PromptLimit, a,
					"no events, after %d s and not after %v", wait, a.Took.Round(time.Second/10))
			}
			for _, query := range []string{"?wait=61", "?wait=-1", "?wait=1e1"} {
				h.wantInvalid(h.Read(alice.key, alice.path("/events"+query)))
			}
			h.say(alice, "hello")
			h.eventsOf(h.Read(alice.key, alice.path("/events?wait=60")))
		}},
}

// sayMany posts n short messages.
func (h *channelProbe) sayMany(m *member, n int) {
	for i := 0; i < n; i += 4 {
		for _, a := range h.InParallel(min(4, n-i), func(int) kit.Answer {
			return h.Write(m.key, m.path("/messages"), kit.Message{"content": "hello"})
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
			a := h.Read(key, alice.path(fmt.Sprintf("/events?limit=2&after=%d", int(after))))
			rows := h.eventsOf(a)
			if len(rows) == 0 {
				break
			}
			for _, row := range rows {
				got += row.Text("content")
			}
			h.Want(a.Number("cursor") == rows[len(rows)-1].Number("seq"), a, "cursor is the seq of the last event")
			after = a.Number("cursor")
			h.Want(page < 4, a, "no more than 5 events")
		}
		h.Expect("the contents 0 to 4, in this order")
		if got != "01234" {
			h.Failf("the contents are %s", got)
		}
	}
	a := h.Read(alice.key, alice.path("/events?after=1000"))
	h.Want(len(h.eventsOf(a)) == 0, a, "no events")
}
