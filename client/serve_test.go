package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// serve runs the agent until stop is called. stop returns the error of Serve.
func (p *parties) serve(opts client.ServeOptions, handler client.Handler) (stop func() error) {
	p.t.Helper()
	if opts.Intents == nil {
		opts.Intents = []string{"translate"}
	}
	if handler.Work == nil {
		handler.Work = func(context.Context, client.Job) (envelope.Result, error) {
			return envelope.Result{Output: json.RawMessage(`"done"`)}, nil
		}
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.agentClient.Serve(ctx, opts, handler) }()
	synctest.Wait() // Serve is polling now
	return func() error { cancel(); return <-ended }
}

// ask runs a whole call: it requests, accepts the first offer and waits for the result.
func (p *parties) ask(opts client.RequestOptions) (*client.Result, error) {
	p.t.Helper()
	call, _ := p.request(opts)
	offer, err := firstOffer(p.t.Context(), call)
	if err != nil {
		return nil, err
	}
	if err := call.Accept(p.t.Context(), offer); err != nil {
		return nil, err
	}
	return call.Result(p.t.Context())
}

// count returns the number of the agent's messages of a type in the relay.
func (p *parties) count(typ envelope.Type) (n int) {
	for _, e := range p.relay.all() {
		if e.Type == typ && e.Sender.ID == p.agent.DID() {
			n++
		}
	}
	return n
}

func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{}, client.Handler{
			Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
				time.Sleep(20 * time.Minute)
				return envelope.Result{Output: job.Request.Params}, nil
			},
		})
		for _, opts := range []client.RequestOptions{{Params: 17}, {Params: 17, Recipient: p.agent.DID()}} {
			result, err := p.ask(opts)
			if err != nil || string(result.Output) != "17" || result.Status != "success" {
				t.Errorf("got %v, %v", result, err)
			}
		}
		if p.count(envelope.TypeOffer) != 2 || p.count(envelope.TypeResult) != 2 || p.count(envelope.TypeError) != 0 {
			t.Errorf("the agent posted %d offers, %d results", p.count(envelope.TypeOffer), p.count(envelope.TypeResult))
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve ended with %v", err)
		}
	})
}

