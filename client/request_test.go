package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// wantState checks the state of a call.
func (p *parties) wantState(call *client.Call, state thread.State, agent didkey.DID, offers int) {
	p.t.Helper()
	got, err := call.State(p.t.Context())
	if err != nil || got.Thread != call.Thread || got.State != state || got.Agent != agent || got.Offers != offers ||
		got.Deadline.IsZero() != (state == thread.Completed || state == thread.Failed) {
		p.t.Errorf("%+v, %v; want %s, agent %q, %d offers", got, err, state, agent, offers)
	}
}

// TestRequestAgain simulates a crash after each step of a call. The next process knows only the thread's id and the
// options, and calls Request again.
func TestRequestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		budget := 1.0
		opts := client.RequestOptions{Intent: "translate", Thread: client.NewThread(), Constraints: &envelope.Constraints{MaxCostUSD: &budget}}
		again := func() *client.Call {
			t.Helper()
			before := len(p.relay.all())
			c := newClient(t, p.relay, p.me, client.Options{}) // another process
			call, err := c.Request(t.Context(), opts)
			if err != nil || call.Thread != opts.Thread {
				t.Fatalf("%+v, %v", call, err)
			}
			if n := len(p.relay.all()); before > 0 && n != before {
				t.Fatalf("the relay has %d events, it had %d before", n, before)
			}
			return call
		}
		p.wantState(again(), thread.Pending, "", 0)
		p.wantState(again(), thread.Pending, "", 0)
		request := p.relay.last()
		if request.Thread != opts.Thread || request.RequestID != opts.Thread {
			t.Errorf("thread %s, request_id %s", request.Thread, request.RequestID)
		}
		offer := func(agent *client.Client, price float64) {
			p.post(agent, again(), envelope.Draft{Payload: envelope.Offer{RequestID: opts.Thread, Price: &envelope.Price{Amount: price, Currency: "USD"}}})
		}
		offer(p.strangerClient, 2)
		offer(p.agentClient, 0.5)
		p.wantState(again(), thread.Pending, "", 2)
		call := again()
		offers, err := call.Collect(t.Context(), time.Second)
		if err != nil || len(offers) != 2 {
			t.Fatalf("%v, %v", offers, err)
		}
		if err := call.Accept(t.Context(), offers[0]); !errors.Is(err, client.ErrUnacceptable) {
			t.Errorf("an offer above the budget: %v", err)
		}
		if err := call.Accept(t.Context(), offers[1]); err != nil {
			t.Fatal(err)
		}
		p.wantState(again(), thread.Active, p.agent.DID(), 2)
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Result{RequestID: opts.Thread, Status: "success"}})
		p.wantState(again(), thread.Completed, p.agent.DID(), 2)
		if result, err := again().Result(t.Context()); err != nil || result.Status != "success" {
			t.Errorf("%v, %v", result, err)
		}
	})
}

// TestRequestWithATakenThread: a client can open only one thread with an id. Another client can use the same id.
func TestRequestWithATakenThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		opts := client.RequestOptions{Intent: "translate", Thread: client.NewThread()}
		if _, err := p.client.Request(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
		for name, other := range map[string]client.RequestOptions{
			"another intent": {Intent: "sing"}, "another recipient": {Intent: "translate", Recipient: p.agent.DID()},
			"sealed": {Intent: "translate", Recipient: p.agent.DID(), Seal: true},
		} {
			other.Thread = opts.Thread
			if call, err := p.client.Request(t.Context(), other); call != nil || !hasCode(err, envelope.CodeInvalidTransition) {
				t.Errorf("%s: %v, %v", name, call, err)
			}
		}
		// Another client's thread with this id is another thread.
		if call, err := p.strangerClient.Request(t.Context(), opts); err != nil {
			t.Error(err)
		} else if state, err := call.State(t.Context()); err != nil || state.State != thread.Pending {
			t.Errorf("%+v, %v", state, err)
		}
	})
}

// TestRequestAgainWithoutItsRequest calls Request again for a thread whose REQUEST has expired or is sealed.
func TestRequestAgainWithoutItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		for name, opts := range map[string]client.RequestOptions{
			"expired": {TTL: time.Second}, "sealed": {Recipient: p.agent.DID(), Seal: true},
		} {
			budget := 1.0
			opts.Intent, opts.Thread, opts.Constraints = "translate", client.NewThread(), &envelope.Constraints{MaxCostUSD: &budget}
			if _, err := p.client.Request(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			call, err := newClient(t, p.relay, p.me, client.Options{}).Request(t.Context(), opts)
			if err != nil || call.Seal != opts.Seal {
				t.Fatalf("%s: %+v, %v", name, call, err)
			}
			price := envelope.Offer{RequestID: opts.Thread, Price: &envelope.Price{Amount: 2, Currency: "USD"}}
			p.post(p.agentClient, call, envelope.Draft{Payload: price, Recipient: p.me.DID(), Seal: opts.Seal})
			offer, err := firstOffer(t.Context(), call)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := call.Accept(t.Context(), offer); !errors.Is(err, client.ErrUnacceptable) || !strings.Contains(err.Error(), "max_cost_usd") {
				t.Errorf("%s: accepting an offer above the budget: got %v, want ErrUnacceptable", name, err)
			}
		}
	})
}

// TestStateSettlesAnAccept: the response to an ACCEPT is lost. State shows that the relay has the ACCEPT.
func TestStateSettlesAnAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.request(client.RequestOptions{})
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id}})
		offer, err := firstOffer(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return lost(r, next)
			}
			return next.RoundTrip(r)
		})
		if err := call.Accept(t.Context(), offer); !errors.Is(err, client.ErrUnknownOutcome) {
			t.Fatal(err)
		}
		p.relay.setHook(nil)
		p.wantState(call, thread.Active, p.agent.DID(), 1)
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Result{RequestID: id, Status: "success"}})
		if _, err := call.Result(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.request(client.RequestOptions{})
		offer := func(agent *client.Client) {
			p.post(agent, call, envelope.Draft{Payload: envelope.Offer{RequestID: id}})
		}
		began := time.Now()
		if offers, err := call.Collect(t.Context(), 3*time.Second); err != nil || len(offers) != 0 || time.Since(began) != 3*time.Second {
			t.Errorf("no offers: %v, %v after %v", offers, err, time.Since(began))
		}
		offer(p.agentClient)
		defer later(5*time.Second, func() { offer(p.strangerClient) })()
		defer later(20*time.Second, func() { offer(p.agentClient) })()
		offers, err := call.Collect(t.Context(), 10*time.Second)
		if err != nil || len(offers) != 2 || offers[0].Agent != p.agent.DID() || offers[1].Agent != p.stranger.DID() {
			t.Errorf("%v, %v", offers, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if offers, err := call.Collect(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || len(offers) != 2 {
			t.Errorf("ctx ends first: %v, %v", offers, err)
		}
		time.Sleep(time.Hour)
		offers, err = call.Collect(t.Context(), time.Minute)
		if failed, _ := errors.AsType[*client.AgentError](err); failed == nil || failed.Code != envelope.AgentTimeout || len(offers) != 3 {
			t.Errorf("the thread has timed out: %v, %v", offers, err)
		}
	})
}
