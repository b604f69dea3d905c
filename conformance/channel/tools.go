package channel

import (
	"fmt"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// wantMessages ends the check unless got has the messages whose seq is first to last, and hasMore. In these channels
// all events are messages.
func (h *channelProbe) wantMessages(got kit.Answer, first, last int, more bool) {
	list, _ := got.List("messages")
	hasMore, present := got.Flag("hasMore")
	h.Want(len(list) == last-first+1 && present && hasMore == more, got, `%d messages and "hasMore":%v, not %d messages`,
		last-first+1, more, len(list))
	for i, raw := range list {
		row := kit.ParseRow(raw)
		h.Want(row.Number("seq") == float64(first+i) && row.Text("content") != "" && row.Text("sender") != "", row,
			"the message with the seq %d", first+i)
	}
}

func mcpMessages(h *channelProbe) {
	alice := h.talk()
	for i := 1; i <= 4; i++ {
		h.say(alice, fmt.Sprint(i))
	}
	d := h.deliver(alice, h.agent(alice.channel, "bot", kit.ReplyOK))
	h.initialize(d)
	for _, c := range []struct {
		args        kit.Message
		first, last int
		more        bool
	}{
		{kit.Message{}, 1, 5, false}, {kit.Message{"limit": 2}, 4, 5, true}, {kit.Message{"limit": 5}, 1, 5, false},
		{kit.Message{"after": 1, "limit": 2}, 2, 3, true}, {kit.Message{"after": 3}, 4, 5, false},
		{kit.Message{"before": 3}, 1, 2, false},
		{kit.Message{"before": 4, "limit": 2}, 2, 3, true}, {kit.Message{"after": 1, "before": 4}, 2, 3, false},
		{kit.Message{"after": 5}, 1, 0, false},
	} {
		h.wantMessages(h.call(d, "get_messages", c.args), c.first, c.last, c.more)
	}
	h.wantSeq(h.report(d, statusEvent("reading")))
	h.wantSeq(h.report(d, toolCall))
	h.Describe("get_messages after events of other types")
	h.wantMessages(h.call(d, "get_messages", kit.Message{}), 1, 5, false)
}

// rosterOf returns the entry of one of the channel in the roster.
func (h *channelProbe) rosterOf(d channelDelivery, name, kind string) kit.Answer {
	row := h.inList(h.call(d, "get_roster", kit.Message{}), "members", name)
	h.Want(row.Text("kind") == kind && row.Members["status"] != nil && row.Members["lastSeen"] != nil, row,
		`an entry with "name":%q,"kind":%q,"status":…,"lastSeen":…`, name, kind)
	return row
}

func mcpRoster(h *channelProbe) {
	alice, _, d := h.exchange()
	h.member(alice.channel, "carol")
	h.agent(alice.channel, "other", kit.ReplyOK)
	h.initialize(d)
	h.rosterOf(d, "alice", "member")
	h.rosterOf(d, "carol", "member")
	h.rosterOf(d, "other", "agent")
	h.wantSeq(h.report(d, statusEvent("searching weather data")))
	row := h.rosterOf(d, "bot", "agent")
	h.Want(row.Text("status") == "searching weather data", row, "the status that the agent has reported")
	set := h.call(d, "set_status", kit.Message{"status": "reading a book"})
	done, _ := set.Flag("ok")
	h.Want(done, set, `{"ok":true}`)
	row = h.rosterOf(d, "bot", "agent")
	h.Want(row.Text("status") == "reading a book", row, "the status that the agent has set")
	h.wantSeq(h.report(d, kit.With(lifecycle, "status", "pondering")))
	row = h.rosterOf(d, "bot", "agent")
	h.Want(strings.Contains(string(row.Body), "pondering"), row, "the lifecycle that the agent has reported")
	h.Want(!strings.Contains(string(h.rosterOf(d, "other", "agent").Body), "book"), row, "no status at the other agent")
}
