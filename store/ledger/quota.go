package ledger

import (
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// inboxKey names what waits for a recipient from one network, see relay.Entry.Network.
type inboxKey struct {
	recipient didkey.DID
	network   int64
}

// inbox is a count of what waits unasked, see relay.Quota. It is never less than there is: what has expired since the
// count is still in it.
type inbox struct {
	events   int
	bytes    int64
	fullTill time.Time // nothing of it expires before then
	counted  time.Time
	again    time.Duration // it is not counted again so soon after that
}

// isFull reports whether b has no room for a message of this charge.
func (b inbox) isFull(charge int64, q relay.Quota) bool {
	return q.Events >= 0 && b.events >= q.Events || q.Bytes >= 0 && b.bytes+charge > q.Bytes
}

// staysFull reports whether b, which was full when it was counted, is taken for full at now without another count.
func (b inbox) staysFull(now time.Time) bool {
	return now.Before(b.fullTill) && b.fullTill.Sub(now) <= comeAgain || now.Sub(b.counted).Abs() < b.again
}

// comeAgain is the longest Retry-After of a full inbox, and how long an inbox is taken for full without a count.
const comeAgain = time.Minute

// countEvery is how often a full inbox is counted at most. A sender who lets one message expire now and then must not
// cost the engine a count for each post. Where a count has many messages to look at, expired ones too, the next is
// countEach for each of them later: an engine looks at one in a small part of that.
const (
	countEvery = time.Second
	countEach  = 10 * time.Microsecond
)

// maxInboxes bounds how many inboxes are counted in memory when a group begins, some 40 MB.
const maxInboxes = 200_000

// charged returns how many bytes m counts against the inbox of its recipient, 0 if the recipient asked for it. t is the
// thread as m leaves it.
func charged(m *envelope.Envelope, t thread.Thread) int64 {
	if m.Recipient == "" || !t.Unasked(m.Recipient) {
		return 0
	}
	return fullCharge(m)
}

// fullCharge returns what m counts if its recipient has not asked for it.
func fullCharge(m *envelope.Envelope) int64 {
	size := int64(len(m.Canonical()))
	if m.Type == envelope.TypeRequest {
		size += relay.ClosingReserve
	}
	return size
}

// bounded is an inbox and the quota that bounds it.
type bounded struct {
	inboxKey
	quota relay.Quota
}

// bounds returns the inboxes that e goes to, with their bounds. There are n of them; none if e is not held to a quota.
func (g *group) bounds(e relay.Entry) (all [2]bounded, n int) {
	recipient, quota := e.Envelope.Recipient, g.policy.Inbox
	whole := inboxKey{recipient, AllNetworks}
	switch {
	case recipient == "" || e.Local || quota.Events < 0 && quota.Bytes < 0:
		return all, 0
	case e.Network == 0:
		return [2]bounded{{whole, quota}}, 1
	}
	return [2]bounded{{inboxKey{recipient, e.Network}, quota}, {whole, quota.OfAll(g.spread(recipient))}}, 2
}

// uncounted adds to w the inboxes that have to be counted before the entries are decided, and returns which entry each
// is counted for. One that might become full in this group is counted again unless that was done just now.
func (g *group) uncounted(entries []relay.Entry, w *Wanted) (counting []int) {
	type arrival struct {
		inbox
		wanted bool
	}
	coming := make(map[inboxKey]arrival, len(entries))
	for i, e := range entries {
		m := e.Envelope
		if g.isKnown(m) || !g.maybeUnasked(m) {
			continue
		}
		charge := fullCharge(m)
		all, n := g.bounds(e)
		for _, k := range all[:n] {
			b, counted := g.inboxes[k.inboxKey]
			c := coming[k.inboxKey]
			b.events, b.bytes = b.events+c.events, b.bytes+c.bytes
			if !c.wanted && (!counted || b.isFull(charge, k.quota) && !b.staysFull(e.Received)) {
				c.wanted = true
				counting = append(counting, i)
				w.Inboxes = append(w.Inboxes, Inbox{k.recipient, k.network, e.Received})
			}
			c.events, c.bytes = c.events+1, c.bytes+charge
			coming[k.inboxKey] = c
		}
	}
	return counting
}

// maybeUnasked reports whether m may be mail that its recipient has not asked for. It is not if all threads that m names
// say so.
func (g *group) maybeUnasked(m *envelope.Envelope) bool {
	if m.Type == envelope.TypeManifest || m.Type == envelope.TypeRequest {
		return true
	}
	ends := g.ends(m)
	return len(ends) == 0 || slices.ContainsFunc(ends, func(h *held) bool { return h.Unasked(m.Recipient) })
}

// count keeps what an inbox was found to hold.
func (g *group) count(asked Inbox, found Count) {
	b := inbox{events: found.Events, bytes: found.Bytes, fullTill: asked.Now.Add(comeAgain), counted: asked.Now}
	b.again = max(countEvery, time.Duration(found.Looked)*countEach)
	if !found.First.IsZero() && found.First.Before(b.fullTill) {
		b.fullTill = found.First
	}
	g.inboxes[inboxKey{asked.Recipient, asked.Network}] = b
}

// received adds an event to the inboxes that are counted.
func (l *Ledger) received(k inboxKey, charge int64, expires time.Time) {
	if charge == 0 {
		return
	}
	for _, k := range [...]inboxKey{k, {k.recipient, AllNetworks}} { // network 0 has no count of its own
		l.touched = append(l.touched, k)
		b, ok := l.inboxes[k]
		if !ok {
			continue
		}
		b.events++
		b.bytes += charge
		if expires.Before(b.fullTill) {
			b.fullTill = expires
		}
		l.inboxes[k] = b
	}
}

// admitMail refuses e if its recipient's inbox has no room for the charge. h is the thread that e moves; nil if it begins
// one.
func (g *group) admitMail(e relay.Entry, h *held, charge int64) error {
	if charge == 0 {
		return nil
	}
	again := g.fullFor(e, charge)
	if again == 0 || closes(e, h) {
		return nil
	}
	return &envelope.Error{Code: envelope.CodeRateLimited, Details: map[string]any{envelope.DetailLimit: envelope.LimitInbox}, RetryAfter: again,
		Message: "the recipient's inbox is full; try again when some of what waits there has expired"}
}

// fullFor returns how long the recipient's inbox stays full for e, which counts charge; 0: it has room.
func (g *group) fullFor(e relay.Entry, charge int64) time.Duration {
	all, n := g.bounds(e)
	for j, k := range all[:n] {
		b := g.inboxes[k.inboxKey]
		if !b.isFull(charge, k.quota) {
			continue
		}
		if j > 0 {
			// The same for all: when the mail of others expires is not for this sender to know.
			return comeAgain
		}
		return max(b.fullTill.Sub(e.Received), countEvery)
	}
	return 0
}

// closes reports whether e is the message for which the REQUEST of its thread h holds room: a short one that ends the
// thread, while the REQUEST waits in the same inbox.
func closes(e relay.Entry, h *held) bool {
	m := e.Envelope
	return m.Type != envelope.TypeRequest && h != nil && len(m.Canonical()) <= relay.ClosingReserve && e.Received.Before(h.RequestExpires)
}

// spread returns a number from 0 to 1 that nobody can foresee, the same for a recipient as long as the Ledger lives.
func (l *Ledger) spread(recipient didkey.DID) float64 {
	return float64(maphash.Comparable(l.seed, recipient)) / math.MaxUint64
}

// admitListing refuses e if its sender has as many other manifests as an agent may.
func (g *group) admitListing(e relay.Entry) error {
	if e.Listing == nil {
		return nil
	}
	others := 0
	for _, listed := range g.listings[e.Envelope.Sender.ID] {
		if listed.ID != e.Listing.ID && listed.Expires.After(e.Received) {
			others++
		}
	}
	if others < relay.MaxManifests {
		return nil
	}
	return &envelope.Error{Code: envelope.CodeRateLimited, Details: map[string]any{envelope.DetailLimit: envelope.LimitManifestsPerAgent}, RetryAfter: comeAgain,
		Message: "the directory has " + strconv.Itoa(others) + " manifests of this agent, and keeps no more; replace one by using its id again"}
}

// list notes a manifest, unless a newer one with its id is listed. It reports whether it did.
func (g *group) list(sender didkey.DID, m Listed) bool {
	all := g.listings[sender]
	i := slices.IndexFunc(all, func(l Listed) bool { return l.ID == m.ID })
	switch {
	case i < 0:
		g.listings[sender] = append(all, m)
	case m.TS.Before(all[i].TS):
		return false
	default:
		all[i] = m
	}
	return true
}
