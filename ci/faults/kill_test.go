package faults

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// longTimeouts are arguments for a relay whose threads do not time out during a test. Notices of timeouts would be
// events that the tests do not expect.
var longTimeouts = []string{"--pending-timeout", "24h", "--active-timeout", "24h", "--log-level", "warn"}

const (
	killRounds  = 50 // kills before each audit
	loadWorkers = 12
	minUptime   = 5 * time.Millisecond
	maxUptime   = 500 * time.Millisecond
)

// TestKillLoop tests that each acknowledged message is delivered once and in the same order to all readers, however
// often the relay is killed (PROTOCOL §5, §7; SECURITY.md T3, T7). The kernel keeps what a killed process has written,
// so this test does not show whether the relay calls fsync: see TestFsync.
func TestKillLoop(t *testing.T) {
	relay := newServer(t, longTimeouts...)
	r := random(t)
	rounds := *roundsFlag
	if rounds == 0 {
		rounds = scaled(killRounds)
	}
	cursor, began := "0", time.Now()
	for {
		cursor = killAndAudit(t, relay, r, rounds, cursor)
		if t.Failed() || time.Since(began).Minutes() >= *minutesFlag {
			return
		}
	}
}

// killAndAudit kills the relay rounds times under load, and then audits it. The relay is not running before and after
// it. It returns the cursor after all stored events.
func killAndAudit(t *testing.T, relay *server, r *rand.Rand, rounds int, cursor string) string {
	began := time.Now()
	l := startLoad(t, relay, r, loadWorkers, cursor)
	early := 0
	for range rounds {
		uptime := minUptime + time.Duration(r.Int64N(int64(maxUptime-minUptime)))
		if r.IntN(5) == 0 { // kill it once more, perhaps before it listens
			must(t, relay.launch())
			sleep(uptime / 10)
			relay.kill()
			early++
		}
		relay.start()
		l.checkLatest()
		sleep(uptime)
		relay.kill()
	}
	relay.start()
	l.end()
	cursor = l.audit(cursor)
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
	t.Logf("%d kills, %d of them during the start, in %s: %s", rounds+early, early,
		time.Since(began).Round(time.Second), l.oracle.summary())
	return cursor
}

// sleep waits for d.
func sleep(d time.Duration) { <-time.After(d) }

// checkLatest posts the messages again that were acknowledged last before the kill. The relay must recognize them.
func (l *load) checkLatest() {
	for _, m := range l.oracle.latest() {
		a, err := l.relay.tryAsk(http.MethodPost, "/events", m.Canonical())
		if err != nil {
			l.t.Errorf("posting %s again: %v", m.ID, err)
			continue
		}
		l.oracle.recordAnswer(m, a)
	}
}

// audit compares the stored events with what the readers received, and the records of threads with their events. It
// posts the messages without a receipt again, to check that each was stored completely or not at all. It returns the
// cursor after all stored events.
func (l *load) audit(from string) string {
	t, o := l.t, l.oracle
	events, _ := l.relay.stored(from)
	everything := newReaderLog("a reader of all stored events", "", true)
	stored, threads := map[string]bool{}, map[string][]*envelope.Envelope{}
	for _, e := range events {
		everything.add(e.ID)
		stored[e.ID] = true
		threads[e.Thread] = append(threads[e.Thread], e)
		if m := o.sent[e.ID]; m != nil && !bytes.Equal(m.Canonical(), e.Canonical()) {
			t.Errorf("the stored message %s differs from the message that was sent", e.ID)
		}
	}
	o.check(everything)
	l.checkOrder(everything)
	for _, r := range l.threads {
		a := l.relay.ask(http.MethodGet, "/threads/"+r.Thread+"?client="+url.QueryEscape(string(r.Sender.ID)), nil)
		o.checkThread(r.Sender.ID, r.Thread, threads[r.Thread], a)
	}
	for id, m := range o.sent {
		if !m.acked.IsZero() || m.refused || m.TTL < longTTL {
			continue
		}
		// A stored message must be a duplicate now. Any other message must be new, or too late for the state of its
		// thread.
		a := l.relay.ask(http.MethodPost, "/events", m.Canonical())
		if stored[id] != (a.OK && a.Duplicate) || !a.OK && a.Error != envelope.CodeInvalidTransition {
			t.Errorf("message %s got no answer; stored: %t; answer when posted again: %s, duplicate=%t", id, stored[id],
				a, a.Duplicate)
		}
	}
	_, end := l.relay.stored(from)
	return end
}

// checkOrder checks that the readers with a cursor received their events in the order of the store.
func (l *load) checkOrder(stored *readerLog) {
	position := map[string]int{}
	for i, d := range stored.deliveries {
		position[d.id] = i
	}
	for _, a := range l.readerLogs {
		last := -1
		for _, d := range a.deliveries {
			n, ok := position[d.id]
			if !a.exactlyOnce || !ok {
				continue // the event has expired since
			}
			if n < last {
				l.t.Errorf("%s received event %s out of order", a.name, d.id)
			}
			last = n
		}
	}
}
