package a2a_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
)

// recorder sends requests to the site, and records those with progress.
type recorder struct {
	to   toSite
	lose int // how many answers to progress are lost from now on

	mu    sync.Mutex
	at    []time.Time
	sizes []int64
	reads int // of work
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.to.RoundTrip(request)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch path := request.URL.Path; {
	case !strings.Contains(path, "/work/"):
	case strings.HasSuffix(path, "/events"):
		r.at, r.sizes = append(r.at, time.Now()), append(r.sizes, request.ContentLength)
		if r.lose > 0 && err == nil {
			r.lose--
			_ = response.Body.Close()
			return nil, io.ErrUnexpectedEOF
		}
	default:
		r.reads++
	}
	return response, err
}

// serveA2A runs an agent with client.ServeA2A until stop is called or the test ends.
func (a *agent) serveA2A(do client.A2AHandler) (r *recorder, stop func()) {
	a.f.t.Helper()
	r = &recorder{to: toSite{a.f}}
	c, err := client.New(gatetest.PublicURL, a.key, client.Options{HTTPClient: &http.Client{Transport: r}, Now: a.f.Now,
		Logger: slog.New(slog.DiscardHandler)})
	a.f.must(err)
	return r, a.run(func(ctx context.Context) error { return c.ServeA2A(ctx, client.ServeOptions{}, do) })
}

// said returns a handler that calls do and ends with what it returns.
func said(do func(turn *client.A2AJob) client.A2AEnd) client.A2AHandler {
	return func(_ context.Context, turn *client.A2AJob) (client.A2AEnd, error) { return do(turn), nil }
}

// client.ServeA2A serves A2A, in both bindings. A-33: its progress comes before the RESULT, at most every 100 ms.
// the proof of what it has sent verifies.
func TestServeA2A(t *testing.T) {
	for _, binding := range []string{"/rpc", "/message:stream"} {
		inBubble(t, func(t *testing.T, f *fixture) {
			a := f.agent(wire.Keys)
			r, _ := a.serveA2A(func(_ context.Context, turn *client.A2AJob) (client.A2AEnd, error) {
				if turn.Caller.Name != "alice" || turn.Turn != 1 || len(turn.History) != 0 {
					t.Errorf("the turn is %+v", turn.A2ATurn)
				}
				f.must(turn.Update(client.A2AText("counting")))
				out := turn.Artifact(client.A2AArtifact{Name: "count"})
				for i := range 100 { // a chunk every 10 ms
					f.must(out.Write(client.A2AText(fmt.Sprint(i % 10))))
					time.Sleep(10 * time.Millisecond)
				}
				f.must(out.Close(client.A2AText("end")))
				f.must(turn.Artifact(client.A2AArtifact{Metadata: []byte(`{"n":1.5}`)}).Close(client.A2AData([]byte(`{"a":[1]}`))))
				return turn.Done(client.A2AText("done: " + turn.Text())), nil
			})
			c := caller{agent: a, key: a.newKey("alice")}
			var body any = object{"message": message("hello")}
			if binding == "/rpc" {
				body = object{"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": body}
			}
			s := c.stream("POST", binding, body)
			time.Sleep(5 * time.Second)
			got, ended := s.got()
			got = fromStart(got)
			id := text([]byte(s.all[0]), "task", "id")
			text, chunks := "", 0
			for i, e := range got[3 : len(got)-1] {
				words := strings.Split(e, " ")
				if first := i == 0 || words[0] == "1.2"; (words[2] == "true") == first || (words[3] == "true") != strings.Contains(e, "end") && words[0] == "1.1" {
					t.Errorf("chunk %d is %s", i, e)
				}
				text += words[1]
				chunks++
			}
			wanted := []string{"task SUBMITTED", "WORKING", "WORKING"}
			if !ended || !slices.Equal(got[:3], wanted) || got[len(got)-1] != "COMPLETED" ||
				strings.ReplaceAll(text, "+", "") != strings.Repeat("0123456789", 10)+`end{"a":[1]}` || chunks > 15 {
				t.Errorf("%d chunks, ended %v: %q", chunks, ended, got)
			}
			for i := range r.at[1:] {
				if pause := r.at[i+1].Sub(r.at[i]); pause < 100*time.Millisecond {
					t.Errorf("request %d comes after %v", i+1, pause)
				}
			}
			c.wantState(c.task(id), wire.Completed, strings.Join(strings.Split(strings.Repeat("0123456789", 10), ""), "+")+"+end",
				`{"a":[1]}`, "done: hello")
			proof, p := c.proven(id)
			if proof == nil || p.Verify(*proof, a.key.DID()) != nil {
				t.Errorf("the proof is %+v over %+v", proof, p)
			}
		})
	}
}

