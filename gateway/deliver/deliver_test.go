package deliver_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

var extension = relay.Extension{Name: "test", Migrations: []string{
	"CREATE TABLE test_position (id BIGINT NOT NULL PRIMARY KEY, seq BIGINT NOT NULL, sum BIGINT NOT NULL);"}}

// counter is a gateway with one delivery, in memory. It counts what comes for it.
type counter struct {
	*deliver.Deliveries
	site  *gatetest.Site
	agent *gatetest.Agent

	mu       sync.Mutex
	delivery deliver.Delivery
	answers  []envelope.Type // for which Answer was called
	applied  int
	ops      []*gateway.Op // of the effects, in order
	fails    int           // how often Apply fails first
}

func (c *counter) Find(_ relay.Querier, id string) (deliver.Delivery, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if strings.HasPrefix(id, "many_") {
		return deliver.Delivery{N: 2, ID: id, Owner: c.delivery.Owner, State: deliver.Accepted}, nil
	}
	if id != c.delivery.ID {
		return deliver.Delivery{}, nil
	}
	return c.delivery, nil
}

func (c *counter) Answer(_ context.Context, _ deliver.Delivery, e *envelope.Envelope) (deliver.Effect, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = append(c.answers, e.Type)
	return deliver.Effect{Accept: e.Type == envelope.TypeOffer, Apply: func(o *gateway.Op) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.fails > 0 {
			c.fails--
			return errors.New("the disk hiccups")
		}
		o.Then(func() { c.applied, c.ops = c.applied+1, append(c.ops, o) })
		return nil
	}}, nil
}

func (c *counter) set(s deliver.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delivery.State = s
}

// inCounter runs a test with a counter whose REQUEST was sent.
func inCounter(t *testing.T, test func(t *testing.T, c *counter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &counter{}
		c.site = &gatetest.Site{Bubble: true, Extensions: []relay.Extension{extension}, Open: func(core *gateway.Core) (gatetest.Served, error) {
			var err error
			c.Deliveries, err = deliver.New(t.Context(), core, "test", c, nil)
			return gatetest.Served{Prefix: "/test", API: apidocs.Part{Text: []byte(`{"paths":{}}`)},
				Mounts: func(string) []httpapi.Mount { return nil }, Run: c.Run}, err
		}}
		c.site.Start(t)
		c.agent = c.site.NewAgent()
		c.delivery = deliver.Delivery{N: 1, ID: "test_1", Owner: c.agent.Key.DID(), State: deliver.Sent}
		checked, err := c.Seal("test_1", c.agent.Key.DID(), envelope.Request{RequestID: "test_1", Intent: "x"})
		if err == nil {
			err = c.site.Core.Update(t.Context(), relay.Peer{Local: true}, func(o *gateway.Op) error { return c.Append(o, checked) })
		}
		if err != nil {
			t.Fatal(err)
		}
		test(t, c)
	})
}

// wait waits until the answers are handled.
func (c *counter) wait(t *testing.T, answers, applied int) {
	t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) != answers || c.applied != applied {
		t.Errorf("Answer was called for %v, and %d effects are stored; want %d and %d", c.answers, c.applied, answers, applied)
	}
}

// B-4: an effect that cannot be stored is tried again, and it is stored once, also after a restart.
func TestEffectsHappenOnce(t *testing.T) {
	inCounter(t, func(t *testing.T, c *counter) {
		c.fails = 2
		if err := c.agent.Post("test_1", envelope.Offer{}); err != nil {
			t.Fatal(err)
		}
		c.wait(t, 3, 1)
		c.site.Restart()
		c.wait(t, 3, 1)
	})
}

