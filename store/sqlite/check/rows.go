package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// How many rows are held in memory at a time.
const (
	threadsAtOnce = 32 // with their events
	eventsAtOnce  = 256
)

// storedEvent is a row of the table event with what it refers to; what is not there is empty.
type storedEvent struct {
	seq                           int64
	id, sender, recipient, kind   string
	thread                        int64
	ts, received, expires, forget int64
	body                          []byte
}

func (e storedEvent) where() string { return fmt.Sprintf("event %d (%q)", e.seq, e.id) }

// events returns the rows that a condition selects, by thread and number.
func (c *checker) events(condition string, args ...any) (found []storedEvent, err error) {
	err = c.each(func(scan scanner) error {
		var e storedEvent
		err := scan(&e.seq, &e.id, &e.sender, &e.recipient, &e.kind, &e.thread, &e.ts, &e.received, &e.expires, &e.forget, &e.body)
		found = append(found, e)
		return err
	}, "SELECT e.seq, e.id, COALESCE(s.did, ''), COALESCE(r.did, iif(e.recipient = 0, '', '?')), e.type, e.thread, e.ts, e.received, e.expires, e.forget, e.body "+
		"FROM event e LEFT JOIN party s ON s.id = e.sender LEFT JOIN party r ON r.id = e.recipient WHERE "+condition, args...)
	for _, e := range found {
		if len(e.body) == 0 {
			c.report.Cut++
		}
	}
	c.report.Events += int64(len(found))
	return found, err
}

// further returns where the next rows are read from. In a damaged table rows may be out of order, and going back would
// have no end.
func further(last, next int64) (int64, error) {
	if next <= last {
		return last, fmt.Errorf("%w: number %d comes after %d", errRow, next, last)
	}
	return next, nil
}

// check returns what is wrong with e by itself, and its envelope if that can be trusted.
func (e storedEvent) check(now time.Time) (*envelope.Envelope, []Finding) {
	wrong := func(format string, args ...any) []Finding {
		return []Finding{{e.where(), fmt.Sprintf(format, args...), cureDamage}}
	}
	if len(e.body) == 0 {
		if e.expires > ledger.Nanos(now) {
			return nil, wrong("has lost its body and would have to be delivered until %s", envelope.FormatTime(ledger.Instant(e.expires)))
		}
		return nil, nil
	}
	m, err := envelope.Parse(e.body, len(e.body))
	if err != nil {
		return nil, wrong("its body is no envelope (%v)", err)
	}
	if !bytes.Equal(m.Canonical(), e.body) {
		return nil, wrong("its body is not in canonical form")
	}
	if err := m.Verify(); err != nil {
		return nil, wrong("its signature does not hold (%v)", err)
	}
	var columns []string
	for _, column := range []struct {
		name string
		same bool
	}{
		{"sender", e.sender == string(m.Sender.ID)},
		{"id", e.id == m.ID},
		{"recipient", e.recipient == string(m.Recipient)},
		{"type", e.kind == string(m.Type)},
		{"thread", (e.thread == 0) == (m.Type == envelope.TypeManifest)},
		{"ts", e.ts == ledger.Nanos(m.TS)},
		{"expires", e.received < e.expires && e.expires <= ledger.Nanos(m.ExpiresAt())}, // earlier by the relay's max-ttl
		{"forget", e.forget >= e.expires},
	} {
		if !column.same {
			columns = append(columns, column.name)
		}
	}
	if columns != nil {
		return m, wrong("it is filed under another %s than the signed envelope says", strings.Join(columns, ", "))
	}
	return m, nil
}

// storedThread is a row of the table thread and its events.
type storedThread struct {
	ledger.Row
	events []storedEvent
}

func (t storedThread) where() string { return where(t.Row) }

func where(row ledger.Row) string { return fmt.Sprintf("thread %d (%q)", row.Number, row.ID) }

// anyThread selects what scanThread scans.
const anyThread = "SELECT t.n, t.id, t.client, t.due, t.open, t.record FROM thread t "

func scanThread(scan scanner) (row ledger.Row, err error) {
	var due int64
	err = scan(&row.Number, &row.ID, &row.Client, &due, &row.Open, &row.Record)
	row.Due = ledger.Instant(due)
	return row, err
}

// threadsAfter returns the next rows of the table thread, threadsAtOnce of them at most.
func (c *checker) threadsAfter(last int64) (some []ledger.Row, err error) {
	err = c.each(func(scan scanner) error {
		row, err := scanThread(scan)
		some = append(some, row)
		return err
	}, anyThread+"WHERE t.n > ? ORDER BY t.n LIMIT "+strconv.Itoa(threadsAtOnce), last)
	return some, err
}

