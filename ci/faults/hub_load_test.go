package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// hubLoad runs agents of a hub. They continue when the relay is killed and started again.
type hubLoad struct {
	t     testing.TB
	relay *server

	senders            []*hubAgent
	workers, receivers sync.WaitGroup
	stopWorkers        context.CancelFunc
	stopReceivers      context.CancelFunc

	mu            sync.Mutex // guards what follows, and the messages
	registrations []*hubAgent
	numbers       hubNumbers
}

// hubAgent is an agent with what it has sent and received.
type hubAgent struct {
	address, key string
	sent         []*hubMessage
	got          map[string]*hubDelivery // by text
	lastID       int64
}

// hubMessage is a message. Each has another text.
type hubMessage struct {
	sender, receiver *hubAgent
	text             string
	trace            string // in the answers with 2xx; empty: there was none
	body             string // of the first answer with 2xx
}

// hubDelivery is a message that was received, once or several times.
type hubDelivery struct {
	trace     string
	confirmed bool // and the hub has answered the confirmation with 2xx
}

// hubRow is a row of a history, or a message on a stream.
type hubRow struct {
	ID       int64  `json:"id"`
	Trace    string `json:"trace_id"`
	Receiver string `json:"receiver_id"`
	Envelope struct {
		Sender string `json:"sender_id"`
		Text   string `json:"original_text"`
	} `json:"envelope"`
	Timestamp string `json:"timestamp"`
	State     string `json:"state"`
	Via       string `json:"delivered_via"`
}

// hubCall is a request to the hub.
type hubCall struct {
	method, path, key string
	body              any
	idempotencyKey    string
	lastEventID       string
}

// hubAnswer has the members of all answers.
type hubAnswer struct {
	status   int
	replayed bool
	text     string

	Data struct {
		AgentID string `json:"agent_id"`
		Key     string `json:"api_key"`
		Trace   string `json:"trace_id"`
		Queued  int    `json:"messages_queued"`
		Card    struct {
			Culture string `json:"user_culture"`
		} `json:"agent_card"`
	} `json:"data"`
}

func (c hubCall) request(ctx context.Context, relay string) (*http.Request, error) {
	body, err := json.Marshal(c.body)
	if err != nil {
		return nil, err
	}
	if c.body == nil {
		body = nil
	}
	r, err := http.NewRequestWithContext(ctx, c.method, relay+"/hub"+c.path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"Authorization": c.key, "Idempotency-Key": c.idempotencyKey,
		"Last-Event-ID": c.lastEventID} {
		if name == "Authorization" && value != "" {
			value = "Bearer " + value
		}
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	return r, nil
}

// try sends a request to the relay, as soon as it runs. An error means that no whole answer has come.
func (l *hubLoad) try(ctx context.Context, c hubCall) (a hubAnswer, err error) {
	relay, err := l.relay.address(ctx)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	r, err := c.request(ctx, relay)
	if err != nil {
		return a, err
	}
	response, err := connections.Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	a.status, a.text, a.replayed = response.StatusCode, string(text), response.Header.Get("Idempotent-Replay") == "true"
	if a.ok() && !strings.HasPrefix(c.path, "/agent/messages") {
		err = json.Unmarshal(text, &a)
	}
	return a, err
}

func (a hubAnswer) ok() bool { return a.status/100 == 2 }

// ask sends a request to a relay that runs.
func (l *hubLoad) ask(c hubCall) hubAnswer {
	l.t.Helper()
	a, err := l.try(l.t.Context(), c)
	must(l.t, err)
	return a
}

// startHubLoad registers agents and starts them.
func startHubLoad(t testing.TB, relay *server, r *rand.Rand) *hubLoad {
	l := &hubLoad{t: t, relay: relay}
	working, stopWorkers := context.WithCancel(t.Context())
	receiving, stopReceivers := context.WithCancel(t.Context())
	l.stopWorkers, l.stopReceivers = stopWorkers, stopReceivers
	hook := &hubAgent{address: "webhook@x", got: map[string]*hubDelivery{}}
	webhook := httptest.NewServer(l.webhook(hook, newRandom(r)))
	t.Cleanup(webhook.Close)
	var receivers []*hubAgent
	for name, receive := range map[string]func(context.Context, *hubAgent, *rand.Rand){
		"stream@x": l.readStream, "resuming@x": l.resumeStream, "poll@x": l.pollHistory, "webhook@x": nil} {
		a := hook
		if receive != nil {
			a = &hubAgent{address: name, got: map[string]*hubDelivery{}}
			l.register(a, "")
			random := newRandom(r)
			l.receivers.Go(func() { receive(receiving, a, random) })
		} else {
			l.register(a, webhook.URL)
		}
		receivers = append(receivers, a)
	}
	for i := range 6 {
		a := &hubAgent{address: fmt.Sprintf("sender%d@x", i)}
		l.register(a, "")
		l.senders = append(l.senders, a)
		random := newRandom(r)
		l.workers.Go(func() { l.send(working, a, receivers, random) })
	}
	l.workers.Go(func() { l.registerOthers(working) })
	return l
}

func hubRegistration(a *hubAgent, endpoint string) hubCall {
	body := map[string]any{"agent_id": a.address, "agent_card": map[string]any{"card_version": "0.3", "user_culture": "en",
		"supported_languages": []string{"en"}}}
	if endpoint != "" {
		body["endpoint"] = endpoint
	}
	return hubCall{method: http.MethodPost, path: "/register", body: body}
}

func (l *hubLoad) register(a *hubAgent, endpoint string) {
	l.t.Helper()
	answer := l.ask(hubRegistration(a, endpoint))
	if a.key = answer.Data.Key; answer.status != http.StatusCreated {
		l.t.Fatalf("registering %s: %d %s", a.address, answer.status, answer.text)
	}
}

// end stops the senders, and waits until every stored message has arrived.
func (l *hubLoad) end() {
	l.t.Helper()
	l.stopWorkers()
	l.workers.Wait()
	within(l.t, time.Minute, "no message is queued", func() bool {
		return l.ask(hubCall{method: http.MethodGet, path: "/health"}).Data.Queued == 0
	})
	stored := map[string]bool{} // by text
	for _, s := range l.senders {
		for _, row := range l.history(s) {
			stored[row.Envelope.Text] = true
		}
	}
	within(l.t, time.Minute, "all stored messages have arrived", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, s := range l.senders {
			for _, m := range s.sent {
				if stored[m.text] && m.receiver.got[m.text] == nil {
					return false
				}
			}
		}
		return true
	})
	l.stopReceivers()
	l.receivers.Wait()
}

