package jobs_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// worker is an agent whose endpoint is its DID.
type worker struct {
	*gatetest.Agent
	f  *fixture
	id string // agent_id
}

// bridged returns the registration of an agent whose endpoint is a DID.
func bridged(id, did string, changes ...any) object {
	return changed(skilled(id, did, "agora:"+did, 0.1), changes...)
}

// worker registers an agent with a DID, which has the skill echo for 0.1 credits.
func (f *fixture) worker(id string) worker {
	f.t.Helper()
	w := worker{f.NewAgent(), f, id}
	f.want(w.call("POST", "/register", bridged(id, w.DID())), 201)
	return w
}

func (w worker) call(method, path string, body any) answer {
	w.f.t.Helper()
	return w.Call(w.f.t, "/jobs", method, path, body)
}

// requests returns the threads of the REQUESTs that the worker got, in order.
func (w worker) threads() (all []string) {
	w.f.t.Helper()
	for _, m := range w.Requests(w.f.t) {
		all = append(all, m.Thread)
	}
	return all
}

// thread returns the thread of the only REQUEST.
func (w worker) thread() string {
	w.f.t.Helper()
	all := w.threads()
	if len(all) != 1 {
		w.f.t.Fatalf("the worker has %d REQUESTs, want 1", len(all))
	}
	return all[0]
}

// balance returns the balance of the worker's account.
func (w worker) balance() string {
	w.f.t.Helper()
	return number(w.f.want(w.call("GET", "/accounts/"+w.DID(), nil), 200), "balance")
}

// wantPaid checks what bob, who had 100 credits, and a worker, who had none, have now, and that no credit is missing.
func wantPaid(t *testing.T, what string, bob user, w worker, want string) {
	t.Helper()
	if got := bob.balance() + " " + w.balance(); got != want {
		t.Errorf("%s: the balances are %s, want %s", what, got, want)
	}
}

var free = envelope.Offer{}

func success(output string) envelope.Result {
	return envelope.Result{Status: "success", Output: json.RawMessage(output)}
}

func costing(amount float64, currency string) envelope.Offer {
	return envelope.Offer{Price: &envelope.Price{Amount: amount, Currency: currency}}
}

// B-1: a registration with a DID as its endpoint belongs to that DID. Only a signed call of it can set or change it.
func TestBridgedRegistration(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w := f.worker(uuid(1))
		body := bridged(uuid(2), w.DID())
		f.want(f.do("POST", "/register", "", body), 403)
		bob := f.user("bob")
		f.want(bob.do("POST", "/register", changed(body, "owner_id", "bob")), 403)
		f.want(f.do("POST", "/register", f.Operator, body), 403)
		other := worker{f.NewAgent(), f, ""}
		f.want(other.call("POST", "/register", changed(body, "owner_id", other.DID())), 403)
		f.wantField(w.call("POST", "/register", changed(body, "api_endpoint", "agora:alice")), "body.api_endpoint")
		for _, name := range []string{"chorus.hub.message", "a2a.message"} {
			skills := []object{{"skill_name": name, "cost_per_call": 0}}
			f.wantField(w.call("POST", "/register", changed(body, "skills", skills)), "body.skills.0.skill_name")
			f.want(bob.do("POST", "/register", changed(skilled(uuid(3), "bob", "", 0), "skills", skills)), 201)
		}
		// A key cannot change it, and registering again makes no new key.
		for key, status := range map[string]int{"": 409, bob.key: 409, f.Operator: 403} {
			a := f.do("POST", "/register", key, skilled(uuid(1), "bob", "", 0.1))
			f.want(a, status)
		}
		again := f.want(w.call("POST", "/register", bridged(uuid(1), w.DID(), "agent_name", "New")), 201)
		if text(again, "api_key") != "" || text(again, "job_url") != gatetest.PublicURL+"/jobs/a/"+uuid(1)+"/jobs" {
			t.Errorf("the answer is %v", again)
		}
		// Strangers see a base of the relay.
		if got := f.want(f.do("GET", "/agents/"+uuid(1), "", nil), 200); text(got, "api_endpoint") != gatetest.PublicURL+"/jobs/a/"+uuid(1) ||
			text(got, "agent_name") != "New" || text(got, "status") != "online" {
			t.Errorf("the agent is %v", got)
		}
		// A signed call stands for the key on the other routes.
		f.want(w.call("POST", "/heartbeat", object{"agent_id": uuid(1)}), 200)
		f.want(w.call("GET", "/agents/"+uuid(1)+"/jobs", nil), 200)
		f.want(other.call("DELETE", "/agents/"+uuid(1), nil), 403)
		f.want(w.call("DELETE", "/agents/"+uuid(1), nil), 200)
	})
}

