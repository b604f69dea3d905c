package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
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

// unopenable returns a draft with a sealed payload that cannot be opened: the payload was sealed for a message with
// another id.
func (p *parties) unopenable(as envelope.Signer, d envelope.Draft) envelope.Draft {
	p.t.Helper()
	d.Seal = true
	e, err := d.Sign(as, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	d.Seal, d.Thread, d.Payload = false, e.Thread, envelope.Raw{Type: e.Type, JSON: e.Payload}
	return d
}

// wire returns the messages of a thread as the relay has them, and whether each is sealed.
func (p *parties) wire(thread string) (text string, sealed []bool) {
	for _, e := range p.relay.all() {
		if e.Thread == thread {
			text += string(e.Canonical()) + "\n"
			sealed = append(sealed, e.Sealed())
		}
	}
	return text, sealed
}

// TestSealedCall runs whole threads with an agent. Each side reads the sealed messages like plaintext messages. The
// relay sees nothing of their contents.
func TestSealedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{}, client.Handler{
			Quote: func(_ context.Context, job client.Job) (envelope.Offer, error) {
				return envelope.Offer{Plan: "read the secret " + string(job.Request.Params), Price: &envelope.Price{Amount: 2, Currency: "USD"}}, nil
			},
			Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
				if job.Request.Title == "fail" {
					return envelope.Result{}, &client.AgentError{Code: "C", Message: "the secret is not good", Details: json.RawMessage(`["secret"]`)}
				}
				return envelope.Result{Output: job.Request.Params}, nil
			},
		})
		budget := 3.0
		opts := client.RequestOptions{Params: "secret", Recipient: p.agent.DID(), Seal: true,
			Constraints: &envelope.Constraints{MaxCostUSD: &budget}}
		result, err := p.ask(opts)
		if err != nil || string(result.Output) != `"secret"` || !result.Envelope.Opened {
			t.Fatalf("got %+v, %v", result, err)
		}
		text, sealed := p.wire(result.Envelope.Thread)
		if strings.Contains(text, "secret") || strings.Contains(text, "max_cost") || !slices.Equal(sealed, []bool{true, true, true, true}) {
			t.Errorf("sealed: %v; the relay sees\n%s", sealed, text)
		}
		// ERRORs are sealed too: those of Work, and those instead of an offer.
		opts.Title = "fail"
		_, err = p.ask(opts)
		if failed, ok := errors.AsType[*client.AgentError](err); !ok || failed.Message != "the secret is not good" || string(failed.Details) != `["secret"]` {
			t.Errorf("got %v", err)
		}
		budget = 1
		_, err = p.ask(opts)
		if failed, ok := errors.AsType[*client.AgentError](err); !ok || failed.Code != envelope.AgentInsufficientBudget {
			t.Errorf("got %v", err)
		}
		for _, e := range p.relay.all() {
			if !e.Sealed() || e.Type == envelope.TypeError && e.PayloadString("message") != "sealed" {
				t.Errorf("%s %s is in plaintext", e.Type, e.Payload)
			}
		}
		// A request in plaintext gets answers in plaintext.
		opts.Seal, opts.Title, budget = false, "", 3
		result, err = p.ask(opts)
		if _, sealed := p.wire(result.Envelope.Thread); err != nil || slices.Contains(sealed, true) {
			t.Errorf("sealed %v, %v", sealed, err)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestSealedNeverPlain: a message that cannot be sealed is not sent. A message that is signed again, because the clock
// was wrong, is sealed again.
func TestSealedNeverPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		_, err := p.client.Request(t.Context(), client.RequestOptions{Intent: "i", Title: "secret", Seal: true})
		if err == nil || !strings.Contains(err.Error(), "broadcast") || len(p.relay.all()) > 0 {
			t.Errorf("got %v, %d events", err, len(p.relay.all()))
		}
		p.relay.skew = time.Hour
		call, err := p.client.Request(t.Context(), client.RequestOptions{Intent: "i", Title: "secret", Seal: true, Recipient: p.agent.DID()})
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Cancel(t.Context(), "secret"); err != nil {
			t.Fatal(err)
		}
		if text, sealed := p.wire(call.Thread); !slices.Equal(sealed, []bool{true, true}) || strings.Contains(text, "secret") {
			t.Errorf("sealed %v: %s", sealed, text)
		}
	})
}

