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

// inboxKey identifies an inbox: the messages that wait for a recipient and came from one network, see
// relay.Entry.Network. With AllNetworks it identifies all messages that wait for the recipient.
type inboxKey struct {
	recipient didkey.DID
	network   int64
}

// inbox is a cached count of the unasked messages that wait in an inbox, see relay.Quota. It is never lower than the
// real number, but may be higher: messages that expired after the count are still included.
type inbox struct {
	events       int
	bytes        int64
	fullUntil    time.Time     // no counted message expires before this time
	counted      time.Time     // when the engine counted the messages
	recountAfter time.Duration // a full inbox is not counted again for this long after counted
}

// isFull reports whether b has no room for a message with this charge.
func (b inbox) isFull(charge int64, q relay.Quota) bool {
	return q.Events >= 0 && b.events >= q.Events || q.Bytes >= 0 && b.bytes+charge > q.Bytes
}

// staysFull reports whether b, which is full by the cached count, is treated as full at now without counting again.
// That is so while none of its messages can have expired, and for a short time after each count.
func (b inbox) staysFull(now time.Time) bool {
	return now.Before(b.fullUntil) && b.fullUntil.Sub(now) <= maxRetryAfter || now.Sub(b.counted).Abs() < b.recountAfter
}

// maxRetryAfter is the longest Retry-After of a full inbox. It is also the longest time that an inbox is treated as
// full without another count because none of its messages expires.
const maxRetryAfter = time.Minute

// Limits on how often a full inbox is counted. Without them, a sender whose messages expire one by one could make the
// engine count the inbox for every post.
const (
	// minRecountInterval is the shortest time between two counts of a full inbox. It is also the shortest Retry-After.
	minRecountInterval = time.Second

	// recountDelayPerMessage makes expensive counts rarer. After a count, wait at least this long for each message that
	// the engine examined, including expired ones. Counting one message takes a small part of this time.
	recountDelayPerMessage = 10 * time.Microsecond
)

// maxInboxes limits the number of cached inbox counts. If there are as many when a group begins, all are dropped. They
// take about 40 MB.
const maxInboxes = 200_000

// inboxCharge returns how many bytes m counts in the inbox of its recipient; 0 if the recipient asked for m. t is the
// thread after m.
func inboxCharge(m *envelope.Envelope, t thread.Thread) int64 {
	if m.Recipient == "" || !t.Unasked(m.Recipient) {
		return 0
	}
	return fullCharge(m)
}

// fullCharge returns how many bytes m counts if its recipient did not ask for it. A REQUEST also counts the bytes that
// it reserves for the message that ends its thread.
func fullCharge(m *envelope.Envelope) int64 {
	size := int64(len(m.Canonical()))
	if m.Type == envelope.TypeRequest {
		size += relay.ClosingReserve
	}
	return size
}

// boundedInbox is an inbox with its quota.
type boundedInbox struct {
	inboxKey
	quota relay.Quota
}

// boundedInboxes returns the inboxes that e counts in, with their quotas. Only the first n elements are set. n is 0 if
// no quota applies to e.
func (g *group) boundedInboxes(e relay.Entry) (all [2]boundedInbox, n int) {
	recipient, quota := e.Envelope.Recipient, g.policy.Inbox
	whole := inboxKey{recipient, AllNetworks}
	switch {
	case recipient == "" || e.Local || quota.Events < 0 && quota.Bytes < 0:
		return all, 0
	case e.Network == 0:
		return [2]boundedInbox{{whole, quota}}, 1
	}
	return [2]boundedInbox{{inboxKey{recipient, e.Network}, quota}, {whole, quota.OfAll(g.spread(recipient))}}, 2
}

