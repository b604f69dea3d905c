package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
)

const channelKillRounds = 8

// TestChannelKillLoop kills a relay with a channel gateway again and again, while it is used from all sides. It tests
// that what was answered with 2xx is there, whole and once (G-4), that what was not answered is there whole or not at
// all (G-5), that agents and services get everything in order and at least once (C-2, C-18, C-25), and that a delivery
// to an inbox makes one REQUEST (C-20). In the end, agora check must find nothing.
func TestChannelKillLoop(t *testing.T) {
	relay := newServer(t, "--channel", "--outbound-allow", "127.0.0.1", "--log-level", "warn")
	r := random(t)
	rounds := *roundsFlag
	if rounds == 0 {
		rounds = max(scaled(channelKillRounds), 3)
	}
	began := time.Now()
	relay.start()
	operator, err := os.ReadFile(filepath.Join(relay.data, "operator.key"))
	must(t, err)
	l := startChannelLoad(t, relay, strings.TrimSpace(string(operator)), r)
	for range rounds {
		sleep(minUptime + time.Duration(r.Int64N(int64(maxUptime-minUptime))))
		relay.kill()
		relay.start()
	}
	l.stopWork()
	l.workers.Wait()
	l.auditChannel()
	l.auditInbox()
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
	if out, err := exec.Command(binary, "check", "--data", relay.data).CombinedOutput(); err != nil {
		t.Errorf("agora check: %v\n%s", err, out)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%d kills in %s: %d messages, %d events of agents, %d deliveries to an inbox; %d requests were sent again", rounds,
		time.Since(began).Round(time.Second), len(l.acked), len(l.events), len(l.handed), l.resent)
}

// channelEvent is an event of the channel.
type channelEvent struct {
	Seq                   int64
	Sender, Type, Content string
	Status                string
}

// stored returns all events of the channel.
func (l *channelLoad) stored() (all []channelEvent) {
	l.t.Helper()
	for {
		after := int64(0)
		if len(all) > 0 {
			after = all[len(all)-1].Seq
		}
		answer := l.must(channelCall{method: "GET", path: fmt.Sprintf("%s/events?limit=200&after=%d", l.room, after), key: l.key})
		text, err := json.Marshal(answer["events"])
		must(l.t, err)
		var page []channelEvent
		must(l.t, json.Unmarshal(text, &page))
		if all = append(all, page...); len(page) == 0 {
			return all
		}
	}
}

// auditChannel waits until the agents have everything, and compares what was answered with what is stored and what has
// arrived.
func (l *channelLoad) auditChannel() {
	t := l.t
	within(t, 2*time.Minute, "nothing is queued", func() bool {
		connections, _ := l.must(channelCall{method: "GET", path: l.room + "/connections", key: l.key})["connections"].([]any)
		return !slices.ContainsFunc(connections, func(c any) bool { return c.(map[string]any)["queued"] != 0. })
	})
	var said []string // the messages, in order
	reported := map[string]int{}
	for i, e := range l.stored() {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d of the channel has the number %d", i+1, e.Seq)
		}
		if e.Type == "message" {
			said = append(said, e.Content)
		} else {
			reported[e.Status]++
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	position := map[string]int{}
	for i, content := range said {
		if _, again := position[content]; again {
			t.Errorf("message %.20s is stored twice", content)
		}
		position[content] = i
	}
	for content, answered := range l.acked {
		if _, there := position[content]; answered > 0 && !there {
			t.Errorf("message %.20s was answered with 2xx and is not stored", content)
		}
	}
	for status, answered := range l.events {
		if n := reported[status]; n > 1 || answered && n != 1 {
			t.Errorf("event %q (answered: %t) is stored %d times", status, answered, n)
		}
	}
	for name, arrived := range l.arrivals {
		next := 0 // the position of the next new message
		for _, content := range arrived {
			switch at, there := position[content]; {
			case !there || at > next:
				t.Fatalf("%s got %.20s (position %d), want position %d next", name, content, at, next)
			case at == next:
				next++
			case at < next-1:
				t.Errorf("%s got %.20s again after later messages", name, content)
			}
		}
		if next != len(said) {
			t.Errorf("%s got %d messages, want %d", name, next, len(said))
		}
	}
}

// requests returns the callbacks in the REQUESTs that the owner of the inbox has got, by delivery.
func (l *channelLoad) requests(ctx context.Context) map[string][]string {
	found := map[string][]string{}
	relay, err := l.relay.address(ctx)
	for cursor, more := "0", err == nil; more; {
		var page struct {
			Cursor  string
			HasMore bool
			Events  []json.RawMessage
		}
		query := url.Values{"cursor": {cursor}, "recipient": {string(l.owner.DID())}, "timeout": {"0"}, "limit": {"100"}}
		text, err := fetch(ctx, relay+"/events?"+query.Encode())
		if err != nil || json.Unmarshal(text, &page) != nil {
			return nil
		}
		for _, body := range page.Events {
			e, err := envelope.Parse(body, len(body))
			must(l.t, err)
			opened, err := e.Open(l.owner)
			must(l.t, err)
			var request struct {
				Params struct {
					Message struct {
						ID string `json:"id"`
					} `json:"message"`
					Callback string `json:"callback"`
				} `json:"params"`
			}
			must(l.t, opened.DecodePayload(&request))
			found[request.Params.Message.ID] = append(found[request.Params.Message.ID], request.Params.Callback)
		}
		cursor, more = page.Cursor, page.HasMore
	}
	return found
}

func fetch(ctx context.Context, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	response, err := connections.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// auditInbox compares what the other service has delivered with the REQUESTs of the owner, and what the owner has
// answered with what the service got.
func (l *channelLoad) auditInbox() {
	t := l.t
	requests := l.requests(t.Context())
	within(t, 2*time.Minute, "the service has all events", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for id, sent := range l.answers {
			if got := l.received[id]; len(got) == 0 || got[len(got)-1].text != sent[len(sent)-1] {
				return false
			}
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, answered := range l.handed {
		if n := len(requests[id]); n > 1 || answered && n != 1 {
			t.Errorf("%s (answered: %t) has %d REQUESTs", id, answered, n)
		}
	}
	for id, sent := range l.answers {
		var got []string
		ids := map[string]string{}
		for i, e := range l.received[id] {
			if first, again := ids[e.text]; again && first != e.id {
				t.Errorf("%q has come with the ids %s and %s", e.text, first, e.id)
			}
			ids[e.text] = e.id
			if i == 0 || got[len(got)-1] != e.text { // an attempt that a kill has cut off is repeated
				got = append(got, e.text)
			}
		}
		// The last event may have been stored and not answered.
		if len(got) < len(sent) || !slices.Equal(got[:len(sent)], sent) || len(got) > len(sent)+1 {
			t.Errorf("%s: the service got %q, the owner has sent %q", id, got, sent)
		}
	}
}
