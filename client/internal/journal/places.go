package journal

import (
	"time"

	"github.com/agora-relay/agora/didkey"
)

// Place is where an agent can be reached through one protocol. See client.Place.
type Place struct {
	Relay    string   `json:"relay"`
	Protocol string   `json:"protocol"`
	Address  string   `json:"address"`
	Key      string   `json:"key,omitempty"`
	Skipped  []string `json:"skipped,omitempty"`
}

// Joined is a Place that the agent has joined.
type Joined struct {
	Place
	ID  string    `json:"id"`  // the gateway's name for it
	Sum string    `json:"sum"` // of what was registered
	At  time.Time `json:"at"`
}

// JoinedAt returns what the agent has joined at a relay, by the names of the protocols.
func (s *Journal) JoinedAt(relay didkey.DID) map[string]Joined {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]Joined{}
	for key, place := range s.places {
		if key.relay == relay {
			all[key.protocol] = place
		}
	}
	return all
}

// placeKey names a place.
type placeKey struct {
	relay    didkey.DID
	protocol string
}

// Join remembers a place; nil: the agent has left it.
func (s *Journal) Join(relay didkey.DID, name string, place *Joined) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place(relay, name, place)
	s.file.Append("joined", relay, name, place)
	return s.file.Sync()
}

// place is Join in memory. The caller holds s.mu, or is the only one.
func (s *Journal) place(relay didkey.DID, name string, place *Joined) {
	if place == nil {
		delete(s.places, placeKey{relay, name})
	} else {
		s.places[placeKey{relay, name}] = *place
	}
}
