package a2a_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
	threads "github.com/agora-relay/agora/thread"
)

// plain client.Serve serves A2A. A-2: both bindings give equal results. A-23: a blocking call ends when the agent is
// done.
func TestSendMessage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(echo)
		c := caller{agent: a}
		task := c.say("hello")
		c.wantState(task, wire.Completed, "echo: hello")
		id := text(task, "id")
		byRPC := c.task(id)
		for _, path := range []string{"/tasks/" + id, "/tasks/" + id + "/"} {
			if got := c.send("GET", path, nil); got.Status != 200 || strings.TrimSpace(string(got.Body)) != string(byRPC) {
				t.Errorf("%s: %v, want %s", path, got, byRPC)
			}
		}
		got := c.post("/message:send/", object{"message": message("again")}, "Accept", wire.A2AType)
		if got.Status != 200 || got.Header.Get("Content-Type") != wire.A2AType {
			t.Fatalf("message:send: %v %v", got, got.Header)
		}
		c.wantState([]byte(raw(got.Body, "task")), wire.Completed, "echo: again")
		var history struct{ History []wire.Message }
		f.must(json.Unmarshal(byRPC, &history))
		if len(history.History) != 1 || history.History[0].TaskID != id || history.History[0].ContextID != text(task, "contextId") {
			t.Errorf("the history is %s", byRPC)
		}
	})
}

// the REQUEST is sealed and has the members of §4. A-19: a message to INPUT_REQUIRED opens turn 2 with the history;
// a terminal or running task refuses it.
func TestTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		release := make(chan struct{})
		a.serve(func(ctx context.Context, turn wire.Turn) (envelope.Result, error) {
			if turn.Turn == 1 {
				return result("input-required", `{"a2a":{"message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"which?"}]}}}`)
			}
			<-release
			return result("success", `{"text":"thanks"}`)
		})
		c := caller{agent: a, key: a.newKey("alice")}
		task := c.say("first", "contextId", "mine", "metadata", object{"x": 1})
		c.wantState(task, wire.InputRequired, "which?")
		id := text(task, "id")
		// The agent may begin before this is answered.
		again := c.ok(c.rpc("SendMessage", object{"message": message("second", "taskId", id, "contextId", "mine"),
			"metadata": object{"y": 2}, "configuration": object{"returnImmediately": true, "acceptedOutputModes": []string{"text/plain"}}},
			"A2A-Extensions", "urn:one, urn:two"))
		if state := wire.State(text(again, "task", "status", "state")); state != wire.Submitted && state != wire.Working {
			t.Errorf("the answer to a running turn has the state %s", state)
		}
		synctest.Wait()
		c.wantState(c.task(id), wire.Working)
		c.refused(c.rpc("SendMessage", object{"message": message("too early", "taskId", id)}), wire.UnsupportedOperation)
		c.refused(c.rpc("SendMessage", object{"message": message("x", "taskId", id, "contextId", "other")}), wire.BadParams)
		close(release)
		synctest.Wait()
		c.wantState(c.task(id), wire.Completed, "thanks")
		c.refused(c.rpc("SendMessage", object{"message": message("too late", "taskId", id)}), wire.UnsupportedOperation)
		turns := a.worked()
		one, two := turns[0], turns[1]
		if one.Task != id || one.Turn != 1 || one.Caller != (wire.Caller{Kind: "key", Name: "alice"}) || len(one.History) != 0 ||
			!strings.HasPrefix(one.Context, "cv_") || one.Message.ContextID != one.Context || one.Message.TaskID != "" ||
			string(one.Message.Metadata) != `{"x":1}` {
			t.Errorf("the first turn is %+v", one)
		}
		if two.Turn != 2 || two.Context != one.Context || two.Message.TaskID != id || len(two.History) != 2 ||
			two.History[0].MessageID != "m-first" || two.History[1].MessageID != "q" || two.History[1].TaskID != id ||
			string(two.Metadata) != `{"y":2}` || strings.Join(two.Extensions, " ") != "urn:one urn:two" ||
			strings.Join(two.AcceptedOutputModes, " ") != "text/plain" || two.Partial ||
			!strings.HasPrefix(two.Work, gatetest.PublicURL+"/a2a/work/trn_") {
			t.Errorf("the second turn is %+v", two)
		}
		a.wantSealed(t, 2)
	})
}