// TestPlainAnswers: an agent answers a sealed request in plaintext.
func TestPlainAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		ask := client.RequestOptions{Recipient: p.agent.DID(), Seal: true}
		plain := func(payload envelope.Payload) envelope.Draft {
			return envelope.Draft{Payload: payload, Recipient: p.me.DID()}
		}
		sealed := func(payload envelope.Payload) envelope.Draft {
			return envelope.Draft{Payload: payload, Recipient: p.me.DID(), Seal: true}
		}
		call, id := p.request(ask)
		p.post(p.agentClient, call, plain(envelope.Offer{RequestID: id}))
		if offer, err := firstOffer(t.Context(), call); !errors.Is(err, client.ErrPlain) || offer.Envelope != nil {
			t.Errorf("an offer in plaintext: %+v, %v", offer, err)
		}
		call.AllowPlain = true
		if _, err := firstOffer(t.Context(), call); err != nil {
			t.Errorf("an offer in plaintext, with AllowPlain: %v", err)
		}

		call, id = p.request(ask)
		p.post(p.agentClient, call, sealed(envelope.Offer{RequestID: id}))
		offer, err := firstOffer(t.Context(), call)
		if err == nil {
			err = call.Accept(t.Context(), offer)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.post(p.agentClient, call, plain(envelope.Result{RequestID: id, Status: "success"}))
		if result, err := call.Result(t.Context()); !errors.Is(err, client.ErrPlain) || result != nil {
			t.Errorf("a result in plaintext: %+v, %v", result, err)
		}
		call.AllowPlain = true
		if result, err := call.Result(t.Context()); err != nil || result.Status != "success" {
			t.Errorf("a result in plaintext, with AllowPlain: %v", err)
		}

		call, id = p.request(ask)
		p.post(p.agentClient, call, plain(envelope.Failure{RequestID: id, Code: "C", Message: "m"}))
		_, err = firstOffer(t.Context(), call)
		if failed, ok := errors.AsType[*client.AgentError](err); !errors.Is(err, client.ErrPlain) || !ok || failed.Code != "C" {
			t.Errorf("an ERROR in plaintext: %v", err)
		}
		call.AllowPlain = true
		if _, err = firstOffer(t.Context(), call); errors.Is(err, client.ErrPlain) {
			t.Errorf("an ERROR in plaintext, with AllowPlain: %v", err)
		}

		// The relay's own notices are in plaintext, and are accepted.
		call, _ = p.request(ask)
		time.Sleep(time.Hour)
		_, err = firstOffer(t.Context(), call)
		if failed, ok := errors.AsType[*client.AgentError](err); !ok || failed.Code != envelope.AgentTimeout || errors.Is(err, client.ErrPlain) {
			t.Errorf("after the timeout: %v", err)
		}
	})
}

// TestClosedAnswers: the client cannot decrypt the agent's sealed answers.
func TestClosedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		answer := func(call *client.Call, payload envelope.Payload) {
			p.post(p.agentClient, call, p.unopenable(p.agent, envelope.Draft{Payload: payload, Recipient: p.me.DID(), Thread: call.Thread}))
		}
		call, id := p.request(client.RequestOptions{Recipient: p.agent.DID(), Seal: true, AllowPlain: true})
		answer(call, envelope.Offer{RequestID: id})
		if offer, err := firstOffer(t.Context(), call); !errors.Is(err, client.ErrClosed) || offer.Envelope != nil {
			t.Errorf("an offer: %+v, %v", offer, err)
		}
		call, id = p.accepted()
		answer(call, envelope.Result{RequestID: id, Status: "success"})
		if result, err := call.Result(t.Context()); !errors.Is(err, client.ErrClosed) || result != nil {
			t.Errorf("a result: %+v, %v", result, err)
		}
		call, id = p.accepted()
		answer(call, envelope.Failure{RequestID: id, Code: "C", Message: "m"})
		if _, err := call.Result(t.Context()); !errors.Is(err, client.ErrClosed) {
			t.Errorf("an ERROR: %v", err)
		}
		// A broadcast REQUEST: an offer that cannot be decrypted is skipped.
		call, id = p.request(client.RequestOptions{})
		p.post(p.strangerClient, call, p.unopenable(p.stranger, envelope.Draft{Payload: envelope.Offer{RequestID: id}, Recipient: p.me.DID(), Thread: call.Thread}))
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id}, Recipient: p.me.DID(), Seal: true})
		if offer, err := firstOffer(t.Context(), call); err != nil || offer.Agent != p.agent.DID() {
			t.Errorf("got %+v, %v", offer, err)
		}
	})
}

