package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestServeCrash stops the agent between ACCEPT and RESULT and starts it again, with the saved cursor or without one.
func TestServeCrash(t *testing.T) {
	t.Run("cursor file", func(t *testing.T) { testServeCrash(t, client.FileCursor(filepath.Join(t.TempDir(), "cursor"))) })
	t.Run("nothing", func(t *testing.T) { testServeCrash(t, nil) })
}

func testServeCrash(t *testing.T, cursor client.CursorStore) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		var works atomic.Int32
		handler := client.Handler{Work: func(ctx context.Context, job client.Job) (envelope.Result, error) {
			works.Add(1)
			select {
			case <-ctx.Done():
				return envelope.Result{}, ctx.Err()
			case <-time.After(10 * time.Minute):
				return envelope.Result{Output: job.Request.Params}, nil
			}
		}}
		stop := p.serve(client.ServeOptions{Cursor: cursor}, handler)
		if _, err := p.ask(client.RequestOptions{Params: 1}); err != nil {
			t.Fatal(err)
		}
		call, _ := p.request(client.RequestOptions{Params: 2})
		offer, err := firstOffer(t.Context(), call)
		if err == nil {
			err = call.Accept(t.Context(), offer)
		}
		if err != nil {
			t.Fatal(err)
		}
		idle, _ := p.request(client.RequestOptions{}) // a thread with an open offer, after the ACCEPT
		if _, err := firstOffer(t.Context(), idle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		stop()
		if n := p.count(envelope.TypeResult); n != 1 || works.Load() != 2 {
			t.Fatalf("before the crash: %d results, %d calls of Work", n, works.Load())
		}
		stop = p.serve(client.ServeOptions{Cursor: cursor}, handler)
		if result, err := call.Result(t.Context()); err != nil || string(result.Output) != "2" {
			t.Errorf("after the restart: %v, %v", result, err)
		}
		synctest.Wait()
		stop()
		stop = p.serve(client.ServeOptions{Cursor: cursor}, handler)
		time.Sleep(time.Hour)
		stop()
		if works.Load() != 3 || p.count(envelope.TypeResult) != 2 || p.count(envelope.TypeOffer) != 3 || p.count(envelope.TypeError) != 0 {
			t.Errorf("in total %d calls of Work, %d results, %d offers, %d errors", works.Load(), p.count(envelope.TypeResult), p.count(envelope.TypeOffer), p.count(envelope.TypeError))
		}
	})
}

// TestServeCursorWaits: while a long job runs, later short jobs do not move the saved cursor past the long job.
func TestServeCursorWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		cursor := client.FileCursor(filepath.Join(t.TempDir(), "cursor"))
		saved := func() string {
			text, err := cursor.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		stop := p.serve(client.ServeOptions{Cursor: cursor}, client.Handler{
			Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
				if string(job.Request.Params) == `"long"` {
					time.Sleep(30 * time.Minute)
				}
				return envelope.Result{}, nil
			},
		})
		call, _ := p.request(client.RequestOptions{Params: "long"})
		offer, err := firstOffer(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := saved()
		if err := call.Accept(t.Context(), offer); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if _, err := p.ask(client.RequestOptions{Params: "short"}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if got := saved(); got != before {
			t.Errorf("the cursor moved from %s to %s, past a job that is still running", before, got)
		}
		if _, err := call.Result(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got, want := saved(), p.relay.cursor(len(p.relay.all())); got != want {
			t.Errorf("after all jobs the saved cursor is %s, want %s", got, want)
		}
		stop()
	})
}

// TestServeShortRequest: the REQUEST expires after ten seconds, and the ACCEPT comes after a minute. The agent still
// knows the REQUEST, unless it was restarted in between.
func TestServeShortRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, restart := range []bool{false, true} {
			p := newParties(t)
			opts := client.ServeOptions{Cursor: client.FileCursor(filepath.Join(t.TempDir(), "cursor"))}
			stop := p.serve(opts, client.Handler{})
			call, _ := p.request(client.RequestOptions{TTL: 10 * time.Second})
			offer, err := firstOffer(t.Context(), call)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if restart {
				stop()
				stop = p.serve(opts, client.Handler{})
			}
			if err := call.Accept(t.Context(), offer); err != nil {
				t.Fatal(err)
			}
			_, err = call.Result(t.Context())
			if got, _ := errors.AsType[*client.AgentError](err); restart != (err != nil) || restart && got.Code != envelope.AgentUnavailable {
				t.Errorf("restarted %v: got %v", restart, err)
			}
			stop()
		}
	})
}

