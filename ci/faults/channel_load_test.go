package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// channelLoad uses a channel gateway from all sides while its relay is killed again and again: members say something,
// agents get it and post events, and another service delivers to an inbox whose owner answers by callback.
type channelLoad struct {
	t        testing.TB
	relay    *server
	room     string // the path of the channel
	key      string // of the channel
	owner    didkey.Key
	inbox    string // the path of the owner's inbox
	service  *httptest.Server
	members  []string // keys
	workers  sync.WaitGroup
	stopWork context.CancelFunc

	mu       sync.Mutex
	acked    map[string]int        // contents of messages, by how often they were answered with 2xx
	arrivals map[string][]string   // what agents got, by the agent: contents, in order
	events   map[string]bool       // the status of each event that was posted; true: it was answered with 2xx
	handed   map[string]bool       // ids of deliveries to the inbox; true: answered with 200
	answers  map[string][]string   // events that the owner has posted and that were taken, by delivery, in order
	received map[string][]fromHere // what the other service got, by delivery, in order
	resent   int
}

// fromHere is an event that another service got from the relay.
type fromHere struct{ text, id string }

// channelCall is a request to the gateway.
type channelCall struct {
	method, path, key, once string
	body                    any
	signer                  *didkey.Key // signs the request; nil: nobody
}

// try sends a request to the gateway, as soon as it runs. An error means that no whole answer has come.
func (l *channelLoad) try(ctx context.Context, c channelCall) (status int, answer map[string]any, err error) {
	relay, err := l.relay.address(ctx)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	body, err := json.Marshal(c.body)
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, c.method, relay+"/channel"+c.path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if c.signer != nil {
		token, err := envelope.Call{Body: sha256.Sum256(body), Read: envelope.Read{Audience: relay, Method: c.method,
			Target: "/channel" + c.path, TS: time.Now()}}.Sign(*c.signer)
		if err != nil {
			return 0, nil, err
		}
		r.Header.Set("Authorization", "Agora "+token)
	} else if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	if c.once != "" {
		r.Header.Set("Idempotency-Key", c.once)
	}
	response, err := connections.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, err
	}
	return response.StatusCode, answer, json.Unmarshal(text, &answer)
}

// must sends a request until it is answered, and fails the test unless the answer is 2xx.
func (l *channelLoad) must(c channelCall) map[string]any {
	l.t.Helper()
	status, answer, err := l.try(l.t.Context(), c)
	if err != nil || status/100 != 2 {
		l.t.Fatalf("%s %s: %d %v, %v", c.method, c.path, status, answer, err)
	}
	return answer
}

// insist sends a request again and again until it is answered with 2xx, or ctx ends. It returns how often it was
// answered. Sometimes it sends the request once more, as if the answer had been lost.
func (l *channelLoad) insist(ctx context.Context, c channelCall, again bool) (answered int) {
	for ctx.Err() == nil {
		status, answer, err := l.try(ctx, c)
		switch {
		case err == nil && status/100 == 2:
			if answered++; !again {
				return answered
			}
			again = false
		case err == nil && status < 500 && status != http.StatusTooManyRequests:
			l.t.Errorf("%s %s: %d %v", c.method, c.path, status, answer)
			return answered
		}
		l.mu.Lock()
		l.resent++
		l.mu.Unlock()
	}
	return answered
}

func member(answer map[string]any, path ...string) string {
	var value any = answer
	for _, name := range path {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	text, _ := value.(string)
	return text
}

// startChannelLoad makes a channel with members and agents, and an inbox, and starts to use them.
func startChannelLoad(t testing.TB, relay *server, operator string, r *rand.Rand) *channelLoad {
	l := &channelLoad{t: t, relay: relay, acked: map[string]int{}, arrivals: map[string][]string{}, events: map[string]bool{},
		handed: map[string]bool{}, answers: map[string][]string{}, received: map[string][]fromHere{}}
	channel := l.must(channelCall{method: "POST", path: "/channels", key: operator, body: map[string]any{"name": "load"}})
	l.room, l.key = "/channels/"+member(channel, "channel", "id"), member(channel, "key")
	for _, name := range []string{"quick", "flaky"} {
		agent := httptest.NewServer(l.agent(name, newRandom(r)))
		t.Cleanup(agent.Close)
		l.must(channelCall{method: "POST", path: l.room + "/connections", key: l.key,
			body: map[string]any{"name": name, "url": agent.URL + "/inbox"}})
	}
	key, err := didkey.Generate()
	must(t, err)
	l.owner = key
	inbox := l.must(channelCall{method: "POST", path: "/inboxes", signer: &key, body: map[string]any{}})
	_, l.inbox, _ = strings.Cut(member(inbox, "url"), "/channel")
	l.service = httptest.NewServer(l.callback(newRandom(r)))
	t.Cleanup(l.service.Close)
	ctx, stop := context.WithCancel(t.Context())
	l.stopWork = stop
	for i := range 3 {
		added := l.must(channelCall{method: "POST", path: l.room + "/members", key: l.key,
			body: map[string]any{"name": fmt.Sprint("member", i)}})
		l.members = append(l.members, member(added, "key"))
		random := newRandom(r)
		l.workers.Go(func() { l.say(ctx, i, random) })
	}
	random := newRandom(r)
	l.workers.Go(func() { l.deliver(ctx, random) })
	return l
}

// say posts messages of a member until ctx ends.
func (l *channelLoad) say(ctx context.Context, i int, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		content := fmt.Sprintf("member%d %d %s", i, n, strings.Repeat("语", random.IntN(500)))
		l.mu.Lock()
		l.acked[content] = 0
		l.mu.Unlock()
		answered := l.insist(ctx, channelCall{method: "POST", path: l.room + "/messages", key: l.members[i],
			once: fmt.Sprint("message ", n), body: map[string]any{"content": content}}, random.IntN(3) == 0)
		l.mu.Lock()
		l.acked[content] = answered
		l.mu.Unlock()
		sleep(time.Duration(random.IntN(40)) * time.Millisecond) // so that the flaky agent is not far behind
	}
}