// threads checks each thread together with its events.
func (c *checker) threads() error {
	stop, err := c.watch()
	if err != nil {
		return err
	}
	defer stop()
	for last := int64(0); ; {
		rows, err := c.threadsAfter(last)
		if err != nil || len(rows) == 0 {
			return err
		}
		first := rows[0].Number
		if last, err = further(last, rows[len(rows)-1].Number); err != nil {
			return err
		}
		some := make([]storedThread, len(rows))
		events, err := c.events("e.thread BETWEEN ? AND ? AND EXISTS (SELECT 1 FROM thread WHERE n = e.thread) ORDER BY e.thread, e.seq", first, last)
		if err != nil {
			return err
		}
		for i := range some {
			some[i].Row = rows[i]
			n := 0
			for n < len(events) && events[n].thread == some[i].Number {
				n++
			}
			some[i].events, events = events[:n], events[n:]
		}
		inParallel(c, some, func(t storedThread) []Finding { return t.check(c.options.Now) })
		c.report.Threads += int64(len(some))
		c.checked.Store(c.report.Events)
	}
}

// otherEvents checks those that threads did not come by: of no thread, or of one that is not there.
func (c *checker) otherEvents() error {
	stop, err := c.watch()
	if err != nil {
		return err
	}
	defer stop()
	for last := int64(math.MinInt64); ; {
		some, err := c.events("e.seq > ? AND (e.thread = 0 OR NOT EXISTS (SELECT 1 FROM thread WHERE n = e.thread)) "+
			"ORDER BY e.seq LIMIT "+strconv.Itoa(eventsAtOnce), last)
		if err != nil || len(some) == 0 {
			return err
		}
		if last, err = further(last, some[len(some)-1].seq); err != nil {
			return err
		}
		inParallel(c, some, func(e storedEvent) []Finding {
			_, findings := e.check(c.options.Now)
			// A record outlives the rows that refer to it, but the two are not removed in one step.
			if e.thread != 0 && e.forget > ledger.Nanos(c.options.Now) {
				findings = append(findings, Finding{e.where(), "the record of its thread is missing", cureDamage})
			}
			return findings
		})
		c.checked.Store(c.report.Events)
	}
}

// name is what a message is known by.
type name struct {
	by didkey.DID
	id string
}

// check returns what is wrong with t and its events.
func (t storedThread) check(now time.Time) (findings []Finding) {
	wrong := func(where, format string, args ...any) {
		findings = append(findings, Finding{where, fmt.Sprintf(format, args...), cureDamage})
	}
	envelopes := map[name]*envelope.Envelope{} // of its events; nil: cut, or wrong
	var latest int64
	for _, e := range t.events {
		m, found := e.check(now)
		findings = append(findings, found...)
		if m != nil && m.Thread != t.ID {
			wrong(e.where(), "it is filed under thread %q, the signed envelope says %q", t.ID, m.Thread)
		}
		envelopes[name{didkey.DID(e.sender), e.id}] = m
		latest = max(latest, e.expires)
	}
	r, err := t.Decode()
	if err != nil {
		wrong(t.where(), "its record cannot be read (%v)", err)
		return findings
	}
	// An envelope may have gone once it has expired, the one that expires last is there until then.
	if keep := ledger.Nanos(r.Keep); keep < latest || keep > latest && r.Keep.After(now) {
		wrong(t.where(), "its last envelope expires at %s, but at %s among those stored", envelope.FormatTime(r.Keep), envelope.FormatTime(ledger.Instant(latest)))
	}
	if _, alive := (thread.Rules{}).Deadline(r.Thread); !alive && t.Due.Before(r.Keep) {
		wrong(t.where(), "its record would be removed before its last envelope expires")
	}
	begin := name{r.Transitions[0].By, r.Transitions[0].ID}
	for _, e := range t.events {
		if (name{didkey.DID(e.sender), e.id}) == begin && e.expires != 0 && e.expires != ledger.Nanos(r.RequestExpires) {
			wrong(t.where(), "its REQUEST expires at %s, its record says %s", envelope.FormatTime(ledger.Instant(e.expires)), envelope.FormatTime(r.RequestExpires))
		}
	}
	steps := map[name]time.Time{}
	for _, step := range r.Transitions {
		n := name{step.By, step.ID}
		steps[n] = step.At
		if _, stored := envelopes[n]; !stored && step.Type != thread.TypeTimeout && now.Before(step.At.Add(replay.DefaultMemory)) {
			wrong(t.where(), "its record has a step by the %s %q, which is not stored", step.Type, step.ID)
		}
	}
	for _, e := range t.events {
		at, known := steps[name{didkey.DID(e.sender), e.id}]
		notice := r.TimedOut() && e.kind == string(envelope.TypeError) // the relay's, which moves nothing
		if known && e.received != ledger.Nanos(at) {
			wrong(e.where(), "it moved its thread at another time than it was received")
		}
		if !known && !notice {
			wrong(e.where(), "the record of its thread does not know it")
		}
	}
	if err := plausible(r.Thread, envelopes); err != nil {
		wrong(t.where(), "its record is not what its envelopes make of it (%v)", err)
	}
	return findings
}