// a question ends its turn. The next message opens turn 2, with the history. A-43: its proof is over the artifacts of
// both turns. An agent that runs for long reads the artifacts of earlier turns only for a later turn.
func TestServeA2AAsks(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		r, _ := a.serveA2A(said(func(turn *client.A2AJob) client.A2AEnd {
			f.must(turn.Artifact(client.A2AArtifact{}).Close(client.A2AText(fmt.Sprint("part ", turn.Turn))))
			if turn.Turn == 1 {
				return turn.Ask(client.A2AText("Which colour?"))
			}
			if len(turn.History) != 2 || turn.History[1].Text() != "Which colour?" || turn.Text() != "blue" {
				t.Errorf("turn 2 is %+v", turn.A2ATurn)
			}
			return client.A2AEnd{}
		}))
		synctest.Wait()
		f.pass(10 * time.Minute)
		c := caller{agent: a, key: a.newKey("alice")}
		task := c.say("paint")
		c.wantState(task, wire.InputRequired, "part 1", "Which colour?")
		if r.reads != 0 {
			t.Errorf("turn 1 reads its work %d times", r.reads)
		}
		id := text(task, "id")
		c.wantState(c.say("blue", "taskId", id), wire.Completed, "part 1", "part 2")
		if proof, p := c.proven(id); proof == nil || p.Turn != 2 || p.Verify(*proof, a.key.DID()) != nil {
			t.Errorf("the proof is %+v over %+v", proof, p)
		}
		c.refused(c.rpc("SendMessage", object{"message": message("more", "taskId", id)}), wire.UnsupportedOperation)
	})
}

// the other ends of a turn. A-22: what is too large for a RESULT does not reach a caller in part.
func TestServeA2AEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		var end func(turn *client.A2AJob) (client.A2AEnd, error)
		a.serveA2A(func(_ context.Context, turn *client.A2AJob) (client.A2AEnd, error) { return end(turn) })
		c := caller{agent: a, key: a.newKey("alice")}
		for name, want := range map[string]struct {
			end   client.A2AEnd
			err   error
			state wire.State
			texts string
		}{
			"nothing":  {state: wire.Completed},
			"rejected": {end: client.A2AEnd{State: client.A2ARejected}, state: wire.Rejected, texts: "why"},
			"auth":     {end: client.A2AEnd{State: client.A2AAuthRequired}, state: wire.AuthRequired, texts: "why"},
			"failed":   {end: client.A2AEnd{State: client.A2AFailed}, state: wire.Failed, texts: "why+failed"},
			"invalid": {err: &client.AgentError{Code: envelope.AgentInvalidRequest, Message: "no"},
				state: wire.Rejected, texts: "no"},
			"panic": {state: wire.Failed, texts: "the agent failed; the agent's operator can find the reason in its log"},
			"large": {state: wire.Failed, texts: "the agent's last message has more than 81920 bytes; it should send an artifact"},
		} {
			end = func(turn *client.A2AJob) (client.A2AEnd, error) {
				switch name {
				case "panic":
					f.must(turn.Update())
					panic("test")
				case "large":
					return turn.Ask(client.A2AText(strings.Repeat("x", wire.MaxSealed))), nil
				case "nothing":
				default:
					want.end.Message = turn.Reply(client.A2AText("why"))
				}
				return want.end, want.err
			}
			var texts []string
			if want.texts != "" {
				texts = []string{want.texts}
			}
			task := c.say(name)
			c.wantState(task, want.state, texts...)
			proof, p := c.proven(text(task, "id"))
			if proven := want.state != wire.Failed && want.err == nil; (proof != nil) != proven || proven && p.Verify(*proof, a.key.DID()) != nil {
				t.Errorf("%s: the proof is %+v", name, proof)
			}
		}
		end = func(turn *client.A2AJob) (client.A2AEnd, error) {
			return client.A2AEnd{Message: turn.Reply(client.A2AText("hi")), Direct: true}, nil
		}
		if got := c.ok(c.rpc("SendMessage", object{"message": message("direct")})); text(got, "message", "parts", 0, "text") != "hi" {
			t.Errorf("the direct answer is %s", got)
		}
	})
}

