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

// oracle knows what was sent and what the relay has said about it. Any goroutine may call it.
type oracle struct {
	t testing.TB

	mu       sync.Mutex
	sent     map[string]*message // by id; the ids are the envelopes' own random ones
	cursors  map[string]string   // of receipts, to the id
	recent   []*message          // the last acknowledged
	refusals int
	wrong    int // faults reported
	lost     int
	doubled  int
}

// message is what the oracle knows of one envelope.
type message struct {
	*envelope.Envelope
	began   time.Time // before it was sent first
	acked   time.Time // when the first receipt was there; zero: there was none
	refused bool      // a definite refusal came
	cursor  string    // of the receipt
}

func newOracle(t testing.TB) *oracle {
	return &oracle{t: t, sent: map[string]*message{}, cursors: map[string]string{}}
}

// fail reports a fault of the relay; not too often, as one may show a thousand times.
func (o *oracle) fail(format string, args ...any) {
	if o.wrong++; o.wrong <= 20 {
		o.t.Errorf(format, args...)
	}
}

func (o *oracle) sending(e *envelope.Envelope) *message {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.sent[e.ID]
	if m == nil {
		m = &message{Envelope: e, began: time.Now()}
		o.sent[e.ID] = m
	}
	return m
}

// answered takes down a definite answer to a post. That a message has expired says nothing: it may have been taken before.
func (o *oracle) answered(m *message, a answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.Error == envelope.CodeExpired && !time.Now().Before(m.ExpiresAt()) {
		return
	}
	if !a.OK {
		o.refusals++
		m.refused = true
		if !m.acked.IsZero() {
			o.fail("%s was acknowledged, and then refused: %s", m.ID, a)
		}
		if a.Error != envelope.CodeInvalidTransition { // the loser of a race
			o.fail("%s was refused without a reason: %s", m.ID, a)
		}
		return
	}
	if m.refused {
		o.fail("%s was refused for good, and then acknowledged", m.ID)
	}
	if m.cursor != "" && (m.cursor != a.Cursor || !a.Duplicate) {
		o.fail("%s has the receipt %s, and another one: %s, duplicate=%t", m.ID, m.cursor, a.Cursor, a.Duplicate)
	}
	if other, taken := o.cursors[a.Cursor]; taken && other != m.ID {
		o.fail("%s and %s have the same place, %s", m.ID, other, a.Cursor)
	}
	if want := m.ExpiresAt(); !a.ExpiresAt.Equal(want) {
		o.fail("%s expires at %s, the receipt says %s", m.ID, want, a.ExpiresAt)
	}
	o.cursors[a.Cursor], m.cursor = m.ID, a.Cursor
	if m.acked.IsZero() {
		m.acked = time.Now()
		o.recent = append(o.recent, m)
		if len(o.recent) > 8 {
			o.recent = o.recent[1:]
		}
	}
}

// latest returns the messages acknowledged last.
func (o *oracle) latest() []*message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.recent)
}

// delivery is one event as a reader got it.
type delivery struct {
	id   string
	when time.Time
}

// account is all that a reader got, in order.
type account struct {
	name       string
	recipient  didkey.DID // "": it reads everything
	once       bool       // what comes may come only once: it reads with a cursor
	deliveries []delivery
	times      map[string]int
}

func newAccount(name string, recipient didkey.DID, once bool) *account {
	return &account{name: name, recipient: recipient, once: once, times: map[string]int{}}
}

// add counts an event and reports whether it was new.
func (a *account) add(id string) bool {
	a.times[id]++
	a.deliveries = append(a.deliveries, delivery{id, time.Now()})
	return a.times[id] == 1
}

// wants reports whether an envelope is for this reader.
func (a *account) wants(e *envelope.Envelope) bool {
	return a.recipient == "" || e.Recipient == "" || e.Recipient == a.recipient
}

// check compares a reader's account with what was acknowledged. The reader has read to the end.
func (o *oracle) check(a *account) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// latestBegan[i] is when the youngest of the first i+1 deliveries was sent: whatever was acknowledged before that
	// and comes later has been passed over.
	latestBegan := make([]time.Time, len(a.deliveries))
	var latest time.Time
	for i, d := range a.deliveries {
		m := o.sent[d.id]
		if m == nil {
			o.fail("%s got %s, which nobody sent", a.name, d.id)
			continue
		}
		if m.refused {
			o.fail("%s got %s, which was refused", a.name, d.id)
		}
		if !a.wants(m.Envelope) {
			o.fail("%s got %s, which is for %s", a.name, d.id, m.Recipient)
		}
		if a.once && !m.acked.IsZero() && m.acked.Before(latest) && a.times[d.id] == 1 {
			o.fail("%s got %s after one that was sent when %s had been acknowledged", a.name, d.id, d.id)
		}
		if m.began.After(latest) {
			latest = m.began
		}
		latestBegan[i] = latest
	}
	for id, times := range a.times {
		if a.once && times > 1 {
			o.doubled++
			o.fail("%s got %s %d times", a.name, id, times)
		}
	}
	now := time.Now()
	for id, m := range o.sent {
		if m.acked.IsZero() || !a.wants(m.Envelope) || a.times[id] > 0 {
			continue
		}
		// An expired message may be missing, unless a younger one was delivered while it was still alive.
		alive, _ := slices.BinarySearchFunc(a.deliveries, m.ExpiresAt(), func(d delivery, t time.Time) int { return d.when.Compare(t) })
		if now.Before(m.ExpiresAt()) || alive > 0 && latestBegan[alive-1].After(m.acked) {
			o.lost++
			o.fail("%s never got %s, acknowledged %s before the end, ttl %s", a.name, id, now.Sub(m.acked), m.TTL)
		}
	}
}

// checkThread compares a thread's record with the deliveries in it.
func (o *oracle) checkThread(client didkey.DID, id string, delivered []*envelope.Envelope, a answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.status == http.StatusNotFound {
		if len(delivered) > 0 {
			o.fail("thread %s has %d events and no record", id, len(delivered))
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
		o.fail("thread %s of %s is %s after %q; its events were %q", id, client, a.Thread.State, steps, ids)
	}
}

// figures are what a run is told by.
func (o *oracle) figures() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	acked := 0
	for _, m := range o.sent {
		if !m.acked.IsZero() {
			acked++
		}
	}
	return fmt.Sprintf("%d sent, %d acknowledged, %d refused, %d lost, %d doubled", len(o.sent), acked, o.refusals, o.lost, o.doubled)
}
