package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// cells is the table of PROTOCOL §4. For each situation, role and type it has the result of the message: a state or a
// refusal. "new" opens a thread of the sender's own. "stays" withdraws the sender's offer and keeps the state.
const cells = `
situation               role       REQUEST  OFFER    ACCEPT  CANCEL  RESULT     ERROR

open                    client     new      404      404     404     404        404
open                    stranger   new      404      404     404     404        404

pending                 client     409      403      409     ERROR   403        ERROR
pending                 stranger   new      PENDING  403     403     403        403

pending-offers          client     409      403      ACTIVE  ERROR   403        ERROR
pending-offers          agent      new      PENDING  403     403     409        stays
pending-offers          rival      new      PENDING  403     403     409        stays
pending-offers          withdrawn  new      PENDING  403     403     403        403
pending-offers          stranger   new      PENDING  403     403     403        403

pending-named           client     409      403      409     ERROR   403        ERROR
pending-named           agent      new      PENDING  403     403     409        ERROR
pending-named           stranger   new      403      403     403     403        403

pending-named-offer     client     409      403      ACTIVE  ERROR   403        ERROR
pending-named-offer     agent      new      PENDING  403     403     409        ERROR
pending-named-offer     stranger   new      403      403     403     403        403

active                  client     409      403      409     ERROR   403        ERROR
active                  agent      new      409      403     403     COMPLETED  ERROR
active                  rival      new      409      403     403     403        stays
active                  withdrawn  new      409      403     403     403        403
active                  stranger   new      409      403     403     403        403

active-named            client     409      403      409     ERROR   403        ERROR
active-named            agent      new      409      403     403     COMPLETED  ERROR
active-named            stranger   new      403      403     403     403        403

completed               client     409      403      409     409     403        ERROR
completed               agent      new      409      403     403     409        ERROR
completed               rival      new      409      403     403     403        stays
completed               withdrawn  new      409      403     403     403        403
completed               stranger   new      409      403     403     403        403

completed-named         client     409      403      409     409     403        ERROR
completed-named         agent      new      409      403     403     409        ERROR
completed-named         stranger   new      403      403     403     403        403

cancelled-pending       client     409      403      409     409     403        409
cancelled-pending       agent      new      409      403     403     409        409
cancelled-pending       rival      new      409      403     403     409        409
cancelled-pending       withdrawn  new      409      403     403     403        403
cancelled-pending       stranger   new      409      403     403     403        403

cancelled-active        client     409      403      409     409     403        409
cancelled-active        agent      new      409      403     403     409        409
cancelled-active        rival      new      409      403     403     403        409
cancelled-active        withdrawn  new      409      403     403     403        403
cancelled-active        stranger   new      409      403     403     403        403

client-error-pending    client     409      403      409     409     403        409
client-error-pending    agent      new      409      403     403     409        409
client-error-pending    stranger   new      409      403     403     403        403

client-error-active     client     409      403      409     409     403        409
client-error-active     agent      new      409      403     403     409        409

client-error-completed  client     409      403      409     409     403        409
client-error-completed  agent      new      409      403     403     409        409

agent-error-active      client     409      403      409     409     403        409
agent-error-active      agent      new      409      403     403     409        409
agent-error-active      rival      new      409      403     403     403        409
agent-error-active      stranger   new      409      403     403     403        403

agent-error-completed   client     409      403      409     409     403        409
agent-error-completed   agent      new      409      403     403     409        409

named-error-pending     client     409      403      409     409     403        409
named-error-pending     agent      new      409      403     403     409        409
named-error-pending     stranger   new      403      403     403     403        403

timed-out-pending       client     409      403      409     409     403        409
timed-out-pending       agent      new      409      403     403     409        409
timed-out-pending       withdrawn  new      409      403     403     403        403
timed-out-pending       stranger   new      409      403     403     403        403

timed-out-active        client     409      403      409     409     403        409
timed-out-active        agent      new      409      403     403     409        409
timed-out-active        rival      new      409      403     403     403        409
timed-out-active        stranger   new      409      403     403     403        403

timed-out-named         client     409      403      409     409     403        409
timed-out-named         agent      new      409      403     403     409        409
timed-out-named         stranger   new      403      403     403     403        403
`

// history parses messages such as "client REQUEST, agent OFFER, client ACCEPT agent": sender, type, and recipient if
// any.
func history(text string) []testvectors.ThreadMessage {
	messages := []testvectors.ThreadMessage{}
	for part := range strings.SplitSeq(text, ", ") {
		words := strings.Fields(part)
		switch len(words) {
		case 2:
			messages = append(messages, testvectors.ThreadMessage{By: words[0], Type: words[1]})
		case 3:
			messages = append(messages, testvectors.ThreadMessage{By: words[0], Type: words[1], To: words[2]})
		}
	}
	return messages
}

