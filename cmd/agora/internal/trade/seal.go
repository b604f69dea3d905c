package trade

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// sealedThread reports whether the client of a thread has sealed any message of it that the relay still has.
func sealedThread(record *client.Thread) bool {
	return slices.ContainsFunc(record.Events, func(e *envelope.Envelope) bool {
		return e.Sender.ID == record.Client && e.RequestID == record.RequestID && e.Sealed()
	})
}

// errSealUnknown is the error for an answer in a thread if it is unknown whether the thread is sealed.
var errSealUnknown = errors.New("the relay no longer has the REQUEST, so it is unknown whether it was sealed; " +
	"give --seal, or --plain if it was not")

// shouldSeal reports whether to seal my message in the thread. If it is unknown whether the thread is sealed, a message
// from the client to one agent is sealed: that does no harm, because its request_id is not encrypted.
func (t threaded) shouldSeal(r role) (bool, error) {
	agent := r.me
	if r.me == r.client {
		agent = r.recipient
	}
	record := r.record()
	switch {
	case sealedThread(record) || agent != "" && record.Sealed(agent):
		if t.Plain {
			return false, errors.New("the thread is sealed, so --plain is refused")
		}
		return true, nil
	case record.Request() != nil || t.Seal || t.Plain:
		return t.Seal, nil
	case r.me == r.client && r.recipient != "":
		return true, nil
	}
	return false, errSealUnknown
}

// prepare applies the flags to a resumed call. The REQUEST cannot be read back if it is sealed to the agent, or if the
// relay no longer has it. Then the flags have to repeat its limits.
func (c sendAccept) prepare(call *client.Call, requestShown bool) error {
	call.AllowPlain = c.AllowPlain
	switch unreadable := call.Seal || !requestShown; {
	case !unreadable && (c.MaxCost != nil || c.Deadline != nil):
		return errors.New("--max-cost and --deadline are only for a REQUEST that is sealed or expired; this REQUEST still " +
			"states its limits")
	case unreadable && c.MaxCost == nil:
		return errors.New("your REQUEST is sealed, or the relay no longer has it, so its limits cannot be read; " +
			"repeat the most you would pay with --max-cost")
	case unreadable:
		call.Limit(&envelope.Constraints{MaxCostUSD: c.MaxCost, Deadline: (*time.Time)(c.Deadline)})
	}
	return nil
}

// maxThreads is the number of threads for which follow remembers which agents got a sealed REQUEST. When there are
// more, follow forgets all of them and asks the relay again.
const maxThreads = 10_000

// plainAnswers recognizes answers to sealed requests that are not sealed.
type plainAnswers struct {
	relay cli.Relays
	me    didkey.DID
	asked map[string][]didkey.DID // by thread id: the agents that got a sealed REQUEST from me
}

// refused reports whether e is a plain answer from an agent that got a sealed REQUEST from me. The relay's own
// notices are never refused. If the relay shows no message of mine in the thread, e is not refused either.
func (p plainAnswers) refused(ctx context.Context, e *envelope.Envelope) bool {
	answers := []envelope.Type{envelope.TypeOffer, envelope.TypeResult, envelope.TypeError}
	if p.me == "" || e.Sealed() || e.Recipient != p.me || e.Sender.ID == p.me || !slices.Contains(answers, e.Type) {
		return false
	}
	agents, known := p.asked[e.Thread]
	if !known {
		mine, _, err := p.relay.Stored(ctx, client.Filter{Thread: e.Thread, Sender: p.me})
		if err != nil {
			return false // the next plain answer makes another attempt
		}
		agents = sealedRecipients(mine)
		if len(p.asked) >= maxThreads {
			clear(p.asked)
		}
		p.asked[e.Thread] = agents
	}
	return slices.Contains(agents, e.Sender.ID)
}

// sealedRecipients returns the recipients of the sealed REQUESTs in mine. If mine has no REQUEST, it returns the
// recipients of all sealed messages in mine.
func sealedRecipients(mine []*envelope.Envelope) (agents []didkey.DID) {
	isRequest := func(e *envelope.Envelope) bool { return e.Type == envelope.TypeRequest }
	hasRequest := slices.ContainsFunc(mine, isRequest)
	for _, e := range mine {
		if e.Sealed() && (isRequest(e) || !hasRequest) {
			agents = append(agents, e.Recipient)
		}
	}
	return agents
}

// sealNote returns what showText adds for a sealed payload: ", opened", or ", sealed" if it could not be decrypted.
func sealNote(e *envelope.Envelope) string {
	switch {
	case e.Opened:
		return ", opened"
	case e.Sealed():
		return ", sealed"
	}
	return ""
}
