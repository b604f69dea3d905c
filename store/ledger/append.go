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

// Append stores those messages of a group that are new and that the rules allow, in their order. The outcome of each
// message is the same as if it had been appended alone, after the messages before it. posted has the messages that were
// stored. Append returns an error only if tx fails or a stored thread record cannot be decoded. In
// that case the caller rolls back the transaction, and nothing is stored.
func (l *Ledger) Append(tx Tx, entries []relay.Entry) (outcomes []relay.Outcome, posted []relay.Posted, err error) {
	began := time.Now()
	g, err := l.load(tx, entries)
	if err != nil {
		return nil, nil, err
	}
	loaded := time.Now()
	outcomes = make([]relay.Outcome, len(entries))
	for i, e := range entries {
		began := time.Now()
		o, before := &outcomes[i], len(g.events)
		if o.Receipt, o.Err = g.append(e); len(g.events) > before {
			g.owners = append(g.owners, o)
		}
		o.Receipt.Took = time.Since(began)
		if o.Err != nil && !IsRefusal(o.Err) {
			return nil, nil, o.Err // a stored thread record cannot be decoded
		}
	}
	decided := time.Now()
	log := g.growLog()
	changes := g.changes()
	changes.Log = log
	if len(changes.Events) > 0 {
		if err := tx.Write(changes); err != nil {
			return nil, nil, err
		}
	}
	l.lastEnd = g.end
	posted = changes.posted()
	g.addTimes(outcomes, loaded.Sub(began), time.Since(decided))
	return outcomes, posted, nil
}

// posted returns the events of c in the form that watchers get.
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

// IsRefusal reports whether err is an *envelope.Error. Such an error rejects one message and concerns only its sender.
// Any other error means that the engine failed.
func IsRefusal(err error) bool {
	_, ok := errors.AsType[*envelope.Error](err)
	return ok
}

// group is the state while a group of messages is decided. It starts with what was loaded from the store. Each accepted
// message adds its changes.
type group struct {
	*Ledger
	end      relay.Cursor // cursor of the last event, including the events of this group
	known    map[MessageKey]known
	threads  map[thread.Key]*groupThread
	byID     map[string][]*groupThread // the threads of the field threads, by thread id
	listings map[didkey.DID][]Listed
	weights  []int // how much work each entry caused while loading, see addTimes

	events  []Event
	owners  []*relay.Outcome // of the events
	changed []*groupThread   // threads that are new or have changed, in the order of their first change
}

// known is a message that was stored before, or that this group stores.
type known struct {
	seq     relay.Seq
	expires time.Time
	body    []byte
	removed bool
	thread  *groupThread
}

// groupThread is a thread that was loaded for a group, or that a message of the group opened.
type groupThread struct {
	Thread
	isNew     bool
	was       Row       // see Change.Was
	changedAt time.Time // when the group last changed it; zero: not changed
	joined    []Participant
}

// append decides about one message and, if it is accepted, adds it to the group.
// Errors: those of relay.Store.Append that reject a message.
func (g *group) append(e relay.Entry) (relay.Receipt, error) {
	m := e.Envelope
	if k, ok := g.known[MessageKey{m.Sender.ID, m.ID}]; ok {
		return g.duplicate(k, e)
	}
	if err := g.checkLog(e); err != nil {
		return relay.Receipt{}, err
	}
	var h *groupThread
	var t thread.Thread
	if hasThread(e) {
		var err error
		if t, h, err = g.move(e); err != nil {
			return relay.Receipt{}, err
		}
	}
	if err := g.checkManifestLimit(e); err != nil {
		return relay.Receipt{}, err
	}
	charge := inboxCharge(m, t)
	if err := g.checkInbox(e, h, charge); err != nil {
		return relay.Receipt{}, err
	}
	if t.Terms.Quiet {
		// A gateway's message is refused if the inbox is full, but does not count. The gateway limits how many wait for its
		// owner. Those that are answered would otherwise fill the inbox until their ttl ends.
		charge = 0
	}
	return g.accept(e, t, h, charge), nil
}

// hasThread reports whether e belongs to a thread or opens one.
func hasThread(e relay.Entry) bool { return e.Envelope.Type != envelope.TypeManifest && !e.Mirrored }

// duplicate answers a message whose id is already known. If the bytes of both messages are equal, it returns the
// receipt of the first one. Otherwise it returns errOtherMessage.
func (g *group) duplicate(k known, e relay.Entry) (relay.Receipt, error) {
	if k.removed {
		return relay.Receipt{}, errRemoved
	}
	if len(k.body) == 0 {
		return relay.Receipt{}, errCut
	}
	if !bytes.Equal(k.body, e.Envelope.Canonical()) {
		return relay.Receipt{}, errOtherMessage
	}
	r := relay.Receipt{ID: e.Envelope.ID, Cursor: relay.Cursor{Epoch: g.end.Epoch, Seq: k.seq}, Duplicate: true,
		ExpiresAt: k.expires}
	if k.thread != nil {
		r.Thread, r.State = k.thread.Key(), g.policy.Rules.At(k.thread.Thread.Thread, e.Received).State
	}
	return r, nil
}

// errRemoved rejects a copy of a message that the operator has removed, or another message with its id.
var errRemoved = &envelope.Error{Code: envelope.CodeForbidden,
	Message: "the operator of this relay has removed your message with this id",
	Details: map[string]any{envelope.DetailReason: envelope.ReasonRemoved}}

// errCut rejects a message whose id its sender has used for a message that has expired, and of which only the id is
// left. It may be the same message, if the relay's clock was set back since.
var errCut = envelope.Errorf(envelope.CodeExpired, "your message with this id was stored and has expired")

