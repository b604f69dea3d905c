package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// parties has a relay, the two parties of a thread and a stranger, with their keys and clients. me and client are the
// client's side. Tests post the agent's messages with agentClient.
type parties struct {
	t                                   *testing.T
	relay                               *fakeRelay
	me, agent, stranger                 didkey.Key
	client, agentClient, strangerClient *client.Client
}

func newParties(t *testing.T) *parties {
	p := &parties{t: t, relay: newFakeRelay(), me: newKey(t), agent: newKey(t), stranger: newKey(t)}
	p.client = newClient(t, p.relay, p.me, client.Options{})
	p.agentClient = newClient(t, p.relay, p.agent, client.Options{})
	p.strangerClient = newClient(t, p.relay, p.stranger, client.Options{})
	return p
}

// post posts a message in the thread of a call.
func (p *parties) post(as *client.Client, call *client.Call, d envelope.Draft) *envelope.Envelope {
	p.t.Helper()
	d.Thread = call.Thread
	e, _, err := as.Post(context.Background(), d)
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

// request posts a REQUEST of the client. It returns the Call and the request_id.
func (p *parties) request(opts client.RequestOptions) (*client.Call, string) {
	p.t.Helper()
	opts.Intent = "translate"
	call, err := p.client.Request(p.t.Context(), opts)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range p.relay.all() {
		if e.Thread == call.Thread {
			return call, e.RequestID
		}
	}
	p.t.Fatal("the relay does not have the request")
	return nil, ""
}

// firstOffer returns the first offer of a call, or the error of Offers.
func firstOffer(ctx context.Context, call *client.Call) (client.Offer, error) {
	for offer, err := range call.Offers(ctx) {
		return offer, err
	}
	return client.Offer{}, nil
}

// accepted returns a call with an accepted offer of p.agent.
func (p *parties) accepted() (call *client.Call, requestID string) {
	p.t.Helper()
	call, requestID = p.request(client.RequestOptions{})
	p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: requestID}})
	offer, err := firstOffer(p.t.Context(), call)
	if err == nil {
		err = call.Accept(p.t.Context(), offer)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return call, requestID
}

// TestCallIgnoresStrangers runs a call while other senders post messages with the same thread id, and while the agent
// posts messages for other requests and recipients. The call uses only the right messages.
func TestCallIgnoresStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.request(client.RequestOptions{Recipient: p.agent.DID(), Params: map[string]string{"text": "hi"}})
		toMe := func(signer envelope.Signer, payload envelope.Payload) {
			p.relay.put(t, signer, envelope.Draft{Payload: payload, Thread: call.Thread, Recipient: p.me.DID()})
		}
		toMe(p.stranger, envelope.Offer{RequestID: id})
		toMe(p.agent, envelope.Offer{RequestID: "another"})
		toMe(p.stranger, envelope.Failure{RequestID: id, Code: "X", Message: "stop"})
		toMe(p.me, envelope.Offer{RequestID: id})
		p.relay.put(t, p.agent, envelope.Draft{Payload: envelope.Offer{RequestID: id}, Thread: call.Thread, Recipient: p.stranger.DID()})
		genuine := p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id, Plan: "with care"}}) // names no recipient
		offer, err := firstOffer(t.Context(), call)
		if err != nil || offer.Envelope.ID != genuine.ID || offer.Agent != p.agent.DID() || offer.Plan != "with care" {
			t.Fatalf("got %v, %v", offer, err)
		}
		if _, err := call.Result(t.Context()); err == nil {
			t.Error("Result returned no error before an offer was accepted")
		}
		if err := call.Accept(t.Context(), offer); err != nil {
			t.Fatal(err)
		}
		toMe(p.stranger, envelope.Result{RequestID: id, Status: "success"})
		toMe(p.agent, envelope.Result{RequestID: "another", Status: "success"})
		toMe(p.stranger, envelope.Failure{RequestID: id, Code: "X", Message: "stop"})
		defer later(time.Minute, func() {
			p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Result{RequestID: id, Status: "success", Output: json.RawMessage(`7`)}})
		})()
		result, err := call.Result(t.Context())
		if err != nil || string(result.Output) != "7" || result.Agent != p.agent.DID() || result.Envelope.Sender.ID != p.agent.DID() {
			t.Errorf("got %v, %v", result, err)
		}
	})
}

func TestOffersArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.request(client.RequestOptions{})
		var want []string
		p.relay.put(t, p.me, envelope.Draft{Payload: envelope.Offer{RequestID: id, Plan: "to myself"}, Thread: call.Thread})
		go func() {
			for _, agent := range []*client.Client{p.agentClient, p.strangerClient, p.agentClient} {
				want = append(want, p.post(agent, call, envelope.Draft{Payload: envelope.Offer{RequestID: id}}).ID)
				time.Sleep(time.Minute)
			}
		}()
		var got []string
		for offer, err := range call.Offers(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, offer.Envelope.ID); len(got) == 3 {
				if err := call.Accept(t.Context(), offer); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(got, want) {
			t.Errorf("got the offers %q, want %q", got, want)
		}
	})
}

func TestAcceptChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := 0.01
		now := time.Now()
		at := func(d time.Duration) *time.Time { when := now.Add(d); return &when }
		usd := func(amount float64) *envelope.Price { return &envelope.Price{Amount: amount, Currency: "USD"} }
		for name, test := range map[string]struct {
			limits *envelope.Constraints
			offer  envelope.Offer
			ok     bool
		}{
			"no limits":               {nil, envelope.Offer{Price: usd(99)}, true},
			"exactly the budget":      {&envelope.Constraints{MaxCostUSD: &budget}, envelope.Offer{Price: usd(0.01)}, true},
			"above the budget":        {&envelope.Constraints{MaxCostUSD: &budget}, envelope.Offer{Price: usd(0.0101)}, false},
			"another currency":        {&envelope.Constraints{MaxCostUSD: &budget}, envelope.Offer{Price: &envelope.Price{Amount: 0.001, Currency: "BTC"}}, false},
			"no price":                {&envelope.Constraints{MaxCostUSD: &budget}, envelope.Offer{}, true},
			"a currency, no budget":   {nil, envelope.Offer{Price: &envelope.Price{Amount: 5, Currency: "EUR"}}, true},
			"still valid":             {nil, envelope.Offer{ValidUntil: at(time.Millisecond)}, true},
			"no longer valid":         {nil, envelope.Offer{ValidUntil: at(0)}, false},
			"before the deadline":     {&envelope.Constraints{Deadline: at(time.Minute)}, envelope.Offer{ETASeconds: 59}, true},
			"the ETA is too late":     {&envelope.Constraints{Deadline: at(time.Minute)}, envelope.Offer{ETASeconds: 60}, false},
			"an absurd ETA":           {&envelope.Constraints{Deadline: at(time.Minute)}, envelope.Offer{ETASeconds: 1e300}, false},
			"the deadline has passed": {&envelope.Constraints{Deadline: at(-time.Second)}, envelope.Offer{ETASeconds: -1e9}, false},
		} {
			p := newParties(t)
			call, id := p.request(client.RequestOptions{Constraints: test.limits})
			test.offer.RequestID = id
			p.post(p.agentClient, call, envelope.Draft{Payload: test.offer})
			offer, err := firstOffer(t.Context(), call)
			if err != nil {
				t.Fatal(name, err)
			}
			err = call.Accept(t.Context(), offer)
			if test.ok && err != nil || !test.ok && !errors.Is(err, client.ErrUnacceptable) {
				t.Errorf("%s: got %v", name, err)
			}
			last := p.relay.last()
			if taken := last.Type == envelope.TypeAccept; taken != test.ok {
				t.Errorf("%s: an ACCEPT was posted: %v", name, taken)
			} else if taken && test.offer.Price != nil && strings.EqualFold(test.offer.Price.Currency, "USD") {
				var accept envelope.Accept
				if err := last.DecodePayload(&accept); err != nil || *accept.Terms.PriceUSD != test.offer.Price.Amount || last.Recipient != p.agent.DID() {
					t.Errorf("%s: the ACCEPT is %s, %v", name, last.Canonical(), err)
				}
			}
		}
		p := newParties(t)
		mine, _ := p.request(client.RequestOptions{})
		other, id := p.request(client.RequestOptions{})
		p.post(p.agentClient, other, envelope.Draft{Payload: envelope.Offer{RequestID: id}})
		offer, err := firstOffer(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		if err := mine.Accept(t.Context(), offer); !errors.Is(err, client.ErrUnacceptable) {
			t.Errorf("accepting another call's offer: got %v, want ErrUnacceptable", err)
		}
	})
}

