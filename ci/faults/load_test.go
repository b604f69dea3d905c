package faults

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// load runs workers that hold conversations, and readers. They continue when the relay is killed and started again.
// They report each message and each answer to an oracle.
type load struct {
	t       testing.TB
	relay   *server
	oracle  *oracle
	keys    []didkey.Key
	from    string // the cursor at which the readers begin
	started time.Time

	workers, readers sync.WaitGroup
	stopWorkers      context.CancelFunc // ends the workers
	workersDone      chan struct{}      // closed when all workers have ended; readers then read to the end and stop

	mu         sync.Mutex
	threads    []*envelope.Envelope // the REQUESTs with a long ttl
	readerLogs []*readerLog
}

const longTTL = 12 * time.Hour

func startLoad(t testing.TB, relay *server, r *rand.Rand, workers int, from string) *load {
	l := &load{
		t:           t,
		relay:       relay,
		oracle:      newOracle(t),
		keys:        newKeys(t, workers),
		from:        from,
		started:     time.Now(),
		workersDone: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	l.stopWorkers = cancel
	for i := range workers {
		random := rand.New(rand.NewPCG(r.Uint64(), 0))
		l.workers.Go(func() { (&worker{load: l, n: i, random: random}).run(ctx) })
	}
	l.readCursor("a reader of all events with limit 1000", "", 1000)
	l.readCursor("a reader of all events with limit 7", "", 7)
	l.readCursor("a reader of one inbox", l.keys[0].DID(), 100)
	l.readSince("a reader with since", l.keys[1].DID(), 100)
	l.readSince("a reader with since and limit 3", l.keys[2].DID(), 3)
	return l
}

// end ends the workers, waits until the readers have read to the end, and checks what they received. The relay must be
// running.
func (l *load) end() {
	l.t.Helper()
	l.stopWorkers()
	l.workers.Wait()
	close(l.workersDone)
	l.readers.Wait()
	for _, a := range l.readerLogs {
		l.oracle.check(a)
	}
}

func (l *load) workersEnded() bool {
	select {
	case <-l.workersDone:
		return true
	default:
		return false
	}
}

// worker holds one conversation after the other. It acts as the client and as the agents.
type worker struct {
	*load
	n      int
	random *rand.Rand
}

func (w *worker) key(offset int) didkey.Key { return w.keys[(w.n+offset)%len(w.keys)] }

func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		switch w.random.IntN(7) {
		case 0:
			w.postUntilAnswered(ctx, w.sign(w.key(0), envelope.Draft{
				TTL: time.Duration(1+w.random.IntN(2)) * time.Second, Payload: envelope.Request{Intent: "now"}}))
		case 1:
			w.postUntilAnswered(ctx, w.sign(w.key(0), envelope.Draft{
				TTL:     longTTL,
				Payload: envelope.Manifest{ID: "m", Name: "n", Intents: []envelope.Intent{{ID: "echo"}}}}))
		case 2:
			w.raceAccepts(ctx)
		case 3:
			w.converseInBulk()
		default:
			w.converse(ctx)
		}
	}
}

func (w *worker) sign(by didkey.Key, d envelope.Draft) *envelope.Envelope {
	e, err := d.Sign(by, time.Now())
	if err != nil {
		w.t.Errorf("cannot sign a message: %v", err)
	}
	return e
}

// postUntilAnswered posts e until the relay accepts or refuses it. After a lost answer it sometimes gives up. It
// reports whether the message was accepted, as far as the worker knows.
func (w *worker) postUntilAnswered(ctx context.Context, e *envelope.Envelope) bool {
	m := w.oracle.recordSent(e)
	for {
		relay, err := w.relay.address(ctx)
		if err != nil {
			return false
		}
		a, err := post(context.WithoutCancel(ctx), relay, e)
		if err != nil {
			if w.random.IntN(4) == 0 {
				return false
			}
			continue // the relay was killed; address waits until it runs again
		}
		w.oracle.recordAnswer(m, a)
		if a.OK && w.random.IntN(5) == 0 {
			continue // retry as if the answer had been lost
		}
		return a.OK
	}
}

