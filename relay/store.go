package relay

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// Store keeps accepted envelopes. Implementations pass storetest.Test; all methods may be called concurrently.
//
// The contract in words: what Append acknowledged is on disk, is read in the order of its sequence numbers by every
// later Read, is handed to every Watch in that order, and is never handed out again under another number, also after
// it was removed and the process restarted. Refusals are *envelope.Error and change nothing; any other error means
// the store itself failed, and the caller cannot know whether the step took place.
type Store interface {
	// Policy returns what the store was opened with, after WithDefaults. It never changes. The relay takes its own policy
	// from here, so that both decide by the same one.
	Policy() Policy

	// Append makes e durable in one atomic step: its (sender, id) is new, the thread moves as thread.Rules.Apply says,
	// the next sequence number is taken. All of it or nothing. The same envelope again is answered with the first
	// one's receipt, marked as a duplicate, before any thread rule is asked.
	// Refusals: CodeDuplicateID, those of thread.Rules.Apply, CodeRateLimited (the recipient's inbox is full, or the
	// agent has MaxManifests), CodeUnavailable (the disk is full or has failed, shutting down).
	Append(ctx context.Context, e Entry) (Receipt, error)

	// Read returns matching events in sequence order, and where to go on reading. With Query.Look its work is bounded
	// whatever is stored, and whatever strangers have stored.
	// Refusals: CodeInvalidRequest for a Query.After that this store did not make.
	Read(ctx context.Context, q Query) (Page, error)

	// Thread returns a thread as it stands at now; without k.Client the oldest with k.ID.
	// Refusals: CodeThreadNotFound.
	Thread(ctx context.Context, k thread.Key, now time.Time) (thread.Thread, error)

	// ThreadsOf returns threads with k.ID, of k.Client if that is given, of which party is a party at now, the oldest first.
	// It looks at no more than a few, at party's own and then at the oldest. An unknown thread is no error.
	ThreadsOf(ctx context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error)

	// Agents returns unexpired manifests, each sender's newest by manifest id. With AgentQuery.Look its work is bounded.
	Agents(ctx context.Context, q AgentQuery) (AgentPage, error)

	// Expire does what is due at now. Threads past their deadline end and get the envelopes that notices returns, in one
	// step, once; notices may be nil. Events, ids, threads, manifests and identities that nothing refers to any more are removed.
	// A store that is short of room ends threads without notices.
	Expire(ctx context.Context, now time.Time, notices Notices) error

	// Watch calls f with every event after the given place, in order, in groups that became durable together, from
	// whichever node appended them, until ctx ends. It returns ctx's error. f must not block.
	Watch(ctx context.Context, after Cursor, f func([]Posted)) error
}

// Notices returns the envelopes that tell the parties of t that the clock has ended it. request is when the REQUEST of t
// expires.
type Notices func(t thread.Thread, request time.Time) []*envelope.Envelope

// Policy is what a relay decides by about time, threads and inboxes. A store is opened with it, and the relay asks the
// store for it.
type Policy struct {
	Window          replay.Window
	Rules           thread.Rules
	ThreadRetention time.Duration // how long a thread's record outlives its envelopes; 0: 24 hours
	Inbox           Quota
}

// DefaultThreadRetention is the zero Policy's.
const DefaultThreadRetention = 24 * time.Hour

// Quota is how much of what its owner did not ask for may wait in one inbox, see thread.Thread.Unasked. Expired messages
// do not count. What the parties of a thread send each other is neither counted nor refused: the thread's own rules
// bound it, and a full inbox must not keep out the RESULT that its owner waits for. A REQUEST counts ClosingReserve
// bytes more than it has. In return, a message of at most that size which ends its thread is always taken while the
// REQUEST waits. A store may take an inbox that was full for full a second longer.
type Quota struct {
	Events int   // 0: DefaultInbox's; negative: no bound
	Bytes  int64 // likewise
}

// ClosingReserve is how many bytes a REQUEST reserves in an inbox for the message that ends its thread.
const ClosingReserve = 4 << 10

// OfAll returns how much may wait in one inbox from all networks together, where q bounds what comes from one, see
// Entry.Network. It is between two and four times q. spread, from 0 to 1, chooses where; who does not know it cannot
// tell from a refusal how much of others waits.
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

