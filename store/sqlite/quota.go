package sqlite

import (
	"database/sql"
	"hash/maphash"
	"math"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// inboxKey names what waits for a recipient from one network, see relay.Entry.Network.
type inboxKey struct{ recipient, network int64 }

// allNetworks takes a network's place in the key of what waits for a recipient from anywhere.
const allNetworks = math.MinInt64

// inbox is a count of what waits unasked, see relay.Quota. It is never less than there is: what has expired since the
// count is still in it.
type inbox struct {
	events   int
	bytes    int64
	fullTill time.Time // nothing of it expires before then
	counted  time.Time
}

// isFull reports whether b, which was full when it was counted, is taken for full at now without another count.
func (b inbox) isFull(now time.Time) bool {
	return now.Before(b.fullTill) && b.fullTill.Sub(now) <= comeAgain || now.Sub(b.counted).Abs() < countEvery
}

// comeAgain is the longest Retry-After of a full inbox, and how long an inbox is taken for full without a count.
const comeAgain = time.Minute

// countEvery is how often a full inbox is counted at most. A sender who lets one message expire now and then must not
// cost the writer a count for each post.
const countEvery = time.Second

// maxInboxes bounds how many inboxes are counted in memory, some 40 MB.
const maxInboxes = 200_000

// admit returns what e counts against its recipient's inbox, or refuses e: the inbox is full, or the sender has as many
// manifests as an agent may. t is the thread as e leaves it.
func (w *writer) admit(sender int64, e relay.Entry, t thread.Thread) (charge int64, err error) {
	if err := w.admitListing(sender, e); err != nil {
		return 0, err
	}
	return w.admitMail(e, t)
}

func (w *writer) admitListing(sender int64, e relay.Entry) error {
	if e.Listing == nil || sender == 0 {
		return nil
	}
	var others int
	err := w.stmts.manifests.QueryRow(sender, e.Listing.ID, nanos(e.Received)).Scan(&others)
	if err != nil || others < relay.MaxManifests {
		return err
	}
	return &envelope.Error{Code: envelope.CodeRateLimited, Details: map[string]any{"limit": "manifestsPerAgent"}, RetryAfter: comeAgain,
		Message: "the directory has " + strconv.Itoa(others) + " manifests of this agent, and keeps no more; replace one by using its id again"}
}

// charged returns how many bytes m counts against the inbox of its recipient, 0 if the recipient asked for it. t is the
// thread as m leaves it.
func charged(m *envelope.Envelope, t thread.Thread) int64 {
	if m.Recipient == "" || !t.Unasked(m.Recipient) {
		return 0
	}
	size := int64(len(m.Canonical()))
	if m.Type == envelope.TypeRequest {
		size += relay.ClosingReserve
	}
	return size
}

func (w *writer) admitMail(e relay.Entry, t thread.Thread) (charge int64, err error) {
	m, quota := e.Envelope, w.store.policy.Inbox
	charge = charged(m, t)
	if e.Local || charge == 0 || quota.Events < 0 && quota.Bytes < 0 {
		return charge, nil
	}
	recipient, err := w.party(m.Recipient)
	if recipient == 0 || err != nil {
		return charge, err // nobody has written to a party that has no number
	}
	all := inboxKey{recipient, allNetworks}
	var again time.Duration
	if e.Network == 0 {
		again, err = w.full(all, charge, e.Received, quota)
	} else if again, err = w.full(inboxKey{recipient, e.Network}, charge, e.Received, quota); err == nil && again == 0 {
		// Here Retry-After is always the same: when the mail of others expires is not for this sender to know.
		if again, err = w.full(all, charge, e.Received, quota.OfAll(w.spread(recipient))); again > 0 {
			again = comeAgain
		}
	}
	if again == 0 || err != nil {
		return charge, err
	}
	if closes, err := w.closes(m, t, e.Received); closes || err != nil {
		return charge, err
	}
	return 0, &envelope.Error{Code: envelope.CodeRateLimited, Details: map[string]any{"limit": "inbox"}, RetryAfter: again,
		Message: "the recipient's inbox is full; try again when some of what waits there has expired"}
}

// full returns how long an inbox stays full for a message of this charge; 0: it has room.
func (w *writer) full(k inboxKey, charge int64, now time.Time, quota relay.Quota) (again time.Duration, err error) {
	full := func(b inbox) bool {
		return quota.Events >= 0 && b.events >= quota.Events || quota.Bytes >= 0 && b.bytes+charge > quota.Bytes
	}
	b, counted := w.inboxes[k]
	if !counted || full(b) && !b.isFull(now) {
		if b, err = w.count(k, now, quota); err != nil {
			return 0, err
		}
		w.keep(k, b)
	}
	if !full(b) {
		return 0, nil
	}
	return max(b.fullTill.Sub(now), countEvery), nil
}

// closes reports whether m is the message for which the REQUEST of its thread t holds room: a short one that ends the
// thread, while the REQUEST waits in the same inbox.
func (w *writer) closes(m *envelope.Envelope, t thread.Thread, now time.Time) (bool, error) {
	if m.Type == envelope.TypeRequest || m.Type == envelope.TypeManifest || len(m.Canonical()) > relay.ClosingReserve {
		return false, nil
	}
	expires, err := w.requestExpires(t)
	return now.Before(expires), err
}

// requestExpires returns when the REQUEST of t expires; the zero time if it is not stored any more.
func (w *writer) requestExpires(t thread.Thread) (expires time.Time, err error) {
	client, err := w.party(t.Client)
	if client == 0 || err != nil {
		return time.Time{}, err
	}
	err = eachRow(func(scan scanner) error {
		var at int64
		err := scan(&at)
		expires = instant(at)
		return err
	}, func() (*sql.Rows, error) { return w.stmts.expiryOf.Query(client, t.Transitions[0].ID) })
	return expires, err
}

// spread returns a number from 0 to 1 that nobody can foresee, the same for a recipient until the process ends.
func (w *writer) spread(recipient int64) float64 {
	return float64(maphash.Comparable(w.seed, recipient)) / math.MaxUint64
}

// count looks at no more of an inbox than makes it full.
func (w *writer) count(k inboxKey, now time.Time, quota relay.Quota) (b inbox, err error) {
	limit := -1
	if quota.Events >= 0 {
		limit = quota.Events
	}
	row := w.stmts.waiting.QueryRow
	args := []any{k.recipient, k.network, nanos(now), limit}
	if k.network == allNetworks {
		row, args = w.stmts.waitingOfAll.QueryRow, []any{k.recipient, nanos(now), limit}
	}
	var expires sql.NullInt64
	err = row(args...).Scan(&b.events, &b.bytes, &expires)
	b.counted, b.fullTill = now, now.Add(comeAgain)
	if first := instant(expires.Int64); expires.Valid && first.Before(b.fullTill) {
		b.fullTill = first
	}
	return b, err
}

// received adds an event to the inboxes that are counted.
func (w *writer) received(k inboxKey, charge int64, expires time.Time) {
	if charge == 0 {
		return
	}
	for _, k := range [...]inboxKey{k, {k.recipient, allNetworks}} { // of network 0 nothing is counted but the whole
		b, ok := w.inboxes[k]
		if !ok {
			continue
		}
		b.events++
		b.bytes += charge
		if expires.Before(b.fullTill) {
			b.fullTill = expires
		}
		w.inboxes[k] = b
	}
}

func (w *writer) keep(k inboxKey, b inbox) {
	if len(w.inboxes) >= maxInboxes {
		clear(w.inboxes)
	}
	w.inboxes[k] = b
}