// B-2, B-10: a job is one sealed REQUEST of the gateway's DID, which says what docs/JOBS.md says.
func TestJobAsRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		f.want(bob.hire(w.id, uuid(100)), 202)
		all := w.Requests(t)
		if len(all) != 1 {
			t.Fatalf("the worker has %d REQUESTs", len(all))
		}
		m := all[0]
		var got any
		f.must(json.Unmarshal(m.Payload, &got))
		want := object{"request_id": m.Thread, "intent": "echo", "params": object{"text": "hello"},
			"constraints": object{"max_cost": object{"amount": 0.1, "currency": "chorus_credits_v1"}, "job_id": uuid(100),
				"orchestrator_id": "me"}}
		if fmt.Sprint(got) != fmt.Sprint(any(want)) {
			t.Errorf("the REQUEST says %v, want %v", got, want)
		}
		if m.ID != m.Thread || !strings.HasPrefix(m.ID, "job_") || m.TTL != 24*time.Hour ||
			fmt.Sprint(m.Relays) != "["+gatetest.PublicURL+"]" {
			t.Errorf("the REQUEST is %+v", m)
		}
		f.want(bob.hire(w.id, uuid(100)), 202) // a repeat makes no second one
		w.thread()
		bob.wantStatus("without an answer", uuid(100), "PENDING")
	})
}

// B-11: which OFFERs are accepted, and what is paid. B-12: a RESULT ends the job with the accepted price.
func TestOffers(t *testing.T) {
	for name, test := range map[string]struct {
		offer        envelope.Offer
		status, paid string
	}{
		"no price":         {free, "SUCCESS", "99.9 0.1"},
		"0 of a currency":  {costing(0, "EUR"), "SUCCESS", "99.9 0.1"},
		"0 credits":        {costing(0, "chorus_credits_v1"), "SUCCESS", "99.9 0.1"},
		"less":             {costing(0.04, "chorus_credits_v1"), "SUCCESS", "99.96 0.04"},
		"as much":          {costing(0.1, "chorus_credits_v1"), "SUCCESS", "99.9 0.1"},
		"more":             {costing(0.100001, "chorus_credits_v1"), "FAILURE BUDGET_INSUFFICIENT", "100 0"},
		"another currency": {costing(0.01, "USD"), "FAILURE BUDGET_INSUFFICIENT", "100 0"},
		"too fine":         {costing(0.0500004, "chorus_credits_v1"), "FAILURE BUDGET_INSUFFICIENT", "100 0"},
	} {
		inBubble(t, func(t *testing.T, f *fixture) {
			w, bob := f.worker(uuid(1)), f.user("bob")
			f.want(bob.hire(w.id, uuid(100)), 202)
			thread := w.thread()
			w.Says(thread, test.offer)
			if strings.HasPrefix(test.status, "FAILURE") {
				w.WantTypes(name, thread, "REQUEST CANCEL")
			} else {
				w.WantTypes(name, thread, "REQUEST ACCEPT")
				time.Sleep(1250 * time.Millisecond)
				w.Says(thread, success(`{"text":"HELLO"}`))
			}
			bob.wantStatus(name, uuid(100), test.status)
			wantPaid(t, name, bob, w, test.paid)
			got := bob.do("GET", "/jobs/"+uuid(100), nil)
			if cost := number(got, "execution_cost"); cost != strings.Fields(test.paid)[1] {
				t.Errorf("%s: the cost is %s", name, cost)
			}
			if test.status == "SUCCESS" && (number(got, "execution_time_ms") != "1250" ||
				fmt.Sprint(member(got, "output_data")) != "map[text:HELLO]") {
				t.Errorf("%s: %v", name, got)
			}
		})
	}
}