// DefaultInbox is the zero Policy's.
var DefaultInbox = Quota{Events: 10_000, Bytes: 64 << 20}

// WithDefaults returns p with its zero fields replaced.
func (p Policy) WithDefaults() Policy {
	p.Window, p.Rules = p.Window.WithDefaults(), p.Rules.WithDefaults()
	if p.ThreadRetention == 0 {
		p.ThreadRetention = DefaultThreadRetention
	}
	if p.Inbox.Events == 0 {
		p.Inbox.Events = DefaultInbox.Events
	}
	if p.Inbox.Bytes == 0 {
		p.Inbox.Bytes = DefaultInbox.Bytes
	}
	return p
}

// Validate reports what is wrong with p, after WithDefaults, and how to correct it. A store that is opened calls it.
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
	if p.Rules.MaxOffers < 0 {
		return fmt.Errorf("policy: Rules.MaxOffers is %d; set it to at least 1, or to 0 for the default", p.Rules.MaxOffers)
	}
	if err := p.Window.Validate(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	return nil
}

// Seq numbers events in the order of their storage, from 1. A number is never used twice.
type Seq int64

// Cursor is a place in one store's sequence: behind the event Seq. The zero Cursor is before the first event.
type Cursor struct {
	Epoch uint32 // random, of the database; a cursor of a database that was lost is recognized by it
	Seq   Seq
}

// String returns the form that clients keep, opaque to them; "0" for the zero Cursor.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return "0"
	}
	return fmt.Sprintf("%08x-%d", c.Epoch, c.Seq)
}

// ParseCursor reads what String returned.
func ParseCursor(s string) (Cursor, error) {
	if s == "0" {
		return Cursor{}, nil
	}
	epoch, seq, _ := strings.Cut(s, "-")
	e, err := strconv.ParseUint(epoch, 16, 32)
	n, err2 := strconv.ParseInt(seq, 10, 64)
	c := Cursor{uint32(e), Seq(n)}
	if err != nil || err2 != nil || c.String() != s || n < 0 {
		return Cursor{}, envelope.Errorf(envelope.CodeInvalidRequest, "cursor is not one this relay handed out; use the "+
			"cursor member of an earlier answer, or 0 for everything that is still stored")
	}
	return c, nil
}

// ErrUnknownCursor refuses a cursor of another database.
var ErrUnknownCursor = &envelope.Error{Code: envelope.CodeInvalidRequest,
	Message: "the cursor belongs to another database than this relay's (it was replaced, or restored from a copy); " +
		"start again with cursor=0 or with since",
	Details: map[string]any{envelope.DetailReason: envelope.ReasonUnknownCursor}}

// ErrShuttingDown refuses what comes while a relay, or its store, is being closed.
var ErrShuttingDown = envelope.NotStored("the relay is shutting down; try again in a moment", 0)

// MaxManifests is how many unexpired manifests a directory keeps of one agent.
const MaxManifests = 16

// MaxIntents is how many intents a manifest may list: the directory has an entry for each.
const MaxIntents = 256

// Entry is an envelope that was parsed and verified, ready to be stored.
type Entry struct {
	Envelope *envelope.Envelope
	Received time.Time
	Listing  *Listing // for a MANIFEST
	Local    bool     // from the relay's own machine, and so not held to the quota of an inbox
	Unseen   bool     // the directory does not show that its sender was heard from
	// Network tells senders' networks apart in the quota of an inbox: what comes from others does not count for one.
	// 0: they are not told apart.
	Network int64
	Terms   thread.Terms // of the thread that the envelope opens, if it opens one
}

// Listing is what the directory knows of a manifest without reading it.
type Listing struct {
	ID      string   // the manifest's
	Intents []string // their ids
	Text    string   // what a search looks through, in lower case
}

// Receipt says what became of a posted envelope.
type Receipt struct {
	ID        string
	Cursor    Cursor
	Duplicate bool // it was here before; the rest is the first one's
	ExpiresAt time.Time
	Thread    thread.Key   // zero for a MANIFEST
	State     thread.State // of that thread now; Post leaves it out where its sender may not see it

	Took time.Duration `json:"-"` // how long the store worked on it, waiting aside; also with an error
}