// TestCallEnds ends threads without a RESULT, in all possible ways.
func TestCallEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := envelope.Failure{Code: envelope.AgentUnavailable, Message: "too busy", Details: json.RawMessage(`{"a":1}`)}
		for name, test := range map[string]struct {
			end  func(p *parties, call *client.Call)
			want client.AgentError // From is the agent, or the relay if the code is TIMEOUT
			err  error
		}{
			"the agent's ERROR": {
				end:  func(p *parties, call *client.Call) { p.post(p.agentClient, call, envelope.Draft{Payload: failure}) },
				want: client.AgentError{Code: envelope.AgentUnavailable, Message: "too busy", Details: failure.Details},
			},
			"the timeout": {
				end:  func(*parties, *client.Call) {},
				want: client.AgentError{Code: envelope.AgentTimeout, Message: "the relay ended the thread, because no message came before its deadline"},
			},
			"our own CANCEL": {
				end: func(p *parties, call *client.Call) {
					if err := call.Cancel(p.t.Context(), "changed my mind"); err != nil {
						p.t.Error(err)
					}
				},
				err: client.ErrCancelled,
			},
		} {
			for _, stage := range []string{"offers", "result"} {
				p := newParties(t)
				var call *client.Call
				if stage == "offers" {
					call, _ = p.request(client.RequestOptions{Recipient: p.agent.DID()})
				} else {
					call, _ = p.accepted()
				}
				want := test.want
				if want.From = p.agent.DID(); want.Code == envelope.AgentTimeout {
					want.From = p.relay.key.DID()
				}
				wait := later(time.Second, func() { test.end(p, call) })
				began := time.Now()
				var err error
				if stage == "offers" {
					_, err = firstOffer(t.Context(), call)
				} else {
					_, err = call.Result(t.Context())
				}
				wait()
				got, ok := errors.AsType[*client.AgentError](err)
				switch {
				case test.err != nil && !errors.Is(err, test.err):
					t.Errorf("%s, %s: got %v", name, stage, err)
				case test.err == nil && (!ok || got.Code != want.Code || got.Message != want.Message || string(got.Details) != string(want.Details) || got.From != want.From):
					t.Errorf("%s, %s: got %#v, want %#v", name, stage, err, want)
				}
				if took := time.Since(began); took > 61*time.Minute || want.Code != envelope.AgentTimeout && took > 2*time.Second {
					t.Errorf("%s, %s: the error came after %v", name, stage, took)
				}
			}
		}
	})
}

// TestWithdrawnOfferDoesNotEndCall: an agent withdraws its offer with an ERROR and makes a better offer. The ERROR must
// not end the call.
func TestWithdrawnOfferDoesNotEndCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.request(client.RequestOptions{})
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id, Plan: "old"}})
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Failure{Code: "WITHDRAWN", Message: "a better one follows"}})
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id, Plan: "new"}})
		for offer, err := range call.Offers(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if offer.Plan == "new" {
				if err := call.Accept(t.Context(), offer); err != nil {
					t.Fatal(err)
				}
			}
		}
		defer later(time.Minute, func() {
			p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Result{RequestID: id, Status: "success"}})
			p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Failure{Code: "LATE", Message: "an ERROR cannot hide the RESULT"}})
		})()
		if result, err := call.Result(t.Context()); err != nil || result.Status != "success" {
			t.Errorf("got %v, %v", result, err)
		}
		synctest.Wait()
	})
}

// TestRelayNoticeOfAnotherThread: a stranger opens a thread with the id of the client's thread, and names the client as
// its agent. The stranger's thread times out. The relay's notice of that to the client must not end the client's call.
func TestRelayNoticeOfAnotherThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.accepted()
		p.relay.put(t, p.relay.key, envelope.Draft{Thread: call.Thread, Recipient: p.me.DID(),
			Payload: envelope.Failure{RequestID: id, Code: envelope.AgentTimeout, Message: "time was up"}})
		defer later(time.Minute, func() {
			p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Result{RequestID: id, Status: "success"}})
		})()
		if _, err := call.Result(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		budget := 0.01
		call, id := p.request(client.RequestOptions{Recipient: p.agent.DID(), Constraints: &envelope.Constraints{MaxCostUSD: &budget}})
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id, Plan: "expensive", Price: &envelope.Price{Amount: 1, Currency: "USD"}}})
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id, Plan: "cheap"}})
		resume := func() *client.Call {
			again, err := newClient(t, p.relay, p.me, client.Options{}).Resume(t.Context(), call.Thread)
			if err != nil {
				t.Fatal(err)
			}
			return again
		}
		again := resume()
		for offer, err := range again.Offers(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			err = again.Accept(t.Context(), offer)
			if expensive := offer.Plan == "expensive"; expensive != errors.Is(err, client.ErrUnacceptable) || !expensive && err != nil {
				t.Errorf("accepting the %s offer: %v", offer.Plan, err)
			}
		}
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Result{RequestID: id, Status: "success"}})
		if _, err := resume().Result(t.Context()); err != nil {
			t.Error(err)
		}
		for range resume().Offers(t.Context()) { // in a completed thread Offers yields the old offers and does not wait
		}
		if _, err := p.strangerClient.Resume(t.Context(), call.Thread); !hasCode(err, envelope.CodeThreadNotFound) {
			t.Errorf("a stranger resumed the call: %v", err)
		}
	})
}

