package faults

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// oracle records which messages were sent and how the relay has answered them. Its methods may be called by any
// goroutine.
type oracle struct {
	t testing.TB

	mu         sync.Mutex
	sent       map[string]*message // by id; the ids are random and unique
	cursors    map[string]string   // from the cursor of a receipt to the message id
	recent     []*message          // the last 8 acknowledged messages
	refusals   int
	reported   int // failures that were reported
	lost       int
	duplicated int
}

// message is an envelope with the answers that it got.
type message struct {
	*envelope.Envelope
	began   time.Time // just before it was sent first
	acked   time.Time // when the first receipt had arrived; zero: no receipt
	refused bool      // the relay has refused it
	cursor  string    // in the receipt
}

func newOracle(t testing.TB) *oracle {
	return &oracle{t: t, sent: map[string]*message{}, cursors: map[string]string{}}
}

// fail reports a failure of the relay. It reports at most 20 failures, because one cause may produce thousands.
func (o *oracle) fail(format string, args ...any) {
	if o.reported++; o.reported <= 20 {
		o.t.Errorf(format, args...)
	}
}

func (o *oracle) recordSent(e *envelope.Envelope) *message {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.sent[e.ID]
	if m == nil {
		m = &message{Envelope: e, began: time.Now()}
		o.sent[e.ID] = m
	}
	return m
}

// recordAnswer records that a post was accepted or refused. A refusal because m has expired is ignored, because m may
// have been accepted before.
func (o *oracle) recordAnswer(m *message, a answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.Error == envelope.CodeExpired && !time.Now().Before(m.ExpiresAt()) {
		return
	}
	if !a.OK {
		o.refusals++
		m.refused = true
		if !m.acked.IsZero() {
			o.fail("message %s was acknowledged and later refused: %s", m.ID, a)
		}
		if a.Error != envelope.CodeInvalidTransition { // which is right for one of two concurrent ACCEPTs
			o.fail("message %s was refused without a valid reason: %s", m.ID, a)
		}
		return
	}
	if m.refused {
		o.fail("message %s was refused and later acknowledged", m.ID)
	}
	if !m.acked.IsZero() && !a.Duplicate {
		o.fail("message %s has two receipts, and the second one says that it is new", m.ID)
	}
	if a.Cursor != "" { // the receipt of a line of a bulk request has none
		if m.cursor != "" && m.cursor != a.Cursor {
			o.fail("message %s has a receipt with the cursor %s and one with the cursor %s", m.ID, m.cursor, a.Cursor)
		}
		if other, taken := o.cursors[a.Cursor]; taken && other != m.ID {
			o.fail("messages %s and %s have the same cursor %s", m.ID, other, a.Cursor)
		}
		o.cursors[a.Cursor], m.cursor = m.ID, a.Cursor
	}
	if want := m.ExpiresAt(); !a.ExpiresAt.Equal(want) {
		o.fail("message %s expires at %s, but expiresAt in the receipt is %s", m.ID, want, a.ExpiresAt)
	}
	if m.acked.IsZero() {
		m.acked = time.Now()
		o.recent = append(o.recent, m)
		if len(o.recent) > 8 {
			o.recent = o.recent[1:]
		}
	}
}

// latest returns the messages that were acknowledged last.
func (o *oracle) latest() []*message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.recent)
}

// delivery is one event that a reader received.
type delivery struct {
	id   string
	when time.Time
}

// readerLog contains all events that a reader received, in order.
type readerLog struct {
	name        string
	recipient   didkey.DID // "": the reader reads all events
	exactlyOnce bool       // the reader uses a cursor, so it must not receive an event twice
	deliveries  []delivery
	counts      map[string]int
}

func newReaderLog(name string, recipient didkey.DID, exactlyOnce bool) *readerLog {
	return &readerLog{name: name, recipient: recipient, exactlyOnce: exactlyOnce, counts: map[string]int{}}
}

// add records an event and reports whether the reader received it for the first time.
func (a *readerLog) add(id string) bool {
	a.counts[id]++
	a.deliveries = append(a.deliveries, delivery{id, time.Now()})
	return a.counts[id] == 1
}

// wants reports whether the reader should receive an envelope.
func (a *readerLog) wants(e *envelope.Envelope) bool {
	return a.recipient == "" || e.Recipient == "" || e.Recipient == a.recipient
}

// check compares what a reader received with the acknowledged messages. The reader must have read to the end.
func (o *oracle) check(a *readerLog) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// latestBegan[i] is the latest time began of the first i+1 deliveries. A message that was acknowledged before that
	// time and is delivered later was skipped.
	latestBegan := make([]time.Time, len(a.deliveries))
	var latest time.Time
	for i, d := range a.deliveries {
		m := o.sent[d.id]
		if m == nil {
			o.fail("%s received event %s, which was not sent", a.name, d.id)
			continue
		}
		if m.refused {
			o.fail("%s received event %s, which was refused", a.name, d.id)
		}
		if !a.wants(m.Envelope) {
			o.fail("%s received event %s, which is for %s", a.name, d.id, m.Recipient)
		}
		if a.exactlyOnce && !m.acked.IsZero() && m.acked.Before(latest) && a.counts[d.id] == 1 {
			o.fail("%s received event %s after an event that was sent later: %s was acknowledged before that", a.name,
				d.id, d.id)
		}
		if m.began.After(latest) {
			latest = m.began
		}
		latestBegan[i] = latest
	}
	for id, times := range a.counts {
		if a.exactlyOnce && times > 1 {
			o.duplicated++
			o.fail("%s received event %s %d times", a.name, id, times)
		}
	}
	now := time.Now()
	for id, m := range o.sent {
		if m.acked.IsZero() || !a.wants(m.Envelope) || a.counts[id] > 0 {
			continue
		}
		// An expired message may be missing. But it must not be missing if a message that was sent after its receipt
		// was delivered before it expired.
		alive, _ := slices.BinarySearchFunc(a.deliveries, m.ExpiresAt(),
			func(d delivery, t time.Time) int { return d.when.Compare(t) })
		if now.Before(m.ExpiresAt()) || alive > 0 && latestBegan[alive-1].After(m.acked) {
			o.lost++
			o.fail("%s did not receive event %s, which was acknowledged %s before the end and has the ttl %s", a.name,
				id, now.Sub(m.acked), m.TTL)
		}
	}
}

// checkThread compares the record of a thread with its delivered events.
func (o *oracle) checkThread(client didkey.DID, id string, delivered []*envelope.Envelope, a answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.status == http.StatusNotFound {
		if len(delivered) > 0 {
			o.fail("thread %s has %d events but no record", id, len(delivered))
		}
		return
	}
	var ids, steps []string
	state := "PENDING"
	for _, e := range delivered {
		ids = append(ids, e.ID)
		switch e.Type {
		case envelope.TypeAccept:
			state = "ACTIVE"
		case envelope.TypeResult:
			state = "COMPLETED"
		}
	}
	for _, step := range a.Thread.Transitions {
		steps = append(steps, step.ID)
	}
	if !slices.Equal(ids, steps) || string(a.Thread.State) != state {
		o.fail("the record of thread %s of %s has the state %s and the transitions %q, but its events are %q", id,
			client, a.Thread.State, steps, ids)
	}
}

// summary returns the numbers of a run for the log.
func (o *oracle) summary() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	acked := 0
	for _, m := range o.sent {
		if !m.acked.IsZero() {
			acked++
		}
	}
	return fmt.Sprintf("%d sent, %d acknowledged, %d refused, %d lost, %d delivered twice", len(o.sent), acked,
		o.refusals, o.lost, o.duplicated)
}