// openThread posts a REQUEST whose thread is checked in the audit.
func (w *worker) openThread(ctx context.Context, to didkey.DID) (*envelope.Envelope, bool) {
	e := w.sign(w.key(0), envelope.Draft{Recipient: to, TTL: longTTL,
		Payload: envelope.Request{Intent: "echo", Title: "a title of some length, like those of real requests"}})
	w.mu.Lock()
	w.threads = append(w.threads, e)
	w.mu.Unlock()
	return e, w.postUntilAnswered(ctx, e)
}

func (w *worker) reply(
	to *envelope.Envelope, by didkey.Key, recipient didkey.DID, p envelope.Payload,
) *envelope.Envelope {
	return w.sign(by, envelope.Draft{Recipient: recipient, Thread: to.Thread, TTL: longTTL, Payload: p})
}

func (w *worker) converse(ctx context.Context) {
	me, agent := w.key(0), w.key(1)
	r, ok := w.openThread(ctx, agent.DID())
	ok = ok && w.postUntilAnswered(ctx, w.reply(r, agent, me.DID(), envelope.Offer{RequestID: r.RequestID}))
	ok = ok && w.postUntilAnswered(ctx, w.reply(r, me, agent.DID(), envelope.Accept{RequestID: r.RequestID}))
	_ = ok && w.postUntilAnswered(ctx,
		w.reply(r, agent, me.DID(), envelope.Result{RequestID: r.RequestID, Status: "success"}))
}

// converseInBulk posts all messages of some threads in bulk requests. It never gives up: the audit could not post the
// messages of a thread again, because it does not know their order.
func (w *worker) converseInBulk() {
	ctx := w.t.Context()
	me, agent := w.key(0), w.key(1)
	var all []*envelope.Envelope
	for range 1 + w.random.IntN(20) {
		r := w.sign(me, envelope.Draft{Recipient: agent.DID(), TTL: longTTL, Payload: envelope.Request{Intent: "echo"}})
		w.mu.Lock()
		w.threads = append(w.threads, r)
		w.mu.Unlock()
		all = append(all, r, w.reply(r, agent, me.DID(), envelope.Offer{RequestID: r.RequestID}),
			w.reply(r, me, agent.DID(), envelope.Accept{RequestID: r.RequestID}),
			w.reply(r, agent, me.DID(), envelope.Result{RequestID: r.RequestID, Status: "success"}))
	}
	messages := make([]*message, len(all))
	for i, e := range all {
		messages[i] = w.oracle.recordSent(e)
	}
	for len(all) > 0 {
		relay, err := w.relay.address(ctx)
		if err != nil {
			return
		}
		results, err := postBulk(ctx, relay, all)
		if err != nil {
			continue // the relay was killed; what it has stored are duplicates the next time
		}
		for i, a := range results {
			w.oracle.recordAnswer(messages[i], a)
		}
		all, messages = all[len(results):], messages[len(results):]
	}
}

// raceAccepts posts two ACCEPTs for two agents at the same time. At most one of them may be accepted.
func (w *worker) raceAccepts(ctx context.Context) {
	me := w.key(0)
	r, ok := w.openThread(ctx, "")
	for i := 1; ok && i <= 2; i++ {
		ok = w.postUntilAnswered(ctx, w.reply(r, w.key(i), me.DID(), envelope.Offer{RequestID: r.RequestID}))
	}
	if !ok {
		return
	}
	var taken [2]bool
	var accepts [2]*envelope.Envelope
	var both sync.WaitGroup
	for i := range accepts {
		accepts[i] = w.reply(r, me, w.key(1+i).DID(), envelope.Accept{RequestID: r.RequestID})
		racer := &worker{load: w.load, n: w.n, random: rand.New(rand.NewPCG(w.random.Uint64(), 0))}
		both.Go(func() { taken[i] = racer.postUntilAnswered(ctx, accepts[i]) })
	}
	both.Wait()
	w.oracle.checkRace(accepts)
	for i := range taken {
		if taken[i] {
			w.postUntilAnswered(ctx,
				w.reply(r, w.key(1+i), me.DID(), envelope.Result{RequestID: r.RequestID, Status: "success"}))
		}
	}
}