// wantSealed checks that the agent got this many REQUESTs, all of them sealed and from the gateway. It returns the ids of
// their turns, in the order in which they were sent.
func (a *agent) wantSealed(t testing.TB, want int) (ids []string) {
	t.Helper()
	d, err := a.f.Relay.Events(t.Context(), &relay.Poll{Peer: relay.Peer{Local: true, Reader: a.key.DID()}, Limit: 1000,
		Filter: relay.Filter{Recipient: a.key.DID()}})
	a.f.must(err)
	for piece, err := range d.Pieces() {
		a.f.must(err)
		for _, e := range piece {
			m, err := envelope.Parse(e.Body, e.Size)
			a.f.must(err)
			if m.Type != envelope.TypeRequest {
				continue
			}
			if ids = append(ids, m.ID); !m.Sealed() || m.Sender.ID != a.f.Key.DID() || m.ID != m.Thread || !strings.HasPrefix(m.ID, "trn_") ||
				m.TTL != 24*time.Hour {
				t.Errorf("the REQUEST %s of %s with ttl %v is not one of the gateway", m.ID, m.Sender.ID, m.TTL)
			}
		}
	}
	if len(ids) != want {
		t.Errorf("the agent got %d REQUESTs, want %d", len(ids), want)
	}
	return ids
}

// the mode params maps text and data, and the intent that a caller names.
func TestModeParams(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agentWith(newKey(t), wire.Public, wire.ModeParams, func(c *wire.Card) {
			c.Skills = append(c.Skills, wire.Skill{ID: "demo.other", Name: "other", Description: "other", Tags: []string{"x"}})
		})
		a.serveWith([]string{"demo.echo", "demo.other"}, client.Handler{Work: func(_ context.Context, j client.Job) (envelope.Result, error) {
			return envelope.Result{Output: []byte(fmt.Sprintf(`{"intent":%q,"params":%s}`, j.Request.Intent, j.Request.Params))}, nil
		}})
		c := caller{agent: a}
		for want, m := range map[string]object{
			`{"intent":"demo.echo","params":{"text":"one\ntwo"}}`: {"parts": []object{{"text": "one"}, {"text": "two"}}},
			`{"intent":"demo.echo","params":{"n":1}}`:             {"parts": []object{{"text": "one"}, {"data": object{"n": 1}}}},
			`{"intent":"demo.other","params":{"text":"x"}}`:       {"parts": []object{{"text": "x"}}, "metadata": object{"agora.intent": "demo.other"}},
			`{"intent":"demo.echo","params":{"text":"y"}}`:        {"parts": []object{{"text": "y"}}, "metadata": object{"agora.intent": "secret"}},
		} {
			m["messageId"], m["role"] = "m", "ROLE_USER"
			c.wantState([]byte(raw(c.ok(c.rpc("SendMessage", object{"message": m})), "task")), wire.Completed, want)
		}
		c.refused(c.rpc("SendMessage", object{"message": message(strings.Repeat("x", 90_000))}), wire.BadParams)
	})
}