// TestServeRefuses checks the ERROR that a client gets if there is no offer or no result.
func TestServeRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := errors.New("password of db.internal is wrong")
		agentError := &client.AgentError{Code: "TOO_LONG", Message: "at most 100 words", Details: json.RawMessage(`{"words":100}`)}
		fail := func(err error) client.Handler {
			return client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) { return envelope.Result{}, err }}
		}
		quote := func(offer envelope.Offer, err error) client.Handler {
			return client.Handler{Quote: func(context.Context, client.Job) (envelope.Offer, error) { return offer, err }}
		}
		budget := 0.001
		expensive := envelope.Offer{Price: &envelope.Price{Amount: 0.01, Currency: "USD"}}
		for name, test := range map[string]struct {
			intents []string
			opts    client.RequestOptions
			handler client.Handler
			want    envelope.AgentCode
			details string
			early   bool // the agent makes no offer
		}{
			"another intent":   {intents: []string{"sing", "dance"}, want: envelope.AgentIntentNotSupported, early: true},
			"above the budget": {opts: client.RequestOptions{Constraints: &envelope.Constraints{MaxCostUSD: &budget}}, handler: quote(expensive, nil), want: envelope.AgentInsufficientBudget, details: `{"min_required":0.01,"provided":0.001}`, early: true},
			"price not finite": {handler: quote(envelope.Offer{Price: &envelope.Price{Amount: math.Inf(1), Currency: "USD"}}, nil), want: envelope.AgentInternal, early: true},
			"price no number":  {opts: client.RequestOptions{Constraints: &envelope.Constraints{MaxCostUSD: &budget}}, handler: quote(envelope.Offer{Price: &envelope.Price{Amount: math.NaN(), Currency: "USD"}}, nil), want: envelope.AgentInternal, early: true},
			"quote refuses":    {handler: quote(envelope.Offer{}, agentError), want: "TOO_LONG", details: `{"words":100}`, early: true},
			"quote fails":      {handler: quote(envelope.Offer{}, secret), want: envelope.AgentInternal, early: true},
			"work fails":       {handler: fail(secret), want: envelope.AgentInternal},
			"work refuses":     {handler: fail(fmt.Errorf("checking: %w", agentError)), want: "TOO_LONG", details: `{"words":100}`},
			"an empty refusal": {handler: fail(&client.AgentError{Code: "NO"}), want: "NO"},
			"no code":          {handler: fail(&client.AgentError{Message: "oh"}), want: envelope.AgentInternal},
			"work panics":      {handler: client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) { panic(secret) }}, want: envelope.AgentInternal},
			"result too large": {handler: client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
				return envelope.Result{Output: json.RawMessage(`"` + strings.Repeat("x", 200_000) + `"`)}, nil
			}}, want: envelope.AgentInternal},
			"result not JSON": {handler: client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
				return envelope.Result{Output: json.RawMessage(`{`)}, nil
			}}, want: envelope.AgentInternal},
			"details not JSON": {handler: fail(&client.AgentError{Code: "NO", Message: "no", Details: json.RawMessage(`{`)}), want: envelope.AgentInternal},
		} {
			p := newParties(t)
			stop := p.serve(client.ServeOptions{Intents: test.intents}, test.handler)
			test.opts.Recipient = p.agent.DID()
			_, err := p.ask(test.opts)
			got, ok := errors.AsType[*client.AgentError](err)
			if !ok || got.Code != test.want || got.Message == "" || test.details != "" && string(got.Details) != test.details || strings.Contains(got.Message, "password") {
				t.Errorf("%s: got %v, want %s %s", name, err, test.want, test.details)
			}
			if test.early {
				test.opts.Recipient = ""
				posted := len(p.relay.posts)
				_, err := p.ask(test.opts)
				if got, ok := errors.AsType[*client.AgentError](err); !ok || got.Code != envelope.AgentTimeout {
					t.Errorf("%s, as a broadcast: got %v, want no answer until the timeout", name, err)
				}
				if n := len(p.relay.posts) - posted; n != 1 {
					t.Errorf("%s, as a broadcast: %d posts, want only the REQUEST", name, n)
				}
			}
			if p.count(envelope.TypeError) != 1 {
				t.Errorf("%s: the agent posted %d ERRORs", name, p.count(envelope.TypeError))
			}
			stop()
		}
	})
}

func TestServeMalformedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		defer p.serve(client.ServeOptions{}, client.Handler{})()
		body := `{"type":"REQUEST","recipient":{"id":"` + string(p.agent.DID()) + `"},"payload":{"request_id":"r1","intent":"translate","constraints":"cheap"}}`
		e, err := envelope.SignJSON(p.me, []byte(body), time.Now())
		if err == nil {
			_, err = p.client.PostEnvelope(t.Context(), e)
		}
		if err != nil {
			t.Fatal(err)
		}
		call, err := p.client.Resume(t.Context(), "r1")
		if err == nil {
			t.Errorf("resuming a call with a malformed REQUEST returned %v and no error", call)
		}
		synctest.Wait()
		last := p.relay.last()
		if last.Type != envelope.TypeError || last.PayloadString("code") != "INVALID_REQUEST" || last.RequestID != "r1" {
			t.Errorf("the agent answered %s", last.Canonical())
		}
	})
}

func TestServeCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, end := range []envelope.Payload{envelope.Cancel{}, envelope.Failure{Code: "X", Message: "no longer"}} {
			p := newParties(t)
			var cause error
			stop := p.serve(client.ServeOptions{}, client.Handler{
				Work: func(ctx context.Context, _ client.Job) (envelope.Result, error) {
					<-ctx.Done()
					cause = context.Cause(ctx)
					return envelope.Result{}, ctx.Err()
				},
			})
			call, _ := p.request(client.RequestOptions{Recipient: p.agent.DID()})
			offer, err := firstOffer(t.Context(), call)
			if err == nil {
				err = call.Accept(t.Context(), offer)
			}
			if err != nil {
				t.Fatal(err)
			}
			// A message of a stranger cancels nothing, and neither does a message of the client in another thread.
			p.relay.put(t, p.stranger, envelope.Draft{Payload: end, Thread: call.Thread, Recipient: p.agent.DID()})
			p.relay.put(t, p.me, envelope.Draft{Payload: end, Thread: "other", Recipient: p.agent.DID()})
			time.Sleep(time.Minute)
			if cause != nil {
				t.Errorf("the work was cancelled by a message of a stranger, or by one in another thread")
			}
			p.post(p.client, call, envelope.Draft{Payload: end, Recipient: p.agent.DID()})
			synctest.Wait()
			if !errors.Is(cause, client.ErrCancelled) {
				t.Errorf("%T: the work's context ended with %v", end, cause)
			}
			if p.count(envelope.TypeError)+p.count(envelope.TypeResult) != 0 {
				t.Errorf("%T: the agent posted a message after it", end)
			}
			stop()
		}
	})
}

func TestServeStopsWorkLongAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		began, took := time.Now(), time.Duration(0)
		stop := p.serve(client.ServeOptions{}, client.Handler{
			Work: func(ctx context.Context, _ client.Job) (envelope.Result, error) {
				<-ctx.Done()
				took = time.Since(began)
				return envelope.Result{}, ctx.Err()
			},
		})
		if _, err := p.ask(client.RequestOptions{}); err == nil {
			t.Error("got a result")
		}
		time.Sleep(10 * time.Minute)
		stop()
		if took != 65*time.Minute {
			t.Errorf("the work was stopped after %v, want 65m: the thread's timeout plus 5m for differing clocks", took)
		}
	})
}

// TestServeTrustsSignaturesOnly: the relay's record says that the agent's offer was accepted, but there is no ACCEPT
// that the client has signed for this request.
func TestServeTrustsSignaturesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		defer p.serve(client.ServeOptions{}, client.Handler{
			Work: func(context.Context, client.Job) (envelope.Result, error) {
				t.Error("the agent worked without a signed ACCEPT")
				return envelope.Result{}, nil
			},
		})()
		call, id := p.request(client.RequestOptions{Recipient: p.agent.DID()})
		if _, err := firstOffer(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		p.relay.mu.Lock()
		p.relay.threads[0].State, p.relay.threads[0].Agent = thread.Active, p.agent.DID()
		p.relay.mu.Unlock()
		forge := func(signer envelope.Signer, id, threadID string) {
			e := p.relay.put(t, signer, envelope.Draft{Payload: envelope.Accept{RequestID: id}, Thread: threadID, Recipient: p.agent.DID()})
			p.relay.mu.Lock() // also add e to the relay's record
			defer p.relay.mu.Unlock()
			record := &p.relay.threads[0]
			record.Transitions = append(record.Transitions, thread.Transition{Type: e.Type, By: e.Sender.ID, ID: e.ID, At: time.Now()})
		}
		forge(p.stranger, id, call.Thread)
		forge(p.me, "another", call.Thread)
		forge(p.me, id, "another")
		time.Sleep(time.Hour)
	})
}

func TestServeConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		var now, most atomic.Int32
		defer p.serve(client.ServeOptions{Concurrency: 3}, client.Handler{
			Work: func(context.Context, client.Job) (envelope.Result, error) {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Minute)
				now.Add(-1)
				return envelope.Result{}, nil
			},
		})()
		began := time.Now()
		var calls []*client.Call
		for range 9 {
			call, _ := p.request(client.RequestOptions{})
			offer, err := firstOffer(t.Context(), call)
			if err == nil {
				err = call.Accept(t.Context(), offer)
			}
			if err != nil {
				t.Fatal(err)
			}
			calls = append(calls, call)
		}
		for _, call := range calls {
			if _, err := call.Result(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); most.Load() != 3 || took != 3*time.Minute {
			t.Errorf("%d jobs at once, %v in total; want 3 and 3m", most.Load(), took)
		}
	})
}

