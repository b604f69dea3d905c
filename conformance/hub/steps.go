package hub

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubProbe is the context of one running check of a hub.
type hubProbe struct {
	kit.GatewayProbe
	hub     *hubRun
	taken   []*hubAgent  // of the pool
	made    []*hubAgent  // that the check has registered
	streams []*hubStream // that the check has opened
}

// The steps of checks of a hub. As in steps.go, each step records what it sends and what it expects.

// holdOfHub returns how long a hub may hold its answer to a request.
func holdOfHub(target string) time.Duration {
	if target == "/messages" {
		return senderWaits
	}
	return 0
}

// isFreeAtHub reports whether a request changes nothing, so that a hub allows many of them. Requests of an agent for
// its messages change the states of the messages.
func isFreeAtHub(method, target string) bool {
	return method == http.MethodGet && !strings.HasPrefix(target, "/agent/")
}

// senderWaits is how long a hub waits for a webhook before it answers the sender.
const senderWaits = 15 * time.Second

// isHubRateLimit reports whether the hub limits the rate of requests, and not the number of something.
func isHubRateLimit(a kit.Answer) bool {
	return a.Status == http.StatusTooManyRequests && hubCode(a) == "ERR_RATE_LIMITED"
}

// hubCode returns the error code of a refusal by a hub.
func hubCode(a kit.Answer) string { return a.Object("error").Text("code") }

// wantData ends the check unless a is a success with one of these statuses. It returns the member data.
func (h *hubProbe) wantData(a kit.Answer, statuses ...int) kit.Answer {
	h.Expect(`status %s with {"success":true,"data":…}`, joinNumbers(statuses, " or "))
	success, _ := a.Flag("success")
	if a.Status == http.StatusTooManyRequests && a.Object("error").Text("limit") == "registrations" {
		h.End(kit.Skipped, "the hub allows no more registrations from this address for now: %s", a)
	}
	if !slices.Contains(statuses, a.Status) || !success || a.Members["data"] == nil {
		h.Failf("%s", a)
	}
	return a.Object("data")
}

func joinNumbers(list []int, separator string) string {
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = fmt.Sprint(n)
	}
	return strings.Join(text, separator)
}

// wantError ends the check unless a is a refusal with this status and one of these codes.
func (h *hubProbe) wantError(a kit.Answer, status int, codes ...string) {
	h.Expect(`refused: status %d with the error code %s`, status, strings.Join(codes, " or "))
	success, present := a.Flag("success")
	switch {
	case a.Err != nil:
		h.Failf("%s", a)
	case a.Status < 300:
		h.Failf("the hub accepted it: %s", a)
	case a.Status != status || success || !present || !slices.Contains(codes, hubCode(a)):
		h.Failf("the hub refused it with another status or code: %s", a)
	}
}

// Refusals that many checks expect.
func (h *hubProbe) wantInvalid(a kit.Answer) { h.wantError(a, http.StatusBadRequest, "ERR_VALIDATION") }
func (h *hubProbe) wantNoKey(a kit.Answer) {
	h.wantError(a, http.StatusUnauthorized, "ERR_UNAUTHORIZED")
}
func (h *hubProbe) wantNotYours(a kit.Answer) { h.wantError(a, http.StatusForbidden, "ERR_FORBIDDEN") }
func (h *hubProbe) wantTaken(a kit.Answer)    { h.wantError(a, http.StatusConflict, "ERR_AGENT_ID_TAKEN") }
func (h *hubProbe) wantNoAgent(a kit.Answer) {
	h.wantError(a, http.StatusNotFound, "ERR_AGENT_NOT_FOUND")
}

// envelopeOf returns a good envelope.
func envelopeOf(from *hubAgent, text string) map[string]any {
	return map[string]any{"chorus_version": "0.4", "sender_id": from.id, "original_text": text, "sender_culture": "en"}
}

// letter returns the body of a good POST /messages.
func letter(from, to *hubAgent, text string) kit.Message {
	return kit.Message{"receiver_id": to.id, "envelope": envelopeOf(from, text)}
}

// sentMessage is a message that the hub has accepted.
type sentMessage struct {
	from, to *hubAgent
	envelope any
	trace    string
	answer   kit.Answer
	data     kit.Answer // of the answer
}

// send sends a short message. The hub must accept it.
func (h *hubProbe) send(from, to *hubAgent, text string) sentMessage {
	return h.sendBody(from, to, letter(from, to, text))
}

// sendAll sends n short messages, one after the other.
func (h *hubProbe) sendAll(from, to *hubAgent, n int) (list []sentMessage) {
	for i := range n {
		list = append(list, h.send(from, to, fmt.Sprintf("message %d", i+1)))
	}
	return list
}