// each row of the state table holds. A-22: wrong output never reaches a caller.
func TestStates(t *testing.T) {
	const said = `{"a2a":{"message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"said"}]}}}`
	wrong := "The agent's answer does not have the form that A2A requires."
	tests := []struct {
		status, output string
		err            error
		state          wire.State
		texts          []string
	}{
		{status: "success", output: `"text"`, state: wire.Completed, texts: []string{"text"}},
		{status: "success", output: `{"content":"text"}`, state: wire.Completed, texts: []string{"text"}},
		{status: "success", output: `{"text":"a","b":1}`, state: wire.Completed, texts: []string{`{"b":1,"text":"a"}`}},
		{status: "success", output: `[1,2]`, state: wire.Completed, texts: []string{`[1,2]`}},
		{status: "success", output: `null`, state: wire.Completed},
		{status: "success", output: `{"a2a":{"artifacts":[{"artifactId":"x","parts":[{"text":"1"},{"url":"https://a.example/"}]},` +
			`{"artifactId":"y","name":"n","parts":[{"raw":"AAAA"}]}]}}`, state: wire.Completed,
			texts: []string{"1+https://a.example/", "AAAA"}},
		{status: "input-required", output: said, state: wire.InputRequired, texts: []string{"said"}},
		{status: "auth-required", output: said, state: wire.AuthRequired, texts: []string{"said"}},
		{status: "rejected", output: said, state: wire.Rejected, texts: []string{"said"}},
		{status: "odd", output: `"text"`, state: wire.Failed, texts: []string{"text", "odd"}},
		{status: "odd", output: said, state: wire.Failed, texts: []string{"said+odd"}},
		{err: &client.AgentError{Code: envelope.AgentInvalidRequest, Message: "bad"}, state: wire.Rejected, texts: []string{"bad"}},
		{err: &client.AgentError{Code: "RATE_LIMITED", Message: "busy"}, state: wire.Rejected, texts: []string{"busy"}},
		{err: &client.AgentError{Code: "OTHER", Message: "broken"}, state: wire.Failed, texts: []string{"broken"}},
		{status: "success", output: `{"a2a":{"artifacts":[{"artifactId":"x","parts":[]}]}}`, state: wire.Failed, texts: []string{wrong}},
		{status: "success", output: `{"a2a":{"message":{"messageId":"q","role":"x","parts":[{"text":"t"}]}}}`, state: wire.Failed, texts: []string{wrong}},
		{status: "success", output: `{"a2a":1}`, state: wire.Failed, texts: []string{wrong}},
		{status: "success", output: `"a\u0000b"`, state: wire.Failed, texts: []string{wrong}},
		{status: "success", output: strings.Repeat("[", 50) + strings.Repeat("]", 50), state: wire.Failed, texts: []string{wrong}},
	}
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		c := caller{agent: a, key: a.newKey("alice")}
		n := 0
		a.serve(func(context.Context, wire.Turn) (envelope.Result, error) {
			r, _ := result(tests[n].status, tests[n].output)
			return r, tests[n].err
		})
		for i, test := range tests {
			n = i
			t.Log(test.status, test.output, test.err)
			c.wantState(c.say("hello"), test.state, test.texts...)
		}
	})
}

// A direct answer is a message, and the task is there too.
func TestDirectAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(func(context.Context, wire.Turn) (envelope.Result, error) {
			return result("success", `{"a2a":{"direct":true,"message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"hi"}]}}}`)
		})
		c := caller{agent: a}
		got := c.ok(c.rpc("SendMessage", object{"message": message("hello")}))
		if text(got, "message", "messageId") != "q" || raw(got, "task") != "" || text(got, "message", "taskId") == "" {
			t.Errorf("the answer is %s", got)
		}
		c.wantState(c.task(text(got, "message", "taskId")), wire.Completed, "hi")
		task := c.sayAtOnce("hello")
		synctest.Wait()
		c.wantState(c.task(text(task, "id")), wire.Completed, "hi")
	})
}

// a priced OFFER is never accepted. The price is in the status message.
func TestPricedOffer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serveWith([]string{wire.MessageIntent}, client.Handler{
			Quote: func(context.Context, client.Job) (envelope.Offer, error) {
				return envelope.Offer{Price: &envelope.Price{Amount: 0.5, Currency: "USD"}}, nil
			},
			Work: func(context.Context, client.Job) (envelope.Result, error) {
				t.Error("the agent works")
				return envelope.Result{}, errors.New("no")
			}})
		c := caller{agent: a}
		c.wantState(c.say("hello"), wire.Rejected,
			`The agent asks for a price. This relay does not pay for its callers.+{"price":{"amount":0.5,"currency":"USD"}}`)
	})
}

// an offline agent's task is SUBMITTED, and completes when the agent comes. A-23: the call waits for --a2a-wait.
func TestOfflineAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		c := caller{agent: a}
		before := time.Now()
		task := c.say("hello")
		if c.wantState(task, wire.Submitted); time.Since(before) != time.Minute {
			t.Errorf("the call took %v", time.Since(before))
		}
		f.Restart()
		a.serve(echo)
		synctest.Wait()
		c.wantState(c.task(text(task, "id")), wire.Completed, "echo: hello")
		// An agent that never comes.
		other := caller{agent: f.agent(wire.Public)}
		id := text(other.sayAtOnce("hello"), "id")
		f.pass(24 * time.Hour)
		other.wantState(other.task(id), wire.Failed, "The agent did not answer in time.")
	})
}

