package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

const limited = `{"ok":false,"error":"RATE_LIMITED","message":"slowly","retryable":true,"details":{"limit":"x"}}`

// after is a refusal that asks to wait so many seconds, or until a date.
func after(retryAfter any) fault {
	return answering(429, limited, "Retry-After", fmt.Sprint(retryAfter))
}

// wantLimited checks that err is a refusal by a limit and says when to try again.
func wantLimited(t *testing.T, err error, retryAfter time.Duration) {
	t.Helper()
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeRateLimited || refusal.RetryAfter != retryAfter || refusal.Details["limit"] != "x" {
		t.Errorf("got %#v, want RATE_LIMITED with %v", err, retryAfter)
	}
}

// TestPostAndLimits holds how long Post waits for a relay that limits it, and when it returns the refusal instead.
func TestPostAndLimits(t *testing.T) {
	inAnHour := func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		return after(time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))(r, next)
	}
	for name, c := range map[string]struct {
		faults  []fault
		posts   int
		took    time.Duration // at least, and less than 2 s more
		refused time.Duration // RetryAfter of the error; 0: it is taken
		unknown bool
	}{
		"a second":                   {faults: []fault{after(1), pass}, posts: 2, took: time.Second},
		"again and again":            {faults: []fault{after(1), after(1), after(1), pass}, posts: 4, took: 3 * time.Second},
		"two minutes":                {faults: []fault{after(120), pass}, posts: 2, took: 2 * time.Minute},
		"more":                       {faults: []fault{after(121), pass}, posts: 1, refused: 121 * time.Second},
		"an hour":                    {faults: []fault{after(3600), pass}, posts: 1, refused: time.Hour},
		"an hour, as a date":         {faults: []fault{inAnHour, pass}, posts: 1, refused: time.Hour},
		"for ever":                   {faults: []fault{after("99999999999"), pass}, posts: 1, refused: (1<<31 - 1) * time.Second},
		"nonsense":                   {faults: []fault{after("soon"), pass}, posts: 2},
		"in the past":                {faults: []fault{after(-5), pass}, posts: 2},
		"a second, then an hour":     {faults: []fault{after(1), after(3600), pass}, posts: 2, took: time.Second, refused: time.Hour},
		"cut off, then an hour":      {faults: []fault{reset, after(3600), pass}, posts: 2, refused: time.Hour, unknown: true},
		"unavailable for an hour":    {faults: []fault{answering(503, unavailable, "Retry-After", "3600"), pass}, posts: 2, took: 2 * time.Minute},
		"a refusal of another kind":  {faults: []fault{answering(409, wrongState, "Retry-After", "1"), pass}, posts: 1, took: -1},
		"timed out, an hour to wait": {faults: []fault{answering(408, limited, "Retry-After", "3600"), pass}, posts: 1, refused: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay := newFakeRelay()
				bodies := script(relay, c.faults...)
				began := time.Now()
				_, _, err := newClient(t, relay, newKey(t), client.Options{}).Post(t.Context(), request)
				switch {
				case c.took < 0:
					if !hasCode(err, envelope.CodeInvalidTransition) {
						t.Errorf("got %v", err)
					}
				case c.refused > 0:
					wantLimited(t, err, c.refused)
				case err != nil:
					t.Error(err)
				}
				if errors.Is(err, client.ErrUnknownOutcome) != c.unknown {
					t.Errorf("unknown outcome in %v, want %v", err, c.unknown)
				}
				if took := time.Since(began); took < c.took || took > max(c.took, 0)+2*time.Second {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if len(*bodies) != c.posts {
					t.Errorf("posted %d times, want %d", len(*bodies), c.posts)
				}
			})
		})
	}
}