// checkRace checks that two concurrent ACCEPTs were not both accepted and not both refused.
func (o *oracle) checkRace(accepts [2]*envelope.Envelope) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a, b := o.sent[accepts[0].ID], o.sent[accepts[1].ID]
	if !a.acked.IsZero() && !b.acked.IsZero() {
		o.fail("two concurrent ACCEPTs were both accepted: %s and %s", a.ID, b.ID)
	}
	if a.refused && b.refused {
		o.fail("two concurrent ACCEPTs were both refused: %s and %s", a.ID, b.ID)
	}
}

// read runs a reader in a goroutine. next returns the query of the next poll. got handles the answer and reports
// whether it had new events. When the workers have ended, the reader ends after two polls without new events.
func (l *load) read(a *readerLog, next func() url.Values, got func(answer) (fresh bool)) {
	l.readerLogs = append(l.readerLogs, a)
	l.readers.Go(func() {
		for idle := 0; idle < 2; {
			q, last := next(), l.workersEnded()
			q.Set("timeout", "1.5") // more than the second for which the relay holds back events with equal timestamps
			relay, err := l.relay.address(l.t.Context())
			if err != nil {
				return
			}
			answer, err := poll(l.t.Context(), relay, q)
			if err != nil {
				continue // the relay was killed; repeat the poll
			}
			if answer.status != http.StatusOK {
				l.t.Errorf("the poll of %s was refused: %s", a.name, answer)
				return
			}
			if got(answer) || !last {
				idle = 0
			} else {
				idle++
			}
		}
	})
}

// record adds the events of an answer to the log of a reader. It returns the last event, and whether any event was new.
func (l *load) record(a *readerLog, events []json.RawMessage) (last *envelope.Envelope, fresh bool) {
	for _, text := range events {
		last = parse(l.t, text)
		if a.add(last.ID) {
			fresh = true
		}
	}
	return last, fresh
}

// inbox returns the query for the events of recipient, with broadcasts. For an empty recipient it selects all events.
func inbox(recipient didkey.DID) url.Values {
	if recipient == "" {
		return url.Values{}
	}
	return values("recipient", string(recipient), "broadcast", "true")
}

func (l *load) readCursor(name string, recipient didkey.DID, limit int) {
	a, cursor := newReaderLog(name, recipient, true), l.from
	l.read(a, func() url.Values {
		q := inbox(recipient)
		q.Set("cursor", cursor)
		q.Set("limit", strconv.Itoa(limit))
		return q
	}, func(page answer) bool {
		cursor = page.Cursor
		_, fresh := l.record(a, page.Events)
		return fresh
	})
}

// readSince starts a reader with the loop of the specification: since is the ts of the last event. The first since is
// not the ts of any event, because such a since would be a bookmark and would skip the events stored before that event.
func (l *load) readSince(name string, recipient didkey.DID, limit int) {
	a := newReaderLog(name, recipient, false)
	since := l.started.Truncate(time.Millisecond).Add(-time.Nanosecond).UTC().Format(time.RFC3339Nano)
	l.read(a, func() url.Values {
		q := inbox(recipient)
		q.Set("since", since)
		q.Set("limit", strconv.Itoa(limit))
		return q
	}, func(page answer) bool {
		last, fresh := l.record(a, page.Events)
		if last != nil {
			since = envelope.FormatTime(last.TS)
		}
		return fresh
	})
}