// An agent that accepts and then is silent fails the task after a day.
func TestSilentAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		stop := a.serve(func(ctx context.Context, _ wire.Turn) (envelope.Result, error) {
			<-ctx.Done()
			return envelope.Result{}, ctx.Err()
		})
		c := caller{agent: a}
		id := text(c.sayAtOnce("hello"), "id")
		synctest.Wait()
		c.wantState(c.task(id), wire.Working)
		stop()
		f.pass(24 * time.Hour)
		c.wantState(c.task(id), wire.Failed, "The agent did not answer in time.")
	})
}

// cancel is final and reaches the agent.
func TestCancel(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		cancelled := make(chan error, 1)
		a.serve(func(ctx context.Context, _ wire.Turn) (envelope.Result, error) {
			<-ctx.Done()
			cancelled <- context.Cause(ctx)
			return result("success", `"late"`)
		})
		c := caller{agent: a}
		id := text(c.sayAtOnce("hello"), "id")
		synctest.Wait()
		c.wantState(c.ok(c.rpc("CancelTask", object{"id": id})), wire.Canceled)
		synctest.Wait()
		if err := <-cancelled; !errors.Is(err, client.ErrCancelled) {
			t.Errorf("the agent's work ends with %v", err)
		}
		synctest.Wait()
		c.wantState(c.task(id), wire.Canceled)
		c.refused(c.rpc("CancelTask", object{"id": id}), wire.TaskNotCancelable)
		got := c.post("/tasks/"+id+":cancel", nil)
		if got.Status != 400 || text(got.Body, "error", "details", 0, "reason") != "TASK_NOT_CANCELABLE" {
			t.Errorf("the second cancel: %v", got)
		}
	})
}

// plain answers, late ones and those of another DID have no effect.
func TestForeignAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		c := caller{agent: a}
		id := text(c.sayAtOnce("hello"), "id")
		thread := a.thread(t)
		send := func(from *agent, p envelope.Payload, seal bool) error {
			e, err := envelope.Draft{Thread: thread, Recipient: f.Key.DID(), Seal: seal, Payload: p}.Sign(from.key, f.Now())
			f.must(err)
			_, err = f.Relay.Post(context.Background(), relay.Peer{Local: true}, e.Canonical())
			synctest.Wait()
			return err
		}
		f.must(send(a, envelope.Offer{RequestID: thread}, false))
		c.wantState(c.task(id), wire.Submitted)
		f.must(send(a, envelope.Offer{RequestID: thread}, true))
		c.wantState(c.task(id), wire.Working)
		if send(f.agent(wire.Public), envelope.Result{RequestID: thread, Status: "success", Output: []byte(`"x"`)}, true) == nil {
			t.Error("the relay takes a RESULT of another DID")
		}
		f.must(send(a, envelope.Result{RequestID: thread, Status: "success", Output: []byte(`"plain"`)}, false))
		c.wantState(c.task(id), wire.Working)
	})
}

// thread returns the thread of the only REQUEST of an agent.
func (a *agent) thread(t testing.TB) string {
	t.Helper()
	synctest.Wait()
	d, err := a.f.Relay.Events(t.Context(), &relay.Poll{Peer: relay.Peer{Local: true, Reader: a.key.DID()}, Limit: 10,
		Filter: relay.Filter{Recipient: a.key.DID()}})
	a.f.must(err)
	for piece, err := range d.Pieces() {
		a.f.must(err)
		for _, e := range piece {
			m, err := envelope.Parse(e.Body, e.Size)
			a.f.must(err)
			return m.Thread
		}
	}
	t.Fatal("the agent got no REQUEST")
	return ""
}

