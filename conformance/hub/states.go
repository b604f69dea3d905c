package hub

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubStateChecks test which event makes which state.
var hubStateChecks = []hubCheck{
	{Number: "hub.state.poll", Title: "A poll by the receiver makes sent, and a poll by the sender changes nothing",
		Cites: `HUB "Sending"; H-14`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.send(alice, bob, "handed out by a poll")
			h.keepsState(m, "queued")
			h.keepsState(m, "queued")
			row := h.rowOf(bob, m)
			h.Want(row.Text("delivered_via") == "poll" || row.Text("delivered_via") == "queued", row,
				"delivered_via poll, or queued as before this poll")
			row = h.wantState(m, "sent")
			h.Want(row.Text("delivered_via") == "poll", row, "delivered_via poll")
			h.history(bob)
			h.keepsState(m, "sent")
		}},
	{Number: "hub.state.stream", Title: "A stream makes sent, and never delivered", Cites: `HUB "Sending"; H-14`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			s := h.open(bob, "")
			m := h.send(alice, bob, "handed out by a stream")
			h.wantMessages(s, m)
			row := h.wantState(m, "sent")
			h.Want(row.Text("delivered_via") == "sse", row, "delivered_via sse")
			h.Sleep(kit.Quiet)
			h.keepsState(m, "sent")
		}},
	{Number: "hub.state.last-event-id", Title: "Last-Event-ID: N confirms the received messages up to N",
		Cites: `HUB "Sending"; H-14, H-15`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 3)
			s := h.open(bob, "")
			ids := h.wantMessages(s, sent...)
			s.close()
			h.open(bob, ids[1])
			h.wantState(sent[0], "delivered")
			h.wantState(sent[1], "delivered")
			h.keepsState(sent[2], "sent")
		}},
	{Number: "hub.state.since", Title: "since=N confirms the received messages up to N, and a time confirms nothing",
		Cites: `HUB "Sending"; H-14, H-15`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 3)
			rows := h.history(bob)
			h.Expect("3 rows")
			if len(rows) != 3 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
			h.rows(h.Read(bob.key, "/agent/messages"+kit.Query("since", rows[2].Text("timestamp"))))
			h.keepsState(sent[0], "sent")
			h.rows(h.Read(bob.key, "/agent/messages?since="+string(rows[1].Members["id"])))
			h.wantState(sent[0], "delivered")
			h.wantState(sent[1], "delivered")
			h.keepsState(sent[2], "sent")
		}},
	{Number: "hub.state.final",
		Title: "delivered and failed never change", Cites: `HUB "Sending"; H-14`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 2)
			h.history(bob)
			good := map[string]any{"trace_ids": []any{sent[0].trace}}
			bad := map[string]any{"trace_ids": []any{sent[1].trace}}
			h.ack(bob, good, 1)
			bad["response"] = failure("NO", "first")
			h.ack(bob, bad, 1)
			h.wantState(sent[0], "delivered")
			h.wantState(sent[1], "failed")
			good["response"] = failure("NO", "second")
			h.wantData(h.Write(bob.key, "/agent/ack", good), http.StatusOK)
			delete(bad, "response")
			h.wantData(h.Write(bob.key, "/agent/ack", bad), http.StatusOK)
			h.history(bob)
			h.open(bob, "0")
			h.keepsState(sent[0], "delivered")
			row := h.keepsState(sent[1], "failed")
			h.Want(row.Text("detail") == "first", row, `the detail "first" as before`)
		}},
}