// a repeated run replaces what an earlier one has sent, also if the agent was killed, or if the answer to its progress
// was lost. A-43: the proof of the repeated run verifies, although an artifact of the first run is left.
func TestServeA2ARepeats(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		c := caller{agent: a, key: a.newKey("alice")}
		write := func(turn *client.A2AJob, name string, n int) {
			out := turn.Artifact(client.A2AArtifact{Name: name})
			for i := range n {
				f.must(out.Write(client.A2AText(fmt.Sprint(name, i))))
				time.Sleep(time.Second)
			}
		}
		_, stop := a.serveA2A(func(ctx context.Context, turn *client.A2AJob) (client.A2AEnd, error) {
			write(turn, "old", 3)
			write(turn, "left", 1)
			<-ctx.Done()
			return client.A2AEnd{}, ctx.Err()
		})
		id := text(c.sayAtOnce("hello"), "id")
		time.Sleep(10 * time.Second)
		c.wantState(c.task(id), wire.Working, "old0+old1+old2", "left0")
		stop()
		r, _ := a.serveA2A(said(func(turn *client.A2AJob) client.A2AEnd {
			write(turn, "new", 2)
			return client.A2AEnd{}
		}))
		time.Sleep(10 * time.Second)
		c.wantState(c.task(id), wire.Completed, "new0+new1", "left0")
		if proof, p := c.proven(id); proof == nil || p.Verify(*proof, a.key.DID()) != nil {
			t.Errorf("the proof is %+v over %+v", proof, p)
		}
		r.mu.Lock()
		r.lose = 2
		r.mu.Unlock()
		c.wantState(c.say("again"), wire.Completed, "new0+new1")
		if len(r.at) < 5 { // 2 of them were repeated
			t.Errorf("%d requests", len(r.at))
		}
	})
}

// a cancel ends the handler's ctx, and nothing is sent after it. A-33: nothing is sent after the end of the
// handler either.
func TestServeA2ACancel(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		c := caller{agent: a, key: a.newKey("alice")}
		var kept *client.A2AJob
		var cause error
		a.serveA2A(func(ctx context.Context, turn *client.A2AJob) (client.A2AEnd, error) {
			kept = turn
			f.must(turn.Update(client.A2AText("working")))
			if turn.Text() == "end" {
				return client.A2AEnd{}, nil
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			if err := turn.Update(); err == nil {
				t.Error("an update after the cancel was taken")
			}
			return client.A2AEnd{}, nil
		})
		id := text(c.sayAtOnce("hello"), "id")
		time.Sleep(time.Second)
		c.ok(c.rpc("CancelTask", object{"id": id}))
		time.Sleep(time.Second)
		synctest.Wait()
		if !errors.Is(cause, client.ErrCancelled) {
			t.Errorf("ctx ended with %v", cause)
		}
		c.wantState(c.task(id), wire.Canceled)
		c.wantState(c.say("end"), wire.Completed)
		if err := kept.Update(); err == nil {
			t.Error("an update after the end was taken")
		}
	})
}

// a large message is whole in the turn, and so is a long history. A-39: what the agent sends is bounded. Large
// artifacts go in several requests of at most 256 KiB, and one that no task keeps is refused.
func TestServeA2ALarge(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		c := caller{agent: a, key: a.newKey("alice")}
		var asked []string
		r, _ := a.serveA2A(said(func(turn *client.A2AJob) client.A2AEnd {
			asked = []string{turn.Text()}
			for _, m := range turn.History {
				asked = append(asked, m.Text())
			}
			part := client.A2AText(strings.Repeat("x", 20<<10))
			all := make([]client.A2APart, 40)
			for i := range all {
				all[i] = part
			}
			f.must(turn.Artifact(client.A2AArtifact{Name: "large"}).Close(all...))
			if turn.Turn == 1 {
				return turn.Ask(client.A2AText("more?"))
			}
			out := turn.Artifact(client.A2AArtifact{})
			if err := out.Write(client.A2AText(strings.Repeat("x", wire.MaxProgress))); err == nil {
				t.Error("a part that is too large was taken")
			}
			var err error
			for range 200 {
				if err = out.Write(part); err != nil {
					break
				}
			}
			if err == nil {
				t.Error("more than a task keeps was taken")
			}
			return client.A2AEnd{}
		}))
		large := strings.Repeat("y", 200<<10)
		id := text(c.say(large, "messageId", "m"), "id")
		c.say("short", "taskId", id)
		if !slices.Equal(asked, []string{"short", large, "more?"}) {
			t.Errorf("turn 2 has %d texts", len(asked))
		}
		for i, n := range r.sizes {
			if n > wire.MaxProgress {
				t.Errorf("request %d has %d bytes", i, n)
			}
		}
		if _, p := c.proven(id); p.State != wire.Failed || len(p.Artifacts[0].Parts) != 40 || p.Artifacts[0].Name != "large" {
			t.Errorf("the task is %s, with %d artifacts", p.State, len(p.Artifacts))
		}
	})
}

