package check

import (
	"bytes"
	"database/sql"
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
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// How many rows are held in memory at a time.
const (
	threadsAtOnce = 32 // with their events
	eventsAtOnce  = 256
)

// storedEvent is a row of the table event and what it refers to. Missing parts are empty.
type storedEvent struct {
	seq                           int64
	id, sender, recipient, kind   string
	thread                        int64
	ts, received, expires, forget int64
	leaf                          sql.NullInt64
	mirrored                      bool
	salt, body                    []byte
}

func (e storedEvent) where() string { return fmt.Sprintf("event %d (%q)", e.seq, e.id) }

// events returns the events that match condition. condition also says their order.
func (c *checker) events(condition string, args ...any) (found []storedEvent, err error) {
	err = c.each(func(scan scanner) error {
		var e storedEvent
		err := scan(&e.seq, &e.id, &e.sender, &e.recipient, &e.kind, &e.thread, &e.ts, &e.received, &e.expires,
			&e.forget, &e.leaf, &e.salt, &e.mirrored, &e.body)
		found = append(found, e)
		return err
	}, "SELECT e.seq, e.id, COALESCE(s.did, ''), COALESCE(r.did, iif(e.recipient = 0, '', '?')), "+
		"e.type, e.thread, e.ts, e.received, e.expires, e.forget, e.leaf, e.salt, e.network = "+
		""+strconv.Itoa(relay.MirrorNetwork)+", e.body FROM event e "+
		"LEFT JOIN party s ON s.id = e.sender LEFT JOIN party r ON r.id = e.recipient WHERE "+condition, args...)
	for _, e := range found {
		if len(e.body) == 0 {
			c.report.Cut++
		}
	}
	c.report.Events += int64(len(found))
	return found, err
}

// advance returns the number after which the next rows are read. It fails if the rows were not in order, as in a
// damaged table, because the check would not end if it went back.
func advance(last, next int64) (int64, error) {
	if next <= last {
		return last, fmt.Errorf("%w: number %d comes after %d", errRow, next, last)
	}
	return next, nil
}

// check returns what is wrong with e by itself. It also returns the envelope, unless the body was cut, is damaged, or
// has a wrong signature.
func (e storedEvent) check(now time.Time) (*envelope.Envelope, []Finding) {
	wrong := func(format string, args ...any) []Finding {
		return []Finding{{e.where(), fmt.Sprintf(format, args...), cureDamage}}
	}
	if len(e.body) == 0 {
		if e.expires > ledger.Nanos(now) {
			return nil, wrong("its body is missing, but it must be delivered until %s",
				envelope.FormatTime(ledger.Instant(e.expires)))
		}
		return nil, nil
	}
	m, err := envelope.Parse(e.body, len(e.body))
	if err != nil {
		return nil, wrong("its body is not an envelope (%v)", err)
	}
	if !bytes.Equal(m.Canonical(), e.body) {
		return nil, wrong("its body is not in canonical form")
	}
	if err := m.Verify(); err != nil {
		return nil, wrong("its signature is invalid (%v)", err)
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
		{"thread", (e.thread == 0) == (m.Type == envelope.TypeManifest || e.mirrored)},
		{"ts", e.ts == ledger.Nanos(m.TS)},
		// expires may be earlier because of the relay's max-ttl
		{"expires", e.received < e.expires && e.expires <= ledger.Nanos(m.ExpiresAt())},
		{"forget", e.forget >= e.expires},
	} {
		if !column.same {
			columns = append(columns, column.name)
		}
	}
	if columns != nil {
		return m, wrong("it is stored with another %s than the signed envelope has", strings.Join(columns, ", "))
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

// anyThread selects the columns that scanThread scans.
const anyThread = "SELECT t.n, t.id, t.client, t.due, t.open, t.state, t.record FROM thread t "

func scanThread(scan scanner) (row ledger.Row, err error) {
	var due, state int64
	err = scan(&row.Number, &row.ID, &row.Client, &due, &row.Open, &state, &row.Record)
	row.Due, row.State = ledger.Instant(due), ledger.StateOf(state)
	return row, err
}

// threadsAfter returns the next rows of the table thread, at most threadsAtOnce.
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
		if last, err = advance(last, rows[len(rows)-1].Number); err != nil {
			return err
		}
		some := make([]storedThread, len(rows))
		unmerged, err := c.unmerged(rows)
		if err != nil {
			return err
		}
		events, err := c.events("e.seq IN (SELECT seq FROM event_thread WHERE thread BETWEEN ? AND ? AND seq <= ? "+
			"UNION ALL SELECT value FROM json_each(?)) AND EXISTS (SELECT 1 FROM thread WHERE n = e.thread) "+
			"ORDER BY e.thread, e.seq", first, last, c.merged, unmerged)
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
		inParallel(c, some, func(t storedThread) []Finding {
			return append(t.check(c.options.Now), c.checkLeaves(t)...)
		})
		c.report.Threads += int64(len(some))
		c.checked.Store(c.report.Events)
	}
}

// otherEvents checks the events that threads has not checked: those without a thread, and those whose thread is
// missing.
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
		if last, err = advance(last, some[len(some)-1].seq); err != nil {
			return err
		}
		inParallel(c, some, func(e storedEvent) []Finding {
			_, findings := e.check(c.options.Now)
			if e.thread == 0 {
				findings = append(findings, c.checkLeaf(e, proof.Hash{})...)
			}
			// A thread's record is kept longer than its events. But an event that is due for removal may remain for a
			// moment after its thread's record.
			if e.thread != 0 && e.forget > ledger.Nanos(removedBy(c.options.Now)) {
				findings = append(findings, Finding{e.where(), "the record of its thread is missing", cureDamage})
			}
			return findings
		})
		c.checked.Store(c.report.Events)
	}
}