// TestServeGivesNoReason sends an agent messages that cannot be opened, for many reasons. Each one gets the same sealed
// ERROR, and the handler gets none of the messages.
func TestServeGivesNoReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{}, client.Handler{
			Quote: func(_ context.Context, job client.Job) (envelope.Offer, error) {
				if job.Request.Title != "good" {
					t.Errorf("Quote was called for %s", job.Envelope.Payload)
				}
				return envelope.Offer{}, nil
			},
			Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
				t.Errorf("Work was called for %s", job.Envelope.Payload)
				return envelope.Result{}, nil
			},
		})
		answers := func(call string) (texts []string) {
			for _, e := range p.relay.all() {
				if e.Thread != call || e.Sender.ID != p.agent.DID() || e.Type != envelope.TypeError {
					continue
				}
				opened, err := e.Open(p.me)
				if err != nil {
					t.Fatalf("%s: %v", e.Payload, err)
				}
				texts = append(texts, strings.ReplaceAll(string(opened.Payload), e.RequestID, "*"))
			}
			return texts
		}
		const want = `{"code":"INVALID_REQUEST","message":"the sealed payload cannot be opened; ` +
			`seal it to this agent's key as described in docs/SEALING.md, or send it in plaintext","request_id":"*"}`
		request := envelope.Draft{Payload: envelope.Request{Intent: "translate", Title: "secret"}, Recipient: p.agent.DID()}
		moved := p.unopenable(p.me, request)
		toStranger := request
		toStranger.Recipient = p.stranger.DID()
		other := p.unopenable(p.me, toStranger)
		other.Recipient = p.agent.DID()
		raw := func(sealed string) envelope.Draft {
			id := envelope.NewID("req", time.Now())
			return envelope.Draft{Recipient: p.agent.DID(), Thread: id,
				Payload: envelope.Raw{Type: envelope.TypeRequest, JSON: []byte(`{"intent":"translate","request_id":"` + id + `","sealed":` + sealed + `}`)}}
		}
		for _, d := range []envelope.Draft{moved, other, raw(`"v1."`), raw(`"v9.AAAA"`), raw(`null`), raw(`{"title":"good"}`), raw(`"v1.` + strings.Repeat("A", 100) + `"`)} {
			e, _, err := p.client.Post(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := answers(e.Thread); !slices.Equal(got, []string{want}) {
				t.Errorf("%s is answered with %s", e.Payload, got)
			}
		}
		// The agent does not work after an ACCEPT that cannot be opened.
		call, id := p.request(client.RequestOptions{Recipient: p.agent.DID(), Seal: true, Title: "good"})
		synctest.Wait()
		p.post(p.client, call, p.unopenable(p.me, envelope.Draft{Payload: envelope.Accept{RequestID: id}, Recipient: p.agent.DID(), Thread: call.Thread}))
		synctest.Wait()
		if got := answers(call.Thread); !slices.Equal(got, []string{want}) {
			t.Errorf("the ACCEPT is answered with %s", got)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestFollowOpens follows sealed messages as the recipient, as the sender, as another identity and without an identity.
func TestFollowOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		draft := envelope.Draft{Payload: envelope.Request{Intent: "i", Title: "secret"}, Recipient: p.agent.DID(), Seal: true}
		p.relay.put(t, p.me, p.unopenable(p.me, draft))
		p.relay.put(t, p.me, draft)
		p.relay.put(t, p.me, envelope.Draft{Payload: envelope.Request{Intent: "plain"}, Recipient: p.agent.DID()})
		anonymous, err := client.New(p.relay.URL, nil, client.Options{HTTPClient: p.relay.Client()})
		if err != nil {
			t.Fatal(err)
		}
		// A signer without the methods of envelope.Opener, such as a remote signing service.
		signOnly, err := client.New(p.relay.URL, struct{ envelope.Signer }{p.agent}, client.Options{HTTPClient: p.relay.Client()})
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			reader *client.Client
			want   []string
		}{
			"the recipient":    {p.agentClient, []string{"opened secret", "plain "}},
			"the sender":       {p.client, []string{"sealed ", "sealed ", "plain "}},
			"no identity":      {anonymous, []string{"sealed ", "sealed ", "plain "}},
			"a signer only":    {signOnly, []string{"plain "}},
			"another identity": {p.strangerClient, []string{"sealed ", "sealed ", "plain "}},
		} {
			var got []string
			err := c.reader.Follow(t.Context(), client.FollowOptions{FromOldest: true}, func(_ context.Context, e *envelope.Envelope) error {
				kind := "plain "
				if e.Opened {
					kind = "opened "
				} else if e.Sealed() {
					kind = "sealed "
				}
				got = append(got, kind+e.PayloadString("title"))
				if parsed, err := envelope.Parse(e.Canonical(), 0); err != nil || parsed.Verify() != nil || bytes.Contains(e.Canonical(), []byte("secret")) {
					t.Errorf("the canonical form is not that of the posted message: %v", err)
				}
				if e.PayloadString("intent") == "plain" {
					return errStop
				}
				return nil
			})
			if err != errStop || !slices.Equal(got, c.want) {
				t.Errorf("%s sees %q, %v; want %q", name, got, err, c.want)
			}
		}
	})
}

