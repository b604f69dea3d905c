// Package ledger holds the rules that every storage engine shares: which messages are new, which thread a message
// belongs to, how the message changes that thread, the limits of an inbox and of the directory, and what expires.
//
// The ledger processes messages in groups. A group costs an engine at most three calls of Tx.Load and one call of
// Tx.Write, however many messages it has. Between these calls the ledger decides in memory, one message after the
// other, in their order. So an engine behind a network pays for a few round trips per group, not per message.
//
// An engine implements Tx. Identity numbers, indexes, durable commits and the announcement of committed events are the
// engine's own work, and the ledger has no code for them. A Queue hands the messages of callers to the goroutine of the
// engine. The package does no I/O. The ledger gets the time as an argument.
package ledger

import (
	"hash/maphash"
	"math"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// Limits of each list of threads that a search returns. Honest clients choose random thread ids, so many threads with
// one id are copies that somebody made later. Lists are cut off after the oldest threads, which keeps the original.
const (
	MaxCandidates = 16 // threads in one list; in a list of Found.Oldest, threads of each kind

	// MaxRecordBytes limits the total size of Row.Record in one list. The first row is always allowed. The record of a
	// thread with a hundred offers has about 20 KB.
	MaxRecordBytes = 256 << 10
)

// Tx is a transaction of an engine. The engine calls Ledger.Begin when the transaction starts. No other writer may
// change the database until the transaction ends. The ledger calls the methods one after the other: Load if there is
// anything to look up, then Write at most once. The ledger never calls Load after Write, so an engine may send the
// writes together with the commit.
//
// An error of Tx means that the engine failed. It does not mean that a message was rejected. The caller must roll back
// the transaction and call Ledger.Undo. The same call may then be repeated in another transaction.
type Tx interface {
	// Load looks up everything in Wanted. An engine behind a network should do so in one round trip.
	Load(Wanted) (Found, error)

	// Write stores changes. The ledger computes them from what Load returned in this transaction, so they violate no
	// constraint of the database.
	Write(Changes) error
}

// MessageKey identifies a message. It is unique among all messages that the store remembers.
//
// Strings in this package are equal only if their bytes are equal, whatever the collation of a database says. The
// ledger never depends on the order of strings. Identities and ids never contain U+0000.
type MessageKey struct {
	Sender didkey.DID
	ID     string
}

// Wanted lists the lookups for a group of messages. Each field is a list of lookups, and Found has the answers.
// Messages and Threads may contain the same key twice; the engine may then return that row twice.
type Wanted struct {
	Messages []MessageKey
	Threads  []thread.Key
	Of       []Participation // threads with an id in which a party takes part
	Open     []string        // thread ids: threads with that id in which any agent may offer
	Oldest   []string        // thread ids: threads with that id, of any parties
	Inboxes  []Inbox
	Listings []Listings
	Since    relay.Cursor // where Found.Arrivals begins; zero: it is not needed
}

// Participation asks for the threads with an id in which Party takes part, but not as the client.
type Participation struct {
	ID    string // the thread's id
	Party didkey.DID
}

// Inbox asks how many messages wait for a recipient. It counts messages with a Charge above 0 that have not expired at
// Now.
type Inbox struct {
	Recipient didkey.DID
	Network   int64 // count only messages with this Event.Network; AllNetworks: count all
	Now       time.Time
}

// AllNetworks is the value of Inbox.Network that selects the messages of all networks.
const AllNetworks = math.MinInt64

// Listings asks for an agent's manifests in the directory that have not expired at Now.
type Listings struct {
	Sender didkey.DID
	Now    time.Time
}

// Found is the answer to a Wanted. The fields that correspond to Of, Open, Oldest, Inboxes and Listings have one
// element per lookup, in the order of the lookups.
type Found struct {
	End      relay.Cursor // cursor of the last event; its Seq is 0 if there is no event yet
	Messages []Message    // the messages of Wanted.Messages that are stored, in any order
	Threads  []Row        // the threads of Wanted.Threads that are stored, in any order

	// Each inner list is cut off before its records exceed MaxRecordBytes.
	Of     [][]Row // up to MaxCandidates per lookup: first threads whose accepted agent is the party; then by Number
	Open   [][]Row // up to MaxCandidates per lookup, in the order of Number
	Oldest [][]Row // up to MaxCandidates open threads and up to MaxCandidates others per lookup: the oldest of each kind

	Inboxes  []Count
	Listings [][]Listed

	// Arrivals are the events after Wanted.Since with a Charge above 0, in any order. They are known only if Counted is
	// true. An engine with a single writer needs no Arrivals, because Since is the End of its last group.
	Arrivals []Arrival
	Counted  bool
}

// Arrival is an event that another writer has stored.
type Arrival struct {
	Recipient       didkey.DID
	Network, Charge int64 // as in Event
	Expires         time.Time
}

// MaxArrivals is how many Arrivals an engine returns at most. If there are more, it leaves Counted false.
const MaxArrivals = 4096

// Message is a stored message of Wanted.Messages.
type Message struct {
	MessageKey
	Seq     relay.Seq
	Expires time.Time
	Body    []byte // empty if it was deleted because the disk was full, or if it was removed
	Removed bool   // the operator has removed it, see relay.Remover
	Thread  *Row   // nil if the message has no thread, or if the thread's record was removed before the message
}

// Count says how many messages an inbox has, and their total charge.
type Count struct {
	Events   int
	Bytes    int64     // sum of their charges
	First    time.Time // when the first of these messages expires; zero if there is none
	Examined int       // how many messages the engine examined; the more it examined, the later the ledger asks again
}

// Listed is a manifest in the directory.
type Listed struct {
	ID          string // the manifest's id
	TS, Expires time.Time
}

// Row is a thread as an engine stores it. The engine needs the first fields for its indexes. Everything else is in
// Record.
type Row struct {
	Number int64 // the Seq of the thread's REQUEST; a smaller number means an older thread
	thread.Key
	Due    time.Time    // when Expire must process the thread: at its deadline, and for an ended thread at its removal
	Open   bool         // any agent may offer in the thread
	State  thread.State // when the row was written; engines count threads by it, see StateNumber
	Record []byte       // see Thread
}

// Changes is what a group writes. An engine may write it in any order. Engines store times as Nanos returns them,
// because the time types of databases are not precise enough.
type Changes struct {
	Events  []Event // with consecutive numbers, starting after Found.End
	Threads []Change
	Removed []Removal
	Log     *LogChange // the leaves of Events; nil: none
}

// Change is a thread that is new or has changed.
type Change struct {
	Row
	New    bool          // true: insert the row; false: replace Due, Open, State and Record
	Was    Row           // the stored row without its Record, if New is false
	Joined []Participant // participants and accepted agents that this group added; insert those not stored yet
}

// Participant is a party of a thread other than its client.
type Participant struct {
	DID   didkey.DID
	Works bool // the agent's offer was accepted; store this row in addition to the agent's row with Works false
}

// Removal is a thread whose record is to be removed. Its messages are removed already, or will be soon.
type Removal struct {
	Number int64
	thread.Key
	State        thread.State // the stored value
	Participants []didkey.DID // all that were in Change.Joined, each once
}

// Event is a message to be stored.
type Event struct {
	relay.Posted
	Thread  int64          // Row.Number; 0 if the message has no thread
	Forget  time.Time      // until then the event is stored and its MessageKey is remembered
	Charge  int64          // bytes that it counts in its recipient's inbox; 0 if the recipient asked for the message
	Network int64          // see relay.Entry.Network
	Listing *relay.Listing // replaces the sender's manifest with Listing.ID in the directory; nil: no change
	Unseen  bool           // the directory must not show that the sender was heard from at Received

	Leaf      *proof.Leaf // nil: none
	LeafIndex int64
}

// Ledger decides about messages by one policy. It belongs to the single goroutine that writes, and its methods must not
// be called concurrently. Between groups it caches how much waits in inboxes. If another writer has stored events since
// the last group, it adds them to these counts. If they are not known, it drops the counts.
type Ledger struct {
	policy  relay.Policy
	inboxes map[inboxKey]inbox
	touched []inboxKey   // inboxes that received messages since Begin
	lastEnd relay.Cursor // the end of the last group
	seed    maphash.Seed // for spread

	log      *Log      // nil: no log
	logSteps []logStep // of the open transaction
}

// New returns a ledger that decides by p.
func New(p relay.Policy) *Ledger {
	return &Ledger{policy: p.WithDefaults(), inboxes: map[inboxKey]inbox{}, seed: maphash.MakeSeed()}
}

// SetInbox changes the quota of inboxes. All inboxes are counted again when they next get a message.
func (l *Ledger) SetInbox(q relay.Quota) {
	l.policy.Inbox = q.WithDefaults()
	l.inboxes = map[inboxKey]inbox{}
}

// Begin tells the ledger that a transaction begins.
func (l *Ledger) Begin() { l.touched, l.logSteps = l.touched[:0], l.logSteps[:0] }

// Undo tells the ledger that the transaction was rolled back, either completely or to a savepoint. end is the cursor of
// the last event after the rollback. The ledger drops the cached counts of the inboxes that the transaction changed,
// and loads them again when it needs them.
func (l *Ledger) Undo(end relay.Cursor) {
	for _, k := range l.touched {
		delete(l.inboxes, k)
	}
	l.undoLog(end.Seq)
	l.lastEnd = end
}
