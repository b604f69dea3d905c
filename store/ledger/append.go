package ledger

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// Outcome is what became of one message of a group: a receipt, or a refusal.
type Outcome struct {
	Receipt relay.Receipt // Took is set also with an error
	Err     error         // an *envelope.Error
}

// Append stores the messages of a group that are new and that the rules admit, in their order. Each is judged as if it
// came alone, after those before it. posted are those that were stored. It fails only if tx does.
func (l *Ledger) Append(tx Tx, entries []relay.Entry) (outcomes []Outcome, posted []relay.Posted, err error) {
	began := time.Now()
	g, err := l.load(tx, entries)
	if err != nil {
		return nil, nil, err
	}
	loaded := time.Now()
	outcomes = make([]Outcome, len(entries))
	for i, e := range entries {
		began := time.Now()
		o := &outcomes[i]
		o.Receipt, o.Err = g.append(e)
		o.Receipt.Took = time.Since(began)
		if o.Err != nil && !IsRefusal(o.Err) {
			return nil, nil, o.Err // a record that cannot be read
		}
	}
	decided := time.Now()
	changes := g.changes()
	if len(changes.Events) > 0 {
		if err := tx.Write(changes); err != nil {
			return nil, nil, err
		}
	}
	l.left = g.end
	posted = changes.posted()
	g.share(outcomes, loaded.Sub(began), time.Since(decided))
	return outcomes, posted, nil
}

// posted returns what watchers are told of c.
func (c Changes) posted() []relay.Posted {
	if len(c.Events) == 0 {
		return nil
	}
	posted := make([]relay.Posted, len(c.Events))
	for i, e := range c.Events {
		posted[i] = e.Posted
	}
	return posted
}

// IsRefusal reports whether err is for the sender of a message, and harms no other.
func IsRefusal(err error) bool {
	_, ok := errors.AsType[*envelope.Error](err)
	return ok
}

// group is what is known while a group is decided. It begins as what is stored, and each message adds what it does.
type group struct {
	*Ledger
	end      relay.Cursor // the last event's
	known    map[MessageKey]known
	threads  map[thread.Key]*held
	byID     map[string][]*held // the same, by the thread's id
	listings map[didkey.DID][]Listed
	weights  []int // of the entries, see share

	events []Event
	moved  []*held // those that are new or have changed, in the order of their first change
}

// known is a message that is stored, or that the group stores.
type known struct {
	seq     relay.Seq
	expires time.Time
	body    []byte
	thread  *held
}

// held is a thread in memory.
type held struct {
	Thread
	isNew   bool
	wasOpen bool      // Row.Open as it is stored, if not isNew
	moved   time.Time // when the group last moved it; zero: it has not
	joined  []Participant
}

// append decides about one message.
// Refusals: those of relay.Store.Append.
func (g *group) append(e relay.Entry) (relay.Receipt, error) {
	m := e.Envelope
	if k, ok := g.known[MessageKey{m.Sender.ID, m.ID}]; ok {
		return g.duplicate(k, e)
	}
	var h *held
	var t thread.Thread
	if m.Type != envelope.TypeManifest {
		var err error
		if t, h, err = g.move(e); err != nil {
			return relay.Receipt{}, err
		}
	}
	if err := g.admitListing(e); err != nil {
		return relay.Receipt{}, err
	}
	charge := charged(m, t)
	if err := g.admitMail(e, h, charge); err != nil {
		return relay.Receipt{}, err
	}
	return g.accept(e, t, h, charge), nil
}

// duplicate answers for a message that is stored already: with its receipt if it is the same to the byte.
func (g *group) duplicate(k known, e relay.Entry) (relay.Receipt, error) {
	if !bytes.Equal(k.body, e.Envelope.Canonical()) {
		return relay.Receipt{}, errOtherMessage
	}
	r := relay.Receipt{ID: e.Envelope.ID, Cursor: relay.Cursor{Epoch: g.end.Epoch, Seq: k.seq}, Duplicate: true, ExpiresAt: k.expires}
	if k.thread != nil {
		r.Thread, r.State = k.thread.Key(), g.policy.Rules.At(k.thread.Thread.Thread, e.Received).State
	}
	return r, nil
}

var errOtherMessage = envelope.Errorf(envelope.CodeDuplicateID, "you have used this id for another message; give each message its own")

// move returns the thread that e moves or begins, as e leaves it, and the one held; nil if e begins it.
// Refusals: those of thread.Rules.Apply.
func (g *group) move(e relay.Entry) (thread.Thread, *held, error) {
	candidates := g.candidates(e.Envelope)
	var threads []thread.Thread
	for _, c := range candidates {
		threads = append(threads, c.Thread.Thread)
	}
	next, chosen, err := g.policy.Rules.Apply(threads, e.Envelope, e.Received)
	if err != nil || chosen < 0 {
		next.Terms = e.Terms
		return next, nil, err
	}
	return next, candidates[chosen], nil
}