// hubAckChecks test POST /agent/ack.
var hubAckChecks = []hubCheck{
	{Number: "hub.ack.up-to", Title: "up_to confirms the received messages with this id and smaller ones",
		Cites: `HUB "Sending"; H-14, H-15`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 3)
			rows := h.history(bob)
			h.Expect("3 rows")
			if len(rows) != 3 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
			h.ack(bob, map[string]any{"up_to": rows[1].Number("id")}, 2)
			row := h.wantState(sent[0], "delivered")
			h.Want(kit.TimeForm.MatchString(row.Text("acknowledged_at")), row, "acknowledged_at, in milliseconds")
			h.wantState(sent[1], "delivered")
			h.keepsState(sent[2], "sent")
		}},
	{Number: "hub.ack.trace-ids",
		Title: "trace_ids confirms these messages, and ignores unknown ids and those of others",
		Cites: `HUB "Sending"; H-15`, Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			sent := h.sendAll(alice, bob, 3)
			other := h.send(alice, carol, "to another agent")
			own := h.send(bob, alice, "from the agent that confirms")
			for _, a := range h.taken {
				h.history(a)
			}
			h.ack(bob, map[string]any{"trace_ids": []any{sent[0].trace, other.trace, own.trace, sent[2].trace,
				"00000000-0000-4000-8000-000000000000"}}, 2)
			h.wantState(sent[0], "delivered")
			h.keepsState(sent[1], "sent")
			h.wantState(sent[2], "delivered")
			h.keepsState(other, "sent")
			h.keepsState(own, "sent")
		}},
	{Number: "hub.ack.others", Title: "up_to never confirms messages to or between other agents",
		Cites: `HUB "Sending"; H-15`,
		Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			own, other := h.send(bob, alice, "from the agent that confirms"), h.send(alice, carol, "to another agent")
			for _, a := range h.taken {
				h.history(a)
			}
			last := h.send(alice, bob, "to the agent that confirms")
			h.ack(bob, map[string]any{"up_to": h.rowOf(bob, last).Number("id")}, 1)
			h.wantState(last, "delivered")
			h.keepsState(other, "sent")
			h.keepsState(own, "sent")
		}},
	{Number: "hub.ack.received", Title: "up_to confirms no message that was not handed out", Cites: `HUB "Sending"; H-14`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.send(alice, bob, "queued")
			h.ack(bob, map[string]any{"up_to": 1<<53 - 1}, 0)
			h.keepsState(m, "queued")
			h.wantOnly(h.open(bob, ""), m)
		}},
	{Number: "hub.ack.error", Title: "A response with status error makes failed, with its error_code and detail",
		Cites: `HUB "Sending"; H-14`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.send(alice, bob, "refused by its receiver")
			h.history(bob)
			h.ack(bob, map[string]any{"trace_ids": []any{m.trace}, "response": failure("INVALID_ENVELOPE",
				"no culture")}, 1)
			row := h.wantState(m, "failed")
			h.Want(row.Text("error_code") == "INVALID_ENVELOPE" && row.Text("detail") == "no culture", row,
				"the error_code and the detail of the response")
		}},
	{Number: "hub.ack.cut", Title: "The texts of a response are cut at 1,000 code units, and other members are dropped",
		Cites: `HUB "Sending"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.send(alice, bob, "refused with long texts")
			h.history(bob)
			response := failure(strings.Repeat("E", 1001), strings.Repeat(wide, 3000))
			response["other"] = "53cr3t"
			h.ack(bob, map[string]any{"trace_ids": []any{m.trace}, "response": response}, 1)
			row := h.wantState(m, "failed")
			h.Want(row.Text("error_code") == strings.Repeat("E", 1000) &&
				row.Text("detail") == strings.Repeat(wide, 1000), row, "both texts with 1,000 code units")
			h.Want(!strings.Contains(string(row.Body), "53cr3t"), row, "no other member of the response")
		}},
	{Number: "hub.ack.form", Title: "An ack has either up_to or 1 to 1,000 trace_ids, and response is a reply",
		Cites: `HUB "Endpoints"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.send(alice, bob, "hello")
			h.history(bob)
			traces := make([]any, 1001)
			for i := range traces {
				traces[i] = fmt.Sprintf("00000000-0000-4000-8000-%012s", strconv.Itoa(i))
			}
			h.ack(bob, map[string]any{"trace_ids": traces[:1000]}, 0)
			for _, body := range []map[string]any{
				{}, {"up_to": 1, "trace_ids": []any{m.trace}}, {"up_to": "1"}, {"up_to": -1}, {"up_to": 1.5},
				{"up_to": nil},
				{"trace_ids": []any{}}, {"trace_ids": traces}, {"trace_ids": m.trace}, {"trace_ids": []any{1}},
				{"trace_ids": nil}, {"trace_ids": []any{m.trace}, "response": "ok"},
				{"trace_ids": []any{m.trace}, "response": map[string]any{}},
				{"trace_ids": []any{m.trace}, "response": map[string]any{"status": "maybe"}},
			} {
				h.wantInvalid(h.Write(bob.key, "/agent/ack", body))
			}
			h.keepsState(m, "sent")
		}},
}
