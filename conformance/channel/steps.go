package channel

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelProbe is the context of one running check of a channel service.
type channelProbe struct {
	kit.GatewayProbe
	service *channelRun
	made    []*channel // that the check has created
	slow    bool       // the check holds an element of channelRun.slow
}

// channel is a channel of the check that created it.
type channel struct {
	id, key, name, context string
}

// path returns a path below the channel, such as /channels/ch_…/events.
func (c *channel) path(rest string) string { return "/channels/" + c.id + rest }

// member is a member of a channel.
type member struct {
	*channel
	name, key string
}

// agent is a connection of a channel. The run receives its deliveries.
type agent struct {
	*channel
	*kit.Hook
	name string
}

const channelContext = "The conformance kit checks this service. 你好 " + kit.Astral

var (
	channelIDForm   = regexp.MustCompile(`^ch_[a-z2-7]{26}$`)
	eventIDForm     = regexp.MustCompile(`^msg_[a-z2-7]{26}$`)
	channelKeyForm  = regexp.MustCompile(`^ck_[A-Za-z0-9_-]{43}$`)
	memberKeyForm   = regexp.MustCompile(`^cm_[A-Za-z0-9_-]{43}$`)
	channelTimeForm = kit.TimeForm
)

// Keys and ids of the right form that the service does not know.
var (
	unknownChannelKey = "ck_" + strings.Repeat("A", 43)
	unknownMemberKey  = "cm_" + strings.Repeat("A", 43)
	unknownChannel    = &channel{id: "ch_" + strings.Repeat("a", 26)}
)

// isChannelRateLimit reports whether the service limits the rate of requests, and not the number of something.
func isChannelRateLimit(a kit.Answer) bool {
	limit := a.Object("details").Text("limit")
	return a.Status == http.StatusTooManyRequests && !slices.Contains(channelLimits, limit)
}

// channelLimits are the limits that are not limits on the rate of requests (GATEWAYS §7a).
var channelLimits = []string{"channels", "members", "connections", "inboxes", "callbackEvents"}

// isFreeAtChannel reports whether a request changes nothing, so that a service allows many of them.
func isFreeAtChannel(method, _ string) bool { return method == http.MethodGet }

// wantOK ends the check unless a is a success with this status.
func (h *channelProbe) wantOK(a kit.Answer, status int) kit.Answer {
	h.Expect(`status %d with {"ok":true,…}`, status)
	if a.Status == http.StatusTooManyRequests && a.Object("details").Text("limit") == "channels" {
		h.End(kit.Skipped, "the service allows no more channels for now: %s", a)
	}
	if ok, _ := a.OK(); a.Status != status || !ok {
		h.Failf("%s", a)
	}
	return a
}

// wantError ends the check unless a is a refusal with this status and code.
func (h *channelProbe) wantError(a kit.Answer, status int, code string) {
	h.Expect(`refused: status %d with {"ok":false,"error":%q,…}`, status, code)
	ok, present := a.OK()
	switch {
	case a.Err != nil:
		h.Failf("%s", a)
	case a.Status < 300:
		h.Failf("the service accepted it: %s", a)
	case a.Status != status || ok || !present || a.Code() != code:
		h.Failf("the service refused it with another status or error: %s", a)
	}
}

// Refusals that many checks expect.
func (h *channelProbe) wantInvalid(a kit.Answer) {
	h.wantError(a, http.StatusBadRequest, "INVALID_REQUEST")
}
func (h *channelProbe) wantForbidden(a kit.Answer) { h.wantError(a, http.StatusForbidden, "FORBIDDEN") }
func (h *channelProbe) wantUnknown(a kit.Answer)   { h.wantError(a, http.StatusNotFound, "NOT_FOUND") }
func (h *channelProbe) wantConflict(a kit.Answer)  { h.wantError(a, http.StatusConflict, "CONFLICT") }
func (h *channelProbe) wantGone(a kit.Answer)      { h.wantError(a, http.StatusGone, "GONE") }

// wantNoKey ends the check unless a is the refusal of a request without a valid key.
func (h *channelProbe) wantNoKey(a kit.Answer) {
	h.wantError(a, http.StatusUnauthorized, "UNAUTHORIZED")
	h.WantChallenge(a)
}

