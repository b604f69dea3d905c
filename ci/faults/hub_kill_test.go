package faults

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"testing"
	"time"
)

const hubKillRounds = 8

// TestHubKillLoop kills a relay with a hub again and again, while agents send messages with an Idempotency-Key and
// receive them by streams, polls and webhooks. It tests that what was answered with 2xx is there, whole and once (G-4),
// that what was not answered is there whole or not at all (G-5), that each message arrives at least once, and that
// repeats have the same trace_id. In the end, agora check must find nothing.
func TestHubKillLoop(t *testing.T) {
	relay := newServer(t, "--hub", "--outbound-allow", "127.0.0.1", "--hub-name", "x", "--log-level", "warn")
	r := random(t)
	rounds := *roundsFlag
	if rounds == 0 {
		rounds = max(scaled(hubKillRounds), 3)
	}
	began := time.Now()
	relay.start()
	l := startHubLoad(t, relay, r)
	for range rounds {
		sleep(minUptime + time.Duration(r.Int64N(int64(maxUptime-minUptime))))
		relay.kill()
		if r.IntN(5) == 0 { // kill it once more, perhaps before it listens
			must(t, relay.launch())
			sleep(time.Duration(r.Int64N(int64(maxUptime / 10))))
			relay.kill()
		}
		relay.start()
	}
	l.end()
	l.audit()
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
	if out, err := exec.Command(binary, "check", "--data", relay.data).CombinedOutput(); err != nil {
		t.Errorf("agora check: %v\n%s", err, out)
	}
	t.Logf("%d kills in %s: %s", rounds, time.Since(began).Round(time.Second), l.summary())
}

// hubNumbers are numbers of TestHubKillLoop that the log shows.
type hubNumbers struct {
	sent, answered, resent, replayed, received, repeated, confirmed, registered int
}

func (l *hubLoad) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.numbers
	return fmt.Sprintf("%d messages, %d answered, %d requests sent again, %d of them answered from the store; "+
		"%d messages received, %d repeats, %d confirmations; %d registrations", n.sent, n.answered, n.resent,
		n.replayed, n.received, n.repeated, n.confirmed, n.registered)
}

// audit compares what was answered with what has arrived, and with the histories of all senders.
func (l *hubLoad) audit() {
	t := l.t
	ids, times := map[int64]string{}, map[int64]string{}
	for _, s := range l.senders {
		rows := map[string][]hubRow{}
		for _, row := range l.history(s) {
			rows[row.Envelope.Text] = append(rows[row.Envelope.Text], row)
			ids[row.ID], times[row.ID] = row.Trace, row.Timestamp
		}
		for _, m := range s.sent {
			l.auditMessage(m, rows[m.text])
			delete(rows, m.text)
		}
		if len(rows) > 0 {
			t.Errorf("the history of %s has %d messages that it has not sent: %v", s.address, len(rows), rows)
		}
	}
	last := ""
	for _, id := range sortedKeys(ids) { // one series of ids and timestamps for the hub (H-21)
		if times[id] <= last {
			t.Errorf("message %d has the timestamp %s, and the one before it %s", id, times[id], last)
		}
		last = times[id]
	}
	for _, a := range l.registrations {
		l.auditRegistration(a)
	}
}

// auditMessage checks the rows of one message in its sender's history.
func (l *hubLoad) auditMessage(m *hubMessage, rows []hubRow) {
	got := m.receiver.got[m.text]
	switch {
	case len(rows) > 1:
		l.t.Errorf("message %.20s is stored %d times", m.text, len(rows))
	case len(rows) == 0 && m.trace != "":
		l.t.Errorf("message %.20s was answered with 2xx and is not stored", m.text)
	case len(rows) == 0 && got != nil:
		l.t.Errorf("message %.20s has arrived and is not stored", m.text)
	case len(rows) == 0:
		return
	case got == nil:
		l.t.Errorf("message %.20s is stored, but has not arrived at %s", m.text, m.receiver.address)
	}
	if len(rows) != 1 || got == nil {
		return
	}
	row := rows[0]
	if m.trace != "" && m.trace != row.Trace || got.trace != row.Trace {
		l.t.Errorf("message %.20s has the traces %q for its sender, %q in the history and %q for its receiver", m.text,
			m.trace, row.Trace, got.trace)
	}
	if row.Envelope.Sender != m.sender.address || row.Receiver != m.receiver.address {
		l.t.Errorf("message %.20s of %s to %s is stored as %+v", m.text, m.sender.address, m.receiver.address, row)
	}
	if row.State != "delivered" && (row.State != "sent" || got.confirmed) {
		l.t.Errorf("message %.20s has arrived at %s by %s (confirmed: %t), and is %s", m.text, m.receiver.address, row.Via,
			got.confirmed, row.State)
	}
}

// auditRegistration checks an agent that was registered during the kills.
func (l *hubLoad) auditRegistration(a *hubAgent) {
	shown := l.ask(hubCall{method: http.MethodGet, path: "/agents/" + a.address})
	session := hubCall{method: http.MethodPost, path: "/agent/session", key: a.key}
	switch {
	case shown.status == http.StatusNotFound && a.key == "":
		return
	case shown.status != http.StatusOK || shown.Data.AgentID != a.address || shown.Data.Card.Culture != "en":
		l.t.Errorf("%s was registered (answered: %t), and is shown as %+v", a.address, a.key != "", shown)
	case a.key != "" && l.ask(session).status != http.StatusOK:
		l.t.Errorf("the key of %s does not work", a.address)
	}
}

// newRandom returns another source of random numbers, for another goroutine.
func newRandom(r *rand.Rand) *rand.Rand { return rand.New(rand.NewPCG(r.Uint64(), 0)) }
