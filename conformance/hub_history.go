package conformance

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// hubHistoryChecks test GET /agent/messages.
var hubHistoryChecks = []hubCheck{
	{number: "hub.history.rows",
		title: "Sender and receiver see a message with its ids, envelope, state and delivered_via",
		cites: `HUB "History"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.sendWith(alice, bob, set("envelope.conversation_id", "c"), set("envelope.turn_number", 1))
			queued := h.rowOf(alice, m)
			h.want(queued.text("delivered_via") == "queued" && queued.text("state") == "queued", queued,
				"delivered_via and state queued")
			h.want(queued.members["error_code"] == nil && queued.members["acknowledged_at"] == nil, queued,
				"no error_code and no acknowledged_at")
			for _, row := range []answer{queued, h.rowOf(bob, m)} {
				h.want(row.number("id") >= 1 && row.text("sender_id") == alice.id &&
					row.text("receiver_id") == bob.id && sameJSON(row.members["envelope"], m.envelope) &&
					timeForm.MatchString(row.text("timestamp")), row,
					"id, sender_id %q, receiver_id %q, the envelope and a timestamp in milliseconds", alice.id, bob.id)
			}
		}},
	{number: "hub.history.own", title: "An agent sees only what it has sent or received", cites: `HUB "History"; H-22`,
		run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			h.send(alice, bob, "not for carol")
			mine := h.send(carol, bob, "from carol")
			rows := h.history(carol)
			h.expect("only the message with the trace_id %s", mine.trace)
			if len(rows) != 1 || rows[0].text("trace_id") != mine.trace {
				h.failf("%s", describeRows(rows))
			}
		}},
	{number: "hub.history.since-id",
		title: "A since of digits selects the messages with a greater id, in the order of id",
		cites: `HUB "History"; H-20`, run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.mixed(alice, bob)
			rows := h.history(alice)
			h.wantTraces(rows, sent...)
			h.wantGrowing(rows, len(sent))
			for i, row := range rows {
				h.wantTraces(
					h.rows(h.read(alice.key, "/agent/messages?since="+string(row.members["id"]))),
					sent[i+1:]...)
			}
		}},
	{number: "hub.history.since-time",
		title: "A since in RFC 3339 selects the messages with this timestamp and later ones",
		cites: `HUB "History"; H-20`, run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.mixed(alice, bob)
			rows := h.history(alice)
			h.wantTraces(rows, sent...)
			for i, row := range rows {
				since, err := time.Parse(time.RFC3339, row.text("timestamp"))
				h.want(err == nil, row, "a timestamp in RFC 3339")
				later := since.Add(time.Millisecond).UTC().Format("2006-01-02T15:04:05.000Z")
				moved := since.In(time.FixedZone("", 5*3600+1800)).Format("2006-01-02T15:04:05.000-07:00")
				h.wantTraces(
					h.rows(h.read(alice.key, "/agent/messages"+query("since", row.text("timestamp")))),
					sent[i:]...)
				h.wantTraces(h.rows(h.read(alice.key, "/agent/messages"+query("since", moved))), sent[i:]...)
				if i+1 < len(rows) && later <= rows[i+1].text("timestamp") || i+1 == len(rows) {
					h.wantTraces(h.rows(h.read(alice.key, "/agent/messages"+query("since", later))), sent[i+1:]...)
				}
			}
		}},
	{number: "hub.history.since-form",
		title: "A since that is neither digits nor RFC 3339 is refused", cites: `HUB "History"; H-20`,
		run: func(h *hubProbe) {
			a := h.one()
			for _, since := range []string{"", "-1", "+1", "1.0", "1e3", "0x1", "yesterday", "2026-03-20",
				"2026-03-20T10:00:00",
				"2026-13-20T10:00:00Z", "2026-02-30T10:00:00Z", "20260320T100000Z", "1 2", "१"} {
				h.wantInvalid(h.read(a.key, "/agent/messages"+query("since", since)))
			}
		}},
	{number: "hub.history.limit", title: "limit is 1 to 10,000 and cuts the list; then metadata has has_more",
		cites: `HUB "History"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 4)
			for limit, more := range map[int]bool{1: true, 3: true, 4: false, 10_000: false} {
				a := h.read(alice.key, fmt.Sprintf("/agent/messages?since=%s&limit=%d", alice.seen, limit))
				h.wantTraces(h.rows(a), sent[:min(limit, 4)]...)
				got, _ := a.object("metadata").flag("has_more")
				h.want(got == more, a,
					"metadata.has_more is true only if the list is cut; with limit=%d of 4 it is %v", limit, more)
			}
			got, _ := h.read(alice.key, "/agent/messages?since="+alice.seen).object("metadata").flag("has_more")
			h.expect("without limit all messages, and has_more is not true")
			if got {
				h.failf("has_more is true")
			}
			for _, limit := range []string{"0", "-1", "10001", "x", "1.5", "", "1e3", "+1", "99999999999999999999"} {
				h.wantInvalid(h.read(alice.key, "/agent/messages?limit="+url.QueryEscape(limit)))
			}
		}},
	{number: "hub.history.limit-hands-out",
		title: "A poll hands out only the messages in its answer", cites: `HUB "History"`,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 3)
			h.rows(h.read(bob.key, "/agent/messages?limit=1&since="+bob.seen))
			h.wantState(sent[0], "sent")
			h.keepsState(sent[1], "queued")
			h.wantOnly(h.open(bob, ""), sent[1], sent[2])
		}},
}

