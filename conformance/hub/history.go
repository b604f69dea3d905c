package hub

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubHistoryChecks test GET /agent/messages.
var hubHistoryChecks = []hubCheck{
	{Number: "hub.history.rows",
		Title: "Sender and receiver see a message with its ids, envelope, state and delivered_via",
		Cites: `HUB "History"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.sendWith(alice, bob, kit.Set("envelope.conversation_id", "c"), kit.Set("envelope.turn_number", 1))
			queued := h.rowOf(alice, m)
			h.Want(queued.Text("delivered_via") == "queued" && queued.Text("state") == "queued", queued,
				"delivered_via and state queued")
			h.Want(queued.Members["error_code"] == nil && queued.Members["acknowledged_at"] == nil, queued,
				"no error_code and no acknowledged_at")
			for _, row := range []kit.Answer{queued, h.rowOf(bob, m)} {
				h.Want(row.Number("id") >= 1 && row.Text("sender_id") == alice.id &&
					row.Text("receiver_id") == bob.id && kit.SameJSON(row.Members["envelope"], m.envelope) &&
					kit.TimeForm.MatchString(row.Text("timestamp")), row,
					"id, sender_id %q, receiver_id %q, the envelope and a timestamp in milliseconds", alice.id, bob.id)
			}
		}},
	{Number: "hub.history.own", Title: "An agent sees only what it has sent or received", Cites: `HUB "History"; H-22`,
		Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			h.send(alice, bob, "not for carol")
			mine := h.send(carol, bob, "from carol")
			rows := h.history(carol)
			h.Expect("only the message with the trace_id %s", mine.trace)
			if len(rows) != 1 || rows[0].Text("trace_id") != mine.trace {
				h.Failf("%s", kit.DescribeRows(rows))
			}
		}},
	{Number: "hub.history.since-id",
		Title: "A since of digits selects the messages with a greater id, in the order of id",
		Cites: `HUB "History"; H-20`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.mixed(alice, bob)
			rows := h.history(alice)
			h.wantTraces(rows, sent...)
			h.wantGrowing(rows, len(sent))
			for i, row := range rows {
				h.wantTraces(
					h.rows(h.Read(alice.key, "/agent/messages?since="+string(row.Members["id"]))),
					sent[i+1:]...)
			}
		}},
	{Number: "hub.history.since-time",
		Title: "A since in RFC 3339 selects the messages with this timestamp and later ones",
		Cites: `HUB "History"; H-20`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.mixed(alice, bob)
			rows := h.history(alice)
			h.wantTraces(rows, sent...)
			for i, row := range rows {
				since, err := time.Parse(time.RFC3339, row.Text("timestamp"))
				h.Want(err == nil, row, "a timestamp in RFC 3339")
				later := since.Add(time.Millisecond).UTC().Format("2006-01-02T15:04:05.000Z")
				moved := since.In(time.FixedZone("", 5*3600+1800)).Format("2006-01-02T15:04:05.000-07:00")
				h.wantTraces(
					h.rows(h.Read(alice.key, "/agent/messages"+kit.Query("since", row.Text("timestamp")))),
					sent[i:]...)
				h.wantTraces(h.rows(h.Read(alice.key, "/agent/messages"+kit.Query("since", moved))), sent[i:]...)
				if i+1 < len(rows) && later <= rows[i+1].Text("timestamp") || i+1 == len(rows) {
					h.wantTraces(h.rows(h.Read(alice.key, "/agent/messages"+kit.Query("since", later))), sent[i+1:]...)
				}
			}
		}},
	{Number: "hub.history.since-form",
		Title: "A since that is neither digits nor RFC 3339 is refused", Cites: `HUB "History"; H-20`,
		Run: func(h *hubProbe) {
			a := h.one()
			for _, since := range []string{"", "-1", "+1", "1.0", "1e3", "0x1", "yesterday", "2026-03-20",
				"2026-03-20T10:00:00",
				"2026-13-20T10:00:00Z", "2026-02-30T10:00:00Z", "20260320T100000Z", "1 2", "१"} {
				h.wantInvalid(h.Read(a.key, "/agent/messages"+kit.Query("since", since)))
			}
		}},
	{Number: "hub.history.limit", Title: "limit is 1 to 10,000 and cuts the list; then metadata has has_more",
		Cites: `HUB "History"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 4)
			for limit, more := range map[int]bool{1: true, 3: true, 4: false, 10_000: false} {
				a := h.Read(alice.key, fmt.Sprintf("/agent/messages?since=%s&limit=%d", alice.seen, limit))
				h.wantTraces(h.rows(a), sent[:min(limit, 4)]...)
				got, _ := a.Object("metadata").Flag("has_more")
				h.Want(got == more, a,
					"metadata.has_more is true only if the list is cut; with limit=%d of 4 it is %v", limit, more)
			}
			got, _ := h.Read(alice.key, "/agent/messages?since="+alice.seen).Object("metadata").Flag("has_more")
			h.Expect("without limit all messages, and has_more is not true")
			if got {
				h.Failf("has_more is true")
			}
			for _, limit := range []string{"0", "-1", "10001", "x", "1.5", "", "1e3", "+1", "99999999999999999999"} {
				h.wantInvalid(h.Read(alice.key, "/agent/messages?limit="+url.QueryEscape(limit)))
			}
		}},
	{Number: "hub.history.limit-hands-out",
		Title: "A poll hands out only the messages in its answer", Cites: `HUB "History"`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 3)
			h.rows(h.Read(bob.key, "/agent/messages?limit=1&since="+bob.seen))
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
func (h *hubProbe) wantTraces(rows []kit.Answer, messages ...sentMessage) {
	var got, want []string
	for _, row := range rows {
		got = append(got, row.Text("trace_id"))
	}
	for _, m := range messages {
		want = append(want, m.trace)
	}
	h.Expect("the messages with the trace ids %v", want)
	if !slices.Equal(got, want) {
		h.Failf("%v:\n%s", got, kit.DescribeRows(rows))
	}
}