// B-12: what each RESULT and each ERROR means. B-5: an output over the bound is a failure with a clear text.
func TestAnswersOfWorkers(t *testing.T) {
	large := fmt.Sprintf(`{"x":%q}`, strings.Repeat("x", 49_152-8))
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		n := 100
		for name, test := range map[string]struct {
			answer       envelope.Payload
			status, want string // want: the output, or a part of the message
		}{
			"an object":     {success(`{"a":1}`), "SUCCESS", `{"a":1}`},
			"a text":        {success(`"42"`), "SUCCESS", `{"result":"42"}`},
			"a list":        {success(`[1]`), "SUCCESS", `{"result":[1]}`},
			"nothing":       {envelope.Result{Status: "success"}, "SUCCESS", `{}`},
			"at the bound":  {success(large), "SUCCESS", large},
			"over it":       {success(strings.Replace(large, "x", "xy", 1)), "FAILURE EXECUTION_ERROR", "49153 bytes; at most 49152"},
			"other status":  {envelope.Result{Status: "partial"}, "FAILURE EXECUTION_ERROR", "the status partial"},
			"no intent":     {envelope.Failure{Code: "INTENT_NOT_SUPPORTED", Message: "what?"}, "FAILURE SKILL_MISMATCH", "what?"},
			"budget":        {envelope.Failure{Code: "INSUFFICIENT_BUDGET", Message: "more"}, "FAILURE BUDGET_INSUFFICIENT", "more"},
			"unavailable":   {envelope.Failure{Code: "UNAVAILABLE", Message: "later"}, "FAILURE AGENT_OFFLINE", "later"},
			"another error": {envelope.Failure{Code: "BROKEN", Message: "oh"}, "FAILURE EXECUTION_ERROR", "oh"},
		} {
			n++
			before := len(w.threads())
			f.want(bob.hire(w.id, uuid(n)), 202)
			thread := w.threads()[before]
			w.Says(thread, free)
			w.Says(thread, test.answer)
			got := f.want(bob.do("GET", "/jobs/"+uuid(n), nil), 200)
			var body struct {
				Output  json.RawMessage `json:"output_data"`
				Message string          `json:"error_message"`
			}
			f.must(json.Unmarshal(got.Body, &body))
			if statusOf(got) != test.status || string(body.Output) != test.want && !strings.Contains(body.Message, test.want) {
				t.Errorf("%s: %.300v, want %s and %.100s", name, got, test.status, test.want)
			}
			_ = w.Post(thread, free) // late, so the relay refuses it
		}
	})
}

// B-4: plain answers, late ones, repeated ones and those of another DID have no effect.
func TestForeignAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		f.want(bob.hire(w.id, uuid(100)), 202)
		thread := w.thread()
		eve := f.NewAgent()
		_ = eve.Post(thread, free) // the relay may refuse it
		_ = w.Post(thread, free, func(d *envelope.Draft) { d.Seal = false })
		synctest.Wait()
		w.WantTypes("a plain OFFER and one of a stranger", thread, "REQUEST")
		w.Says(thread, costing(0.05, "chorus_credits_v1"))
		_ = w.Post(thread, costing(0.09, "chorus_credits_v1")) // late
		_ = w.Post(thread, success(`{}`), func(d *envelope.Draft) { d.Seal = false })
		_ = eve.Post(thread, success(`{"eve":1}`))
		synctest.Wait()
		w.WantTypes("afterwards", thread, "REQUEST ACCEPT")
	})
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		f.want(bob.hire(w.id, uuid(100)), 202)
		thread := w.thread()
		w.Says(thread, free)
		w.Says(thread, success(`{"n":1}`))
		_ = w.Post(thread, success(`{"n":2}`))
		synctest.Wait()
		if got := bob.do("GET", "/jobs/"+uuid(100), nil); fmt.Sprint(member(got, "output_data")) != "map[n:1]" {
			t.Errorf("the job is %v", got)
		}
		wantPaid(t, "after two results", bob, w, "99.9 0.1")
	})
}