// sendBody posts this body to /messages. The hub must accept it.
func (h *hubProbe) sendBody(from, to *hubAgent, body kit.Message) sentMessage {
	return h.accepted(from, to, body, h.Write(from.key, "/messages", body))
}

// accepted returns the message that the answer a to POST /messages is about.
func (h *hubProbe) accepted(from, to *hubAgent, body kit.Message, a kit.Answer) sentMessage {
	data := h.wantData(a, http.StatusOK, http.StatusAccepted)
	h.Want(data.Text("trace_id") != "", a, "data has a trace_id")
	return sentMessage{
		from:     from,
		to:       to,
		envelope: body["envelope"],
		trace:    data.Text("trace_id"),
		answer:   a,
		data:     data,
	}
}

// sendInBackground sends a short message while the check runs. The hub may hold its answer until it knows what has
// become of the message. The function that it returns waits for the answer; the hub must have accepted the message.
func (h *hubProbe) sendInBackground(from, to *hubAgent, text string) (wait func() sentMessage) {
	body, answered := letter(from, to, text), make(chan kit.Answer, 1)
	h.Tasks.Go(func() { answered <- h.Write(from.key, "/messages", body) })
	return func() sentMessage { return h.accepted(from, to, body, <-answered) }
}

// wantDelivery ends the check unless the answer to the POST of m has this status, delivery and state.
func (h *hubProbe) wantDelivery(m sentMessage, status int, delivery, state string) {
	h.Want(m.answer.Status == status && m.data.Text("delivery") == delivery && m.data.Text("state") == state, m.answer,
		`status %d with data that has "delivery":%q and "state":%q`, status, delivery, state)
}

// rows ends the check unless a is a list in a wrapper. It returns the elements.
func (h *hubProbe) rows(a kit.Answer) (rows []kit.Answer) {
	h.wantData(a, http.StatusOK)
	list, ok := a.List("data")
	h.Want(ok, a, "data is a list")
	for _, raw := range list {
		rows = append(rows, kit.ParseRow(raw))
	}
	return rows
}

// history returns the messages that a has sent or received since the check began. The hub hands out to a what it has
// not handed out yet.
func (h *hubProbe) history(a *hubAgent) []kit.Answer {
	seen := kit.ParseRow([]byte(`{"id":` + a.seen + `}`)).Number("id")
	return slices.DeleteFunc(h.rows(h.Read(a.key, "/agent/messages?since="+a.seen)),
		func(row kit.Answer) bool { return row.Number("id") <= seen })
}

// rowOf returns the row of a message in the history of a.
func (h *hubProbe) rowOf(a *hubAgent, m sentMessage) kit.Answer {
	rows := h.history(a)
	h.Expect("the message with the trace_id %s in the history of %s, once", m.trace, a.id)
	var found []kit.Answer
	for _, row := range rows {
		if row.Text("trace_id") == m.trace {
			found = append(found, row)
		}
	}
	if len(found) != 1 {
		h.Failf("it is there %d times; the history is:\n%s", len(found), kit.DescribeRows(rows))
	}
	return found[0]
}

// wantState ends the check unless the history of the sender shows this state. A state may be written a moment after the
// event that causes it, so wantState waits for it.
func (h *hubProbe) wantState(m sentMessage, state string) kit.Answer {
	return h.wantRow(m, kit.PromptLimit, "the state "+state,
		func(row kit.Answer) bool { return row.Text("state") == state })
}

// keepsState does the same as wantState, for a state that must not have changed. It does not wait.
func (h *hubProbe) keepsState(m sentMessage, state string) kit.Answer {
	return h.wantRow(m, 0, "the state "+state+" as before",
		func(row kit.Answer) bool { return row.Text("state") == state })
}

// wantRow ends the check unless the row of m in the history of its sender becomes right within a time.
func (h *hubProbe) wantRow(m sentMessage, within time.Duration, what string,
	right func(row kit.Answer) bool) kit.Answer {
	for deadline := time.Now().Add(within); ; h.Sleep(time.Second / 10) {
		row := h.rowOf(m.from, m)
		if right(row) {
			return row
		}
		if time.Now().After(deadline) {
			h.Expect("%s, in the history of the sender", what)
			h.Failf("%s", kit.Excerpt(row.Body, 600))
		}
	}
}

// countStatus returns how many of the answers have the status.
func countStatus(answers []kit.Answer, status int) (n int) {
	for _, a := range answers {
		if a.Status == status {
			n++
		}
	}
	return n
}
