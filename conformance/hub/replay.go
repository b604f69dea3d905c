package hub

import (
	"net/http"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubReplayChecks test with which messages a stream begins.
var hubReplayChecks = []hubCheck{
	{Number: "hub.replay.queued",
		Title: "A message to an absent agent arrives on its next stream, once, in the order of id",
		Cites: `HUB "The inbox stream"; H-11`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 3)
			s := h.open(bob, "")
			h.wantOnly(s, sent...)
			for _, m := range sent {
				h.wantState(m, "sent")
			}
		}},
	{Number: "hub.replay.resume",
		Title: "With Last-Event-ID: N a stream begins with everything after N that has not failed",
		Cites: `HUB "The inbox stream"; H-12`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			handed := h.sendAll(alice, bob, 5)
			s := h.open(bob, "")
			ids := h.wantOnly(s, handed...)
			s.close()
			h.ack(bob, map[string]any{"trace_ids": []any{handed[2].trace}}, 1)
			h.ack(bob, map[string]any{"trace_ids": []any{handed[3].trace}, "response": failure("NO", "no")}, 1)
			queued := h.sendAll(alice, bob, 2)
			s = h.open(bob, ids[0])
			h.wantOnly(s, handed[1], handed[2], handed[4], queued[0], queued[1])
			s.close()
			h.wantOnly(h.open(bob, ids[4]), queued...)
		}},
	{Number: "hub.replay.last",
		Title: "With the id of the last message a stream begins with nothing", Cites: `HUB "The inbox stream"; H-12`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 2)
			s := h.open(bob, "")
			ids := h.wantOnly(s, sent...)
			s.close()
			s = h.open(bob, ids[1])
			h.wantQuiet(s)
			h.wantOnly(s, h.send(alice, bob, "a new message"))
		}},
	{Number: "hub.replay.form", Title: "A Last-Event-ID that is not digits is refused with 400",
		Cites: `HUB "The inbox stream"`,
		Run: func(h *hubProbe) {
			a := h.one()
			for _, id := range []string{"abc", "-1", "+1", "1.0", "1e3", "0x1", "1 2", "१"} {
				s := h.openRaw(a, "/agent/inbox", http.Header{"Authorization": {"Bearer " + a.key},
					"Last-Event-Id": {id}})
				h.wantInvalid(s.answer)
			}
			h.open(a, "007")
		}},
	{Number: "hub.replay.last-minute",
		Title: "Without Last-Event-ID what the last stream sent in its last minute comes again",
		Cites: `HUB "The inbox stream"; H-13`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			sent := h.sendAll(alice, bob, 2)
			s := h.open(bob, "")
			h.wantMessages(s, sent...)
			third := h.send(alice, bob, "sent at once")
			h.wantMessages(s, third)
			s.close()
			h.ack(bob, map[string]any{"trace_ids": []any{sent[1].trace}}, 1)
			fourth := h.send(alice, bob, "sent while there is no stream")
			h.wantOnly(h.open(bob, ""), sent[0], third, fourth)
		}},
	{Number: "hub.replay.minute",
		Title: "Without Last-Event-ID what was sent before the last minute does not come again",
		Cites: `HUB "The inbox stream"; H-13`, Wait: 64 * time.Second, Needs: kit.NeedsThorough, Run: func(h *hubProbe) {
			alice, bob := h.two()
			old := h.send(alice, bob, "sent early on the stream")
			s := h.open(bob, "")
			h.wantMessages(s, old)
			h.Sleep(63 * time.Second)
			fresh := h.send(alice, bob, "sent late on the stream")
			h.wantMessages(s, fresh)
			s.close()
			h.wantOnly(h.open(bob, ""), fresh)
		}},
	{Number: "hub.replay.polled",
		Title: "What a poll has handed out comes on a stream only if Last-Event-ID asks for it",
		Cites: `HUB "The inbox stream"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			polled := h.send(alice, bob, "handed out by a poll")
			h.rowOf(bob, polled)
			queued := h.send(alice, bob, "queued")
			s := h.open(bob, "")
			h.wantOnly(s, queued)
			s.close()
			h.wantOnly(h.open(bob, bob.before()), polled, queued)
		}},
	{Number: "hub.replay.other", Title: "A stream has only messages to its own agent",
		Cites: `HUB "The inbox stream"; H-22`,
		Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			s := h.open(carol, "")
			h.send(alice, bob, "to bob")
			h.send(carol, bob, "from carol")
			h.wantQuiet(s)
			h.wantOnly(s, h.send(bob, carol, "to carol"))
		}},
}

// before returns an id for Last-Event-ID that is smaller than the id of every message of this check.
func (a *hubAgent) before() string { return a.seen }

// failure returns the response of a receiver that refuses a message.
func failure(code, detail string) map[string]any {
	return map[string]any{"status": "error", "error_code": code, "detail": detail}
}

// ack posts a body to /agent/ack. The hub must confirm this number of messages.
func (h *hubProbe) ack(a *hubAgent, body map[string]any, acknowledged int) {
	answered := h.Write(a.key, "/agent/ack", body)
	data := h.wantData(answered, http.StatusOK)
	h.Want(string(data.Members["acknowledged"]) == joinNumbers([]int{acknowledged}, ""), answered,
		`{"acknowledged":%d}`, acknowledged)
}