// newChannel creates a channel as the operator. The check deletes it at its end.
func (h *channelProbe) newChannel() *channel {
	c := &channel{name: fmt.Sprintf("kit-%d", h.service.names.Add(1)), context: channelContext}
	a := h.wantOK(h.Write(h.service.OperatorKey, "/channels", kit.Message{"name": c.name, "context": c.context}),
		http.StatusCreated)
	return h.keep(c, a)
}

// keep completes a channel with what the answer to its creation says.
func (h *channelProbe) keep(c *channel, a kit.Answer) *channel {
	c.id, c.key = a.Object("channel").Text("id"), a.Text("key")
	h.made = append(h.made, c)
	h.Want(channelIDForm.MatchString(c.id) && channelKeyForm.MatchString(c.key), a,
		"an id such as ch_ and 26 characters of base32, and a key such as ck_ and 43 characters of base64url")
	return c
}

// release deletes the channels of the check.
func (h *channelProbe) release() {
	if h.slow {
		<-h.service.slow
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Ctx), kit.AnswerTimeout)
	defer cancel()
	for _, c := range h.made {
		if c.id == "" {
			continue
		}
		header := http.Header{"Authorization": {"Bearer " + h.service.OperatorKey}}
		// The result does not matter: the check may have deleted the channel already.
		_ = h.service.client.DoWithRetries(ctx, kit.RetryableRequest{Method: http.MethodDelete, Target: c.path(""),
			Header: header}, isChannelRateLimit)
	}
}

// member adds a member to the channel.
func (h *channelProbe) member(c *channel, name string) *member {
	a := h.wantOK(h.Write(c.key, c.path("/members"), kit.Message{"name": name}), http.StatusCreated)
	m := &member{channel: c, name: name, key: a.Text("key")}
	h.Want(a.Object("member").Text("name") == name && memberKeyForm.MatchString(m.key), a,
		"the member's name, and a key such as cm_ and 43 characters of base64url")
	return m
}

// talk creates a channel with the member alice.
func (h *channelProbe) talk() *member { return h.member(h.newChannel(), "alice") }

// agent adds a connection whose deliveries get this reply.
func (h *channelProbe) agent(c *channel, name string, reply kit.HookReply) *agent {
	return h.agentWith(c, name, nil, func(int) kit.HookReply { return reply })
}

// agentWith is agent with a form of mcp, unless it is nil, and with a reply for each delivery. Deliveries have numbers
// from 1.
func (h *channelProbe) agentWith(c *channel, name string, mcp any, reply func(call int) kit.HookReply) *agent {
	a := &agent{channel: c, name: name, Hook: h.inbox(reply)}
	body := kit.Message{"name": name, "url": a.URL}
	if mcp != nil {
		body["mcp"] = mcp
	}
	h.wantConnection(h.wantOK(h.Write(c.key, c.path("/connections"), body), http.StatusCreated), a.name, "active")
	return a
}

// inbox returns a new connection string of the run.
func (h *channelProbe) inbox(reply func(call int) kit.HookReply) *kit.Hook {
	return h.service.hooks.Add("/inbox/sk_"+strings.ToLower(rand.Text()), reply)
}

// wantConnection ends the check unless the member connection of a is the connection with this name and status.
func (h *channelProbe) wantConnection(a kit.Answer, name, status string) kit.Answer {
	row := a.Object("connection")
	h.Want(row.Text("name") == name && row.Text("status") == status, a, "a connection with the name %q and the status %q",
		name, status)
	return row
}

// say posts a message. The service must accept it. It returns the event.
func (h *channelProbe) say(m *member, content string) kit.Answer {
	return h.said(h.Write(m.key, m.path("/messages"), kit.Message{"content": content}), -1)
}

// sayTo does the same as say, for a message with this number of deliveries.
func (h *channelProbe) sayTo(deliveries int, m *member, content string) kit.Answer {
	return h.said(h.Write(m.key, m.path("/messages"), kit.Message{"content": content}), deliveries)
}

