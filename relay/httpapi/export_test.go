package httpapi

import (
	"net/http"

	"github.com/agora-relay/agora/relay"
)

// Peer returns the peer that a Front with these options finds for a request.
func Peer(o Options, loopback bool, r *http.Request) relay.Peer {
	return (&site{Front: New(new(relay.Relay), o), listenerInfo: listenerInfo{loopback: loopback}}).peer(r)
}

// ParsePoll reads the parameters of GET /events, for the fuzz test, which would wait too long for real polls. before is
// the text of that parameter.
func ParsePoll(r *http.Request) (poll *relay.Poll, before string, err error) {
	q, err := newAPI(New(new(relay.Relay), Options{})).parseEvents(r)
	if err != nil {
		return nil, "", err
	}
	return &q.Poll, q.before, nil
}

// PrefersStream reports whether the headers Accept prefer a stream.
var PrefersStream = prefersStream

// EventsParams returns the names of the parameters of GET /events.
var EventsParams = eventsParams
