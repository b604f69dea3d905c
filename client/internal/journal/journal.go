// Package journal keeps what one identity remembers of several relays, in one file (RELAYS ): how far it has read
// at each relay, which events it has handled, its jobs, the places that it has joined, and the relays that it does not
// use any more. Package client shows it as State. It sends nothing.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/mark"
	"github.com/agora-relay/agora/client/internal/statefile"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
	"github.com/agora-relay/agora/thread"
)

// Journal keeps what one identity remembers. Only one process may use its file at a time. It is safe for concurrent use.
type Journal struct {
	me didkey.DID

	mu      sync.Mutex
	file    *statefile.File // nil: the state is in memory only
	cursors map[didkey.DID]string
	handled mark.Set
	book    deal.Book
	caught  map[didkey.DID]string
	places  map[placeKey]Joined // where the agent can be reached through other protocols
	old     oldState
}

// oldState is what a state file of version 0.1.0 had: the cursor of one relay, by its URL, and the jobs that were
// begun.
type oldState struct {
	Relay  string     `json:"relay"`
	Agent  didkey.DID `json:"agent"`
	Cursor string     `json:"cursor"`
	Jobs   map[string]struct {
		Attempts int `json:"attempts"`
	} `json:"jobs"` // by client and thread
}

// New returns a Journal in memory.
func New() *Journal {
	s := &Journal{cursors: map[didkey.DID]string{}, caught: map[didkey.DID]string{}, places: map[placeKey]Joined{}}
	s.book.Changed = func(j *deal.Job, forgotten bool) {
		if forgotten {
			s.file.Append("nojob", j.Key)
		} else {
			s.file.Append("job", j)
		}
	}
	return s
}

// Open opens the state file of this identity, or makes it. It takes over a state file of agora work 0.1.0. Errors:
// the file belongs to another identity, or is not a state file.
func Open(path string, me didkey.DID) (*Journal, error) {
	s := New()
	s.me = me
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := s.read(text); err != nil {
		return nil, fmt.Errorf("the state file %s cannot be used: %w; move it away to start without it, or choose another "+
			"one", path, err)
	}
	if s.file, err = statefile.Create(path, s.contents); err != nil {
		return nil, err
	}
	return s, nil
}

// CaughtIn returns the caught relays in a state file, with the reasons, and changes nothing. Another process may use
// the file. Errors: those of Open. A file that does not exist has none.
func CaughtIn(path string, me didkey.DID) (map[didkey.DID]string, error) {
	s := New()
	s.me = me
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := s.read(text); err != nil {
		return nil, fmt.Errorf("the state file %s cannot be used: %w", path, err)
	}
	return s.caught, nil
}

// Close closes the file.
func (s *Journal) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file.Close()
}

// read reads the text of a file.
func (s *Journal) read(text []byte) error {
	if len(text) > 0 && text[0] == '{' {
		if err := json.Unmarshal(text, &s.old); err != nil {
			return err
		}
		return s.owner(s.old.Agent)
	}
	return statefile.Read(text, s.readLine)
}

func (s *Journal) owner(of didkey.DID) error {
	if of != s.me {
		return fmt.Errorf("it belongs to %s", of)
	}
	return nil
}

// readLine reads a line of this kind.
func (s *Journal) readLine(kind string, line statefile.Line) error {
	var a, b string
	var err error
	switch kind {
	case "agora-state":
		var version int
		if err := line.Read(&kind, &version, &a); err != nil {
			return err
		}
		if version != 1 {
			return fmt.Errorf("it has version %d; use a newer program", version)
		}
		return s.owner(didkey.DID(a))
	case "cursor":
		err = line.Read(&kind, &a, &b)
		s.cursors[didkey.DID(a)] = b
	case "e":
		var m mark.Mark
		var until int64
		if err = line.Read(&kind, &m, &until); err == nil {
			s.handled.Add(m, until)
		}
	case "job":
		var j deal.Job
		if err = line.Read(&kind, &j); err == nil {
			s.book.Restore(j)
		}
	case "nojob":
		var k deal.Key
		err = line.Read(&kind, &k)
		s.book.Drop(k)
	case "caught":
		err = line.Read(&kind, &a, &b)
		s.caught[didkey.DID(a)] = b
	case "uncaught":
		err = line.Read(&kind, &a)
		delete(s.caught, didkey.DID(a))
	case "joined":
		var place *Joined
		if err = line.Read(&kind, &a, &b, &place); err == nil {
			s.place(didkey.DID(a), b, place)
		}
	case "old":
		err = line.Read(&kind, &s.old)
	default:
		err = fmt.Errorf("%q is not known; use a newer program", kind)
	}
	return err
}