// messageKey identifies a message.
type messageKey struct {
	by didkey.DID
	id string
}

// removedBy returns the latest time by which the relay may have removed what was due. It is after now if the clock was
// set back since.
func removedBy(now time.Time) time.Time { return now.Add(replay.StepBack) }

// check returns what is wrong with t and its events.
func (t storedThread) check(now time.Time) (findings []Finding) {
	wrong := func(where, format string, args ...any) {
		findings = append(findings, Finding{where, fmt.Sprintf(format, args...), cureDamage})
	}
	envelopes := map[messageKey]*envelope.Envelope{} // the events' envelopes; nil: cut or damaged
	var latest int64
	removed := false // the operator has removed an event, so its expiry is not known any more
	for _, e := range t.events {
		m, found := e.check(now)
		findings = append(findings, found...)
		if m != nil && m.Thread != t.ID {
			wrong(e.where(), "it is stored in thread %q, but the signed envelope says %q", t.ID, m.Thread)
		}
		envelopes[messageKey{didkey.DID(e.sender), e.id}] = m
		latest = max(latest, e.expires)
		removed = removed || e.expires < 0
	}
	r, err := t.Decode()
	if err != nil {
		wrong(t.where(), "its record cannot be read (%v)", err)
		return findings
	}
	if t.State != r.State {
		wrong(t.where(), "it is stored with the state %q, but its record has the state %q", t.State, r.State)
	}
	// Expired envelopes may have been removed. The envelope that expires last must be stored until r.Keep.
	if keep := ledger.Nanos(r.Keep); keep < latest || keep > latest && !removed && r.Keep.After(removedBy(now)) {
		wrong(t.where(), "its record says that its last envelope expires at %s, but the last stored one expires at %s",
			envelope.FormatTime(r.Keep), envelope.FormatTime(ledger.Instant(latest)))
	}
	if _, alive := (thread.Rules{}).Deadline(r.Thread); !alive && t.Due.Before(r.Keep) {
		wrong(t.where(), "its record would be removed before its last envelope expires")
	}
	begin := messageKey{r.Transitions[0].By, r.Transitions[0].ID}
	for _, e := range t.events {
		if (messageKey{didkey.DID(e.sender), e.id}) == begin && e.expires > 0 &&
			e.expires != ledger.Nanos(r.RequestExpires) {
			wrong(t.where(), "its REQUEST expires at %s, but its record says %s",
				envelope.FormatTime(ledger.Instant(e.expires)), envelope.FormatTime(r.RequestExpires))
		}
	}
	findings = append(findings, t.checkSteps(r, envelopes, now)...)
	if err := checkHistory(r.Thread, envelopes); err != nil {
		wrong(t.where(), "its record does not follow from its envelopes (%v)", err)
	}
	return findings
}

// checkSteps compares the steps of t's record r with its events. envelopes has the envelopes of the events.
func (t storedThread) checkSteps(
	r *ledger.Thread, envelopes map[messageKey]*envelope.Envelope, now time.Time,
) (findings []Finding) {
	wrong := func(where, format string, args ...any) {
		findings = append(findings, Finding{where, fmt.Sprintf(format, args...), cureDamage})
	}
	steps := map[messageKey]time.Time{}
	for _, step := range r.Transitions {
		n := messageKey{step.By, step.ID}
		steps[n] = step.At
		if _, stored := envelopes[n]; !stored && step.ID != "" &&
			removedBy(now).Before(step.At.Add(replay.DefaultMemory)) {
			wrong(t.where(), "its record has a step by the %s %q, which is not stored", step.Type, step.ID)
		}
	}
	for _, e := range t.events {
		movedAt, recorded := steps[messageKey{didkey.DID(e.sender), e.id}]
		notice := r.TimedOut() && e.kind == string(envelope.TypeError) // from the relay; no step of the thread
		if recorded && e.received != ledger.Nanos(movedAt) {
			wrong(e.where(), "its thread's record has this step at another time than it was received")
		}
		if !recorded && !notice {
			wrong(e.where(), "the record of its thread has no step for it")
		}
	}
	return findings
}