// TestServeRetries makes the agent's requests fail for 20 minutes after the work. The agent works once, and the RESULT
// arrives once.
func TestServeRetries(t *testing.T) {
	for name, trouble := range map[string]func(n int32, r *http.Request, next http.RoundTripper) (*http.Response, error){
		"everything fails, some answers are lost": func(n int32, r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if n%7 == 0 && r.Method == http.MethodPost {
				return lost(r, next)
			}
			return response(503, unavailable), nil
		},
		"the clock is two days off": func(_ int32, r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return response(http.StatusBadRequest, `{"ok":false,"error":"STALE_TIMESTAMP","message":"stale","details":{"now":"`+
					envelope.FormatTime(time.Now().Add(48*time.Hour))+`"}}`), nil
			}
			return next.RoundTrip(r)
		},
		"posts fail": func(_ int32, r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return response(503, unavailable), nil
			}
			return next.RoundTrip(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParties(t)
				var works, n atomic.Int32
				stop := p.serve(client.ServeOptions{}, client.Handler{
					Work: func(context.Context, client.Job) (envelope.Result, error) {
						works.Add(1)
						began := time.Now()
						p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
							if time.Since(began) > 20*time.Minute {
								return next.RoundTrip(r)
							}
							return trouble(n.Add(1), r, next)
						})
						return envelope.Result{}, nil
					},
				})
				if result, err := p.ask(client.RequestOptions{}); err != nil {
					t.Errorf("got %v, %v", result, err)
				}
				time.Sleep(time.Hour)
				if works.Load() != 1 || p.count(envelope.TypeResult) != 1 || p.count(envelope.TypeError) != 0 {
					t.Errorf("%d calls of Work, %d results, %d errors", works.Load(), p.count(envelope.TypeResult), p.count(envelope.TypeError))
				}
				stop()
			})
		})
	}
}

// TestServeOneThreadAtATime: after a restart the agent reads the REQUEST and the ACCEPT of one thread at the same time.
// It works only once.
func TestServeOneThreadAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{}, client.Handler{})
		call, _ := p.request(client.RequestOptions{})
		offer, err := firstOffer(t.Context(), call)
		stop()
		if err == nil {
			err = call.Accept(t.Context(), offer)
		}
		if err != nil {
			t.Fatal(err)
		}
		var works atomic.Int32
		stop = p.serve(client.ServeOptions{}, client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
			works.Add(1)
			time.Sleep(time.Minute)
			return envelope.Result{}, nil
		}})
		if _, err := call.Result(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Minute)
		if works.Load() != 1 {
			t.Errorf("worked %d times", works.Load())
		}
		stop()
	})
}

// TestServeAnswersEarlyRequest: the agent answers a REQUEST that was posted a minute before the agent's first start.
func TestServeAnswersEarlyRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		call, _ := p.request(client.RequestOptions{Recipient: p.agent.DID()})
		time.Sleep(time.Minute)
		defer p.serve(client.ServeOptions{}, client.Handler{})()
		if _, err := firstOffer(t.Context(), call); err != nil {
			t.Error(err)
		}
	})
}

// TestServeBacklog: an agent that starts with many unanswered REQUESTs sends only ServeOptions.Concurrency reads of
// threads at a time.
func TestServeBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		for range 30 {
			p.request(client.RequestOptions{})
		}
		var now, most atomic.Int32
		p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Path, "/threads/") {
				most.Store(max(most.Load(), now.Add(1)))
				defer now.Add(-1)
				time.Sleep(time.Second)
			}
			return next.RoundTrip(r)
		})
		stop := p.serve(client.ServeOptions{Concurrency: 4}, client.Handler{})
		time.Sleep(time.Minute)
		if most.Load() != 4 || p.count(envelope.TypeOffer) != 30 {
			t.Errorf("%d reads at a time and %d offers; want 4 and 30", most.Load(), p.count(envelope.TypeOffer))
		}
		stop()
	})
}

// TestServeFullThread: the relay refuses an offer because the thread has the largest number of offers. That is
// permanent, so the agent does not retry.
func TestServeFullThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{}, client.Handler{})
		var offers atomic.Int32
		p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPost && offering(t, r) {
				offers.Add(1)
				return response(http.StatusTooManyRequests,
					`{"ok":false,"error":"RATE_LIMITED","message":"full","retryable":true,"details":{"maxOffers":100}}`), nil
			}
			return next.RoundTrip(r)
		})
		p.request(client.RequestOptions{})
		time.Sleep(4 * time.Minute) // the thread still waits for offers
		settled := offers.Load()
		time.Sleep(50 * time.Second)
		if n := offers.Load(); n == 0 || n != settled {
			t.Errorf("%d posts in four minutes, %d in five", settled, n)
		}
		stop()
	})
}

// offering reports whether r posts an OFFER. It leaves the body of r readable.
func offering(t *testing.T, r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return bytes.Contains(body, []byte(`"type":"OFFER"`))
}
