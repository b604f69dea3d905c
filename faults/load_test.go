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

// load is agents in conversation, and readers, all of whom live through the relay's deaths. It tells an oracle what
// happens.
type load struct {
	t      testing.TB
	relay  *server
	oracle *oracle
	keys   []didkey.Key
	from   string // the cursor where the readers begin
	born   time.Time

	talk, listen sync.WaitGroup
	silence      context.CancelFunc // ends the talk
	quiet        chan struct{}      // closed when the talk has ended: the readers end when they have caught up

	mu       sync.Mutex
	threads  []*envelope.Envelope // the REQUESTs of long life
	accounts []*account
}

const longTTL = 12 * time.Hour

func startLoad(t testing.TB, relay *server, r *rand.Rand, workers int, from string) *load {
	l := &load{t: t, relay: relay, oracle: newOracle(t), keys: newKeys(t, workers), from: from, born: time.Now(), quiet: make(chan struct{})}
	ctx, silence := context.WithCancel(t.Context())
	l.silence = silence
	for i := range workers {
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		l.talk.Go(func() { (&worker{load: l, n: i, random: own}).run(ctx) })
	}
	l.readCursor("a reader of everything, 1000 at a time", "", 1000)
	l.readCursor("a reader of everything, 7 at a time", "", 7)
	l.readCursor("a reader of one inbox", l.keys[0].DID(), 100)
	l.readSince("a since reader", l.keys[1].DID(), 100)
	l.readSince("a since reader of small pages", l.keys[2].DID(), 3)
	return l
}

// end lets the conversations end where they are and the readers come to the end, and compares their accounts. The relay
// must be up.
func (l *load) end() {
	l.t.Helper()
	l.silence()
	l.talk.Wait()
	close(l.quiet)
	l.listen.Wait()
	for _, a := range l.accounts {
		l.oracle.check(a)
	}
}

func (l *load) ended() bool {
	select {
	case <-l.quiet:
		return true
	default:
		return false
	}
}

// worker holds conversations, one after the other, as the client and as its agents.
type worker struct {
	*load
	n      int
	random *rand.Rand
}

func (w *worker) key(offset int) didkey.Key { return w.keys[(w.n+offset)%len(w.keys)] }

func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		switch w.random.IntN(6) {
		case 0:
			w.say(ctx, w.sign(w.key(0), envelope.Draft{TTL: time.Duration(1+w.random.IntN(2)) * time.Second, Payload: envelope.Request{Intent: "now"}}))
		case 1:
			w.say(ctx, w.sign(w.key(0), envelope.Draft{TTL: longTTL, Payload: envelope.Manifest{ID: "m", Name: "n", Intents: []envelope.Intent{{ID: "echo"}}}}))
		case 2:
			w.race(ctx)
		default:
			w.converse(ctx)
		}
	}
}

func (w *worker) sign(by didkey.Key, d envelope.Draft) *envelope.Envelope {
	e, err := d.Sign(by, time.Now())
	if err != nil {
		w.t.Errorf("signing: %v", err)
	}
	return e
}

// say posts the same bytes until the relay gives a definite answer, or now and then gives up after a lost one. It
// reports whether the message was taken, to the worker's knowledge.
func (w *worker) say(ctx context.Context, e *envelope.Envelope) bool {
	m := w.oracle.sending(e)
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
			continue // it was killed; its address is not given out until there is another
		}
		w.oracle.answered(m, a)
		if a.OK && w.random.IntN(5) == 0 {
			continue // as if the answer had been lost
		}
		return a.OK
	}
}

// open posts a REQUEST whose thread will be looked at.
func (w *worker) open(ctx context.Context, to didkey.DID) (*envelope.Envelope, bool) {
	e := w.sign(w.key(0), envelope.Draft{Recipient: to, TTL: longTTL, Payload: envelope.Request{Intent: "echo", Title: "a title of some length, as people write them"}})
	w.mu.Lock()
	w.threads = append(w.threads, e)
	w.mu.Unlock()
	return e, w.say(ctx, e)
}

func (w *worker) reply(to *envelope.Envelope, by didkey.Key, recipient didkey.DID, p envelope.Payload) *envelope.Envelope {
	return w.sign(by, envelope.Draft{Recipient: recipient, Thread: to.Thread, TTL: longTTL, Payload: p})
}