// send sends messages until ctx ends. It sends each until it is answered, but sometimes gives up.
func (l *hubLoad) send(ctx context.Context, a *hubAgent, receivers []*hubAgent, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		m := &hubMessage{sender: a, receiver: receivers[random.IntN(len(receivers))],
			text: fmt.Sprintf("%s %d %s", a.address, n, strings.Repeat("语", random.IntN(2000)))}
		a.sent = append(a.sent, m)
		l.count(func(n *hubNumbers) { n.sent++ })
		again := random.IntN(3) // after an answer, as if it had been lost
		for try := 0; ; try++ {
			answer, err := l.try(ctx, hubCall{method: http.MethodPost, path: "/messages", key: a.key,
				idempotencyKey: fmt.Sprintf("key %d", n), body: map[string]any{"receiver_id": m.receiver.address,
					"envelope": map[string]any{"chorus_version": "0.4", "sender_id": a.address, "original_text": m.text,
						"sender_culture": "en"}}})
			if try > 0 {
				l.count(func(n *hubNumbers) { n.resent++ })
			}
			if err == nil {
				l.checkAnswer(m, answer)
			}
			if err == nil && answer.ok() {
				if again--; again < 0 {
					break
				}
			} else if ctx.Err() != nil || random.IntN(5) == 0 {
				break
			} else if err == nil {
				sleep(10 * time.Millisecond) // the relay has refused it
			}
		}
		sleep(time.Duration(random.IntN(10)) * time.Millisecond)
	}
}

// checkAnswer compares an answer with earlier answers for the same Idempotency-Key (G-21).
func (l *hubLoad) checkAnswer(m *hubMessage, a hubAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case a.status == http.StatusTooManyRequests, a.status == http.StatusServiceUnavailable:
		return
	case !a.ok():
		l.t.Errorf("message %.20s was refused: %d %s", m.text, a.status, a.text)
		return
	}
	if a.replayed {
		l.numbers.replayed++
	}
	if m.trace == "" {
		l.numbers.answered++
		m.trace, m.body = a.Data.Trace, a.text
	}
	if a.text != m.body || a.Data.Trace == "" {
		l.t.Errorf("message %.20s has the answers %s and %s", m.text, m.body, a.text)
	}
}

func (l *hubLoad) count(f func(*hubNumbers)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.numbers)
}

// registerOthers registers further agents until ctx ends.
func (l *hubLoad) registerOthers(ctx context.Context) {
	for n := 0; ctx.Err() == nil && n < 5000; n++ {
		a := &hubAgent{address: fmt.Sprintf("other%d@x", n)}
		answer, err := l.try(ctx, hubRegistration(a, ""))
		if err == nil && !answer.ok() && answer.status != http.StatusServiceUnavailable {
			l.t.Errorf("registering %s: %d %s", a.address, answer.status, answer.text)
		}
		l.mu.Lock()
		if a.key = answer.Data.Key; a.key != "" {
			l.numbers.registered++
		}
		l.registrations = append(l.registrations, a)
		l.mu.Unlock()
		sleep(20 * time.Millisecond)
	}
}

func sortedKeys[V any](m map[int64]V) []int64 { return slices.Sorted(maps.Keys(m)) }
