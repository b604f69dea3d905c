package client_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestInterruptedResult: a caller waits for the result in many short calls, as an MCP server does, and each one is
// interrupted at any point. The job still continues when its home dies, at most once at the next relay, and the agent
// works once (RELAYS ).
func TestInterruptedResult(t *testing.T) {
	for _, slice := range []time.Duration{300 * time.Millisecond, 1700 * time.Millisecond, 7 * time.Second} {
		t.Run(slice.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testInterruptedResult(t, slice) })
		})
	}
}

func testInterruptedResult(t *testing.T, slice time.Duration) {
	w := newWorld(t, "a", "b", "c")
	for _, name := range []string{"a", "b", "c"} { // each answer takes a while, so that interruptions hit open requests
		w.relay(name).setHook(slowly(200 * time.Millisecond))
	}
	var works atomic.Int32
	defer w.serve(w.network(client.NetworkOptions{}), func(_ context.Context, job client.Job) (envelope.Result, error) {
		works.Add(1)
		return echo(t.Context(), job)
	})()
	moves := 0
	n := w.network(client.NetworkOptions{Moved: func(client.Move) { moves++ }})
	call, err := n.Request(t.Context(), client.RequestOptions{Intent: "echo", Params: 7,
		Recipient: w.agent(t.Context(), n)})
	if err != nil {
		t.Fatal(err)
	}
	for offer, err := range call.Offers(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		w.kill("a")
		ctx, cancel := context.WithTimeout(t.Context(), slice)
		_ = call.Accept(ctx, offer) // interrupted
		cancel()
		break
	}
	died := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), slice)
		result, err := call.Result(ctx)
		ended := ctx.Err() == nil
		cancel()
		if err == nil && string(result.Output) == "7" {
			break
		}
		if ended || time.Since(died) > 3*time.Minute {
			t.Fatalf("after %v: %v", time.Since(died), err)
		}
	}
	if took := time.Since(died); took > time.Minute || works.Load() != 1 || moves != 1 {
		t.Errorf("the RESULT came after %v; the agent worked %d times, and the job has moved %d times", took,
			works.Load(), moves)
	}
}

// slowly is a hook that delays each answer.
func slowly(delay time.Duration) func(*http.Request, http.RoundTripper) (*http.Response, error) {
	return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		select {
		case <-time.After(delay):
			return next.RoundTrip(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// TestPostedManifestNamesRelays: a MANIFEST that is posted without a list names the relays that answer (RELAYS R-10).
func TestPostedManifestNamesRelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		w.kill("b")
		manifest, _, err := w.network(client.NetworkOptions{}).Post(t.Context(),
			envelope.Draft{Payload: envelope.Manifest{ID: "cap", Intents: []envelope.Intent{{ID: "echo"}}}})
		if err != nil {
			t.Fatal(err)
		}
		var payload envelope.Manifest
		if err := manifest.DecodePayload(&payload); err != nil || len(payload.Relays) != 2 ||
			payload.Relays[1].URL != "http://c.test" {
			t.Errorf("the MANIFEST names %v, want a and c (%v)", payload.Relays, err)
		}
	})
}