func TestServeAnnounces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		manifest := &envelope.Manifest{ID: "cap", Intents: []envelope.Intent{{ID: "translate"}}}
		script(p.relay, reset, reset, pass)
		stop := p.serve(client.ServeOptions{Manifest: manifest}, client.Handler{})
		time.Sleep(5 * time.Second)
		if n := p.count(envelope.TypeManifest); n != 1 {
			t.Errorf("the manifest was posted %d times at the start, want once", n)
		}
		p.relay.setHook(nil)
		time.Sleep(72 * time.Hour)
		if n := p.count(envelope.TypeManifest); n < 6 || n > 8 {
			t.Errorf("the manifest was posted %d times in three days; want 6 to 8, because it expires after a day", n)
		}
		stop()
	})
}

func TestServeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		broken := errors.New("the disk is full")
		err := p.agentClient.Serve(t.Context(), client.ServeOptions{Intents: []string{"translate"}, Cursor: brokenStore{save: broken}}, client.Handler{
			Work: func(context.Context, client.Job) (envelope.Result, error) { return envelope.Result{}, nil },
		})
		if !errors.Is(err, broken) {
			t.Errorf("Serve ended with %v, want the error of saving the cursor", err)
		}
		if err := p.agentClient.Serve(t.Context(), client.ServeOptions{}, client.Handler{}); err == nil {
			t.Error("Serve without intents and Work returned no error")
		}
		p.relay.setHook(answering(401, `{"ok":false,"error":"UNAUTHORIZED","message":"sign your reads"}`))
		stop := p.serve(client.ServeOptions{}, client.Handler{})
		time.Sleep(time.Second)
		if err := stop(); !hasCode(err, envelope.CodeUnauthorized) {
			t.Errorf("Serve ended with %v, want UNAUTHORIZED", err)
		}
	})
}

func TestServeWaitsForItsHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		var ended atomic.Bool
		stop := p.serve(client.ServeOptions{}, client.Handler{Work: func(ctx context.Context, _ client.Job) (envelope.Result, error) {
			<-ctx.Done()
			time.Sleep(time.Minute)
			ended.Store(true)
			return envelope.Result{}, nil
		}})
		call, _ := p.request(client.RequestOptions{})
		offer, err := firstOffer(t.Context(), call)
		if err == nil {
			err = call.Accept(t.Context(), offer)
		}
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if stop(); !ended.Load() {
			t.Error("Serve returned before its handler")
		}
	})
}

// TestServeSealsDespiteWrongRecord: the relay's record names another request and hides the agent's offer. The agent
// must not make a second offer in plaintext.
func TestServeSealsDespiteWrongRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		defer p.serve(client.ServeOptions{}, client.Handler{})()
		call, id := p.request(client.RequestOptions{Intent: "translate", Recipient: p.agent.DID(), Seal: true})
		synctest.Wait()
		if p.count(envelope.TypeOffer) != 1 {
			t.Fatal("no offer")
		}
		p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			answer, err := next.RoundTrip(r)
			if err != nil || !strings.HasPrefix(r.URL.Path, "/threads/") {
				return answer, err
			}
			text, err := io.ReadAll(answer.Body)
			return response(http.StatusOK, strings.NewReplacer(`"requestId":"`+id+`"`, `"requestId":"another"`,
				string(p.agent.DID()), string(p.stranger.DID())).Replace(string(text))), err
		})
		p.relay.put(t, p.me, envelope.Draft{Thread: call.Thread, Recipient: p.agent.DID(), Payload: envelope.Accept{RequestID: id}})
		time.Sleep(time.Minute)
		for _, e := range p.relay.all() {
			if e.Sender.ID == p.agent.DID() && !e.Sealed() {
				t.Errorf("the agent answered in plaintext: %s", e.Canonical())
			}
		}
	})
}