// plausible plays a thread's history again, step by step, with the envelopes that are there. From the first that has
// gone on it only asks whether each step follows from the one before.
func plausible(r thread.Thread, envelopes map[name]*envelope.Envelope) error {
	var again thread.Thread
	whole := true
	for i, step := range r.Transitions {
		if i == 0 && (step.Type != envelope.TypeRequest || step.By != r.Client) {
			return errors.New("it does not begin with its client's REQUEST")
		}
		m := envelopes[name{step.By, step.ID}]
		if whole = whole && (m != nil || step.Type == thread.TypeTimeout); !whole {
			continue
		}
		var err error
		if again, err = playStep(again, step, m); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	if !whole {
		return nil
	}
	got, err := json.Marshal(inUTC(again))
	if err != nil {
		return err
	}
	want, err := json.Marshal(inUTC(r))
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("it should be %s", got)
	}
	return err
}

// playStep moves t as a step of its record says. How long a relay lets a thread wait is not known here, so the clock
// moves it when the record says so and at no other time.
func playStep(t thread.Thread, step thread.Transition, m *envelope.Envelope) (thread.Thread, error) {
	const ever = time.Duration(math.MaxInt64 / 2)
	if m != nil {
		patient := thread.Rules{PendingTimeout: ever, ActiveTimeout: ever, MaxOffers: math.MaxInt}
		if t.State == "" {
			t, _, err := patient.Apply(nil, m, step.At)
			return t, err
		}
		return patient.Next(t, m, step.At)
	}
	soon, alive := thread.Rules{PendingTimeout: 1, ActiveTimeout: 1}.Deadline(t)
	if !alive || !step.At.After(soon) {
		return t, errors.New("no time was up then")
	}
	waited := step.At.Sub(soon) + 1
	return thread.Rules{PendingTimeout: waited, ActiveTimeout: waited}.At(t, step.At), nil
}

// inUTC returns t with its times in one zone, to be compared as text.
func inUTC(t thread.Thread) thread.Thread {
	t.Offers, t.Transitions = slices.Clone(t.Offers), slices.Clone(t.Transitions)
	for i := range t.Offers {
		t.Offers[i].At = t.Offers[i].At.UTC()
	}
	for i := range t.Transitions {
		t.Transitions[i].At = t.Transitions[i].At.UTC()
	}
	return t
}

// storedManifest is a row of the table manifest and the event it points at.
type storedManifest struct {
	n, seq      int64
	id, intents string
	kind        string // of the event; empty: there is none
	same        bool   // sender and times are the event's
	indexed     bool   // the search by intents finds it
	body        []byte
}

// manifests checks that each row of the directory is what its MANIFEST says.
func (c *checker) manifests() error {
	for last := int64(0); ; {
		var some []storedManifest
		err := c.each(func(scan scanner) error {
			var m storedManifest
			err := scan(&m.n, &m.seq, &m.id, &m.intents, &m.kind, &m.same, &m.indexed, &m.body)
			some = append(some, m)
			return err
		}, "SELECT m.n, m.seq, m.id, m.intents, COALESCE(e.type, ''), "+
			"COALESCE(m.sender = e.sender AND m.recipient = e.recipient AND m.ts = e.ts AND m.expires = e.expires, 0), "+
			// Whether the search by intents finds it.
			"iif(json_valid(m.intents), NOT EXISTS (SELECT 1 FROM json_each(m.intents) WHERE NOT EXISTS "+
			"(SELECT 1 FROM manifest_intent i WHERE i.intent = value AND i.n = m.n AND i.recipient = m.recipient)), 0), COALESCE(e.body, x'') "+
			"FROM manifest m LEFT JOIN event e ON e.seq = m.seq WHERE m.n > ? ORDER BY m.n LIMIT "+strconv.Itoa(eventsAtOnce), last)
		if err != nil || len(some) == 0 {
			return err
		}
		if last, err = further(last, some[len(some)-1].n); err != nil {
			return err
		}
		inParallel(c, some, storedManifest.check)
		c.report.Manifests += int64(len(some))
	}
}

func (m storedManifest) check() []Finding {
	wrong := func(format string, args ...any) []Finding {
		return []Finding{{fmt.Sprintf("manifest %d (%q)", m.n, m.id), fmt.Sprintf(format, args...), cureDamage}}
	}
	if m.kind != string(envelope.TypeManifest) {
		return wrong("it is listed by event %d, which is no MANIFEST that is stored", m.seq)
	}
	if !m.indexed {
		return wrong("it is not found by its intents")
	}
	if !m.same {
		return wrong("it is listed with another sender, another recipient or other times than event %d has", m.seq)
	}
	e, err := envelope.Parse(m.body, len(m.body))
	if err != nil {
		return nil // cut, or said of the event
	}
	var payload envelope.Manifest
	if err := e.DecodePayload(&payload); err != nil {
		return wrong("event %d does not hold a manifest (%v)", m.seq, err)
	}
	intents := []string{}
	for _, intent := range payload.Intents {
		intents = append(intents, intent.ID)
	}
	text, err := json.Marshal(intents)
	if err != nil || m.id != payload.ID || m.intents != string(text) {
		return wrong("it is listed with another id or other intents than event %d says", m.seq)
	}
	return nil
}
