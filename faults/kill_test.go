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

// patient are the arguments of a relay whose threads outlast every test: notices of timeouts would be mail that nobody
// counted.
var patient = []string{"--pending-timeout", "24h", "--active-timeout", "24h", "--log-level", "warn"}

const (
	killers      = 50 // kills after which all is looked at
	conversants  = 12
	shortestLife = 5 * time.Millisecond
	longestLife  = 500 * time.Millisecond
)

// What was acknowledged is delivered, once and in one order, however often the relay is killed (PROTOCOL §5, §7;
// THREATS T3, T7). Killing loses nothing of what the kernel has, so this says nothing about fsync: TestFsync does.
func TestKillLoop(t *testing.T) {
	relay := newServer(t, patient...)
	r := random(t)
	rounds := *roundsFlag
	if rounds == 0 {
		rounds = scaled(killers)
	}
	cursor, began := "0", time.Now()
	for {
		cursor = campaign(t, relay, r, rounds, cursor)
		if t.Failed() || time.Since(began).Minutes() >= *minutesFlag {
			return
		}
	}
}

// campaign kills the relay so many times under load, and then audits. It begins and ends with the relay down and
// returns the cursor behind all it has stored.
func campaign(t *testing.T, relay *server, r *rand.Rand, rounds int, cursor string) string {
	began := time.Now()
	l := startLoad(t, relay, r, conversants, cursor)
	early := 0
	for range rounds {
		life := shortestLife + time.Duration(r.Int64N(int64(longestLife-shortestLife)))
		if r.IntN(5) == 0 { // before it listens, perhaps
			must(t, relay.launch())
			pass(life / 10)
			relay.kill()
			early++
		}
		relay.start()
		l.checkLatest()
		pass(life)
		relay.kill()
	}
	relay.start()
	l.end()
	cursor = l.audit(cursor)
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with code %d", code)
	}
	t.Logf("%d kills, %d of them early, in %s: %s", rounds+early, early, time.Since(began).Round(time.Second), l.oracle.figures())
	return cursor
}

// pass lets so much time go by.
func pass(d time.Duration) { <-time.After(d) }

// checkLatest posts again what was acknowledged last before the kill: it must be known.
func (l *load) checkLatest() {
	for _, m := range l.oracle.latest() {
		a, err := l.relay.tryAsk(http.MethodPost, "/events", m.Canonical())
		if err != nil {
			l.t.Errorf("repeating %s: %v", m.ID, err)
			continue
		}
		l.oracle.answered(m, a)
	}
}

// audit compares the store with the readers' accounts and the threads with their events, and settles what became of
// messages without a receipt. It returns the cursor behind everything.
func (l *load) audit(from string) string {
	t, o := l.t, l.oracle
	events, _ := l.relay.stored(from)
	everything := newAccount("a reader who comes at the end", "", true)
	there, threads := map[string]bool{}, map[string][]*envelope.Envelope{}
	for _, e := range events {
		everything.add(e.ID)
		there[e.ID] = true
		threads[e.Thread] = append(threads[e.Thread], e)
		if m := o.sent[e.ID]; m != nil && !bytes.Equal(m.Canonical(), e.Canonical()) {
			t.Errorf("%s was not stored as it was sent", e.ID)
		}
	}
	o.check(everything)
	l.sameOrder(everything)
	for _, r := range l.threads {
		a := l.relay.ask(http.MethodGet, "/threads/"+r.Thread+"?client="+url.QueryEscape(string(r.Sender.ID)), nil)
		o.checkThread(r.Sender.ID, r.Thread, threads[r.Thread], a)
	}
	for id, m := range o.sent {
		if !m.acked.IsZero() || m.refused || m.TTL < longTTL {
			continue
		}
		// Wholly there or not at all: a message in the store is a duplicate, one that is not is new or comes too late.
		a := l.relay.ask(http.MethodPost, "/events", m.Canonical())
		if there[id] != (a.OK && a.Duplicate) || !a.OK && a.Error != envelope.CodeInvalidTransition {
			t.Errorf("%s had no answer; in the store: %t; posted again: %s, duplicate=%t", id, there[id], a, a.Duplicate)
		}
	}
	_, end := l.relay.stored(from)
	return end
}

// sameOrder checks that the readers with a cursor got what they share in the order of the store.
func (l *load) sameOrder(stored *account) {
	place := map[string]int{}
	for i, d := range stored.deliveries {
		place[d.id] = i
	}
	for _, a := range l.accounts {
		last := -1
		for _, d := range a.deliveries {
			n, ok := place[d.id]
			if !a.once || !ok {
				continue // it has expired meanwhile
			}
			if n < last {
				l.t.Errorf("%s got %s out of order", a.name, d.id)
			}
			last = n
		}
	}
}