var errStop = errors.New("stop")

// TestResumeSealed resumes a call with a sealed REQUEST. The new process cannot decrypt the REQUEST.
func TestResumeSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		first, id := p.request(client.RequestOptions{Recipient: p.agent.DID(), Seal: true})
		p.post(p.agentClient, first, envelope.Draft{Payload: envelope.Offer{RequestID: id, Price: &envelope.Price{Amount: 2, Currency: "USD"}}, Recipient: p.me.DID(), Seal: true})
		call, err := p.client.Resume(t.Context(), first.Thread)
		if err != nil || !call.Seal || call.AllowPlain {
			t.Fatalf("resumed as %+v, %v", call, err)
		}
		offer, err := firstOffer(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Accept(t.Context(), offer); !errors.Is(err, client.ErrUnacceptable) || !strings.Contains(err.Error(), "sealed") {
			t.Errorf("accepting without known constraints: got %v, want ErrUnacceptable", err)
		}
		budget := 1.0
		call.Limit(&envelope.Constraints{MaxCostUSD: &budget})
		if err := call.Accept(t.Context(), offer); !errors.Is(err, client.ErrUnacceptable) {
			t.Errorf("accepting an offer above the limit: got %v, want ErrUnacceptable", err)
		}
		call.Limit(nil)
		if err := call.Accept(t.Context(), offer); err != nil {
			t.Error(err)
		}
		if _, sealed := p.wire(call.Thread); !slices.Equal(sealed, []bool{true, true, true}) {
			t.Errorf("sealed %v", sealed)
		}
	})
}

// TestSealedOffer: an agent makes a sealed offer for a plaintext REQUEST, which is a broadcast or names the agent. All
// further messages to the agent are sealed.
func TestSealedOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		for _, to := range []didkey.DID{"", p.agent.DID()} {
			call, id := p.request(client.RequestOptions{Recipient: to})
			p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Offer{RequestID: id}, Recipient: p.me.DID(), Seal: true})
			offer, err := firstOffer(t.Context(), call)
			if err == nil {
				err = call.Accept(t.Context(), offer)
			}
			if err != nil {
				t.Fatal(err)
			}
			resumed, err := p.client.Resume(t.Context(), call.Thread)
			if err != nil || resumed.Seal {
				t.Fatalf("resumed as %+v, %v", resumed, err)
			}
			for _, one := range []*client.Call{call, resumed} { // the relay refuses the second CANCEL
				if err := one.Cancel(t.Context(), "secret"); err != nil && one == call {
					t.Fatal(err)
				}
			}
			if _, sealed := p.wire(call.Thread); !slices.Equal(sealed, []bool{false, true, true, true}) {
				t.Errorf("sealed %v", sealed)
			}
		}
	})
}