// accept adds e to the events of the group, and t as e leaves it to the threads.
func (g *group) accept(e relay.Entry, t thread.Thread, h *held, charge int64) relay.Receipt {
	m := e.Envelope
	expires := g.policy.Window.Expires(m.TS, m.TTL)
	if m.Type != envelope.TypeManifest {
		h = g.keep(h, t, e.Received, expires)
		h.join(m)
	}
	if e.Listing != nil && !g.list(m.Sender.ID, Listed{e.Listing.ID, m.TS, expires}) {
		e.Listing = nil
	}
	if e.Listing != nil {
		g.unlist(m.Sender.ID, e.Listing.ID)
	}
	event := g.add(e, h, charge, expires, g.policy.Window.RememberUntil(e.Received, expires))
	return relay.Receipt{ID: m.ID, Cursor: g.end, ExpiresAt: event.Expires, Thread: t.Key(), State: t.State}
}

// unlist takes the listing from an event of this group that has the same.
func (g *group) unlist(sender didkey.DID, id string) {
	for i := range g.events {
		if e := &g.events[i]; e.Listing != nil && e.Envelope.Sender.ID == sender && e.Listing.ID == id {
			e.Listing = nil
		}
	}
}

// add numbers e and puts it among the events. It is stored until forget.
func (g *group) add(e relay.Entry, h *held, charge int64, expires, forget time.Time) *Event {
	m := e.Envelope
	g.end.Seq++
	event := Event{Forget: forget, Charge: charge, Network: e.Network, Listing: e.Listing, Unseen: e.Unseen,
		Posted: relay.Posted{Envelope: m, Event: relay.Event{Seq: g.end.Seq, ID: m.ID, TS: m.TS, Received: e.Received,
			Expires: expires, Size: len(m.Canonical()), Body: m.Canonical()}}}
	if h != nil {
		event.Thread = h.Number
	}
	g.events = append(g.events, event)
	g.known[MessageKey{m.Sender.ID, m.ID}] = known{g.end.Seq, expires, m.Canonical(), h}
	g.received(inboxKey{m.Recipient, e.Network}, charge, expires)
	return &g.events[len(g.events)-1]
}

// keep holds t as a message has left it that arrived and expires then. h is nil if the message has begun t.
func (g *group) keep(h *held, t thread.Thread, received, expires time.Time) *held {
	if h == nil {
		h = &held{Thread: Thread{Number: int64(g.end.Seq) + 1, RequestExpires: expires}, isNew: true}
		g.threads[t.Key()] = h
		g.byID[t.ID] = append(g.byID[t.ID], h)
	}
	h.Thread.Thread = t
	if expires.After(h.Keep) {
		h.Keep = expires
	}
	if h.moved.IsZero() {
		g.moved = append(g.moved, h)
	}
	h.moved = received
	return h
}

// join notes the participant that m, which is in h already, has brought into it.
func (h *held) join(m *envelope.Envelope) {
	p := Participant{}
	switch m.Type {
	case envelope.TypeRequest:
		p.DID = h.Recipient
	case envelope.TypeOffer:
		p.DID = m.Sender.ID
	case envelope.TypeAccept:
		p.DID, p.Works = h.Agent, true
	}
	if p.DID != "" && !slices.Contains(h.joined, p) {
		h.joined = append(h.joined, p)
	}
}

// changes returns what the group writes.
func (g *group) changes() Changes {
	c := Changes{Events: g.events, Threads: make([]Change, len(g.moved))}
	for i, h := range g.moved {
		c.Threads[i] = Change{Row: g.row(&h.Thread, h.moved), New: h.isNew, WasOpen: h.wasOpen, Joined: h.joined}
	}
	return c
}

// row returns t as it is stored from now on.
func (l *Ledger) row(t *Thread, now time.Time) Row {
	due, alive := l.policy.Rules.Deadline(t.Thread)
	if !alive {
		// The record outlives the rows of its events, which refer to it.
		due = t.Keep.Add(l.policy.ThreadRetention)
		if rows := now.Add(l.policy.Window.Memory); due.Before(rows) {
			due = rows
		}
	}
	return Row{Number: t.Number, Key: t.Key(), Due: due, Open: l.isOpen(t.Thread), Record: t.Encode()}
}

// isOpen reports whether any agent may offer in t.
func (l *Ledger) isOpen(t thread.Thread) bool {
	return t.State == thread.Pending && t.Recipient == "" && t.OffersMade < l.policy.Rules.MaxOffers
}

// share adds to the outcomes what the engine did for them: the time of Load by what each message had it look for, and
// that of Write in equal parts.
func (g *group) share(outcomes []Outcome, load, write time.Duration) {
	all := 0
	for _, w := range g.weights {
		all += w
	}
	for i := range outcomes {
		outcomes[i].Receipt.Took += load*time.Duration(g.weights[i])/time.Duration(all) + write/time.Duration(len(outcomes))
	}
}
