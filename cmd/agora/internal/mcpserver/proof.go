package mcpserver

import (
	"slices"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// refusing returns the agents that have signed an ERROR to me in the thread, and no RESULT. They do not claim the price
// of their offers. Nothing in the relay's record counts, because the record is not signed.
func refusing(record *client.Thread, me didkey.DID) (agents []didkey.DID) {
	signed := func(e *envelope.Envelope, t envelope.Type) bool {
		// Requests that this server makes have the id of the thread as their request_id.
		return e.Type == t && e.Recipient == me && e.Thread == record.ID && e.RequestID == record.ID
	}
	for _, e := range record.Events {
		delivered := func(o *envelope.Envelope) bool { return signed(o, envelope.TypeResult) && o.Sender.ID == e.Sender.ID }
		if signed(e, envelope.TypeError) && !slices.ContainsFunc(record.Events, delivered) {
			agents = append(agents, e.Sender.ID)
		}
	}
	return agents
}
