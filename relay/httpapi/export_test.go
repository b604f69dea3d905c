package httpapi

import (
	"net/http"

	"github.com/agora-relay/agora/relay"
)

// Status is the table from codes to statuses, for the test that walks it.
var Status = status

// Peer is whom a Front with these options takes a request to be from.
func Peer(o Options, loopback bool, r *http.Request) relay.Peer {
	return (&site{Front: New(new(relay.Relay), o), place: place{loopback: loopback}}).peer(r)
}

// ParsePoll reads the parameters of GET /events, for the fuzz test that has no time to wait for an answer.
var ParsePoll = newAPI(New(new(relay.Relay), Options{})).parsePoll