// B-11: without an OFFER, a job ends when the agent was not heard from for 5 minutes, and its thread is canceled (B-2). A
// busy agent polls, so its job waits. B-13: presence counts as heartbeat.
func TestSilentWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		f.want(bob.hire(w.id, uuid(100)), 202)
		thread := w.thread()
		for range 10 { // it is busy
			f.pass(4 * time.Minute)
			w.Polls()
		}
		bob.wantStatus("while it polls", uuid(100), "PENDING")
		f.pass(4 * time.Minute)
		bob.wantStatus("4 minutes after the last poll", uuid(100), "PENDING")
		f.pass(2 * time.Minute)
		bob.wantStatus("6 minutes after the last poll", uuid(100), "FAILURE AGENT_OFFLINE")
		w.WantTypes("afterwards", thread, "REQUEST CANCEL")
		wantPaid(t, "afterwards", bob, w, "100 0")
	})
}

// B-13: an agent is online while the relay hears from it by a signed read or a post.
func TestPresenceIsHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		found := func() any {
			t.Helper()
			time.Sleep(11 * time.Second) // the list follows
			synctest.Wait()
			return member(f.want(f.do("GET", "/discover?skill=echo", "", nil), 200), "total")
		}
		if got := found(); got != 1.0 {
			t.Errorf("after the registration, %v agents are found", got)
		}
		f.pass(5 * time.Minute)
		if got := found(); got != 0.0 {
			t.Errorf("after 5 minutes of silence, %v agents are found", got)
		}
		if got := bob.hire(w.id, uuid(100)); statusOf(got) != "FAILURE AGENT_OFFLINE" {
			t.Errorf("an order for a silent agent: %v", got)
		}
		w.Polls()
		f.want(bob.hire(w.id, uuid(101)), 202) // at once, before the list follows
		if got := found(); got != 1.0 {
			t.Errorf("after a signed read, %v agents are found", got)
		}
		f.pass(6 * time.Minute)
		if got := found(); got != 0.0 {
			t.Errorf("after more silence, %v agents are found", got)
		}
		f.must(w.Post("other", envelope.Request{Intent: "x"})) // to the gateway, which has no such delivery
		if got := found(); got != 1.0 {
			t.Errorf("after a post, %v agents are found", got)
		}
	})
}