// hubDirectoryChecks test /agents and /discover.
var hubDirectoryChecks = []hubCheck{
	{Number: "hub.agents.list",
		Title: "GET /agents lists all registrations by address", Cites: `HUB "Endpoints"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			listed := h.Read("", "/agents")
			rows := h.rows(listed)
			h.Expect("the registrations sorted by agent_id, with those of %s and %s", alice.id, bob.id)
			found := 0
			for i, row := range rows {
				if i > 0 && rows[i-1].Text("agent_id") >= row.Text("agent_id") {
					h.Failf("%s is after %s", row.Text("agent_id"), rows[i-1].Text("agent_id"))
				}
				if id := row.Text("agent_id"); id == alice.id || id == bob.id {
					h.wantRegistration(row, row, id)
					found++
				}
			}
			h.Expect("the registrations of %s and %s", alice.id, bob.id)
			if found != 2 {
				h.Failf("%d of them", found)
			}
		}},
	{Number: "hub.agents.one", Title: "GET /agents/{id} returns one registration, or 404 ERR_AGENT_NOT_FOUND",
		Cites: `HUB "Endpoints"`, Run: func(h *hubProbe) {
			a := h.one()
			listed := h.Read("", "/agents/"+a.id)
			h.wantRegistration(listed, h.wantData(listed, http.StatusOK), a.id)
			listed = h.Read("", "/agents/"+url.PathEscape(a.id)+"?x=1")
			h.wantRegistration(listed, h.wantData(listed, http.StatusOK), a.id)
			h.wantNoAgent(h.Read("", "/agents/nobody@conformance.example"))
			h.wantNoAgent(h.Read("", "/agents/nobody-here"))
		}},
	{Number: "hub.discover.bare",
		Title: "/discover without Authorization is the bare list of agents", Cites: `HUB "Endpoints"; H-23`,
		Run: func(h *hubProbe) {
			a := h.one()
			h.wantCard(h.wantEntry(h.Read("", "/discover"), a))
		}},
	{Number: "hub.discover.wrapped", Title: "/discover with a valid key is the same list in the wrapper",
		Cites: `HUB "Endpoints"; H-23`, Run: func(h *hubProbe) {
			a := h.one()
			wrapped := h.Read(a.key, "/discover")
			h.rows(wrapped)
			bare := kit.Answer{Status: http.StatusOK, Header: wrapped.Header, Body: wrapped.Members["data"]}
			h.wantCard(h.wantEntry(bare, a))
		}},
	{Number: "hub.discover.key", Title: "/discover with an invalid key is refused with 401",
		Cites: `HUB "Endpoints"; H-23`,
		Run: func(h *hubProbe) {
			h.wantNoKey(h.Read(unknownKey, "/discover"))
			h.wantNoKey(h.Ask("Authorization: Basic", http.MethodGet, "/discover", "",
				http.Header{"Authorization": {"Basic YTpi"}}, nil))
		}},
	{Number: "hub.discover.filters", Title: "culture and online=true select entries of /discover",
		Cites: `HUB "Endpoints"`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			h.rotate(alice, kit.Set("agent_card.user_culture", "tlh-Latn-US"))
			h.open(bob, "")
			h.wantOnline(bob, true, kit.PromptLimit)
			h.wantListed(h.Read("", "/discover?culture=tlh-Latn-US"), "culture", `"tlh-Latn-US"`, alice, bob)
			h.wantListed(h.Read("", "/discover?online=true"), "online", "true", bob, nil)
			h.wantListed(h.Read("", "/discover?culture=en&online=true"), "online", "true", bob, alice)
			rows := bareList(h.Read("", "/discover?culture=tlh-Latn-AQ"))
			h.Expect("an empty list")
			if rows == nil || len(rows) != 0 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
		}},
}
