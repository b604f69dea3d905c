package relay

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// Store keeps accepted envelopes. Implementations pass storetest.Test. All methods may be called concurrently.
//
// The contract is as follows. An event that Append has acknowledged is on disk. Every later Read returns events in the
// order of their sequence numbers, and every Watch gets them in that order. An event is never delivered again under
// another number, even after it was removed and the process was restarted. A refusal is an *envelope.Error and changes
// nothing. Any other error means that the store itself has failed. The caller then cannot know whether the step took
// place.
type Store interface {
	// Policy returns the policy with which the store was opened, after WithDefaults. The relay takes its policy from the
	// store, so that both decide by the same one. Only SetInbox changes it.
	Policy() Policy

	// SetInbox changes Policy.Inbox. It holds for every message that comes after SetInbox has returned.
	SetInbox(ctx context.Context, q Quota) error

	// Append stores e durably in one atomic step. It checks that (sender, id) is new, moves the thread as
	// thread.Rules.Apply says, and takes the next sequence number. All of this happens, or nothing. If the same
	// envelope is already stored, Append returns the receipt of the first one, marked as a duplicate. It does this
	// before it applies the rules of threads. Refusals: CodeDuplicateID, those of thread.Rules.Apply, CodeRateLimited
	// (the recipient's inbox is full, or the agent has MaxManifests manifests), CodeUnavailable (the disk is full or
	// has failed, or the store is shutting down).
	Append(ctx context.Context, e Entry) (Receipt, error)

	// AppendAll appends entries one after the other, each as Append does, and needs fewer transactions for that. A refused
	// entry does not hold up the others. If the store fails or ctx ends, the entries from there on have the error.
	AppendAll(ctx context.Context, entries []Entry) []Outcome

	// Read returns matching events in sequence order, and the cursor to continue from. With Query.Backward it returns the
	// newest first. With Query.MaxExamined its work is bounded, no matter how much is stored, or by whom. Refusals:
	// CodeInvalidRequest for a Query.After that this store did not make.
	Read(ctx context.Context, q Query) (Page, error)

	// Thread returns a thread as it stands at now. Without k.Client, it returns the oldest thread with k.ID. Refusals:
	// CodeThreadNotFound.
	Thread(ctx context.Context, k thread.Key, now time.Time) (thread.Thread, error)

	// ThreadsOf returns threads with k.ID of which party is a party at now, the oldest first. If k.Client is given, it
	// returns only the thread of that client. It reads only a few threads: party's own thread, and then the oldest
	// ones. An unknown thread is not an error.
	ThreadsOf(ctx context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error)

	// Agents returns unexpired manifests. For each sender and manifest id, it returns the newest one. With
	// AgentQuery.MaxExamined its work is bounded.
	Agents(ctx context.Context, q AgentQuery) (AgentPage, error)

	// Expire does what is due at now. It ends threads that are past their deadline and stores the envelopes that
	// notices returns for them. Both happen in one step, once for each thread. notices may be nil. Expire removes
	// events, ids, threads, manifests and identities that nothing refers to any more. A store that is short of disk
	// space ends threads without notices.
	Expire(ctx context.Context, now time.Time, notices Notices) error

	// Watch calls f with every event after the given cursor, in order, until ctx ends. Each call has events that became
	// durable together. They come from all nodes. Watch returns ctx's error. f must not block.
	//
	// wanted returns which events f needs at the moment; nil: all. Watch may leave out other events, so that a node
	// need not read them from the database. But each of these must be visible to a Read that begins after the call of
	// wanted. wanted must not block.
	Watch(ctx context.Context, after Cursor, wanted func() Wanted, f func([]Posted)) error
}

// Wanted is a set of events. The zero value is the empty set.
type Wanted struct {
	All        bool
	Recipients []didkey.DID // the events for these recipients; "" stands for broadcasts
}

// Notices returns the envelopes that tell the parties of t that t has timed out. request is when the REQUEST of t
// expires.
type Notices func(t thread.Thread, request time.Time) []*envelope.Envelope

// Policy has the rules of a relay about time, threads and inboxes. A store is opened with a policy, and the relay takes
// it from the store.
type Policy struct {
	Window replay.Window
	Rules  thread.Rules
	// Retention is how long messages of a type are kept at most, if that is less than Window.MaxTTL. A type without an
	// entry is kept up to Window.MaxTTL.
	Retention       map[envelope.Type]time.Duration
	ThreadRetention time.Duration // how long a thread's record is kept after its envelopes; 0: 24 hours
	Inbox           Quota
	// LogRetention is how long the leaves of the log are kept, at least Window.MaxTTL; 0: DefaultLogRetention.
	LogRetention time.Duration `json:",omitempty"`
}