// TestResultExpired: the agent's RESULT expires after ten seconds, before the client reads it.
func TestResultExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.accepted()
		p.post(p.agentClient, call, envelope.Draft{TTL: 10 * time.Second, Payload: envelope.Result{RequestID: id, Status: "success"}})
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if _, err := call.Result(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v; want an error at once, because the thread has ended and the RESULT is gone", err)
		}
	})
}

// TestLyingRecord: the relay's record names another agent than the one whose offer the client has accepted.
func TestLyingRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.accepted()
		p.relay.mu.Lock()
		p.relay.threads[0].Agent = p.stranger.DID()
		p.relay.mu.Unlock()
		again, err := p.client.Resume(t.Context(), call.Thread)
		if err != nil {
			t.Fatal(err)
		}
		p.relay.put(t, p.stranger, envelope.Draft{Thread: call.Thread, Payload: envelope.Result{RequestID: id, Status: "forged"}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if result, err := again.Result(ctx); err == nil {
			t.Errorf("accepted a RESULT from a stranger: %v", result)
		}
	})
}

// TestResumeBelievesSignaturesOnly: the relay's record names a request that the client did not make, and an agent that
// has not offered. The client's ACCEPT has no recipient, so it is for the only agent that has offered.
func TestResumeBelievesSignaturesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, id := p.request(client.RequestOptions{})
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id}, Recipient: p.me.DID()})
		p.post(p.client, call, envelope.Draft{Payload: envelope.Accept{RequestID: id}})
		p.relay.mu.Lock()
		p.relay.threads[0].Agent = p.stranger.DID()
		p.relay.mu.Unlock()
		again, err := p.client.Resume(t.Context(), call.Thread)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Cancel(t.Context(), "secret"); err == nil || p.relay.last().Recipient == p.stranger.DID() {
			t.Errorf("the CANCEL was for %s, %v", p.relay.last().Recipient, err)
		}
		p.relay.put(t, p.stranger, envelope.Draft{Thread: call.Thread, Payload: envelope.Result{RequestID: id, Status: "forged"}})
		p.relay.put(t, p.agent, envelope.Draft{Thread: call.Thread, Payload: envelope.Result{RequestID: id, Status: "success"}})
		if result, err := again.Result(t.Context()); err != nil || result.Agent != p.agent.DID() {
			t.Errorf("got %v, %v", result, err)
		}
		p.relay.mu.Lock()
		p.relay.threads[0].RequestID = "another"
		p.relay.mu.Unlock()
		if _, err := p.client.Resume(t.Context(), call.Thread); !errors.Is(err, client.ErrUnproven) {
			t.Errorf("resuming a request that the client did not make: got %v, want ErrUnproven", err)
		}
	})
}

func TestRequestUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		script(p.relay, lost, reset)
		call, err := p.client.Request(t.Context(), client.RequestOptions{Intent: "translate"})
		if !errors.Is(err, client.ErrUnknownOutcome) || call == nil {
			t.Fatalf("got %v, %v", call, err)
		}
		script(p.relay, pass)
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: p.relay.all()[0].RequestID}})
		if offer, err := firstOffer(t.Context(), call); err != nil || offer.Agent != p.agent.DID() {
			t.Errorf("the Call returned with the error is not usable: got %v, %v", offer, err)
		}
	})
}

func TestCallForgottenByRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, _ := p.accepted()
		p.relay.wipe()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := call.Result(ctx); !hasCode(err, envelope.CodeThreadNotFound) {
			t.Errorf("got %v", err)
		}
	})
}

func TestThreadLeavesOutForgeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, _ := p.accepted()
		p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			r.URL.Path = strings.Replace(r.URL.Path, "other-thread", call.Thread, 1)
			answer, err := next.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			var text strings.Builder
			if err := answer.Write(&text); err != nil {
				return nil, err
			}
			_, body, _ := strings.Cut(text.String(), "\r\n\r\n")
			return response(200, strings.Replace(body, `"intent":"translate"`, `"intent":"transfer"`, 1)), nil
		})
		record, err := p.client.Thread(t.Context(), call.Thread, p.me.DID())
		if err != nil || len(record.Events) != 2 || record.Deadline.IsZero() || record.Agent != p.agent.DID() {
			t.Errorf("got %v, %v; want the OFFER and the ACCEPT", record, err)
		}
		if record, err := p.client.Thread(t.Context(), "other-thread", ""); err == nil {
			t.Errorf("accepted the thread %s in the response to another thread's id", record.ID)
		}
	})
}
