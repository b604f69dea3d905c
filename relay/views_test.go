package relay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

func TestThreadView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		client, agent := key(t), key(t)
		post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t1", TTL: 10 * time.Second}))
		post(t, r, sign(t, agent, envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Thread: "t1"}))
		// A stranger's thread with the same id is a different thread. The older one is shown.
		post(t, r, sign(t, key(t), envelope.Draft{Payload: request, Thread: "t1"}))
		time.Sleep(11 * time.Second)
		v, err := r.Thread(t.Context(), local, thread.Key{ID: "t1"})
		if err != nil || v.Client != client.DID() || len(v.Events) != 1 || v.Expired != 1 || !v.Offered(agent.DID()) {
			t.Errorf("%+v %v", v, err)
		}
		if want := v.Transitions[1].At.Add(thread.DefaultPendingTimeout); !v.Deadline.Equal(want) {
			t.Errorf("deadline %v, want %v", v.Deadline, want)
		}
		_, err = r.Thread(t.Context(), local, thread.Key{ID: "t1", Client: agent.DID()})
		wantCode(t, err, envelope.CodeThreadNotFound)
	})
}

// TestThreadViewWaitsForItsLastEvent checks that a view never has a state without the event that led to it, although a
// store publishes an event only a moment after its commit. It also checks that the view waits for a short time only.
func TestThreadViewWaitsForItsLastEvent(t *testing.T) {
	for late, want := range map[time.Duration]int{0: 2, 100 * time.Millisecond: 2, time.Hour: 0} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, relay.Config{Store: &countingStore{late: late}})
			client, agent := key(t), key(t)
			post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t1"}))
			post(t, r, sign(t, agent, envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Thread: "t1"}))
			began := time.Now()
			v, err := r.Thread(t.Context(), local, thread.Key{ID: "t1"})
			if err != nil || v.State != thread.Pending || len(v.Events) != want || v.Expired != 2-want {
				t.Errorf("%d events after %s, want %d: %+v %v", len(v.Events), late, want, v, err)
			}
			if took := time.Since(began); took > 1100*time.Millisecond {
				t.Errorf("the view waited for %s", took)
			}
		})
	}
}

func TestDirectory(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		agent := key(t)
		announce := func(name string, ts time.Time) {
			post(t, r, sign(t, agent, envelope.Draft{TS: ts, TTL: 20 * time.Minute,
				Payload: envelope.Manifest{ID: "cap", Name: name,
					Intents: []envelope.Intent{{ID: "translation.en_zh"}},
					Auth:    &envelope.Auth{PublicKey: agent.DID().Multibase()}}}))
		}
		announce("Zweite Fassung", time.Now())
		announce("first draft", time.Now().Add(-time.Minute)) // it arrives later, but is older and replaces nothing
		search := func(q relay.AgentQuery) int {
			q.Limit = 10
			page, err := r.Agents(t.Context(), local, q)
			if err != nil {
				t.Fatal(err)
			}
			return len(page.Agents)
		}
		for name, c := range map[string]struct {
			q    relay.AgentQuery
			want int
		}{
			"all":                   {relay.AgentQuery{}, 1},
			"intent":                {relay.AgentQuery{Intent: "translation.en_zh"}, 1},
			"part of intent":        {relay.AgentQuery{Intent: "translation"}, 0},
			"text":                  {relay.AgentQuery{Text: "ZWEITE"}, 1},
			"text of the older one": {relay.AgentQuery{Text: "draft"}, 0},
			"stranger":              {relay.AgentQuery{DID: key(t).DID()}, 0},
		} {
			if got := search(c.q); got != c.want {
				t.Errorf("%s: %d agents, want %d", name, got, c.want)
			}
		}
		found, _, err := r.Agent(t.Context(), local, agent.DID())
		if err != nil || len(found) != 1 || !r.Online(found[0]) {
			t.Fatalf("%+v %v", found, err)
		}
		time.Sleep(relay.OnlineWithin)
		if r.Online(found[0]) {
			t.Error("online five minutes after it was heard from")
		}
		runThread(t, r, key(t), agent, envelope.TypeOffer)
		if found, _, err := r.Agent(t.Context(), local, agent.DID()); err != nil || !r.Online(found[0]) {
			t.Errorf("its OFFER did not bring it online: %v", err)
		}
		time.Sleep(20 * time.Minute)
		_, _, err = r.Agent(t.Context(), local, agent.DID())
		wantCode(t, err, envelope.CodeAgentNotFound)
	})
}

// TestIntentsOfAManifest checks the limit on intents. The directory has an entry for each of them.
func TestIntentsOfAManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		m := envelope.Manifest{ID: "m"}
		for n := range relay.MaxIntents + 1 {
			m.Intents = append(m.Intents, envelope.Intent{ID: fmt.Sprint("i", n)})
		}
		_, err := r.Post(t.Context(), local, sign(t, key(t), envelope.Draft{Payload: m}).Canonical())
		wantCode(t, err, envelope.CodeInvalidRequest)
		m.Intents = m.Intents[1:]
		post(t, r, sign(t, key(t), envelope.Draft{Payload: m}))
		page, err := r.Agents(t.Context(), local, relay.AgentQuery{Intent: fmt.Sprint("i", relay.MaxIntents), Limit: 10})
		if err != nil || len(page.Agents) != 1 {
			t.Errorf("%+v, %v", page, err)
		}
	})
}

func TestSeed(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		if n, err := r.Seed(t.Context(), local); n != 15 || err != nil {
			t.Fatalf("%d %v", n, err)
		}
		page := poll(t, r, relay.Poll{Limit: 100, Filter: relay.Filter{Type: envelope.TypeResult}})
		if len(page.Events) != 3 {
			t.Fatalf("%d results", len(page.Events))
		}
		for _, event := range page.Events {
			e, err := envelope.Parse(event.Body, 0)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := r.Thread(t.Context(), local, thread.Key{ID: e.Thread}); err != nil || v.State != thread.Completed ||
				len(v.Events) != 4 {
				t.Errorf("%+v %v", v, err)
			}
			if all, _, err := r.Agent(t.Context(), local, e.Sender.ID); err != nil || len(all) != 1 {
				t.Errorf("the agent %s has not announced itself: %+v, %v", e.Sender.ID, all, err)
			}
		}
	})
}