// askTwice asks for input in each turn.
func askTwice(_ context.Context, turn wire.Turn) (envelope.Result, error) {
	return result("input-required", fmt.Sprintf(`{"a2a":{"message":{"messageId":"q%d","role":"ROLE_AGENT","parts":[{"text":"?"}]}}}`,
		turn.Turn))
}

// 1 MiB is taken, one byte more is 413. Over 80 KiB is partial and readable at work.
func TestLargeMessages(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(askTwice)
		c := caller{agent: a}
		body := func(size int) string {
			const head, tail = `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"`, `"}]}}`
			return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
		}
		got := c.post("/message:send", body(wire.MaxBody))
		id := text([]byte(raw(got.Body, "task")), "id")
		if c.wantState([]byte(raw(got.Body, "task")), wire.InputRequired, "?"); got.Status != 200 {
			t.Fatalf("1 MiB: %.200s", got)
		}
		if got := c.post("/message:send", body(wire.MaxBody+1)); got.Status != 413 || text(got.Body, "error", "status") != "RESOURCE_EXHAUSTED" {
			t.Errorf("one byte more: %.200s", got)
		}
		c.say("short", "taskId", id)
		turns := a.worked()
		if one := turns[0]; !one.Partial || len(one.Message.Parts) != 0 || one.Message.MessageID != "m" {
			t.Errorf("the first turn is %+v", one)
		}
		if two := turns[1]; !two.Partial || len(two.Message.Parts) != 1 || len(two.History) != 1 || two.History[0].MessageID != "q1" {
			t.Errorf("the second turn is %+v", two)
		}
		for n, turn := range turns {
			all := f.want(f.signed(a.key, "GET", strings.TrimPrefix(turn.Work, gatetest.PublicURL+"/a2a"), nil), 200, "")
			messages := []string{raw(all.Body, "message"), raw(all.Body, "history")}
			if len(messages[n]) < wire.MaxBody-1000 || text(all.Body, "message", "contextId") != turn.Context ||
				text(all.Body, "state") != string(wire.InputRequired) || raw(all.Body, "artifacts") != "[]" {
				t.Errorf("turn %d has a message of %d bytes and a history of %d", n+1, len(messages[0]), len(messages[1]))
			}
			f.want(f.signed(newKey(t), "GET", strings.TrimPrefix(turn.Work, gatetest.PublicURL+"/a2a"), nil), 403, "FORBIDDEN")
		}
	})
}

// Idempotency-Key repeats; a repeated messageId makes a new task.
func TestIdempotency(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(echo)
		c := caller{agent: a}
		params := object{"message": message("hello")}
		first := c.ok(c.rpc("SendMessage", params, "Idempotency-Key", "k"))
		again := c.rpc("SendMessage", params, "Idempotency-Key", "k")
		if string(again.Result) != string(first) || again.header["Idempotent-Replay"] == nil {
			t.Errorf("the repeat gets %s, want %s", again.Result, first)
		}
		f.Restart()
		rest := c.post("/message:send", params, "Idempotency-Key", "k")
		if strings.TrimSpace(string(rest.Body)) != string(first) {
			t.Errorf("after a restart: %v, want %s", rest, first)
		}
		if got := c.post("/message:send", object{"message": message("other")}, "Idempotency-Key", "k"); got.Status != 409 {
			t.Errorf("with another body: %v", got)
		}
		if got := c.ok(c.rpc("SendMessage", params)); text(got, "task", "id") == text(first, "task", "id") {
			t.Errorf("without the key: %s", got)
		}
		a.wantSealed(t, 2)
	})
}

// no secret and no id of an anonymous task is in a log or in any answer of /events, and no key in a clear row.
func TestSecrets(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(echo)
		key := a.newKey("alice")
		caller{agent: a, key: key}.say("hello")
		id := text(caller{agent: a}.say("hello"), "id")
		caller{agent: a}.send("GET", "/tasks/"+id, nil)
		caller{agent: a}.send("GET", "/tasks/"+id+"/", nil)
		events, err := gatetest.Do(t.Context(), f.Client, f.URL, gatetest.Call{Method: "GET", Path: "/events?limit=100"})
		f.must(err)
		for place, content := range map[string]string{"the log": f.Logged(), "/events": string(events.Body)} {
			for _, secret := range []string{id, key} {
				if strings.Contains(content, secret) || !strings.Contains(content, "a2a") && place == "the log" {
					t.Errorf("%s has %s", place, secret)
				}
			}
		}
		f.Stop()
		for _, name := range engine.Files(t, f.Path) {
			content, err := os.ReadFile(name)
			f.must(err)
			if strings.Contains(string(content), key) {
				t.Errorf("%s has the key", name)
			}
		}
	})
}

