package faults

import (
	"bufio"
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
	"strconv"
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

// receive records that an agent has received a message. A repeat must be the same.
func (l *hubLoad) receive(a *hubAgent, text, trace string) *hubDelivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.numbers.received++
	d := a.got[text]
	if d == nil {
		d = &hubDelivery{trace: trace}
		a.got[text] = d
		return d
	}
	l.numbers.repeated++
	if d.trace != trace {
		l.t.Errorf("%s has received message %.20s with the traces %s and %s", a.address, text, d.trace, trace)
	}
	return d
}

// confirmed records that the hub has answered a confirmation of these messages with 2xx.
func (l *hubLoad) confirmed(all ...*hubDelivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range all {
		d.confirmed = true
		l.numbers.confirmed++
	}
}

// readStream reads streams without Last-Event-ID, and acknowledges each message.
func (l *hubLoad) readStream(ctx context.Context, a *hubAgent, random *rand.Rand) {
	l.follow(ctx, a, random, false, func(row hubRow, d *hubDelivery) {
		answer, err := l.try(ctx, hubCall{method: http.MethodPost, path: "/agent/ack", key: a.key,
			body: map[string]any{"trace_ids": []string{row.Trace}}})
		if err == nil && answer.ok() {
			l.confirmed(d)
		}
	})
}

// resumeStream reads streams with Last-Event-ID.
func (l *hubLoad) resumeStream(ctx context.Context, a *hubAgent, random *rand.Rand) {
	l.follow(ctx, a, random, true, func(hubRow, *hubDelivery) {})
}

// follow reads streams until ctx ends, one after the other. It closes some of them and loses what it has not read yet.
func (l *hubLoad) follow(ctx context.Context, a *hubAgent, random *rand.Rand, resume bool, each func(hubRow, *hubDelivery)) {
	for {
		relay, err := l.relay.address(ctx)
		if err != nil {
			return
		}
		c := hubCall{method: http.MethodGet, path: "/agent/inbox", key: a.key}
		if resume {
			c.lastEventID = strconv.FormatInt(a.lastID, 10)
		}
		short, cancel := context.WithTimeout(ctx, time.Duration(50+random.IntN(500))*time.Millisecond)
		l.followOnce(short, c, relay, a, each)
		cancel()
	}
}

// followOnce reads one stream until it or ctx ends.
func (l *hubLoad) followOnce(ctx context.Context, c hubCall, relay string, a *hubAgent, each func(hubRow, *hubDelivery)) {
	r, err := c.request(ctx, relay)
	if err != nil {
		l.t.Error(err)
		return
	}
	response, err := connections.Do(r)
	if err != nil {
		return // the relay was killed
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		l.t.Errorf("a stream of %s is answered with %d", a.address, response.StatusCode)
		return
	}
	l.readFrames(ctx, a, bufio.NewReader(response.Body), each)
}

// readFrames reads one stream to its end. The ids of a stream grow. A part of a frame at the end is not a frame.
func (l *hubLoad) readFrames(ctx context.Context, a *hubAgent, in *bufio.Reader, each func(hubRow, *hubDelivery)) {
	var row hubRow
	last := int64(0)
	for ctx.Err() == nil {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if data, ok := strings.CutPrefix(line, "data: {\"id\":"); ok {
			row = hubRow{}
			if err := json.Unmarshal([]byte("{\"id\":"+data), &row); err != nil {
				l.t.Errorf("a frame of %s has %q: %v", a.address, line, err)
			}
		}
		if line != "\n" || row.ID == 0 {
			continue
		}
		if row.ID <= last {
			l.t.Errorf("message %d has come to %s after %d on one stream", row.ID, a.address, last)
		}
		last = row.ID
		a.lastID = max(a.lastID, row.ID)
		each(row, l.receive(a, row.Envelope.Text, row.Trace))
		if row.ID%8 == 0 {
			sleep(200 * time.Millisecond) // so that others are still unread when the stream ends
		}
		row = hubRow{}
	}
}

// pollHistory reads its history again and again. With the next poll it confirms what it has. No message may come twice.
func (l *hubLoad) pollHistory(ctx context.Context, a *hubAgent, _ *rand.Rand) {
	var unconfirmed []*hubDelivery
	for ctx.Err() == nil {
		rows, err := l.poll(ctx, a, a.lastID)
		if err != nil {
			continue
		}
		l.confirmed(unconfirmed...)
		unconfirmed = nil
		for _, row := range rows {
			if row.ID <= a.lastID {
				l.t.Errorf("message %d has come to %s after %d", row.ID, a.address, a.lastID)
			}
			a.lastID = row.ID
			unconfirmed = append(unconfirmed, l.receive(a, row.Envelope.Text, row.Trace))
		}
		sleep(20 * time.Millisecond)
	}
}

// poll returns the messages of an agent after an id.
func (l *hubLoad) poll(ctx context.Context, a *hubAgent, after int64) ([]hubRow, error) {
	answer, err := l.try(ctx, hubCall{method: http.MethodGet, path: fmt.Sprint("/agent/messages?since=", after), key: a.key})
	if err == nil && answer.status != http.StatusOK {
		err = fmt.Errorf("the history is answered with %d %s", answer.status, answer.text)
	}
	if err != nil {
		return nil, err
	}
	var body struct{ Data []hubRow }
	err = json.Unmarshal([]byte(answer.text), &body)
	return body.Data, err
}

// history returns the whole history of a sender.
func (l *hubLoad) history(a *hubAgent) []hubRow {
	l.t.Helper()
	rows, err := l.poll(l.t.Context(), a, 0)
	must(l.t, err)
	return rows
}

// webhook receives messages of an agent. It is slow now and then, and sometimes its answer gets lost.
func (l *hubLoad) webhook(a *hubAgent, random *rand.Rand) http.HandlerFunc {
	var mu sync.Mutex // of random
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Envelope struct {
				Text string `json:"original_text"`
			} `json:"envelope"`
		}
		if json.NewDecoder(r.Body).Decode(&body) != nil {
			return // the relay was killed
		}
		l.receive(a, body.Envelope.Text, r.Header.Get("Chorus-Trace-Id"))
		sleep(time.Duration(draw(20)) * time.Millisecond)
		if draw(200) == 0 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, `{"status":"ok"}`) // the relay may have been killed
	}
}

func sortedKeys[V any](m map[int64]V) []int64 { return slices.Sorted(maps.Keys(m)) }
