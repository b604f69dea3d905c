package mcpserver_test

import (
	"strings"
	"testing"
	"time"
)

// TestConversation walks through both sides of a conversation, with restarts of the relay and of both servers between
// the steps.
func TestConversation(t *testing.T) {
	r := startRelay(t)
	alice, bob := newAgent(t, r, usd, usd), newAgent(t, r, 0, 0)
	bob.offer("translation.en_zh", 0.25)
	var found struct {
		Agents []struct {
			Agent    string        `json:"agent"`
			Manifest []foreignText `json:"manifests"`
		} `json:"agents"`
	}
	alice.call("find_agents", map[string]any{"intent": "translation.en_zh"}, &found)
	if len(found.Agents) != 1 || found.Agents[0].Agent != string(bob.did) || !strings.Contains(found.Agents[0].Manifest[0].Text, "translation.en_zh") {
		t.Fatalf("found %+v", found)
	}
	job := bob.nextJob(60)
	var asked requestView
	alice.call("ask", map[string]any{"intent": "translation.en_zh", "input": map[string]any{"text": "Hello"}, "wait_seconds": 30}, &asked)
	if asked.State != "offers" || len(asked.Offers) != 1 || !asked.Offers[0].Allowed || *asked.Offers[0].PriceUSD != 0.25 {
		t.Fatalf("asked: %+v", asked)
	}
	r.restart()
	alice.reconnect()
	var accepted requestView
	alice.call("accept_offer", map[string]any{"thread": asked.Thread, "offer": asked.Offers[0].Offer, "wait_seconds": 0}, &accepted)
	if accepted.State != "working" || accepted.Agent != string(bob.did) || alice.reserved() != usd/4 {
		t.Fatalf("accepted: %+v, %v reserved", accepted, alice.reserved())
	}
	first := job()
	if got := first; got.ThreadID.Text != asked.Thread || got.Client != string(alice.did) || !strings.Contains(got.Request.Text, `"text":"Hello"`) {
		t.Fatalf("the job is %+v", got)
	}
	// The relay and the worker restart between ACCEPT and RESULT.
	r.restart()
	bob.reconnect()
	again := bob.nextJob(30)()
	if again.Thread != first.Thread {
		t.Fatalf("after the restart the job is %+v", again)
	}
	for range 2 { // the second call is a repeat
		bob.call("deliver", deliverTo(again, map[string]any{"text": "你好"}), nil)
	}
	var done requestView
	alice.call("follow_up", map[string]any{"thread": asked.Thread}, &done)
	if done.State != "done" || done.Result == nil || done.Result.From != string(bob.did) || !strings.Contains(done.Result.Text, "你好") {
		t.Fatalf("done: %+v", done)
	}
	if got := bob.nextJob(0)(); !got.Waiting {
		t.Errorf("there is another job: %+v", got)
	}
	alice.mu.Lock()
	defer alice.mu.Unlock()
	if len(alice.progress) == 0 {
		t.Error("no progress was reported")
	}
}

// TestRules checks that ask accepts the first or the cheapest offer that the limits allow, and returns the result.
func TestRules(t *testing.T) {
	r := startRelay(t)
	alice := newAgent(t, r, usd/2, 10*usd)
	alice.options.Settle = time.Second
	alice.reconnect()
	for _, price := range []float64{0.75, 0.5, 0.25} {
		bob := newAgent(t, r, 0, 0)
		bob.offer("echo", price)
		bob.work(price)
	}
	for rule, want := range map[string][]string{"first": {"0.5", "0.25"}, "cheapest": {"0.25"}} {
		var v requestView
		alice.call("ask", map[string]any{"intent": "echo", "accept": rule, "wait_seconds": 20}, &v)
		found := false
		for _, output := range want {
			found = found || v.Result != nil && strings.Contains(v.Result.Text, `"output":`+output+",")
		}
		if v.State != "done" || !found {
			t.Errorf("%s: %+v", rule, v)
		}
	}
	var none requestView
	text := alice.call("ask", map[string]any{"intent": "nothing", "accept": "first", "wait_seconds": 0}, &none)
	if none.State != "waiting" || none.Thread == "" || !strings.Contains(text, "follow_up") {
		t.Errorf("without an agent: %+v, %s", none, text)
	}
	var cancelled requestView
	for range 2 {
		alice.call("cancel", map[string]any{"thread": none.Thread, "reason": "found it"}, &cancelled)
		if cancelled.State != "cancelled" {
			t.Errorf("cancelled: %+v", cancelled)
		}
	}
}