// TestFollowAndLimits holds that a reader comes back when the relay says, be that late, and not before.
func TestFollowAndLimits(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{
		5 * time.Second: 5 * time.Second, 10 * time.Minute: 10 * time.Minute, time.Hour: time.Hour, 100 * time.Hour: time.Hour,
	} {
		t.Run(asked.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay, key := newFakeRelay(), newKey(t)
				id := relay.put(t, key, envelope.Draft{TTL: 1000 * time.Hour}).ID
				began, polls := time.Now(), 0
				relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					if polls++; polls == 1 {
						return after(int(asked.Seconds()))(r, next)
					}
					return next.RoundTrip(r)
				})
				got := collect(t, newClient(t, relay, key, client.Options{}), client.FollowOptions{FromOldest: true}, 1)
				if took := time.Since(began); len(got) != 1 || got[0] != id || took < want || took > want+time.Second || polls != 2 {
					t.Errorf("got %q after %v in %d polls", got, took, polls)
				}
			})
		})
	}
	t.Run("given up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			relay := newFakeRelay()
			relay.setHook(after(600))
			ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
			defer cancel()
			began := time.Now()
			err := newClient(t, relay, newKey(t), client.Options{}).Follow(ctx, client.FollowOptions{}, nil)
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 7*time.Second {
				t.Errorf("ended after %v with %v", took, err)
			}
		})
	})
}

// TestReadsAndLimits asks each question of a relay that limits the reader.
func TestReadsAndLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, key := newFakeRelay(), newKey(t)
		c := newClient(t, relay, key, client.Options{})
		call, err := c.Request(t.Context(), client.RequestOptions{Intent: "translate"})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Post(t.Context(), envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{{ID: "translate"}}}}); err != nil {
			t.Fatal(err)
		}
		for name, ask := range map[string]func(context.Context) error{
			"thread": func(ctx context.Context) error { _, err := c.Thread(ctx, call.Thread, key.DID()); return err },
			"resume": func(ctx context.Context) error { _, err := c.Resume(ctx, call.Thread); return err },
			"agents": func(ctx context.Context) error { _, err := c.Agents(ctx, client.AgentQuery{}); return err },
			"agent":  func(ctx context.Context) error { _, err := c.Agent(ctx, key.DID()); return err },
			"info":   func(ctx context.Context) error { _, err := c.Info(ctx); return err },
			"health": func(ctx context.Context) error { _, err := c.Health(ctx); return err },
		} {
			relay.hookDocument = name == "info"
			asked := 0
			ask := func(ctx context.Context, faults ...fault) (time.Duration, error) {
				asked = 0
				relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					asked++
					return faults[min(asked, len(faults))-1](r, next)
				})
				began := time.Now()
				err := ask(ctx)
				return time.Since(began), err
			}
			if took, err := ask(t.Context(), after(3), after(7), pass); err != nil || took < 10*time.Second || took > 12*time.Second || asked != 3 {
				t.Errorf("%s: 3 and 7 seconds: %v after %v, asked %d times", name, err, took, asked)
			}
			took, err := ask(t.Context(), after(31), pass)
			if wantLimited(t, err, 31*time.Second); took != 0 || asked != 1 {
				t.Errorf("%s: longer than a question may take: %v, asked %d times", name, took, asked)
			}
			took, err = ask(t.Context(), after(4))
			if wantLimited(t, err, 4*time.Second); took < 20*time.Second || took > 30*time.Second || asked > 8 {
				t.Errorf("%s: again and again: %v, asked %d times", name, took, asked)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			took, err = ask(ctx, after(4))
			if wantLimited(t, err, 4*time.Second); took != 0 || asked != 1 {
				t.Errorf("%s: longer than the caller waits: %v, asked %d times", name, took, asked)
			}
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(2*time.Second, cancel)
			took, err = ask(ctx, after(4))
			if wantLimited(t, err, 4*time.Second); !errors.Is(err, context.Canceled) || took != 2*time.Second {
				t.Errorf("%s: left: %v after %v", name, err, took)
			}
			if took, err := ask(t.Context(), answering(429, limited), pass); !hasCode(err, envelope.CodeRateLimited) || took != 0 {
				t.Errorf("%s: no word of when: %v after %v", name, err, took)
			}
		}
	})
}

// TestServeAndLimits lets an inbox be full for an hour: the agent tries now and then, and delivers.
func TestServeAndLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{}, client.Handler{})
		bodies := script(p.relay, pass, after(3600), after(3600), pass) // the REQUEST passes
		began := time.Now()
		call, _ := p.request(client.RequestOptions{})
		if _, err := firstOffer(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); len(*bodies) != 4 || took < 4*time.Minute || took > 4*time.Minute+30*time.Second {
			t.Errorf("offered after %v with post %d; want one each two minutes", took, len(*bodies))
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
