package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// sealedThread reports whether the client of a thread has sealed any message of it that the relay still has.
func sealedThread(record *client.Thread) bool {
	return slices.ContainsFunc(record.Events, func(e *envelope.Envelope) bool {
		return e.Sender.ID == record.Client && e.RequestID == record.RequestID && e.Sealed()
	})
}

// errUnknown is for who would answer in a thread without knowing whether it is sealed.
var errUnknown = errors.New("the relay no longer has the REQUEST, so whether it was sealed is unknown; say --seal, or --plain if it was not")

// sealing reports whether my message in the thread goes sealed. What its client says to one agent does where nobody knows:
// that harms nobody, as its request_id stays clear.
func (t threaded) sealing(p part) (bool, error) {
	agent := p.me
	if p.me == p.client {
		agent = p.recipient
	}
	record := p.record()
	switch {
	case sealedThread(record) || agent != "" && record.Sealed(agent):
		if t.Plain {
			return false, errors.New("the thread is sealed, so --plain is refused")
		}
		return true, nil
	case record.Request() != nil || t.Seal || t.Plain:
		return t.Seal, nil
	case p.me == p.client && p.recipient != "":
		return true, nil
	}
	return false, errUnknown
}

// prepare tells a resumed call what the flags say of sealing. The limits of a REQUEST that is sealed, which only the
// agent can read, or that the relay no longer shows are asked for again.
func (c sendAccept) prepare(call *client.Call, shown bool) error {
	call.AllowPlain = c.AllowPlain
	switch lost := call.Seal || !shown; {
	case !lost && (c.MaxCost != nil || c.Deadline != nil):
		return errors.New("--max-cost and --deadline are for a REQUEST that is sealed or gone; this one says itself what you would take")
	case lost && c.MaxCost == nil:
		return errors.New("your REQUEST is sealed, or the relay no longer has it, so its limits cannot be read back; say with --max-cost what you would pay at most")
	case lost:
		call.Limit(&envelope.Constraints{MaxCostUSD: c.MaxCost, Deadline: (*time.Time)(c.Deadline)})
	}
	return nil
}

// maxThreads bounds of how many threads a follow keeps whether they are sealed; of others it asks again.
const maxThreads = 10_000

// plainAnswers finds the plain answers to sealed requests among the messages that come for me.
type plainAnswers struct {
	relay *client.Client
	me    didkey.DID
	asked map[string][]didkey.DID // by thread id, the agents that I have asked sealed
}

// refused reports whether e is a plain answer of an agent whom I have asked sealed. The relay, whose notices are plain, is
// not that agent. Where it shows nothing that I have sent, the message is shown: the agent has signed it as it is.
func (p plainAnswers) refused(ctx context.Context, e *envelope.Envelope) bool {
	answers := []envelope.Type{envelope.TypeOffer, envelope.TypeResult, envelope.TypeError}
	if e.Sealed() || e.Recipient != p.me || e.Sender.ID == p.me || !slices.Contains(answers, e.Type) {
		return false
	}
	agents, known := p.asked[e.Thread]
	if !known {
		mine, _, err := p.relay.Stored(ctx, client.Filter{Thread: e.Thread, Sender: p.me})
		if err != nil {
			return false // and asked again, should there be another
		}
		agents = askedSealed(mine)
		if len(p.asked) >= maxThreads {
			clear(p.asked)
		}
		p.asked[e.Thread] = agents
	}
	return slices.Contains(agents, e.Sender.ID)
}

// askedSealed returns to whom a client's requests were sealed; where none is left, whom it has sealed anything to.
func askedSealed(mine []*envelope.Envelope) (agents []didkey.DID) {
	isRequest := func(e *envelope.Envelope) bool { return e.Type == envelope.TypeRequest }
	left := slices.ContainsFunc(mine, isRequest)
	for _, e := range mine {
		if e.Sealed() && (isRequest(e) || !left) {
			agents = append(agents, e.Recipient)
		}
	}
	return agents
}

// seal says for people how the payload of a verified message travelled.
func seal(e *envelope.Envelope) string {
	switch {
	case e.Opened:
		return ", opened"
	case e.Sealed():
		return ", sealed"
	}
	return ""
}