// B-2: a job that ends otherwise cancels its thread: by time after the ACCEPT, by removal, by deletion of the agent, by another
// endpoint, and by a result that comes in another way.
func TestCanceledJobs(t *testing.T) {
	for name, test := range map[string]struct {
		accept bool
		end    func(f *fixture, w worker)
		want   string
	}{
		"time":    {true, func(f *fixture, w worker) { f.pass(time.Hour) }, "FAILURE EXECUTION_ERROR"},
		"removal": {true, func(f *fixture, w worker) { f.must(f.gateway.Remove(f.t.Context(), uuid(100))) }, "FAILURE EXECUTION_ERROR"},
		"another way": {true, func(f *fixture, w worker) {
			f.want(w.call("POST", "/agents/"+w.id+"/results", result(uuid(100), w.id, "SUCCESS")), 200)
		}, "SUCCESS"},
		"deletion": {false, func(f *fixture, w worker) { f.want(w.call("DELETE", "/agents/"+w.id, nil), 200) }, "FAILURE AGENT_OFFLINE"},
		"removed agent": {false, func(f *fixture, w worker) { f.must(f.gateway.Remove(f.t.Context(), w.id)) },
			"FAILURE AGENT_OFFLINE"},
		"another endpoint": {false, func(f *fixture, w worker) {
			f.want(w.call("POST", "/register", bridged(w.id, w.DID(), "api_endpoint", "")), 201)
		}, "PENDING"},
	} {
		inBubble(t, func(t *testing.T, f *fixture) {
			w, bob := f.worker(uuid(1)), f.user("bob")
			f.want(bob.hire(w.id, uuid(100)), 202)
			thread := w.thread()
			want := "REQUEST CANCEL"
			if test.accept {
				w.Says(thread, free)
				want = "REQUEST ACCEPT CANCEL"
			}
			test.end(f, w)
			synctest.Wait()
			w.WantTypes(name, thread, want)
			bob.wantStatus(name, uuid(100), test.want)
			_ = w.Post(thread, success(`{"late":1}`))
			synctest.Wait()
			bob.wantStatus(name+", after a late result", uuid(100), test.want)
			if name == "another endpoint" {
				if got := w.f.want(w.call("GET", "/agents/"+w.id+"/jobs", nil), 200); member(got, "jobs", 0, "job_id") != uuid(100) {
					t.Errorf("the agent cannot pull the job: %v", got)
				}
				f.want(w.call("POST", "/register", bridged(w.id, w.DID())), 201) // and back
			}
		})
	}
}

// B-3: 50 REQUESTs wait for an OFFER, over all agents of a DID. The others follow as soon as there is room, once each.
func TestWindow(t *testing.T) {
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		f.want(w.call("POST", "/register", bridged(uuid(2), w.DID())), 201)
		for n := range 60 {
			f.want(bob.hire(uuid(1+n%2), uuid(100+n)), 202)
		}
		if got := len(w.threads()); got != 50 {
			t.Errorf("%d REQUESTs wait for an OFFER, want 50", got)
		}
		for _, thread := range w.threads()[:5] {
			w.Says(thread, free)
		}
		time.Sleep(time.Second)
		if got := len(w.threads()); got != 55 {
			t.Errorf("after 5 OFFERs there are %d REQUESTs, want 55", got)
		}
		for i := 0; i < len(w.threads()); i++ {
			thread := w.threads()[i]
			if len(w.Types(t, thread)) == 1 {
				w.Says(thread, free)
			}
			w.Says(thread, success(`{}`))
			time.Sleep(100 * time.Millisecond) // the relay limits how many messages a sender posts
		}
		if got := len(w.threads()); got != 60 {
			t.Errorf("there are %d REQUESTs, want 60", got)
		}
		wantPaid(t, "at the end", bob, w, "94 6")
	})
}

// B-3: a full Agora inbox is a retry, not a failure. The job follows when there is room.
func TestFullInbox(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob, stranger := f.worker(uuid(1)), f.user("bob"), f.NewAgent()
		for full, n := false, 0; !full; n++ {
			e, err := envelope.Draft{Recipient: w.Key.DID(), TTL: time.Hour,
				Payload: envelope.Request{Intent: "x", RequestID: fmt.Sprint("r", n)}}.Sign(stranger.Key, f.Now())
			f.must(err)
			_, err = f.Relay.Post(t.Context(), relay.Peer{}, e.Canonical())
			if full = envelope.CodeOf(err) == envelope.CodeRateLimited; err != nil && !full {
				t.Fatal(err)
			}
		}
		f.want(bob.hire(w.id, uuid(100)), 202)
		gotten := func() (n int) {
			for _, m := range w.Mail(t) {
				if strings.HasPrefix(m.Thread, "job_") {
					n++
				}
			}
			return n
		}
		for range 20 {
			w.Polls()
			f.pass(2 * time.Minute)
		}
		if n := gotten(); n != 0 {
			t.Errorf("the full inbox has taken %d REQUESTs", n)
		}
		bob.wantStatus("while the inbox is full", uuid(100), "PENDING")
		for range 20 {
			w.Polls()
			f.pass(2 * time.Minute)
			time.Sleep(time.Minute) // the gateway tries once a minute
		}
		if n := gotten(); n != 1 {
			t.Errorf("the inbox with room has got %d REQUESTs, want 1", n)
		}
	}, func(f *fixture) { f.Policy.Inbox = relay.Quota{Events: 10} })
}