// retention removes all rows of a task. An interrupted one fails first.
func TestRetention(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		stop := a.serve(func(ctx context.Context, turn wire.Turn) (envelope.Result, error) {
			if *turn.Message.Parts[0].Text == "ask" {
				return askTwice(ctx, turn)
			}
			return echo(ctx, turn)
		})
		c := caller{agent: a, key: a.newKey("alice")}
		id, asked := text(c.say("hello"), "id"), text(c.say("ask"), "id")
		stop()
		f.pass(7*24*time.Hour - 10*time.Minute)
		c.wantState(c.task(id), wire.Completed, "echo: hello")
		f.pass(10 * time.Minute)
		c.refused(c.rpc("GetTask", object{"id": id}), wire.TaskNotFound)
		c.wantState(c.task(asked), wire.Failed, "The caller did not answer in time.")
		f.pass(7 * 24 * time.Hour)
		for _, table := range []string{"a2a_task", "a2a_turn", "a2a_event", "a2a_artifact", "a2a_context"} {
			f.wantRows(t, table, 0)
		}
	})
}

// TestRemove checks what the operator removes.
func TestRemove(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		signer := newKey(t)
		alice, signed := caller{agent: a, key: a.newKey("alice")}, caller{agent: a, did: &signer}
		id, other := text(alice.sayAtOnce("hello"), "id"), text(signed.sayAtOnce("hello"), "id")
		f.must(f.gateway.Remove(t.Context(), id))
		alice.refused(alice.rpc("GetTask", object{"id": id}), wire.TaskNotFound)
		if err := f.gateway.Remove(t.Context(), id); envelope.CodeOf(err) != envelope.CodeNotFound {
			t.Errorf("the second removal: %v", err)
		}
		if n, err := f.gateway.RemoveSender(t.Context(), string(signer.DID()), time.Time{}, 10); n != 1 || err != nil {
			t.Errorf("removed %d, %v", n, err)
		}
		signed.refused(signed.rpc("GetTask", object{"id": other}), wire.TaskNotFound)
		if n, err := f.gateway.RemoveSender(t.Context(), string(a.key.DID()), time.Time{}, 10); n != 1 || err != nil {
			t.Errorf("removed %d, %v", n, err)
		}
		synctest.Wait()
		f.wantRows(t, "a2a_endpoint", 0)
		f.wantRows(t, "a2a_event", 0)
	})
}

// Agents take what gateways deliver only from the gateway (§4): a plain client.Serve refuses the REQUEST of a stranger.
func TestStrangersAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		intents := []string{wire.MessageIntent, client.ChannelIntent}
		a.serveWith(intents, client.Handler{Work: func(_ context.Context, j client.Job) (envelope.Result, error) {
			t.Errorf("the agent works on %s", j.Request.Intent)
			return envelope.Result{}, nil
		}})
		stranger := newKey(t)
		for i := range 4 {
			intent, seal, thread := intents[i/2], i%2 == 0, fmt.Sprint("trn_", i)
			e, err := envelope.Draft{ID: thread, Thread: thread, Recipient: a.key.DID(), Seal: seal, Payload: envelope.Request{
				RequestID: thread, Intent: intent, Params: []byte(`{}`)}}.Sign(stranger, f.Now())
			f.must(err)
			_, err = f.Relay.Post(t.Context(), relay.Peer{Local: true}, e.Canonical())
			f.must(err)
			synctest.Wait()
			v, err := f.Relay.Thread(t.Context(), relay.Peer{Local: true}, threads.Key{Client: stranger.DID(), ID: thread})
			if err != nil || v.State != threads.Failed {
				t.Errorf("%s, sealed: %v: the thread is %v, %v", intent, seal, v.State, err)
			}
		}
	})
}