const (
	opened      = "client REQUEST"
	openedNamed = "client REQUEST agent"
	bids        = opened + ", withdrawn OFFER, rival OFFER, agent OFFER, withdrawn ERROR"
	bidNamed    = openedNamed + ", agent OFFER"
	working     = bids + ", client ACCEPT agent"
	workNamed   = bidNamed + ", client ACCEPT"
	done        = working + ", agent RESULT"
)

// situations has the history of messages that leads to each situation in cells.
var situations = map[string]struct {
	history string
	elapsed int64
	state   string
}{
	"open":                   {"", 0, "OPEN"},
	"pending":                {opened, 0, "PENDING"},
	"pending-offers":         {bids, 0, "PENDING"},
	"pending-named":          {openedNamed, 0, "PENDING"},
	"pending-named-offer":    {bidNamed, 0, "PENDING"},
	"active":                 {working, 0, "ACTIVE"},
	"active-named":           {workNamed, 0, "ACTIVE"},
	"completed":              {done, 0, "COMPLETED"},
	"completed-named":        {workNamed + ", agent RESULT", 0, "COMPLETED"},
	"cancelled-pending":      {bids + ", client CANCEL", 0, "ERROR"},
	"cancelled-active":       {working + ", client CANCEL", 0, "ERROR"},
	"client-error-pending":   {bids + ", client ERROR", 0, "ERROR"},
	"client-error-active":    {working + ", client ERROR", 0, "ERROR"},
	"client-error-completed": {done + ", client ERROR", 0, "ERROR"},
	"agent-error-active":     {working + ", agent ERROR", 0, "ERROR"},
	"agent-error-completed":  {done + ", agent ERROR", 0, "ERROR"},
	"named-error-pending":    {openedNamed + ", agent ERROR", 0, "ERROR"},
	"timed-out-pending":      {bids, 300, "ERROR"},
	"timed-out-active":       {working, 3600, "ERROR"},
	"timed-out-named":        {bidNamed, 300, "ERROR"},
}

// refusals maps a status in the tables to its error code.
var refusals = map[string]string{
	"400": badRequest, "403": forbidden, "404": "THREAD_NOT_FOUND", "409": "INVALID_TRANSITION", "429": "RATE_LIMITED",
}

func threads() (vectors []testvectors.ThreadVector) {
	lines := strings.Split(strings.TrimSpace(cells), "\n")
	types := strings.Fields(lines[0])[2:]
	for _, line := range lines[1:] {
		row := strings.Fields(line)
		if len(row) == 0 {
			continue
		}
		for i, want := range row[2:] {
			message := testvectors.ThreadMessage{By: row[1], Type: types[i]}
			if row[0] == "pending-offers" && message.Type == "ACCEPT" {
				message.To = "agent" // two agents have offered, so the ACCEPT must name one
			}
			s := situations[row[0]]
			v := testvectors.ThreadVector{Name: row[0] + "-" + row[1] + "-" + types[i], Request: "broadcast",
				History: history(s.history), Elapsed: s.elapsed, State: s.state, Message: message}
			vectors = append(vectors, withOutcome(v, want, ""))
		}
	}
	for _, c := range slices.Concat(threadCases, timeoutCases) {
		v := testvectors.ThreadVector{Name: c.name, Request: "broadcast", History: history(c.history), Elapsed: c.elapsed,
			State: c.state, Message: c.message}
		vectors = append(vectors, withOutcome(v, c.want, c.reason))
	}
	return append(vectors, manyOffers("offer-100", 99, "PENDING"), manyOffers("offer-101", 100, "429"))
}

// manyOffers returns a vector with one more OFFER after n OFFERs.
func manyOffers(name string, n int, want string) testvectors.ThreadVector {
	messages := history(opened + strings.Repeat(", agent OFFER", n))
	v := testvectors.ThreadVector{Name: name, Request: "broadcast", History: messages, State: "PENDING",
		Message: testvectors.ThreadMessage{By: "agent", Type: "OFFER"}}
	return withOutcome(v, want, "The thread has had a hundred offers.")
}

// withOutcome returns v with the expected result. If reason is empty, it adds a standard reason.
func withOutcome(v testvectors.ThreadVector, want, reason string) testvectors.ThreadVector {
	if slices.ContainsFunc(append(v.History, v.Message), func(m testvectors.ThreadMessage) bool {
		return m.By == "client" && m.Type == "REQUEST" && m.To != ""
	}) {
		v.Request = "named"
	}
	if code, refused := refusals[want]; refused {
		v.Expect, v.Code, v.Reason = testvectors.Reject, code, reason
		if reason == "" {
			v.Reason = map[string]string{
				"403": fmt.Sprintf("The role %s may not send %s here.", v.Message.By, v.Message.Type),
				"404": "No thread has this id.",
				"409": fmt.Sprintf("The state %s does not allow %s.", v.State, v.Message.Type),
			}[want]
		}
		return v
	}
	v.Expect = testvectors.Accept
	switch want {
	case "new":
		v.StateAfter = "PENDING"
	case "stays":
		v.StateAfter = v.State
	default:
		v.StateAfter = want
	}
	return v
}