// B-4: after a crash between any two steps, each job has one REQUEST, one ACCEPT and one payment.
func TestCrashes(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		f.want(bob.hire(w.id, uuid(100)), 202)
		f.Crash()
		thread := w.thread()
		f.Broken.Store(true) // the OFFER is stored, and nothing that follows from it
		f.must(w.Post(thread, free))
		time.Sleep(10 * time.Second)
		w.WantTypes("before the crash", thread, "REQUEST")
		f.Crash()
		w.WantTypes("after the OFFER", thread, "REQUEST ACCEPT")
		f.Crash()
		f.Broken.Store(true)
		f.must(w.Post(thread, success(`{"n":1}`)))
		time.Sleep(10 * time.Second)
		f.Crash()
		f.Crash()
		w.WantTypes("after the RESULT", thread, "REQUEST ACCEPT")
		bob.wantStatus("after the RESULT", uuid(100), "SUCCESS")
		wantPaid(t, "after the RESULT", bob, w, "99.9 0.1")
		w.thread()
	})
}

// While the relay is down, it can hear from nobody. So a job does not end at its start.
func TestStartAfterSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		f.want(bob.hire(w.id, uuid(100)), 202)
		f.Stop()
		f.Ahead.Add(int64(time.Hour))
		f.Run()
		time.Sleep(2 * time.Second)
		bob.wantStatus("after the start", uuid(100), "PENDING")
		w.Polls()
		w.Says(w.thread(), free)
		w.Says(w.thread(), success(`{}`))
		bob.wantStatus("after the result", uuid(100), "SUCCESS")
	})
}

// B-12: whatever agents answer, and however jobs end, no credit is lost or made, and no hold stays.
func TestBooksOfWorkers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w, bob := f.worker(uuid(1)), f.user("bob")
		random := rand.New(rand.NewPCG(1, 2))
		offers := []envelope.Offer{free, costing(0.03, "chorus_credits_v1"), costing(0.1, "chorus_credits_v1"),
			costing(0.2, "chorus_credits_v1"), costing(1, "EUR")}
		answers := []envelope.Payload{success(`{}`), success(`"text"`), envelope.Result{Status: "no"},
			envelope.Failure{Code: "BROKEN", Message: "oh"}}
		for n := range 60 {
			f.want(bob.hire(w.id, uuid(100+n), "budget", 0.1+float64(n)/1000), 202)
			thread := w.threads()[n]
			if random.IntN(6) > 0 {
				w.Says(thread, offers[random.IntN(len(offers))])
			}
			switch random.IntN(8) {
			case 0:
				f.must(f.gateway.Remove(t.Context(), uuid(100+n)))
			case 1:
				w.call("POST", "/agents/"+w.id+"/results", result(uuid(100+n), w.id, "SUCCESS")) // 409 if the OFFER has ended the job
			case 2: // it never answers
			default:
				_ = w.Post(thread, answers[random.IntN(len(answers))]) // the relay refuses it if the thread has ended
			}
			w.Polls()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		f.pass(2 * time.Hour)
		ended := map[string]int{}
		for n := range 60 {
			ended[bob.status(uuid(100+n))]++
		}
		if ended["PENDING"] > 0 || len(ended) < 4 {
			t.Errorf("the jobs have ended in these ways: %v", ended)
		}
		var total float64
		for _, balance := range []string{bob.balance(), w.balance()} {
			var credits float64
			f.must(json.Unmarshal([]byte(balance), &credits))
			total += credits
		}
		if math.Abs(total-100) > 1e-9 {
			t.Errorf("there are %v credits, want 100: %s and %s", total, bob.balance(), w.balance())
		}
	})
}