// agent is an agent. It records what it gets, and posts one event for each message. If it is flaky, it sometimes answers
// with 503, before or after that.
func (l *channelLoad) agent(name string, random *rand.Rand) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var d struct {
			Message  struct{ ID, Content string }
			Callback string
		}
		if json.NewDecoder(r.Body).Decode(&d) != nil {
			return // the relay was killed while it sent the request
		}
		l.mu.Lock()
		flaky := name == "flaky"
		before, after := flaky && random.IntN(30) == 0, flaky && random.IntN(30) == 0
		l.mu.Unlock()
		if before {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		l.mu.Lock()
		l.arrivals[name] = append(l.arrivals[name], d.Message.Content)
		status := name + " " + d.Message.ID
		taken, known := l.events[status]
		l.events[status] = taken
		l.mu.Unlock()
		if !known {
			_, path, _ := strings.Cut(d.Callback, "/channel") // the relay has another port after each start
			code, _, err := l.try(r.Context(), channelCall{method: "POST", path: path, once: status,
				body: map[string]any{"type": "status", "status": status}})
			l.mu.Lock()
			l.events[status] = err == nil && code == http.StatusOK
			l.mu.Unlock()
		}
		if after {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

// deliver plays another service that delivers to the inbox until ctx ends. For each delivery it also plays the owner,
// who posts some events to the callback in the REQUEST.
func (l *channelLoad) deliver(ctx context.Context, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprint("delivery ", n)
		l.mu.Lock()
		l.handed[id] = false
		l.mu.Unlock()
		answered := l.insist(ctx, channelCall{method: "POST", path: l.inbox, body: map[string]any{
			"channel": map[string]any{"id": "C1"}, "message": map[string]any{"id": id, "sender": "zoe", "content": "hello"},
			"callback": l.service.URL + "/" + strings.ReplaceAll(id, " ", "-")}}, random.IntN(3) == 0)
		if answered == 0 {
			return
		}
		l.mu.Lock()
		l.handed[id] = true
		l.mu.Unlock()
		l.answer(ctx, id, random)
	}
}

// answer posts events of the owner for a delivery.
func (l *channelLoad) answer(ctx context.Context, id string, random *rand.Rand) {
	callback := l.requests(ctx)[id]
	if len(callback) == 0 {
		return // the relay was killed; the audit looks again
	}
	_, path, _ := strings.Cut(callback[0], "/channel")
	for i := range 1 + random.IntN(4) {
		text := fmt.Sprintf("%s event %d", id, i)
		if i == 3 {
			text = "idle"
		}
		event := map[string]any{"type": "status", "status": text}
		if text == "idle" {
			event["type"] = "lifecycle"
		}
		if l.insist(ctx, channelCall{method: "POST", path: path, once: text, body: event}, random.IntN(3) == 0) == 0 {
			return
		}
		l.mu.Lock()
		l.answers[id] = append(l.answers[id], text)
		l.mu.Unlock()
	}
}

// callback is that service's server for events. It sometimes answers with 503.
func (l *channelLoad) callback(random *rand.Rand) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var event struct{ Status string }
		if json.NewDecoder(r.Body).Decode(&event) != nil {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		id := strings.ReplaceAll(strings.TrimPrefix(r.URL.Path, "/"), "-", " ")
		if random.IntN(10) == 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		l.received[id] = append(l.received[id], fromHere{event.Status, r.Header.Get("Idempotency-Key")})
	}
}