// hideRequests makes the relay omit the REQUEST from its responses about threads.
func (p *parties) hideRequests() {
	p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err != nil || !strings.HasPrefix(r.URL.Path, "/threads/") {
			return answer, err
		}
		var record map[string]json.RawMessage
		var events []*envelope.Envelope
		if err := json.NewDecoder(answer.Body).Decode(&record); err != nil {
			return nil, err
		}
		var raw []json.RawMessage
		if err := json.Unmarshal(record["events"], &raw); err != nil {
			return nil, err
		}
		for _, text := range raw {
			if e, err := envelope.Parse(text, 0); err == nil && e.Type != envelope.TypeRequest {
				events = append(events, e)
			}
		}
		if record["events"], err = json.Marshal(events); err != nil {
			return nil, err
		}
		text, err := json.Marshal(record)
		return response(http.StatusOK, string(text)), err
	})
}

// TestResumeHidden resumes calls whose REQUEST the relay does not show. Texts that may have been sealed in the REQUEST
// are not sent in plaintext.
func TestResumeHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		p.hideRequests()
		resume := func(opts client.RequestOptions, offer *envelope.Draft) (*client.Call, string) {
			first, id := p.request(opts)
			if offer != nil {
				offer.Payload, offer.Recipient = envelope.Offer{RequestID: id}, p.me.DID()
				p.post(p.agentClient, first, *offer)
			}
			if _, err := p.client.Resume(t.Context(), first.Thread); !errors.Is(err, client.ErrUnproven) {
				t.Errorf("resumed without proof: %v", err)
			}
			call, err := p.client.ResumeKnown(t.Context(), client.Known{Thread: first.Thread, RequestID: id, Recipient: opts.Recipient})
			if err != nil {
				t.Fatal(err)
			}
			return call, id
		}
		call, _ := resume(client.RequestOptions{Recipient: p.agent.DID(), Seal: true}, nil)
		if err := call.Cancel(t.Context(), "secret"); err != nil || !p.relay.last().Sealed() {
			t.Errorf("%v: %s", err, p.relay.last().Payload)
		}
		call, _ = resume(client.RequestOptions{}, nil)
		if err := call.Cancel(t.Context(), "secret"); err != nil || strings.Contains(string(p.relay.last().Payload), "secret") {
			t.Errorf("%v: %s", err, p.relay.last().Payload)
		}
		call, _ = resume(client.RequestOptions{Recipient: p.agent.DID(), Seal: true}, &envelope.Draft{})
		offer, err := firstOffer(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Accept(t.Context(), offer); err == nil || !strings.Contains(err.Error(), "no longer has the REQUEST") {
			t.Errorf("accepting without known constraints: got %v", err)
		}
		call.Limit(nil)
		if err := call.Accept(t.Context(), offer); err != nil || !p.relay.last().Sealed() {
			t.Errorf("%v: %s", err, p.relay.last().Payload)
		}
		// The agent that the REQUEST named has made a sealed offer. So its answers in plaintext are rejected.
		call, id := resume(client.RequestOptions{Recipient: p.agent.DID(), Seal: true}, &envelope.Draft{Seal: true})
		if !call.Seal {
			t.Error("Seal is not set although the agent's offer is sealed")
		}
		p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Failure{RequestID: id, Code: "C", Message: "m"}, Recipient: p.me.DID()})
		for _, failed := range call.Offers(t.Context()) {
			err = failed
		}
		if !errors.Is(err, client.ErrPlain) {
			t.Errorf("an ERROR in plaintext: %v", err)
		}
	})
}

// TestUnopenedIsLoggedOnce reads a message that cannot be opened three times. Only the first read logs it.
func TestUnopenedIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		e, _, err := p.client.Post(t.Context(), p.unopenable(p.me, envelope.Draft{Payload: envelope.Request{Intent: "i"}, Recipient: p.agent.DID()}))
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		reader := newClient(t, p.relay, p.agent, client.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 {
			if _, err := reader.Thread(t.Context(), e.Thread, p.me.DID()); err != nil {
				t.Fatal(err)
			}
		}
		if n := strings.Count(log.String(), "cannot be decrypted"); n != 1 {
			t.Errorf("logged %d times: %s", n, log.String())
		}
	})
}
