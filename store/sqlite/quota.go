package sqlite

import (
	"database/sql"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// inbox is what waits for one recipient unasked, see relay.Quota: never less than there is, because what has expired since it was counted is
// still in it.
type inbox struct {
	events   int
	bytes    int64
	fullTill time.Time // before then nothing of it expires
	counted  time.Time
}

// isFull reports whether b may be taken for full at now without a look, if it was when it was counted.
func (b inbox) isFull(now time.Time) bool {
	return now.Before(b.fullTill) && b.fullTill.Sub(now) <= comeAgain || now.Sub(b.counted).Abs() < countEvery
}

// comeAgain is the longest that who was refused is told to wait, and that an inbox is taken for full without a look.
const comeAgain = time.Minute

// countEvery is how often a full inbox is counted at most. The writer needs some ten milliseconds for ten thousand
// events, and whoever lets one of them expire every now and then must not cost it that for each of his posts.
const countEvery = time.Second

// maxInboxes bounds how many inboxes are counted in memory, some 30 MB.
const maxInboxes = 200_000

// admit refuses e if there is no room for it: its recipient's inbox is full and nobody asked for it, or its sender has
// as many manifests as an agent may.
func (w *writer) admit(sender int64, e relay.Entry) error {
	if err := w.admitListing(sender, e); err != nil {
		return err
	}
	return w.admitMail(e)
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

// unasked reports whether nobody asked for m. Only such mail counts: a thread's is bounded by the thread's rules, and
// the relay's own notices of ended threads must not fill an inbox.
func unasked(m *envelope.Envelope) bool {
	return m.Type == envelope.TypeRequest || m.Type == envelope.TypeManifest
}

func (w *writer) admitMail(e relay.Entry) error {
	m, quota := e.Envelope, w.store.policy.Inbox
	if e.Local || !unasked(m) || m.Recipient == "" || quota.Events < 0 && quota.Bytes < 0 {
		return nil
	}
	recipient, err := w.party(m.Recipient)
	if recipient == 0 || err != nil {
		return err // nobody has written to a party that has no number
	}
	size := int64(len(m.Canonical()))
	full := func(b inbox) bool {
		return quota.Events >= 0 && b.events >= quota.Events || quota.Bytes >= 0 && b.bytes+size > quota.Bytes
	}
	b, counted := w.inboxes[recipient]
	if now := e.Received; !counted || full(b) && !b.isFull(now) {
		if b, err = w.count(recipient, now, quota); err != nil {
			return err
		}
		w.keep(recipient, b)
	}
	if !full(b) {
		return nil
	}
	return &envelope.Error{Code: envelope.CodeRateLimited, Details: map[string]any{"limit": "inbox"},
		Message:    "the recipient's inbox is full; try again when some of what waits there has expired",
		RetryAfter: max(b.fullTill.Sub(e.Received), countEvery)}
}

// count looks at no more of an inbox than makes it full.
func (w *writer) count(recipient int64, now time.Time, quota relay.Quota) (b inbox, err error) {
	limit := -1
	if quota.Events >= 0 {
		limit = quota.Events
	}
	var expires sql.NullInt64
	err = w.stmts.waiting.QueryRow(recipient, nanos(now), limit).Scan(&b.events, &b.bytes, &expires)
	b.counted, b.fullTill = now, now.Add(comeAgain)
	if first := instant(expires.Int64); expires.Valid && first.Before(b.fullTill) {
		b.fullTill = first
	}
	return b, err
}

// received adds an event to its recipient's inbox, if that is counted.
func (w *writer) received(recipient int64, m *envelope.Envelope, expires time.Time) {
	if b, ok := w.inboxes[recipient]; ok && unasked(m) {
		b.events++
		b.bytes += int64(len(m.Canonical()))
		if expires.Before(b.fullTill) {
			b.fullTill = expires
		}
		w.inboxes[recipient] = b
	}
}

func (w *writer) keep(recipient int64, b inbox) {
	if len(w.inboxes) >= maxInboxes {
		clear(w.inboxes)
	}
	w.inboxes[recipient] = b
}
