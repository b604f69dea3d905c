// Package ledger holds the rules that every storage engine shares: which messages are new, which thread a message means
// and how it moves, what an inbox and the directory have room for, and what the clock ends.
//
// It works on a group of messages at a time. A group costs an engine at most three calls of Tx.Load and one of Tx.Write,
// however many messages it has; between them the ledger decides in memory, message by message, in their order. So an
// engine over a network pays for a few round trips per group and none per message.
//
// An engine provides Tx. It also numbers identities if it likes, keeps indexes, makes commits durable and announces what
// was committed; the ledger knows nothing of that. The package does no I/O, and the time is an argument.
package ledger

import (
	"hash/maphash"
	"math"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// What a search for threads returns at most. Ids are random where nobody means harm; those who copy one come later, and
// the oldest are looked at first.
const (
	MaxCandidates  = 16
	MaxRecordBytes = 256 << 10 // of Row.Record in one list, but one row at least; one with a hundred offers has some 20 KB
)

// Tx is a transaction of an engine. It begins with Ledger.Begin, and nobody else writes to the database until it ends. The
// ledger calls its methods one after the other: Load, if there is something to ask, and then Write, once at
// most. Nothing is asked after Write, so an engine may send it together with the commit.
//
// An error of Tx is not a refusal. It means that the engine failed: the transaction must be rolled back, and Ledger.Undo
// called. The same call may then be made again in another transaction.
type Tx interface {
	// Load returns what is stored of all that is wanted, in one round trip if the engine is behind a network.
	Load(Wanted) (Found, error)

	// Write stores changes. It follows from what Load returned, so no constraint of the database stands against it.
	Write(Changes) error
}

// MessageKey names a message. It is unique among all that are remembered. All texts of this package are equal if their
// bytes are, whatever a database's collation says, and none is put in order. Identities and ids have no U+0000.
type MessageKey struct {
	Sender didkey.DID
	ID     string
}

// Wanted is what a group asks for. Each field is a list of questions; Found answers them. In Messages and Threads a
// question may come twice, and may be answered twice.
type Wanted struct {
	Messages []MessageKey
	Threads  []thread.Key
	Of       []Participation // the threads with an id in which a party takes part
	Open     []string        // the threads with an id in which any agent may offer
	Oldest   []string        // the threads with an id, whoever takes part
	Inboxes  []Inbox
	Listings []Listings
}

// Participation asks for the threads with an id in which Party takes part other than as the client.
type Participation struct {
	ID    string // the thread's
	Party didkey.DID
}

// Inbox asks how much waits for a recipient: messages with a Charge that have not expired at Now.
type Inbox struct {
	Recipient didkey.DID
	Network   int64 // those with this Event.Network; AllNetworks: all
	Now       time.Time
}

// AllNetworks takes a network's place in an Inbox.
const AllNetworks = math.MinInt64

// Listings asks for an agent's manifests in the directory that have not expired at Now.
type Listings struct {
	Sender didkey.DID
	Now    time.Time
}

// Found answers Wanted. The lists of lists have one list per question, in the order of the questions.
type Found struct {
	End      relay.Cursor // the last event's; with number 0 before the first
	Messages []Message    // those of Wanted.Messages that are stored, in any order
	Threads  []Row        // those of Wanted.Threads that are stored, in any order

	// Each list ends before it has more than MaxRecordBytes.
	Of     [][]Row // up to MaxCandidates each: those in which the party works first, then by Number
	Open   [][]Row // up to MaxCandidates each, by Number
	Oldest [][]Row // by Number: up to MaxCandidates of those that are open, and up to MaxCandidates of the others

	Inboxes  []Count
	Listings [][]Listed
}

// Message is a stored message that was asked for.
type Message struct {
	MessageKey
	Seq     relay.Seq
	Expires time.Time
	Body    []byte // empty if it was given up for a full disk
	Thread  *Row   // nil: it has none, or the record has gone before the message
}

// Count is how much waits in an inbox.
type Count struct {
	Events int
	Bytes  int64     // their charges
	First  time.Time // when the first of them expires; zero: none waits
	Looked int       // how many messages the engine looked at; the more there were, the later it is asked again
}

// Listed is a manifest in the directory.
type Listed struct {
	ID          string // the manifest's
	TS, Expires time.Time
}

// Row is a thread as an engine stores it. The engine needs the fields for its indexes; the rest is in Record.
type Row struct {
	Number int64 // the Seq of its REQUEST, so the order of numbers is the order of age
	thread.Key
	Due    time.Time // when the clock moves it next: its deadline while it lives, then its removal
	Open   bool      // any agent may offer in it
	Record []byte    // see Thread
}

// Changes is what a group writes. An engine may write it in any order. Times are stored as Nanos makes them: a database's
// own times are too coarse.
type Changes struct {
	Events  []Event // with consecutive numbers, those behind Found.End
	Threads []Change
	Removed []Removal
}

// Change is a thread that is new or has moved.
type Change struct {
	Row
	New     bool          // insert it; else replace Due, Open and Record
	WasOpen bool          // what Open was before, if not New
	Joined  []Participant // those who have come to take part, or to work in it; insert those that are not there yet
}

// Participant is one who takes part in a thread other than its client.
type Participant struct {
	DID   didkey.DID
	Works bool // it is the agent whose offer was accepted; such a row is kept beside the one from before
}

// Removal is a thread whose record goes. Its messages have gone, or go soon.
type Removal struct {
	Number int64
	thread.Key
	Participants []didkey.DID // all that were in Change.Joined, each once
}

// Event is a message to be stored.
type Event struct {
	relay.Posted
	Thread  int64          // Row.Number; 0: none
	Forget  time.Time      // until when it is stored, and its MessageKey remembered
	Charge  int64          // bytes that it counts in its recipient's inbox; 0: the recipient asked for it
	Network int64          // relay.Entry.Network
	Listing *relay.Listing // replaces the sender's manifest with Listing.ID in the directory; nil: it does not
	Unseen  bool           // its sender is not to be shown as heard from at Received
}

// Ledger decides by one policy. It belongs to the one goroutine that writes: its methods are not to be called
// concurrently. Between groups it remembers counts of what waits in inboxes. It forgets them when Found.End shows that
// others have written to the database since.
type Ledger struct {
	policy  relay.Policy
	inboxes map[inboxKey]inbox
	touched []inboxKey   // those that have got messages since Begin
	left    relay.Cursor // where the last group ended
	seed    maphash.Seed // of spread
}

// New returns the ledger of a policy.
func New(p relay.Policy) *Ledger {
	return &Ledger{policy: p.WithDefaults(), inboxes: map[inboxKey]inbox{}, seed: maphash.MakeSeed()}
}

// Begin tells the ledger that a transaction begins.
func (l *Ledger) Begin() { l.touched = l.touched[:0] }

// Undo tells the ledger that the transaction was rolled back, to its beginning or to a savepoint within it. end is the
// last event's cursor now. What the ledger knew of the inboxes that the transaction changed, it asks for again.
func (l *Ledger) Undo(end relay.Cursor) {
	for _, k := range l.touched {
		delete(l.inboxes, k)
	}
	l.left = end
}