// DefaultLogRetention is the LogRetention of the zero Policy.
const DefaultLogRetention = 30 * 24 * time.Hour

// LogKept is how long the leaves of the log are kept at least.
func (p Policy) LogKept() time.Duration {
	return max(cmp.Or(p.LogRetention, DefaultLogRetention), p.Window.WithDefaults().MaxTTL)
}

// LeavesUntil returns the time up to which leaves of the log are due at now (LOG L-16). A message is kept for a while
// after its MaxTTL, and its leaf with it.
func (p Policy) LeavesUntil(now time.Time) time.Time { return now.Add(-p.LogKept() - time.Hour) }

// WindowOf returns the window for messages of a type.
func (p Policy) WindowOf(t envelope.Type) replay.Window {
	w := p.Window
	if limit := p.Retention[t]; limit > 0 {
		w.MaxTTL = min(limit, w.WithDefaults().MaxTTL)
	}
	return w
}

// DefaultThreadRetention is the ThreadRetention of the zero Policy.
const DefaultThreadRetention = 24 * time.Hour

// Quota limits how many messages that the recipient did not ask for may wait in one inbox, see thread.Thread.Unasked.
// Expired messages do not count. The messages between the parties of a thread neither count nor are refused. The
// thread's own rules limit their number, and a full inbox must not keep out the RESULT that its owner waits for. A
// REQUEST counts as ClosingReserve bytes more than its size. In return, a message of at most ClosingReserve bytes that
// ends its thread is always accepted while the REQUEST waits. A store may treat an inbox as full for a second after it
// has room again, and for longer if the inbox has very many messages.
type Quota struct {
	Events int   // 0: as in DefaultInbox; negative: no limit
	Bytes  int64 // 0: as in DefaultInbox; negative: no limit
}

// ClosingReserve is how many bytes a REQUEST reserves in an inbox for the message that ends its thread.
const ClosingReserve = 4 << 10

// OfAll returns the quota of an inbox for the messages from all networks together. q is the quota for one network, see
// Entry.Network. The result is between two and four times q. spread, from 0 to 1, selects the factor. A client that
// does not know spread cannot tell from a refusal how many messages of others wait.
func (q Quota) OfAll(spread float64) Quota {
	factor := 2 + 2*spread
	if q.Events >= 0 {
		q.Events = int(float64(q.Events) * factor)
	}
	if q.Bytes >= 0 {
		q.Bytes = int64(float64(q.Bytes) * factor)
	}
	return q
}

// DefaultInbox is the Inbox of the zero Policy.
var DefaultInbox = Quota{Events: 10_000, Bytes: 64 << 20}

// WithDefaults returns p with each zero field replaced by its default.
func (p Policy) WithDefaults() Policy {
	p.Window, p.Rules = p.Window.WithDefaults(), p.Rules.WithDefaults()
	if p.ThreadRetention == 0 {
		p.ThreadRetention = DefaultThreadRetention
	}
	p.Inbox = p.Inbox.WithDefaults()
	return p
}

// WithDefaults returns q with each zero field replaced by its default.
func (q Quota) WithDefaults() Quota {
	q.Events, q.Bytes = cmp.Or(q.Events, DefaultInbox.Events), cmp.Or(q.Bytes, DefaultInbox.Bytes)
	return q
}

