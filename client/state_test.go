package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// TestOpenState checks which files a state is read from.
func TestOpenState(t *testing.T) {
	const me, other = didkey.DID("did:key:z6MkA"), didkey.DID("did:key:z6MkB")
	path := filepath.Join(t.TempDir(), "state")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	head := fmt.Sprintf("[\"agora-state\",1,%q]\n", me)
	for _, bad := range []string{"[\"agora-state\",2,\"x\"]\n", "[\"agora-state\",1,\"" + string(other) + "\"]\n",
		"hello\n",
		head + "[\"surprise\"]\n", head + "[\"cursor\",\"a\"]\n", head + "[\"e\",\"short\",1]\n",
		"{\"agent\":\"" + string(other) + "\"}"} {
		write(bad)
		if _, err := client.OpenState(path, me); err == nil || !strings.Contains(err.Error(), "move it away") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	write(head + "[\"caught\",\"did:key:x\",\"it lied\"]\n[\"caught\",\"did:key:y\"") // the last line was being written
	s, err := client.OpenState(path, me)
	if err != nil || s.Caught()["did:key:x"] != "it lied" || len(s.Caught()) != 1 {
		t.Fatal(s, err)
	}
	if err := errors.Join(s.Forgive("did:key:x"), s.Catch("did:key:z", "no"), s.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = client.OpenState(path, me); err != nil || len(s.Caught()) != 1 ||
		s.Caught()["did:key:z"] != "no" || s.Close() != nil {
		t.Error(s, err)
	}
	if err := s.Catch("did:key:x", ""); err == nil {
		t.Error("a closed state takes changes")
	}
}

// TestStateFile opens a file with each kind of line. The tests of the clients in JavaScript and Python open the same
// file. What counts is kept as it is (RELAYS R-12).
func TestStateFile(t *testing.T) {
	const me = didkey.DID("did:key:zMe")
	text, err := os.ReadFile("testdata/state.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := client.OpenState(path, me)
	if err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(path)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	all := strings.SplitAfter(string(text), "\n")
	want := []string{"", all[0], all[2], all[3], all[6], all[7], all[8], all[11], all[12]}
	got := strings.SplitAfter(string(written), "\n")
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the file is now\n%q\nwant\n%q", got, want)
	}
}

// TestAttempts ends an agent's process while it works. With a state file the work is begun three times in all; then the
// client gets an ERROR (RELAYS R-18). A clean end does not count.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "state")
		var works, last atomic.Int32
		serve := func(crash bool) {
			state, err := client.OpenState(path, key.DID())
			if err != nil {
				t.Fatal(err)
			}
			n, err := client.NewNetwork(w.urls(), key, client.NetworkOptions{State: state,
				Options: client.Options{HTTPClient: &http.Client{Transport: w}}})
			if err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			stop := w.serve(n, func(ctx context.Context, job client.Job) (envelope.Result, error) {
				works.Add(1)
				last.Store(int32(job.Attempt))
				if before, err = os.ReadFile(path); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				return envelope.Result{}, ctx.Err()
			})
			time.Sleep(time.Minute)
			stop()
			if err := errors.Join(err, state.Close()); err != nil {
				t.Fatal(err)
			}
			if crash { // what the file had while the agent worked
				if err := os.WriteFile(path, before, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		n := w.network(client.NetworkOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		call, err := n.Request(ctx, client.RequestOptions{Intent: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			for offer, err := range call.Offers(ctx) {
				if err = errors.Join(err, call.Accept(ctx, offer)); err != nil {
					done <- err
					return
				}
				break
			}
			_, err := call.Result(ctx)
			done <- err
		}()
		for i, crash := range []bool{true, false, true, true, true} {
			serve(crash)
			if want := min(int32(i+1), 4); works.Load() != want {
				t.Errorf("after start %d: the work began %d times, want %d", i+1, works.Load(), want)
			}
		}
		failed, ok := errors.AsType[*client.AgentError](<-done)
		if !ok || failed.Code != envelope.AgentInternal || !strings.HasPrefix(failed.Message, "interrupted") ||
			last.Load() != 3 {
			t.Errorf("the client got %v after attempt %d", failed, last.Load())
		}
	})
}

// TestOutcomeAfterExpiry restarts an agent after its work, before the relay has taken the RESULT. The REQUEST has
// expired meanwhile. With a state file the client gets the RESULT all the same (RELAYS R-18).
func TestOutcomeAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "state")
		works := 0
		serve := func() (stop func()) {
			state, err := client.OpenState(path, key.DID())
			if err != nil {
				t.Fatal(err)
			}
			n, err := client.NewNetwork(w.urls(), key, client.NetworkOptions{State: state,
				Options: client.Options{HTTPClient: &http.Client{Transport: w}}})
			if err != nil {
				t.Fatal(err)
			}
			end := w.serve(n, func(_ context.Context, job client.Job) (envelope.Result, error) {
				works++
				return envelope.Result{Output: job.Request.Params}, nil
			})
			return func() {
				end()
				if err := state.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		stop := serve()
		call, err := w.network(client.NetworkOptions{}).Request(t.Context(),
			client.RequestOptions{Intent: "echo", Params: 7, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		refuse := func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return response(503, "{}"), nil
			}
			return next.RoundTrip(r)
		}
		for offer, err := range call.Offers(t.Context()) {
			if err = errors.Join(err, call.Accept(t.Context(), offer)); err != nil {
				t.Fatal(err)
			}
			w.relay("a").setHook(refuse)
			break
		}
		time.Sleep(2 * time.Minute)
		stop()
		w.relay("a").setHook(nil)
		defer serve()()
		result, err := call.Result(t.Context())
		if err != nil || string(result.Output) != "7" || works != 1 {
			t.Errorf("result %v, %v; the work was done %d times", result, err, works)
		}
	})
}
