package conformance

import (
	"fmt"
	"strings"
)

// wantMessages ends the check unless got has the messages whose seq is first to last, and hasMore. In these channels
// all events are messages.
func (h *channelProbe) wantMessages(got answer, first, last int, more bool) {
	list, _ := got.list("messages")
	hasMore, present := got.flag("hasMore")
	h.want(len(list) == last-first+1 && present && hasMore == more, got, `%d messages and "hasMore":%v, not %d messages`,
		last-first+1, more, len(list))
	for i, raw := range list {
		row := parseRow(raw)
		h.want(row.number("seq") == float64(first+i) && row.text("content") != "" && row.text("sender") != "", row,
			"the message with the seq %d", first+i)
	}
}

func mcpMessages(h *channelProbe) {
	alice := h.talk()
	for i := 1; i <= 4; i++ {
		h.say(alice, fmt.Sprint(i))
	}
	d := h.deliver(alice, h.agent(alice.channel, "bot", replyOK))
	h.initialize(d)
	for _, c := range []struct {
		args        message
		first, last int
		more        bool
	}{
		{message{}, 1, 5, false}, {message{"limit": 2}, 4, 5, true}, {message{"limit": 5}, 1, 5, false},
		{message{"after": 1, "limit": 2}, 2, 3, true}, {message{"after": 3}, 4, 5, false},
		{message{"before": 3}, 1, 2, false},
		{message{"before": 4, "limit": 2}, 2, 3, true}, {message{"after": 1, "before": 4}, 2, 3, false},
		{message{"after": 5}, 1, 0, false},
	} {
		h.wantMessages(h.call(d, "get_messages", c.args), c.first, c.last, c.more)
	}
	h.wantSeq(h.report(d, statusEvent("reading")))
	h.wantSeq(h.report(d, toolCall))
	h.describe("get_messages after events of other types")
	h.wantMessages(h.call(d, "get_messages", message{}), 1, 5, false)
}

// rosterOf returns the entry of one of the channel in the roster.
func (h *channelProbe) rosterOf(d channelDelivery, name, kind string) answer {
	row := h.inList(h.call(d, "get_roster", message{}), "members", name)
	h.want(row.text("kind") == kind && row.members["status"] != nil && row.members["lastSeen"] != nil, row,
		`an entry with "name":%q,"kind":%q,"status":…,"lastSeen":…`, name, kind)
	return row
}

func mcpRoster(h *channelProbe) {
	alice, _, d := h.exchange()
	h.member(alice.channel, "carol")
	h.agent(alice.channel, "other", replyOK)
	h.initialize(d)
	h.rosterOf(d, "alice", "member")
	h.rosterOf(d, "carol", "member")
	h.rosterOf(d, "other", "agent")
	h.wantSeq(h.report(d, statusEvent("searching weather data")))
	row := h.rosterOf(d, "bot", "agent")
	h.want(row.text("status") == "searching weather data", row, "the status that the agent has reported")
	set := h.call(d, "set_status", message{"status": "reading a book"})
	done, _ := set.flag("ok")
	h.want(done, set, `{"ok":true}`)
	row = h.rosterOf(d, "bot", "agent")
	h.want(row.text("status") == "reading a book", row, "the status that the agent has set")
	h.wantSeq(h.report(d, with(lifecycle, "status", "pondering")))
	row = h.rosterOf(d, "bot", "agent")
	h.want(strings.Contains(string(row.body), "pondering"), row, "the lifecycle that the agent has reported")
	h.want(!strings.Contains(string(h.rosterOf(d, "other", "agent").body), "book"), row, "no status at the other agent")
}