// B-4: effects in different threads are stored in one Update, those in one thread one after the other. If one fails, all of
// its Update are stored one by one, each once.
func TestEffectsAreStoredTogether(t *testing.T) {
	inCounter(t, func(t *testing.T, c *counter) {
		seq := relay.Seq(1000)
		handle := func(threads string) (updates, effects int) {
			t.Helper()
			var events []relay.Posted
			for _, thread := range threads {
				e, err := envelope.Draft{Payload: envelope.Result{RequestID: "r", Status: "success"}, Recipient: c.site.Core.Key.DID(),
					Thread: "many_" + string(thread), Seal: true}.Sign(c.agent.Key, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				seq++
				events = append(events, relay.Posted{Event: relay.Event{Seq: seq}, Envelope: e})
			}
			c.ops = nil
			if err := c.HandleAll(t.Context(), events); err != nil {
				t.Fatal(err)
			}
			return len(slices.Compact(slices.Clone(c.ops))), len(c.ops)
		}
		for _, test := range []struct {
			threads         string
			fails           int
			updates, effect int
		}{{"abcdef", 0, 1, 6}, {"abacde", 0, 2, 6}, {"aa", 0, 2, 2}, {"abcdefghijklmnopqrst", 0, 2, 20}, {"abc", 1, 3, 3}, {"abc", 3, 3, 3}} {
			c.fails = test.fails
			if updates, effects := handle(test.threads); updates != test.updates || effects != test.effect {
				t.Errorf("%s: %d Updates and %d effects, want %d and %d", test.threads, updates, effects, test.updates, test.effect)
			}
		}
	})
}

// B-4: an OFFER has no effect unless the delivery is Sent. No answer has an effect while the delivery waits, or after
// it is over.
func TestLateAnswers(t *testing.T) {
	inCounter(t, func(t *testing.T, c *counter) {
		for _, s := range []deliver.State{deliver.Waiting, deliver.Accepted, deliver.Over} {
			c.set(s)
			if err := c.agent.Post("test_1", envelope.Offer{}); err != nil {
				t.Fatal(err)
			}
			c.wait(t, 0, 0)
		}
	})
}

// B-2: End cancels the thread of a delivery that was opened while End has looked. It does not cancel one that stays open.
func TestEndTriesAgain(t *testing.T) {
	inCounter(t, func(t *testing.T, c *counter) {
		looked := 0
		find := func(relay.Querier) ([]deliver.Delivery, error) {
			if looked++; looked == 1 {
				return nil, nil
			}
			return []deliver.Delivery{{N: 1, ID: "test_1", Owner: c.agent.Key.DID(), State: deliver.Sent}}, nil
		}
		end := func(s deliver.State) {
			t.Helper()
			if err := c.End(t.Context(), relay.Peer{Local: true}, "it is over", find, func(*gateway.Op) error {
				c.set(s)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		end(deliver.Sent)
		if got := len(c.agent.Types(t, "test_1")); got != 1 {
			t.Errorf("the agent has %d messages, want the REQUEST", got)
		}
		looked = 0
		end(deliver.Over)
		if got := c.agent.Types(t, "test_1"); len(got) != 2 || got[1] != envelope.TypeCancel {
			t.Errorf("the agent has got %v, want REQUEST CANCEL", got)
		}
	})
}

// B-13: an agent is online for 5 minutes after a post or a signed read.
func TestOnline(t *testing.T) {
	inCounter(t, func(t *testing.T, c *counter) {
		did := c.agent.Key.DID()
		if c.Online(did) {
			t.Error("an agent is online before it was heard from")
		}
		if err := c.agent.Post("other", envelope.Request{Intent: "x"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if time.Sleep(4 * time.Minute); !c.Online(did) {
			t.Error("4 minutes after a post, an agent is offline")
		}
		if time.Sleep(2 * time.Minute); c.Online(did) {
			t.Error("6 minutes after a post, an agent is online")
		}
	})
}

// B-1: what is an endpoint with a DID, and which intents are for the gateways.
func TestEndpoints(t *testing.T) {
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	for endpoint, want := range map[string]struct {
		own, valid bool
	}{"agora:" + string(key.DID()): {true, true}, "agora:": {true, false}, "agora:did:web:x": {true, false},
		"https://a.example/": {false, true}, "": {false, true}, "AGORA:" + string(key.DID()): {false, true}} {
		did, own, err := deliver.ParseEndpoint(endpoint)
		if own != want.own || (err == nil) != want.valid || own && err == nil && did != key.DID() {
			t.Errorf("%q: %s, %v, %v", endpoint, did, own, err)
		}
	}
}