// a turn whose work is not at the relay's own gateway is refused, so that nothing is signed for another server.
func TestServeA2AForeignWork(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		a.serveA2A(said(func(*client.A2AJob) client.A2AEnd {
			t.Error("the handler was called")
			return client.A2AEnd{}
		}))
		gatewayClient, err := client.New(gatetest.PublicURL, f.Key, client.Options{HTTPClient: &http.Client{Transport: toSite{f}}, Now: f.Now})
		f.must(err)
		for _, work := range []string{"https://evil.example/a2a/work/trn_x", gatetest.PublicURL + "/a2a/../work/trn_x",
			gatetest.PublicURL + "/a2a/work/x/trn_x", gatetest.PublicURL + ".evil/a2a/work/trn_x"} {
			params := object{"task": "tsk_x", "turn": 1, "context": "cv_x", "caller": object{"kind": "anonymous"},
				"message": message("hello"), "history": []any{}, "work": work}
			call, err := gatewayClient.Request(t.Context(), client.RequestOptions{Recipient: a.key.DID(), Intent: wire.MessageIntent,
				Params: params, Seal: true})
			f.must(err)
			_, err = call.Collect(t.Context(), time.Second)
			refused, ok := errors.AsType[*client.AgentError](err)
			if !ok || refused.Code != envelope.AgentInvalidRequest || !strings.Contains(refused.Message, "params.work") {
				t.Errorf("%s: the answer is %v", work, err)
			}
		}
	})
}

// Network.ServeA2A serves the gateways of all its relays, and HandleA2A other intents beside it.
func TestNetworkServeA2A(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		n, err := client.NewNetwork([]string{gatetest.PublicURL}, a.key, client.NetworkOptions{Options: client.Options{
			HTTPClient: &http.Client{Transport: toSite{f}}, Now: f.Now, Logger: slog.New(slog.DiscardHandler)}})
		f.must(err)
		turn := said(func(turn *client.A2AJob) client.A2AEnd {
			f.must(turn.Artifact(client.A2AArtifact{}).Close(client.A2AText("for " + turn.Caller.Name)))
			return client.A2AEnd{}
		})
		c := caller{agent: a, key: a.newKey("alice")}
		stop := a.run(func(ctx context.Context) error { return n.ServeA2A(ctx, client.ServeOptions{}, turn) })
		c.wantState(c.say("hello"), wire.Completed, "for alice")
		stop()
		other := client.Handler{Work: func(_ context.Context, j client.Job) (envelope.Result, error) {
			return envelope.Result{Output: json.RawMessage(`"other"`)}, nil
		}}
		a.run(func(ctx context.Context) error {
			return n.Serve(ctx, client.ServeOptions{Intents: []string{wire.MessageIntent, "demo.echo"}}, n.HandleA2A(turn, other))
		})
		c.wantState(c.say("hello"), wire.Completed, "for alice")
		asker, err := client.New(gatetest.PublicURL, newKey(t), client.Options{HTTPClient: &http.Client{Transport: toSite{f}}, Now: f.Now})
		f.must(err)
		call, err := asker.Request(t.Context(), client.RequestOptions{Recipient: a.key.DID(), Intent: "demo.echo"})
		f.must(err)
		for offer, err := range call.Offers(t.Context()) {
			f.must(err)
			f.must(call.Accept(t.Context(), offer))
			break
		}
		if r, err := call.Result(t.Context()); err != nil || string(r.Output) != `"other"` {
			t.Errorf("the other intent: %s, %v", r.Output, err)
		}
	})
}
