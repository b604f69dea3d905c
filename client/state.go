package client

import (
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// State is what one identity remembers of several relays, in one file (RELAYS ): how far it has read at each
// relay, which events it has handled, its jobs, and the relays that it does not use any more. Only one process may use
// the file at a time. A State is safe for concurrent use.
//
// The file has one JSON array a line. A line is appended for each change. The file is written anew when it has become
// large.
type State struct {
	journal *journal.Journal
}

// NewState returns a State in memory.
func NewState() *State { return &State{journal.New()} }

// OpenState opens the state file of this identity, or makes it. It takes over a state file of agora work 0.1.0. Errors:
// the file belongs to another identity, or is not a state file.
func OpenState(path string, me didkey.DID) (*State, error) {
	j, err := journal.Open(path, me)
	if err != nil {
		return nil, err
	}
	return &State{j}, nil
}

// CaughtIn returns the caught relays in a state file, with the reasons, and changes nothing. Another process may use
// the file. Errors: those of OpenState. A file that does not exist has none.
func CaughtIn(path string, me didkey.DID) (map[didkey.DID]string, error) {
	return journal.CaughtIn(path, me)
}

// Close closes the file.
func (s *State) Close() error { return s.journal.Close() }

// Caught returns the relays that are not used any more, with the reasons (RELAYS R-17).
func (s *State) Caught() map[didkey.DID]string { return s.journal.Caught() }

// Catch says that a relay is not to be used any more. Errors: those of writing the file.
func (s *State) Catch(relay didkey.DID, reason string) error { return s.journal.Catch(relay, reason) }

// Forgive lets a caught relay be used again. Errors: those of writing the file.
func (s *State) Forgive(relay didkey.DID) error { return s.journal.Forgive(relay) }

// Finish records the outcome of an accepted job whose Handler.Work has ended Serve, because the work is done elsewhere.
// thread is the thread of the REQUEST that Work got. If the client continues the job, Serve posts the outcome there. It
// returns the first outcome that was recorded; nil: the job is not known. Errors: those of writing the file.
func (s *State) Finish(threadID string, client didkey.DID, outcome envelope.Payload) (envelope.Payload, error) {
	return s.journal.FinishElsewhere(threadID, client, outcome)
}