// inboxesToCount adds to w the inboxes that the engine must count before the entries are decided. These are inboxes
// without a cached count, and inboxes that may become full in this group by the cached count, unless staysFull says
// that they need no new count. For each inbox added, counting has the index of the entry that needs the count.
func (g *group) inboxesToCount(entries []relay.Entry, w *Wanted) (counting []int) {
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
		all, n := g.boundedInboxes(e)
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

// maybeUnasked reports whether m may be a message that its recipient did not ask for. It is called before the message's
// thread is known. It returns false only if the recipient asked for messages of every thread that m names by its
// sender, recipient and thread id.
func (g *group) maybeUnasked(m *envelope.Envelope) bool {
	if m.Type == envelope.TypeManifest || m.Type == envelope.TypeRequest {
		return true
	}
	threads := g.partyThreads(m)
	return len(threads) == 0 || slices.ContainsFunc(threads, func(h *groupThread) bool { return h.Unasked(m.Recipient) })
}

// setCount caches the count of an inbox that the engine returned.
func (g *group) setCount(asked Inbox, found Count) {
	b := inbox{events: found.Events, bytes: found.Bytes, fullUntil: asked.Now.Add(maxRetryAfter), counted: asked.Now}
	b.recountAfter = max(minRecountInterval, time.Duration(found.Examined)*recountDelayPerMessage)
	if !found.First.IsZero() && found.First.Before(b.fullUntil) {
		b.fullUntil = found.First
	}
	g.inboxes[inboxKey{asked.Recipient, asked.Network}] = b
}

// addToInbox adds an event with this charge to the cached counts of inbox k and of the recipient's whole inbox.
func (l *Ledger) addToInbox(k inboxKey, charge int64, expires time.Time) {
	if charge == 0 {
		return
	}
	for _, k := range [...]inboxKey{k, {k.recipient, AllNetworks}} { // network 0 has no cached count
		l.touched = append(l.touched, k)
		b, ok := l.inboxes[k]
		if !ok {
			continue
		}
		b.events++
		b.bytes += charge
		if expires.Before(b.fullUntil) {
			b.fullUntil = expires
		}
		l.inboxes[k] = b
	}
}

// checkInbox returns an error if the recipient's inbox has no room for e, unless a REQUEST has reserved room for e. h
// is the thread that e changes; nil if e opens one.
func (g *group) checkInbox(e relay.Entry, h *groupThread, charge int64) error {
	if charge == 0 {
		return nil
	}
	retryAfter := g.fullFor(e, charge)
	if retryAfter == 0 || usesReserve(e, h) {
		return nil
	}
	return &envelope.Error{Code: envelope.CodeRateLimited,
		Details: map[string]any{envelope.DetailLimit: envelope.LimitInbox}, RetryAfter: retryAfter,
		Message: "the recipient's inbox is full; try again after some of the messages in it have expired"}
}

// fullFor returns how long the sender of e should wait until the recipient's inbox may have room for this charge; 0 if
// it has room now.
func (g *group) fullFor(e relay.Entry, charge int64) time.Duration {
	all, n := g.boundedInboxes(e)
	for j, k := range all[:n] {
		b := g.inboxes[k.inboxKey]
		if !b.isFull(charge, k.quota) {
			continue
		}
		if j > 0 {
			// The bound for all networks is reached. Every sender gets the same time, because the real one would reveal
			// when other senders' messages expire.
			return maxRetryAfter
		}
		return max(b.fullUntil.Sub(e.Received), minRecountInterval)
	}
	return 0
}

// usesReserve reports whether e may use the room that the REQUEST of its thread h has reserved in the inbox, see
// relay.ClosingReserve. That is so if e is no longer than the reserve and the REQUEST has not expired. An unasked
// message that is not a REQUEST always ends its thread.
func usesReserve(e relay.Entry, h *groupThread) bool {
	m := e.Envelope
	return m.Type != envelope.TypeRequest && h != nil && len(m.Canonical()) <= relay.ClosingReserve &&
		e.Received.Before(h.RequestExpires)
}

// spread returns an unpredictable number from 0 to 1 for relay.Quota.OfAll. A Ledger always returns the same number for
// the same recipient.
func (l *Ledger) spread(recipient didkey.DID) float64 {
	return float64(maphash.Comparable(l.seed, recipient)) / math.MaxUint64
}

// checkManifestLimit returns an error if e has a manifest for the directory and its sender already has
// relay.MaxManifests other manifests there.
func (g *group) checkManifestLimit(e relay.Entry) error {
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
	return &envelope.Error{Code: envelope.CodeRateLimited,
		Details: map[string]any{envelope.DetailLimit: envelope.LimitManifestsPerAgent}, RetryAfter: maxRetryAfter,
		Message: "the directory already has " + strconv.Itoa(others) + " manifests of this agent, which is the limit; " +
			"to replace one of them, post a manifest with the same manifest id"}
}

// list adds a manifest to the group's copy of the directory, or replaces the one with the same id. It returns false
// and does nothing if the one listed has a later timestamp. A copy of another relay does not replace one with the
// same timestamp either.
func (g *group) list(sender didkey.DID, m Listed, mirrored bool) bool {
	all := g.listings[sender]
	i := slices.IndexFunc(all, func(l Listed) bool { return l.ID == m.ID })
	switch {
	case i < 0:
		g.listings[sender] = append(all, m)
	case m.TS.Before(all[i].TS), mirrored && m.TS.Equal(all[i].TS):
		return false
	default:
		all[i] = m
	}
	return true
}