// mixed sends messages in both directions and returns them in the order in which they were sent.
func (h *hubProbe) mixed(alice, bob *hubAgent) []sentMessage {
	return []sentMessage{
		h.send(alice, bob, "1"),
		h.send(bob, alice, "2"),
		h.send(alice, bob, "3"),
		h.send(bob, alice, "4"),
	}
}

// wantTraces ends the check unless rows are exactly these messages, in this order.
func (h *hubProbe) wantTraces(rows []answer, messages ...sentMessage) {
	var got, want []string
	for _, row := range rows {
		got = append(got, row.text("trace_id"))
	}
	for _, m := range messages {
		want = append(want, m.trace)
	}
	h.expect("the messages with the trace ids %v", want)
	if !slices.Equal(got, want) {
		h.failf("%v:\n%s", got, describeRows(rows))
	}
}

// hubDirectoryChecks test /agents and /discover.
var hubDirectoryChecks = []hubCheck{
	{number: "hub.agents.list",
		title: "GET /agents lists all registrations by address", cites: `HUB "Endpoints"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			listed := h.read("", "/agents")
			rows := h.rows(listed)
			h.expect("the registrations sorted by agent_id, with those of %s and %s", alice.id, bob.id)
			found := 0
			for i, row := range rows {
				if i > 0 && rows[i-1].text("agent_id") >= row.text("agent_id") {
					h.failf("%s is after %s", row.text("agent_id"), rows[i-1].text("agent_id"))
				}
				if id := row.text("agent_id"); id == alice.id || id == bob.id {
					h.wantRegistration(row, row, id)
					found++
				}
			}
			h.expect("the registrations of %s and %s", alice.id, bob.id)
			if found != 2 {
				h.failf("%d of them", found)
			}
		}},
	{number: "hub.agents.one", title: "GET /agents/{id} returns one registration, or 404 ERR_AGENT_NOT_FOUND",
		cites: `HUB "Endpoints"`, run: func(h *hubProbe) {
			a := h.one()
			listed := h.read("", "/agents/"+a.id)
			h.wantRegistration(listed, h.wantData(listed, http.StatusOK), a.id)
			listed = h.read("", "/agents/"+url.PathEscape(a.id)+"?x=1")
			h.wantRegistration(listed, h.wantData(listed, http.StatusOK), a.id)
			h.wantNoAgent(h.read("", "/agents/nobody@conformance.example"))
			h.wantNoAgent(h.read("", "/agents/nobody-here"))
		}},
	{number: "hub.discover.bare",
		title: "/discover without Authorization is the bare list of agents", cites: `HUB "Endpoints"; H-23`,
		run: func(h *hubProbe) {
			a := h.one()
			h.wantCard(h.wantEntry(h.read("", "/discover"), a))
		}},
	{number: "hub.discover.wrapped", title: "/discover with a valid key is the same list in the wrapper",
		cites: `HUB "Endpoints"; H-23`, run: func(h *hubProbe) {
			a := h.one()
			wrapped := h.read(a.key, "/discover")
			h.rows(wrapped)
			bare := answer{status: http.StatusOK, header: wrapped.header, body: wrapped.members["data"]}
			h.wantCard(h.wantEntry(bare, a))
		}},
	{number: "hub.discover.key", title: "/discover with an invalid key is refused with 401",
		cites: `HUB "Endpoints"; H-23`,
		run: func(h *hubProbe) {
			h.wantNoKey(h.read(unknownKey, "/discover"))
			h.wantNoKey(h.ask("Authorization: Basic", http.MethodGet, "/discover", "",
				http.Header{"Authorization": {"Basic YTpi"}}, nil))
		}},
	{number: "hub.discover.filters", title: "culture and online=true select entries of /discover",
		cites: `HUB "Endpoints"`,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			h.rotate(alice, set("agent_card.user_culture", "tlh-Latn-US"))
			h.open(bob, "")
			h.wantOnline(bob, true, promptLimit)
			h.wantListed(h.read("", "/discover?culture=tlh-Latn-US"), "culture", `"tlh-Latn-US"`, alice, bob)
			h.wantListed(h.read("", "/discover?online=true"), "online", "true", bob, nil)
			h.wantListed(h.read("", "/discover?culture=en&online=true"), "online", "true", bob, alice)
			rows := bareList(h.read("", "/discover?culture=tlh-Latn-AQ"))
			h.expect("an empty list")
			if rows == nil || len(rows) != 0 {
				h.failf("%s", describeRows(rows))
			}
		}},
}
