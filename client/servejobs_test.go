package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestServeMaxAccepted: while the agent has as many accepted jobs as it may have, it makes no offers. REQUESTs wait, and
// get offers when a job has ended, unless their ttl is over.
func TestServeMaxAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{Concurrency: 1, MaxAccepted: 2}, client.Handler{
			Work: func(context.Context, client.Job) (envelope.Result, error) {
				time.Sleep(time.Minute)
				return envelope.Result{}, nil
			},
		})
		accept := func() *client.Call {
			t.Helper()
			call, _ := p.request(client.RequestOptions{})
			offer, err := firstOffer(t.Context(), call)
			if err == nil {
				err = call.Accept(t.Context(), offer)
			}
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return call
		}
		first, second := accept(), accept() // one runs, and one waits
		waiting, _ := p.request(client.RequestOptions{})
		p.request(client.RequestOptions{TTL: 10 * time.Second})
		time.Sleep(50 * time.Second)
		if n := p.count(envelope.TypeOffer); n != 2 {
			t.Errorf("the agent has made %d offers while it had two jobs, want 2", n)
		}
		began := time.Now()
		offer, err := firstOffer(t.Context(), waiting)
		if err != nil || time.Since(began) != 10*time.Second {
			t.Errorf("the offer came after %v: %v", time.Since(began), err)
		}
		for _, call := range []*client.Call{first, second} {
			if _, err := call.Result(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := waiting.Accept(t.Context(), offer); err != nil {
			t.Error(err)
		}
		if _, err := waiting.Result(t.Context()); err != nil {
			t.Error(err)
		}
		if n := p.count(envelope.TypeOffer); n != 3 {
			t.Errorf("%d offers, want 3: none for the REQUEST whose ttl was over", n)
		}
		stop()
	})
}

// TestServeFinished checks what Finished gets: each job once, with what its client got.
func TestServeFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		cursor := client.FileCursor(filepath.Join(t.TempDir(), "cursor"))
		type finished struct {
			params  string
			outcome envelope.Payload
			err     error
		}
		var all []finished
		var deadline time.Time
		stop := p.serve(client.ServeOptions{Cursor: cursor, Finished: func(job client.Job, outcome envelope.Payload, err error) {
			all = append(all, finished{string(job.Request.Params), outcome, err})
		}}, client.Handler{Work: func(ctx context.Context, job client.Job) (envelope.Result, error) {
			deadline = job.Deadline
			switch string(job.Request.Params) {
			case `"fail"`:
				return envelope.Result{}, &client.AgentError{Code: "NO", Message: "no"}
			case `"large"`:
				return envelope.Result{Output: json.RawMessage(`"` + string(make([]byte, 200_000)) + `"`)}, nil
			case `"hang"`:
				<-ctx.Done()
				return envelope.Result{}, ctx.Err()
			case `"slow"`:
				time.Sleep(61 * time.Minute)
			case `"unreachable"`, `"unanswered"`: // for longer than the thread lives
				began := time.Now()
				p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					switch {
					case r.Method != http.MethodPost || time.Since(began) > 65*time.Minute:
						return next.RoundTrip(r)
					case string(job.Request.Params) == `"unanswered"`:
						return lost(r, next)
					}
					return response(503, unavailable), nil
				})
			}
			return envelope.Result{Output: json.RawMessage("1")}, nil
		}})
		for _, params := range []string{"ok", "fail", "large", "slow", "unreachable", "unanswered"} {
			_, _ = p.ask(client.RequestOptions{Params: params})
			if want := time.Now().Add(time.Hour); params == "ok" && deadline.Sub(want).Abs() > time.Second {
				t.Errorf("the deadline is %v, want %v", deadline, want)
			}
			time.Sleep(90 * time.Minute)
		}
		call, _ := p.request(client.RequestOptions{Params: "hang"})
		offer, err := firstOffer(t.Context(), call)
		if err == nil {
			err = call.Accept(t.Context(), offer)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := call.Cancel(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		stop()
		for i, want := range []struct {
			params, code string
			delivered    bool
		}{{`"ok"`, "", true}, {`"fail"`, "NO", true}, {`"large"`, "INTERNAL_ERROR", true}, {`"slow"`, "", false}, {`"unreachable"`, "", false},
			{`"unanswered"`, "", true}, {`"hang"`, "", false}} {
			if i >= len(all) {
				t.Fatalf("Finished was called %d times", len(all))
			}
			got := all[i]
			failure, _ := got.outcome.(envelope.Failure)
			if got.params != want.params || string(failure.Code) != want.code || (got.err == nil) != want.delivered {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		if len(all) != 7 || !errors.Is(all[6].err, client.ErrCancelled) {
			t.Errorf("Finished was called %d times, the last time with %v", len(all), all[len(all)-1].err)
		}
	})
}

// TestServeTimeoutNotice: the relay's notice that a thread has timed out ends the work at once. The same message ends no
// work if the relay's record says that the thread continues.
func TestServeTimeoutNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		var took time.Duration
		began := time.Now()
		var failed error
		opts := client.ServeOptions{Finished: func(_ client.Job, _ envelope.Payload, err error) { failed = err }}
		stop := p.serve(opts, client.Handler{Work: func(ctx context.Context, _ client.Job) (envelope.Result, error) {
			<-ctx.Done()
			took = time.Since(began)
			return envelope.Result{}, ctx.Err()
		}})
		call, id := p.request(client.RequestOptions{})
		offer, err := firstOffer(t.Context(), call)
		if err == nil {
			err = call.Accept(t.Context(), offer)
		}
		if err != nil {
			t.Fatal(err)
		}
		notice := envelope.Failure{RequestID: id, Code: envelope.AgentTimeout, Message: "the thread has timed out"}
		time.Sleep(time.Minute)
		for range 3 {
			p.relay.put(t, p.stranger, envelope.Draft{Payload: notice, Thread: call.Thread, Recipient: p.agent.DID()})
		}
		time.Sleep(60 * time.Minute)
		if took != 0 {
			t.Fatalf("a stranger has ended the work after %v", took)
		}
		p.relay.put(t, p.relay.key, envelope.Draft{Payload: notice, Thread: call.Thread, Recipient: p.agent.DID()})
		synctest.Wait()
		if took != 61*time.Minute || failed == nil || !strings.Contains(failed.Error(), "has ended") {
			t.Errorf("the work was ended after %v, want 61m; %v", took, failed)
		}
		stop()
	})
}
