package mcpserver_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs/credits"
)

// newSeveral returns an agent at several relays. A home counts as silent after a second.
func newSeveral(t *testing.T, perJob, perDay credits.Amount, relays ...*testRelay) *agent {
	t.Helper()
	a := newAgent(t, relays[0], perJob, perDay)
	var urls []string
	for _, r := range relays {
		urls = append(urls, r.URL)
	}
	network := func(state *client.State) *client.Network {
		n, err := client.NewNetwork(urls, a.key, client.NetworkOptions{Silence: time.Second, State: state,
			Options: client.Options{Attempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	state, err := client.OpenState(filepath.Join(a.options.Folder, "relays.state"), a.did)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	worker := network(state)
	a.options.Client, a.options.Relay = nil, strings.Join(urls, ", ")
	a.options.Several = &mcpserver.Several{Network: network(nil),
		Worker: func() (*client.Network, *client.State, error) { return worker, state, nil }}
	a.reconnect()
	return a
}

// hire lets alice ask bob for an echo that costs 0.25 USD, and accept the offer. It returns the thread, the offer and
// bob's job.
func hire(alice, bob *agent) (thread, offer string, job jobView) {
	alice.t.Helper()
	bob.offer("echo", 0.25)
	next := bob.nextJob(120)
	var v requestView
	alice.call("ask", map[string]any{"intent": "echo", "input": "hi", "agent": bob.did, "wait_seconds": 60}, &v)
	if v.State != "offers" || len(v.Offers) != 1 {
		alice.t.Fatalf("asked: %+v", v)
	}
	offer = v.Offers[0].Offer
	alice.call("accept_offer", map[string]any{"thread": v.Thread, "offer": offer, "wait_seconds": 0}, &v)
	if v.State != "working" {
		alice.t.Fatalf("accepted: %+v", v)
	}
	return v.Thread, offer, next()
}

// TestJobOutlivesItsRelay: the home of a job dies after the ACCEPT, while the LLM works. The job continues at the
// second relay under the name of the first thread. The work is done once, and its price is reserved once (RELAYS,
//
func TestJobOutlivesItsRelay(t *testing.T) {
	a, b := startRelay(t), startRelay(t)
	alice, bob := newSeveral(t, usd, usd, a, b), newSeveral(t, 0, 0, a, b)
	thread, offer, job := hire(alice, bob)
	a.stop()
	var ended struct{ State string }
	for _, output := range []string{"first", "second"} { // the first one counts
		bob.call("deliver", deliverTo(job, output), &ended)
		if ended.State != "saved" {
			t.Fatalf("delivered while the relay is down: %+v", ended)
		}
	}
	handedOut := bob.idle()
	var v requestView
	for deadline := time.Now().Add(2 * time.Minute); v.State != "done" && time.Now().Before(deadline); {
		alice.call("follow_up", map[string]any{"thread": thread, "wait_seconds": 20}, &v)
	}
	if v.State != "done" || v.Thread != thread || !strings.Contains(v.Result.Text, `"first"`) {
		t.Fatalf("after the death of the home: %+v, %+v", v, v.Result)
	}
	alice.call("accept_offer", map[string]any{"thread": thread, "offer": offer}, &v)
	if v.State != "done" || alice.reserved() != usd/4 {
		t.Errorf("accepted once more: %+v, %v reserved", v, alice.reserved())
	}
	if handedOut() {
		t.Error("the job was handed out again")
	}
}

// idle waits for jobs until the returned function is called, which reports whether there was one.
func (a *agent) idle() (ended func() bool) {
	ctx, stop := context.WithCancel(a.t.Context())
	var found atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			result, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: "next_job",
				Arguments: map[string]any{"wait_seconds": 30}})
			if err != nil {
				return
			}
			view, _ := result.StructuredContent.(map[string]any)
			if found.Store(found.Load() || view["waiting"] != true); found.Load() {
				a.t.Logf("next_job: %v", result.Content[0].(*mcp.TextContent).Text)
				return
			}
		}
	}()
	return func() bool {
		stop()
		<-done
		return found.Load()
	}
}

// TestReadSeveral reads the directories and the inbox at two relays. What both have is shown once. A relay that is down
// delays nothing, and what it has comes later (RELAYS R-12).
func TestReadSeveral(t *testing.T) {
	a, b := startRelay(t), startRelay(t)
	alice := newSeveral(t, 0, 0, a, b)
	both, onlyA, onlyB := newSeveral(t, 0, 0, a, b), newAgent(t, a, 0, 0), newAgent(t, b, 0, 0)
	for _, other := range []*agent{both, onlyA, onlyB} {
		other.offer("echo", 0)
	}
	found := map[string]int{}
	for after, pages := "", 0; pages == 0 || after != ""; pages++ {
		var page struct {
			Agents []struct{ Agent string }
			More   string
		}
		alice.call("find_agents", map[string]any{"intent": "echo", "after": after}, &page)
		for _, one := range page.Agents {
			found[one.Agent]++
		}
		if after = page.More; pages > 10 {
			t.Fatal("the directory does not end")
		}
	}
	if len(found) != 3 || found[string(both.did)] != 1 {
		t.Errorf("found %v, want three agents once each", found)
	}
	var envelopes []*envelope.Envelope
	for _, other := range []*agent{onlyA, onlyB} {
		e, _, err := other.client.Post(t.Context(), envelope.Draft{Payload: envelope.Request{Intent: "x"},
			Recipient: alice.did})
		if err != nil {
			t.Fatal(err)
		}
		envelopes = append(envelopes, e)
	}
	if _, err := onlyB.client.PostEnvelope(t.Context(), envelopes[0]); err != nil { // a copy
		t.Fatal(err)
	}
	inbox := func(from string) (senders []string) {
		var page struct{ Messages []struct{ From string } }
		alice.call("inbox", map[string]any{"from": from}, &page)
		for _, m := range page.Messages {
			senders = append(senders, m.From)
		}
		return senders
	}
	b.stop()
	if got := inbox("new"); !slices.Equal(got, []string{string(onlyA.did)}) {
		t.Errorf("while b is down the inbox has %v", got)
	}
	b.start(strings.TrimPrefix(b.URL, "http://"))
	for _, from := range []string{"new", "last"} {
		if got := inbox(from); !slices.Equal(got, []string{string(onlyB.did)}) {
			t.Errorf("%s: the inbox has %v, want only what b has besides", from, got)
		}
	}
	if got := inbox("new"); len(got) != 0 {
		t.Errorf("nothing has come, and the inbox has %v", got)
	}
	if got := inbox("oldest"); len(got) != 2 {
		t.Errorf("the whole inbox has %v", got)
	}
}