func (w *worker) converse(ctx context.Context) {
	me, agent := w.key(0), w.key(1)
	r, ok := w.open(ctx, agent.DID())
	ok = ok && w.say(ctx, w.reply(r, agent, me.DID(), envelope.Offer{RequestID: r.RequestID}))
	ok = ok && w.say(ctx, w.reply(r, me, agent.DID(), envelope.Accept{RequestID: r.RequestID}))
	_ = ok && w.say(ctx, w.reply(r, agent, me.DID(), envelope.Result{RequestID: r.RequestID, Status: "success"}))
}

// race lets two ACCEPTs for two agents run against each other; of those that get an answer, one may be taken.
func (w *worker) race(ctx context.Context) {
	me := w.key(0)
	r, ok := w.open(ctx, "")
	for i := 1; ok && i <= 2; i++ {
		ok = w.say(ctx, w.reply(r, w.key(i), me.DID(), envelope.Offer{RequestID: r.RequestID}))
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
		both.Go(func() { taken[i] = racer.say(ctx, accepts[i]) })
	}
	both.Wait()
	w.oracle.raced(accepts)
	for i := range taken {
		if taken[i] {
			w.say(ctx, w.reply(r, w.key(1+i), me.DID(), envelope.Result{RequestID: r.RequestID, Status: "success"}))
		}
	}
}

// raced checks that not both of two ACCEPTs were taken, and that not both were refused.
func (o *oracle) raced(accepts [2]*envelope.Envelope) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a, b := o.sent[accepts[0].ID], o.sent[accepts[1].ID]
	if !a.acked.IsZero() && !b.acked.IsZero() {
		o.fail("both of two racing ACCEPTs were acknowledged, %s and %s", a.ID, b.ID)
	}
	if a.refused && b.refused {
		o.fail("both of two racing ACCEPTs were refused, %s and %s", a.ID, b.ID)
	}
}

// read runs a reader in a goroutine: next makes the query of the poll, got takes its answer, and settled reports, once
// the talk has ended, whether there is nothing more to come.
func (l *load) read(a *account, next func() url.Values, got func(answer) (fresh bool)) {
	l.accounts = append(l.accounts, a)
	l.listen.Go(func() {
		for idle := 0; idle < 2; {
			q, last := next(), l.ended()
			q.Set("timeout", "1.5") // beyond the second after which siblings of a bookmark are delivered
			relay, err := l.relay.address(l.t.Context())
			if err != nil {
				return
			}
			answer, err := poll(l.t.Context(), relay, q)
			if err != nil {
				continue // the relay was killed; ask the next one the same
			}
			if answer.status != http.StatusOK {
				l.t.Errorf("%s was refused: %s", a.name, answer)
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

// take adds an answer's events to a's account.
func (l *load) take(a *account, events []json.RawMessage) (last *envelope.Envelope, fresh bool) {
	for _, text := range events {
		last = parse(l.t, text)
		if a.add(last.ID) {
			fresh = true
		}
	}
	return last, fresh
}

// inbox is the query of all that comes for recipient, or of everything.
func inbox(recipient didkey.DID) url.Values {
	if recipient == "" {
		return url.Values{}
	}
	return values("recipient", string(recipient), "broadcast", "true")
}

func (l *load) readCursor(name string, recipient didkey.DID, limit int) {
	a, cursor := newAccount(name, recipient, true), l.from
	l.read(a, func() url.Values {
		q := inbox(recipient)
		q.Set("cursor", cursor)
		q.Set("limit", strconv.Itoa(limit))
		return q
	}, func(page answer) bool {
		cursor = page.Cursor
		_, fresh := l.take(a, page.Events)
		return fresh
	})
}

// readSince is the protocol's own loop: since is the ts of the last event. It begins with an instant that is no event's,
// as that would be a bookmark behind the events stored before it.
func (l *load) readSince(name string, recipient didkey.DID, limit int) {
	a := newAccount(name, recipient, false)
	since := l.born.Truncate(time.Millisecond).Add(-time.Nanosecond).UTC().Format(time.RFC3339Nano)
	l.read(a, func() url.Values {
		q := inbox(recipient)
		q.Set("since", since)
		q.Set("limit", strconv.Itoa(limit))
		return q
	}, func(page answer) bool {
		last, fresh := l.take(a, page.Events)
		if last != nil {
			since = envelope.FormatTime(last.TS)
		}
		return fresh
	})
}