// Validate returns what is wrong with p, after WithDefaults, and how to fix it. A store calls it when it is opened.
func (p Policy) Validate() error {
	p = p.WithDefaults()
	for _, span := range []struct {
		name  string
		value time.Duration
	}{
		{"Rules.PendingTimeout", p.Rules.PendingTimeout}, {"Rules.ActiveTimeout", p.Rules.ActiveTimeout},
		{"ThreadRetention", p.ThreadRetention},
	} {
		if span.value < 0 || span.value > replay.MaxSpan {
			return fmt.Errorf("policy: %s is %v; set it above 0 and to at most %v, or to 0 for the default",
				span.name, span.value, replay.MaxSpan)
		}
	}
	for kind, limit := range p.Retention {
		if limit < time.Second {
			return fmt.Errorf("policy: the Retention of %s is %v; set it to at least 1s", kind, limit)
		}
	}
	if p.Rules.MaxOffers < 0 {
		return fmt.Errorf("policy: Rules.MaxOffers is %d; set it to at least 1, or to 0 for the default", p.Rules.MaxOffers)
	}
	if err := p.Window.Validate(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	return nil
}

// Seq is the sequence number of an event. Events are numbered from 1 in the order in which they are stored. A number is
// never used twice.
type Seq int64

// Cursor is a position in the sequence of one store: after the event Seq. The zero Cursor is before the first event.
type Cursor struct {
	Epoch uint32 // random number of the database; shows if a cursor is from another database
	Seq   Seq
}

// String returns the text form of the cursor, which clients keep without interpreting it. It returns "0" for the zero
// Cursor.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return "0"
	}
	return fmt.Sprintf("%08x-%d", c.Epoch, c.Seq)
}

// ParseCursor parses a text that String returned. Errors: CodeInvalidRequest.
func ParseCursor(s string) (Cursor, error) {
	if s == "0" {
		return Cursor{}, nil
	}
	epoch, seq, _ := strings.Cut(s, "-")
	e, err := strconv.ParseUint(epoch, 16, 32)
	n, err2 := strconv.ParseInt(seq, 10, 64)
	c := Cursor{uint32(e), Seq(n)}
	if err != nil || err2 != nil || c.String() != s || n < 0 {
		return Cursor{}, envelope.Errorf(envelope.CodeInvalidRequest, "cursor does not come from this relay; use the "+
			"cursor member of an earlier answer, or 0 to begin with the oldest stored event")
	}
	return c, nil
}

// ErrUnknownCursor refuses a cursor of another database.
var ErrUnknownCursor = &envelope.Error{Code: envelope.CodeInvalidRequest,
	Message: "the cursor belongs to another database (that of this relay was replaced, or restored from a copy); " +
		"start again with cursor=0, before=end or since",
	Details: map[string]any{envelope.DetailReason: envelope.ReasonUnknownCursor}}

// ErrShuttingDown refuses requests while a relay or its store is being closed.
var ErrShuttingDown = envelope.NotStored("the relay is shutting down; try again in a moment", 0)

// MaxManifests is how many unexpired manifests of one agent the directory keeps.
const MaxManifests = 16

// MaxIntents is how many intents a manifest may list. The directory has an entry for each.
const MaxIntents = 256

// Entry is an envelope that was parsed and verified, and can be stored.
type Entry struct {
	Envelope *envelope.Envelope
	Received time.Time
	Listing  *Listing // only for a MANIFEST
	Local    bool     // from the relay's own machine; the quota of an inbox does not apply
	// Mirrored says that it was copied from another relay (RELAYS §5). Then it belongs to no thread, and its Listing
	// replaces only an older manifest.
	Mirrored bool
	Unseen   bool // the directory does not show that its sender was heard from
	// Network identifies the sender's network in the quota of an inbox, which counts each network separately. 0:
	// networks are not distinguished.
	Network int64
	Terms   thread.Terms // of the thread that the envelope opens, if it opens one
	Hash    proof.Hash   // of the envelope, for a log; zero: the store computes it if it needs it
}

// Listing has what the directory needs to know about a manifest, so that it does not have to parse it.
type Listing struct {
	ID      string   // of the manifest
	Intents []string // ids of its intents
	Text    string   // the text that a search reads, in lower case
}

// Receipt describes the outcome of a posted envelope.
type Receipt struct {
	ID        string
	Cursor    Cursor
	Duplicate bool // it was stored before; ID, Cursor, ExpiresAt and Thread are as in the first receipt
	ExpiresAt time.Time
	Thread    thread.Key   // zero for a MANIFEST
	State     thread.State // of that thread now; Post leaves it empty if the sender may not see it

	Logged *Logged `json:"-"` // the message in the log; nil: there is no log, or the message is a duplicate
	// Proof is the proof of a new message (docs/PROOFS.md). A Store leaves it empty.
	Proof string

	Took time.Duration `json:"-"` // how long the store worked on it, without waiting; also set with an error
	// Queued is how long the message has waited for its turn, see Limits.WritesPerAddress. A Store leaves it 0.
	Queued time.Duration `json:"-"`
}

