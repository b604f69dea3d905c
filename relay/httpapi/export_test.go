package httpapi

import (
	"net/http"

	"github.com/agora-relay/agora/relay"
)

// Status is the table from codes to statuses, for the test that walks it.
var Status = status

// Peer is whom a server with these options takes a request to be from.
func Peer(o Options, r *http.Request) relay.Peer { return (&server{options: o}).peer(r) }

// ParsePoll reads the parameters of GET /events, for the fuzz test that has no time to wait for an answer.
var ParsePoll = (&server{relay: new(relay.Relay)}).parsePoll