// Event is a stored envelope.
type Event struct {
	Seq      Seq
	ID       string
	TS       time.Time // the sender's claim
	Received time.Time
	Expires  time.Time
	Size     int    // bytes of Body
	Body     []byte // canonical JSON; nil if Query.Headers
}

// Posted is an event that has just been stored.
type Posted struct {
	Event
	Envelope *envelope.Envelope
}

// Filter selects events; its fields are exact and all must hold. The zero Filter selects everything.
type Filter struct {
	Recipient didkey.DID
	Broadcast bool // with Recipient: events for nobody in particular too
	Sender    didkey.DID
	Type      envelope.Type
	Thread    string
	Client    didkey.DID // with Thread: the one that belongs to this client
	Viewer    Viewer     // and only what this one may see
}

// Match reports whether f selects e; whose thread e belongs to, and so Client, only a store can tell.
func (f Filter) Match(e *envelope.Envelope) bool {
	return (f.Recipient == "" || f.Recipient == e.Recipient || f.Broadcast && e.Recipient == "") &&
		(f.Sender == "" || f.Sender == e.Sender.ID) &&
		(f.Type == "" || f.Type == e.Type) &&
		(f.Thread == "" || f.Thread == e.Thread) &&
		f.Viewer.Sees(e.Sender.ID, e.Recipient)
}

// Query asks a Store for events.
type Query struct {
	Filter
	Now       time.Time // events that expired by then are left out
	Expired   bool      // … or not, as long as their ids are remembered
	After     Cursor    // only behind it
	Until     Seq       // only up to it; 0: no bound
	TS        time.Time // only with exactly this instant; zero: any
	NewerThan time.Time // only with a ts or an arrival after it; zero: any
	Headers   bool      // leave Body out
	Limit     int       // at most so many events; 0: none, just the Cursor
	MaxBytes  int       // end the page before it has more bytes of Body, but not before one event; 0: no bound
	Look      int       // end the page where so many stored events were looked at, matching or not, or a few times as many; 0: no bound
}

// Page is an answer to a Query.
type Page struct {
	Events []Event
	More   bool // there are matching events behind the last one, or Partial
	// Partial says that the page ended because of Query.Look. It may be empty, and nobody has looked behind Cursor.
	Partial bool
	// Cursor is behind the last event; behind what was looked at if the page is Partial; behind everything the store
	// held when it looked if nothing more matched.
	Cursor Cursor
	Took   time.Duration `json:"-"` // how long the store worked on it, waiting aside
}

// AgentQuery asks for manifests; the zero value for all, from the first.
type AgentQuery struct {
	DID         didkey.DID            // of one agent
	Intent      string                // one of the manifest's intents, exactly
	Text        string                // in its name, description, id or intents, in lower case
	OnlineSince time.Time             // heard from since then; zero: or not
	OfflineOnly bool                  // with OnlineSince: not heard from since then
	Online      func(didkey.DID) bool // with OnlineSince: heard from since then, whatever the store knows; nil: of nobody
	Viewer      Viewer                // only manifests that this one may see
	Now         time.Time
	After       int64 // AgentPage.Next of the page before
	Limit       int
	MaxBytes    int // end the page before it has more bytes of Manifest, but not before one; 0: no bound
	Look        int // end the page where so many manifests were looked at; 0: no bound
}

// IsOnline reports whether a, as the store knows it, was heard from after q.OnlineSince.
func (q AgentQuery) IsOnline(a Agent) bool {
	return a.LastSeen.After(q.OnlineSince) || q.Online != nil && q.Online(a.DID)
}

// Agent is a row of the directory.
type Agent struct {
	DID      didkey.DID
	LastSeen time.Time
	Manifest []byte // the signed envelope, canonical
}

// AgentPage is an answer to an AgentQuery.
type AgentPage struct {
	Agents  []Agent
	More    bool // there are others behind Next, or Partial
	Partial bool // the page ended because of AgentQuery.Look, and may be empty
	Next    int64
	Took    time.Duration `json:"-"` // as Page.Took
}