// contents writes the lines of what counts. The caller holds s.mu, or is the only one.
func (s *Journal) contents(write func(values ...any) error) error {
	err := write("agora-state", 1, s.me)
	for _, relay := range slices.Sorted(maps.Keys(s.cursors)) {
		err = errors.Join(err, write("cursor", relay, s.cursors[relay]))
	}
	for relay, reason := range s.caught {
		err = errors.Join(err, write("caught", relay, reason))
	}
	for key, place := range s.places {
		err = errors.Join(err, write("joined", key.relay, key.protocol, place))
	}
	for m, until := range s.handled.Until {
		err = errors.Join(err, write("e", m, until))
	}
	for j := range s.book.Jobs {
		err = errors.Join(err, write("job", &j))
	}
	if s.old.Relay != "" {
		err = errors.Join(err, write("old", s.old))
	}
	return err
}

// Cursor is the position of the reader of one relay in a Journal. It implements client.CursorStore.
type Cursor struct {
	Journal *Journal
	Relay   didkey.DID
	URL     string // of the relay
}

// Load implements client.CursorStore.
func (c Cursor) Load(context.Context) (string, error) {
	c.Journal.mu.Lock()
	defer c.Journal.mu.Unlock()
	if at, ok := c.Journal.cursors[c.Relay]; ok || c.Journal.old.Relay != c.URL {
		return at, nil
	}
	return c.Journal.old.Cursor, nil
}

// Save implements client.CursorStore.
func (c Cursor) Save(_ context.Context, cursor string) error {
	c.Journal.mu.Lock()
	defer c.Journal.mu.Unlock()
	c.Journal.cursors[c.Relay] = cursor
	c.Journal.file.Append("cursor", c.Relay, cursor)
	return c.Journal.file.Sync()
}

// begunBefore returns how often a job was begun according to a file of version 0.1.0. The caller holds s.mu.
func (s *Journal) begunBefore(k thread.Key) int {
	return s.old.Jobs[string(k.Client)+" "+k.ID].Attempts
}

// Caught returns the relays that are not used any more, with the reasons (RELAYS R-17).
func (s *Journal) Caught() map[didkey.DID]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.caught)
}

// Catch says that a relay is not to be used any more. Errors: those of writing the file.
func (s *Journal) Catch(relay didkey.DID, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caught[relay] = reason
	s.file.Append("caught", relay, reason)
	return s.file.Sync()
}

// Forgive lets a caught relay be used again. Errors: those of writing the file.
func (s *Journal) Forgive(relay didkey.DID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.caught, relay)
	s.file.Append("uncaught", relay)
	return s.file.Sync()
}

// IsCaught reports whether a relay is not to be used any more.
func (s *Journal) IsCaught(relay didkey.DID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, caught := s.caught[relay]
	return caught
}

// Handle records that an event is handled. It is durable when the cursor is saved.
func (s *Journal) Handle(e *envelope.Envelope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, until := mark.Of(e), e.ExpiresAt().Unix()
	if s.handled.Add(m, until) {
		s.file.Append("e", m, until)
	}
}

// WasHandled reports whether an event with the same sender, id and content was handled.
func (s *Journal) WasHandled(e *envelope.Envelope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.handled.Until[mark.Of(e)]
	return ok
}

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

// place does the same as Join, but only in memory. The caller holds s.mu, or is the only one.
func (s *Journal) place(relay didkey.DID, name string, place *Joined) {
	if place == nil {
		delete(s.places, placeKey{relay, name})
	} else {
		s.places[placeKey{relay, name}] = *place
	}
}