// Logged is a message in the relay's log (docs/PROOFS.md).
type Logged struct {
	Index  int64
	Leaf   string // the text of its leaf
	Growth *proof.Growth
}

// Outcome is what a store has decided about an entry.
type Outcome struct {
	Receipt Receipt // Receipt.Took is set even if Err is not nil
	Err     error   // nil: the entry is stored
}

// Decided reports whether the store has stored or refused the entry itself. Otherwise the store has failed, or it
// accepts nothing at the moment.
func (o Outcome) Decided() bool {
	code := envelope.CodeOf(o.Err)
	return code != envelope.CodeInternal && code != envelope.CodeUnavailable
}

// Event is a stored envelope.
type Event struct {
	Seq      Seq
	ID       string
	TS       time.Time // as claimed by the sender
	Received time.Time
	Expires  time.Time
	Removed  time.Time // when the operator removed the body; zero: it is there. See Query.Removed
	Size     int       // size of the body in bytes, also if Body is nil
	Body     []byte    // canonical JSON; nil if Query.Headers
}

// Posted is an event that has just been stored.
type Posted struct {
	Event
	Envelope *envelope.Envelope
}

// Query asks a Store for events.
type Query struct {
	Filter
	Now         time.Time // leaves out events that have expired by then
	Expired     bool      // includes expired events, as long as their ids are remembered
	Removed     bool      // includes events that the operator has removed, without their bodies
	Backward    bool      // reads towards the oldest event
	After       Cursor    // where the read begins: only events after this position; with Backward only those before it
	Until       Seq       // where the read ends: with this event; 0: no limit
	TS          time.Time // only events with exactly this ts; zero: any
	NewerThan   time.Time // only events with a ts or an arrival after this; zero: any
	Headers     bool      // leaves out Body
	Limit       int       // at most this many events; 0: none, only the Cursor
	MaxBytes    int       // ends the page before its bodies exceed this, but not before one event; 0: no limit
	MaxExamined int       // ends the page when this many events were examined, or a few times as many; 0: no limit
}

// Behind returns the number of the position right behind an event in the direction of q. A Query whose After is there
// continues with the next event.
func (q *Query) Behind(event Seq) Seq {
	if q.Backward {
		return event - 1
	}
	return event
}

// Page is an answer to a Query. "After" and "behind" are meant in the direction of the Query.
type Page struct {
	Events []Event
	More   bool // there are matching events after the last one, or Partial is true
	// Partial says that the page ended because of Query.MaxExamined. The page may then be empty. The events behind
	// Cursor were not examined.
	Partial bool
	// Cursor is behind the last event. If the page is Partial, it is behind the last examined event. If no more events
	// match, it is behind all events that the store had when it was read.
	Cursor Cursor
	Took   time.Duration `json:"-"` // how long the store worked on it, without waiting
}

// AgentQuery asks for manifests. The zero value asks for all of them, from the first.
type AgentQuery struct {
	DID         didkey.DID            // only manifests of this agent
	Intent      string                // only manifests with exactly this intent
	Text        string                // only manifests whose Listing.Text contains this, in lower case
	OnlineSince time.Time             // only agents that were heard from since then; zero: all
	OfflineOnly bool                  // with OnlineSince: only agents that were not heard from since then
	Online      func(didkey.DID) bool // with OnlineSince: more agents that were heard from; nil: none
	Viewer      Viewer                // only manifests that this reader may see
	Now         time.Time
	After       int64 // AgentPage.Next of the page before
	Limit       int
	MaxBytes    int // ends the page before its manifests exceed this, but not before one; 0: no limit
	MaxExamined int // ends the page when this many manifests were examined; 0: no limit
}

// IsOnline reports whether a was heard from after q.OnlineSince, by what the store or q.Online knows.
func (q AgentQuery) IsOnline(a Agent) bool {
	return a.LastSeen.After(q.OnlineSince) || q.Online != nil && q.Online(a.DID)
}

// Agent is a row of the directory.
type Agent struct {
	DID      didkey.DID
	LastSeen time.Time
	Manifest []byte // the signed envelope in canonical form
	Mirrored bool   // the manifest was copied from another relay
}

// AgentPage is an answer to an AgentQuery.
type AgentPage struct {
	Agents  []Agent
	More    bool // there are more manifests after Next, or Partial is true
	Partial bool // the page ended because of AgentQuery.MaxExamined; it may then be empty
	Next    int64
	Took    time.Duration `json:"-"` // see Page.Took
}