// errOtherMessage rejects a message whose id its sender has already used for a message with other content.
var errOtherMessage = envelope.Errorf(envelope.CodeDuplicateID,
	"you have already used this id for another message; give each message its own id")

// move applies e to the thread that it belongs to. It returns the thread after e, and the group's thread that e
// changes; nil if e opens a new thread. Errors: those of thread.Rules.Apply.
func (g *group) move(e relay.Entry) (thread.Thread, *groupThread, error) {
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

// accept adds e to the events of the group, and the thread to the changed threads. t is the thread after e. h is the
// group's thread that e changes; nil if e opens a new thread.
func (g *group) accept(e relay.Entry, t thread.Thread, h *groupThread, charge int64) relay.Receipt {
	m := e.Envelope
	expires := g.policy.WindowOf(m.Type).Expires(m.TS, m.TTL)
	opens := m.Type == envelope.TypeRequest && hasThread(e) && h == nil
	if hasThread(e) {
		h = g.putThread(h, t, e.Received, expires)
		h.join(m)
	}
	if e.Listing != nil && !g.list(m.Sender.ID, Listed{e.Listing.ID, m.TS, expires}, e.Mirrored) {
		e.Listing = nil
	}
	if e.Listing != nil {
		g.dropListing(m.Sender.ID, e.Listing.ID)
	}
	event := g.add(e, h, charge, expires, g.policy.Window.RememberUntil(e.Received, expires))
	g.addLeaf(e.Hash, h, opens)
	return relay.Receipt{ID: m.ID, Cursor: g.end, ExpiresAt: event.Expires, Thread: t.Key(), State: t.State}
}

// dropListing removes the Listing with this id from the sender's earlier events of the group. A newer manifest replaces
// it.
func (g *group) dropListing(sender didkey.DID, id string) {
	for i := range g.events {
		if e := &g.events[i]; e.Listing != nil && e.Envelope.Sender.ID == sender && e.Listing.ID == id {
			e.Listing = nil
		}
	}
}

// add gives e the next sequence number and adds it to the events of the group. The event is stored until forget.
func (g *group) add(e relay.Entry, h *groupThread, charge int64, expires, forget time.Time) *Event {
	m := e.Envelope
	g.end.Seq++
	event := Event{Forget: forget, Charge: charge, Network: e.Network, Listing: e.Listing, Unseen: e.Unseen,
		Posted: relay.Posted{Envelope: m, Event: relay.Event{Seq: g.end.Seq, ID: m.ID, TS: m.TS, Received: e.Received,
			Expires: expires, Size: len(m.Canonical()), Body: m.Canonical()}}}
	if h != nil {
		event.Thread = h.Number
	}
	if e.Mirrored {
		event.Network = relay.MirrorNetwork
	}
	g.events = append(g.events, event)
	g.known[MessageKey{m.Sender.ID, m.ID}] = known{seq: g.end.Seq, expires: expires, body: m.Canonical(), thread: h}
	g.addToInbox(inboxKey{m.Recipient, e.Network}, charge, expires)
	return &g.events[len(g.events)-1]
}

// putThread records t, the thread after a message, in the group. received and expires are the arrival and the expiry of
// that message. h is the group's thread that the message changes; nil if the message opens a new thread.
func (g *group) putThread(h *groupThread, t thread.Thread, received, expires time.Time) *groupThread {
	if h == nil {
		h = &groupThread{Thread: Thread{Number: int64(g.end.Seq) + 1, RequestExpires: expires}, isNew: true}
		g.threads[t.Key()] = h
		g.byID[t.ID] = append(g.byID[t.ID], h)
	}
	h.Thread.Thread = t
	if expires.After(h.Keep) {
		h.Keep = expires
	}
	if h.changedAt.IsZero() {
		g.changed = append(g.changed, h)
	}
	h.changedAt = received
	return h
}

// join records the participant that m adds to h: the recipient of a REQUEST, the sender of an OFFER, or the agent that
// an ACCEPT accepts. h already includes m.
func (h *groupThread) join(m *envelope.Envelope) {
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

// changes returns everything that the group writes.
func (g *group) changes() Changes {
	c := Changes{Events: g.events, Threads: make([]Change, len(g.changed))}
	for i, h := range g.changed {
		c.Threads[i] = Change{Row: g.row(&h.Thread, h.changedAt), New: h.isNew, Was: h.was, Joined: h.joined}
	}
	return c
}

// row returns the row of t that is to be stored at now.
func (l *Ledger) row(t *Thread, now time.Time) Row {
	due, alive := l.policy.Rules.Deadline(t.Thread)
	if !alive {
		// The rows of the thread's events refer to the record, so the record must outlive them.
		due = t.Keep.Add(l.policy.ThreadRetention)
		if rows := now.Add(l.policy.Window.Memory); due.Before(rows) {
			due = rows
		}
	}
	return Row{Number: t.Number, Key: t.Key(), Due: due, Open: l.isOpen(t.Thread), State: t.State, Record: t.Encode()}
}

// isOpen reports whether any agent may offer in t.
func (l *Ledger) isOpen(t thread.Thread) bool {
	return t.State == thread.Pending && t.Recipient == "" && t.OffersMade < l.policy.Rules.MaxOffers
}

// addTimes adds the time of the engine to Receipt.Took of the outcomes. The time of Load is divided by the weights of
// the entries, the time of Write in equal parts.
func (g *group) addTimes(outcomes []relay.Outcome, load, write time.Duration) {
	all := 0
	for _, w := range g.weights {
		all += w
	}
	for i := range outcomes {
		outcomes[i].Receipt.Took += load*time.Duration(g.weights[i])/time.Duration(all) + write/time.Duration(len(outcomes))
	}
}