// said returns the event of an answer to POST /messages. If deliveries is negative, their number may be any.
func (h *channelProbe) said(a kit.Answer, deliveries int) kit.Answer {
	h.wantOK(a, http.StatusCreated)
	row := kit.ParseRow(a.Members["event"])
	h.Want(row.Text("id") != "" && row.Number("seq") >= 1 && a.Members["deliveries"] != nil, a,
		`{"ok":true,"event":{"seq":…,"id":…},"deliveries":…}`)
	if deliveries >= 0 {
		h.Want(a.Number("deliveries") == float64(deliveries), a, `"deliveries":%d`, deliveries)
	}
	return row
}

// events reads a page of events of the channel. query may be empty, or a text such as ?after=1.
func (h *channelProbe) events(c *channel, query string) []kit.Answer {
	return h.eventsOf(h.Read(c.key, c.path("/events"+query)))
}

// kit.EventsOf returns the events of a page. They must be in the order of seq.
func (h *channelProbe) eventsOf(a kit.Answer) (rows []kit.Answer) {
	h.wantOK(a, http.StatusOK)
	list, ok := a.List("events")
	h.Want(ok && a.Members["cursor"] != nil, a, `{"ok":true,"events":[…],"cursor":…}`)
	last := 0.0
	for _, raw := range list {
		row := kit.ParseRow(raw)
		h.Want(row.Number("seq") > last, a, "the events in the order of seq")
		last = row.Number("seq")
		rows = append(rows, row)
	}
	return rows
}

// eventAt returns the event with this seq.
func (h *channelProbe) eventAt(c *channel, seq float64) kit.Answer {
	a := h.Read(c.key, c.path(fmt.Sprintf("/events?after=%d&limit=1", int(seq)-1)))
	rows := h.eventsOf(a)
	h.Want(len(rows) == 1 && rows[0].Number("seq") == seq, a, "the event with the seq %v", seq)
	return rows[0]
}

// wantEvents ends the check unless the channel has n events. It returns them.
func (h *channelProbe) wantEvents(c *channel, n int) []kit.Answer {
	rows := h.events(c, "?limit=200")
	h.Expect("%d events", n)
	if len(rows) != n {
		h.Failf("%s", kit.DescribeRows(rows))
	}
	return rows
}

// wantMembers ends the check unless row has exactly these members. A value of anything matches every value.
func (h *channelProbe) wantMembers(row kit.Answer, want map[string]any) {
	h.Expect("exactly %s", kit.Excerpt(kit.Canonical(want), 600))
	for name, value := range want {
		if row.Members[name] == nil || value != anything && !kit.SameJSON(row.Members[name], value) {
			h.Failf("%s is not as expected in %s", name, kit.Excerpt(row.Body, 600))
		}
	}
	for name := range row.Members {
		if _, known := want[name]; !known {
			h.Failf("there is also %s in %s", name, kit.Excerpt(row.Body, 600))
		}
	}
}

// anything is a value that the check does not know.
const anything = "…"

// connection returns the entry of a connection in the list of its channel.
func (h *channelProbe) connection(c *channel, name string) kit.Answer {
	return h.entry(h.Read(c.key, c.path("/connections")), "connections", name)
}

// entry returns the entry with this name in the list of an answer.
func (h *channelProbe) entry(a kit.Answer, member, name string) kit.Answer {
	return h.inList(h.wantOK(a, http.StatusOK), member, name)
}

// inList returns the entry with this name in a member that is a list.
func (h *channelProbe) inList(a kit.Answer, member, name string) kit.Answer {
	list, ok := a.List(member)
	var found []kit.Answer
	for _, raw := range list {
		if row := kit.ParseRow(raw); row.Text("name") == name {
			found = append(found, row)
		}
	}
	h.Want(ok && len(found) == 1, a, "%s has %q once", member, name)
	return found[0]
}

// waitForConnection waits until the entry of a connection is right. The service may learn of an answer a moment later.
func (h *channelProbe) waitForConnection(c *channel, name, what string, right func(row kit.Answer) bool) {
	for deadline := time.Now().Add(kit.PromptLimit); ; h.Sleep(time.Second / 10) {
		row := h.connection(c, name)
		if right(row) {
			return
		}
		if time.Now().After(deadline) {
			h.Expect("a connection with %s", what)
			h.Failf("%s", kit.Excerpt(row.Body, 400))
		}
	}
}