// checkHistory replays a thread's history step by step from the stored envelopes. After the first envelope that is
// missing, nothing more can be compared.
func checkHistory(r thread.Thread, envelopes map[messageKey]*envelope.Envelope) error {
	var replayed thread.Thread
	complete := true
	for i, step := range r.Transitions {
		if i == 0 && (step.Type != envelope.TypeRequest || step.By != r.Client) {
			return errors.New("it does not begin with its client's REQUEST")
		}
		m := envelopes[messageKey{step.By, step.ID}]
		if complete = complete && (m != nil || step.ID == ""); !complete {
			continue
		}
		var err error
		if replayed, err = replayStep(replayed, step, m); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	if !complete {
		return nil
	}
	got, err := json.Marshal(inUTC(replayed))
	if err != nil {
		return err
	}
	want, err := json.Marshal(inUTC(r))
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("it should be %s", got)
	}
	return err
}

// replayStep applies one step of a record to t. The relay's timeouts are not known here. So a thread times out exactly
// when the record says so.
func replayStep(t thread.Thread, step thread.Transition, m *envelope.Envelope) (thread.Thread, error) {
	const forever = time.Duration(math.MaxInt64 / 2)
	if m != nil {
		noTimeouts := thread.Rules{PendingTimeout: forever, ActiveTimeout: forever, MaxOffers: math.MaxInt}
		if t.State == "" {
			t, _, err := noTimeouts.Apply(nil, m, step.At)
			return t, err
		}
		return noTimeouts.Next(t, m, step.At)
	}
	if step.Type == thread.TypeRemoved {
		return t.Remove(step.At), nil
	}
	earliest, alive := thread.Rules{PendingTimeout: 1, ActiveTimeout: 1}.Deadline(t)
	if !alive || !step.At.After(earliest) {
		return t, errors.New("no timeout was due then")
	}
	waited := step.At.Sub(earliest) + 1
	return thread.Rules{PendingTimeout: waited, ActiveTimeout: waited}.At(t, step.At), nil
}

// inUTC returns t with all times in UTC, so that threads can be compared as text.
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

// storedManifest is a row of the table manifest and the event that it refers to.
type storedManifest struct {
	n, seq      int64
	id, intents string
	kind        string // type of the event; empty: the event is missing
	same        bool   // sender, recipient and times are equal to the event's
	indexed     bool   // the search by intent finds the manifest
	body        []byte
}

// manifests checks that each row of the directory agrees with its MANIFEST.
func (c *checker) manifests() error {
	for last := int64(0); ; {
		var some []storedManifest
		err := c.each(func(scan scanner) error {
			var m storedManifest
			err := scan(&m.n, &m.seq, &m.id, &m.intents, &m.kind, &m.same, &m.indexed, &m.body)
			some = append(some, m)
			return err
		}, "SELECT m.n, m.seq, m.id, m.intents, COALESCE(e.type, ''), "+
			"COALESCE(m.sender = e.sender AND m.recipient = e.recipient "+
			"AND m.ts = e.ts AND m.expires = e.expires, 0), "+
			// indexed
			"iif(json_valid(m.intents), NOT EXISTS (SELECT 1 FROM json_each(m.intents) WHERE NOT EXISTS "+
			"(SELECT 1 FROM manifest_intent i WHERE i.intent = value AND i.n = m.n "+
			"AND i.recipient = m.recipient)), 0), COALESCE(e.body, x'') FROM manifest m "+
			"LEFT JOIN event e ON e.seq = m.seq WHERE m.n > ? ORDER BY m.n LIMIT "+strconv.Itoa(eventsAtOnce), last)
		if err != nil || len(some) == 0 {
			return err
		}
		if last, err = advance(last, some[len(some)-1].n); err != nil {
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
		return wrong("it refers to event %d, which is not a stored MANIFEST", m.seq)
	}
	if !m.indexed {
		return wrong("it is not found by its intents")
	}
	if !m.same {
		return wrong("it is listed with another sender, another recipient or other times than event %d has", m.seq)
	}
	e, err := envelope.Parse(m.body, len(m.body))
	if err != nil {
		return nil // cut, or reported with the event
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
		return wrong("it is listed with another id or other intents than event %d has", m.seq)
	}
	return nil
}
