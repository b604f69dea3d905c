package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
)

// limitAgent makes the relay limit the posts of one sender with the defaults of PROTOCOL §5: 20 a second, after 40 at
// once.
func (p *parties) limitAgent(who didkey.DID) {
	var mu sync.Mutex
	tokens, at := 40.0, time.Now()
	take := func() bool {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		tokens, at = min(40, tokens+now.Sub(at).Seconds()*20), now
		if tokens < 1 {
			return false
		}
		tokens--
		return true
	}
	p.relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			if e, err := envelope.Parse(body, 0); err == nil && e.Sender.ID == who && !take() {
				return response(429, `{"ok":false,"error":"RATE_LIMITED","message":"slowly","details":{"limit":"postsPerAgent"}}`,
					"Retry-After", "1"), nil
			}
		}
		time.Sleep(2 * time.Millisecond) // a round trip
		return next.RoundTrip(r)
	})
}

// flood posts perSecond REQUESTs a second until stop is called. It calls key for the signer of each REQUEST. stop
// returns how many REQUESTs were posted.
func (p *parties) flood(perSecond int, recipient didkey.DID, key func() didkey.Key) (stop func() int) {
	ended, posted := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-ended:
				posted <- n
				return
			case <-time.After(time.Second / time.Duration(perSecond)):
			}
			e, err := envelope.Draft{Payload: envelope.Request{Intent: "translate"}, Recipient: recipient}.Sign(key(), time.Now())
			if err != nil {
				panic(err)
			}
			if status, answer := p.relay.post(e.Canonical()); status != 200 {
				panic(answer)
			}
		}
	}()
	return func() int { close(ended); return <-posted }
}

// freshKey returns a new key at each call.
func freshKey() didkey.Key {
	key, err := didkey.Generate()
	if err != nil {
		panic(err)
	}
	return key
}

// offerAfter opens a thread and waits at most two seconds for its first offer. It also returns how long that took.
func (p *parties) offerAfter(c *client.Client, opts client.RequestOptions) (*client.Call, client.Offer, time.Duration) {
	p.t.Helper()
	opts.Intent = "translate"
	began := time.Now()
	call, err := c.Request(p.t.Context(), opts)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Second)
	defer cancel()
	offer, err := firstOffer(ctx, call)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		p.t.Fatal(err)
	}
	return call, offer, time.Since(began)
}

// resultAfter accepts an offer, waits for the result, and returns how long that took.
func (p *parties) resultAfter(call *client.Call, offer client.Offer) time.Duration {
	p.t.Helper()
	began := time.Now()
	if err := call.Accept(p.t.Context(), offer); err != nil {
		p.t.Fatal(err)
	}
	if _, err := call.Result(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	return time.Since(began)
}

// TestServeThroughFloods floods an agent with REQUESTs, and measures how long another client waits for an offer and a
// result.
func TestServeThroughFloods(t *testing.T) {
	racing.Skip(t, "one thing after another")
	one := freshKey()
	for name, test := range map[string]struct {
		keys     func() didkey.Key
		flooded  bool // the flood's REQUESTs name the agent
		known    bool // the agent has worked for the honest client before
		directed bool // the honest client's REQUESTs name the agent
	}{
		"broadcasts with fresh keys, a known client":              {keys: freshKey, known: true},
		"directed flood with fresh keys, a known client":          {keys: freshKey, flooded: true, known: true},
		"broadcasts with fresh keys, a stranger names the agent":  {keys: freshKey, directed: true},
		"broadcasts with one key, a stranger":                     {keys: func() didkey.Key { return one }},
		"directed flood with one key, a stranger names the agent": {keys: func() didkey.Key { return one }, flooded: true, directed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParties(t)
				p.limitAgent(p.agent.DID())
				stop := p.serve(client.ServeOptions{}, client.Handler{})
				if test.known {
					if _, err := p.ask(client.RequestOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				var recipient, victim didkey.DID
				if test.flooded {
					victim = p.agent.DID()
				}
				if test.directed {
					recipient = p.agent.DID()
				}
				end := p.flood(49, victim, test.keys)
				time.Sleep(shortenForRace(15 * time.Second))
				for range 3 {
					c := p.client
					if !test.known {
						c = newClient(t, p.relay, freshKey(), client.Options{})
					}
					call, offer, took := p.offerAfter(c, client.RequestOptions{Recipient: recipient})
					if took > time.Second {
						t.Errorf("the first offer came after %v", took)
						continue
					}
					if took := p.resultAfter(call, offer); took > time.Second/2 {
						t.Errorf("the result came after %v", took)
					}
					time.Sleep(2 * time.Second)
				}
				end()
				stop()
			})
		})
	}
}

// TestServeStrangersInAFlood: in a flood of broadcasts with fresh keys, a stranger's broadcast is one of many. The
// agent makes as many offers as the relay's rate allows: 20 for 49 REQUESTs in a second. It makes each of these offers
// within a second.
func TestServeStrangersInAFlood(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		p.limitAgent(p.agent.DID())
		stop := p.serve(client.ServeOptions{}, client.Handler{})
		end := p.flood(49, "", freshKey)
		time.Sleep(shortenForRace(20 * time.Second))
		before := p.count(envelope.TypeOffer)
		strangers := 40
		if racing.Detector {
			strangers = 10
		}
		var took []time.Duration
		for range strangers {
			_, _, d := p.offerAfter(newClient(t, p.relay, freshKey(), client.Options{}), client.RequestOptions{})
			took = append(took, d)
		}
		perSecond := float64(p.count(envelope.TypeOffer)-before) / sum(took).Seconds()
		slices.Sort(took)
		quick, _ := slices.BinarySearch(took, 1100*time.Millisecond)
		t.Logf("%d of %d strangers had an offer within a second; %.1f offers a second", quick, strangers, perSecond)
		if quick < strangers/10 || perSecond < 18 {
			t.Errorf("%d of %d strangers had an offer within a second, and there were %.1f offers a second: %v",
				quick, strangers, perSecond, took)
		}
		end()
		stop()
	})
}

func sum(all []time.Duration) (total time.Duration) {
	for _, d := range all {
		total += d
	}
	return total
}

// TestServeLosesNothingSilently: after a flood each REQUEST has an offer or was reported as dropped, and the cursor is
// after the last REQUEST.
func TestServeLosesNothingSilently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		p.limitAgent(p.agent.DID())
		var mu sync.Mutex
		drops := map[string]int{}
		cursor := client.FileCursor(t.TempDir() + "/cursor")
		stop := p.serve(client.ServeOptions{Cursor: cursor, Dropped: func(e *envelope.Envelope) {
			mu.Lock()
			defer mu.Unlock()
			drops[e.Thread]++
		}}, client.Handler{})
		end := p.flood(100, "", freshKey)
		time.Sleep(shortenForRace(30 * time.Second))
		posted := end()
		time.Sleep(5 * time.Minute)
		stop()
		offered := map[string]int{}
		for _, e := range p.relay.all() {
			if e.Type == envelope.TypeOffer {
				offered[e.Thread]++
			}
		}
		unanswered := 0 // threads with neither an offer nor a drop
		for _, e := range p.relay.all() {
			if e.Type != envelope.TypeRequest {
				continue
			}
			if n := offered[e.Thread] + drops[e.Thread]; n == 0 {
				unanswered++
			} else if n > 1 {
				t.Errorf("%d offers, %d drops", offered[e.Thread], drops[e.Thread])
			}
		}
		minDrops := 100
		if racing.Detector {
			minDrops = 0 // the flood is too short to fill the queue
		}
		if unanswered > 0 || len(drops) < minDrops || len(offered)+len(drops) != posted {
			t.Errorf("%d REQUESTs: %d offers, %d dropped, %d neither", posted, len(offered), len(drops), unanswered)
		}
		at, err := cursor.Load(t.Context())
		if want := "a." + strconv.Itoa(len(p.relay.all())); err != nil || at != want {
			t.Errorf("the saved cursor is %s, %v; want %s", at, err, want)
		}
	})
}

// TestServeDropsExpiredRequests: a REQUEST that waited for longer than its ttl gets no offer and is reported as
// dropped.
func TestServeDropsExpiredRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		var dropped []string
		block := make(chan struct{})
		stop := p.serve(client.ServeOptions{Concurrency: 1, Dropped: func(e *envelope.Envelope) { dropped = append(dropped, e.Thread) }},
			client.Handler{Quote: func(context.Context, client.Job) (envelope.Offer, error) {
				<-block
				return envelope.Offer{}, nil
			}})
		p.request(client.RequestOptions{})
		synctest.Wait()
		short, _ := p.request(client.RequestOptions{TTL: 10 * time.Second})
		long, _ := p.request(client.RequestOptions{TTL: time.Minute})
		time.Sleep(20 * time.Second)
		close(block)
		if _, err := firstOffer(t.Context(), long); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !slices.Equal(dropped, []string{short.Thread}) || p.count(envelope.TypeOffer) != 2 {
			t.Errorf("dropped %q, %d offers", dropped, p.count(envelope.TypeOffer))
		}
		stop()
	})
}

// TestServeSharesWork: a client with many accepted offers does not delay another client's work.
func TestServeSharesWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{Concurrency: 2}, client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
			time.Sleep(time.Minute)
			return envelope.Result{Output: json.RawMessage(`1`)}, nil
		}})
		accept := func(c *client.Client) *client.Call {
			call, offer, _ := p.offerAfter(c, client.RequestOptions{})
			if err := call.Accept(t.Context(), offer); err != nil {
				t.Fatal(err)
			}
			return call
		}
		for range 20 {
			accept(p.strangerClient)
		}
		began := time.Now()
		if _, err := accept(p.client).Result(t.Context()); err != nil || time.Since(began) > 2*time.Minute+time.Second {
			t.Errorf("%v after %v, want at most 2m", err, time.Since(began))
		}
		stop()
	})
}

// TestServeEndsSlowQuotes: a quote that takes too long is cancelled, and the next REQUEST is answered.
func TestServeEndsSlowQuotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{Concurrency: 1, QuoteTimeout: 5 * time.Second},
			client.Handler{Quote: func(ctx context.Context, job client.Job) (envelope.Offer, error) {
				if string(job.Request.Params) == `"slow"` {
					<-ctx.Done()
					return envelope.Offer{}, ctx.Err()
				}
				return envelope.Offer{}, nil
			}})
		began := time.Now()
		slow, _ := p.request(client.RequestOptions{Params: "slow", Recipient: p.agent.DID()})
		synctest.Wait()
		quick, _ := p.request(client.RequestOptions{})
		if _, err := firstOffer(t.Context(), quick); err != nil || time.Since(began) > 6*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		_, err := firstOffer(t.Context(), slow)
		if failed, _ := errors.AsType[*client.AgentError](err); failed == nil || failed.Code != envelope.AgentInternal {
			t.Errorf("the slow quote: got %v, want INTERNAL_ERROR", err)
		}
		stop()
	})
}

// shortenForRace returns the length of a flood: d, or a fifth of d under the race detector, which makes each message
// much slower.
func shortenForRace(d time.Duration) time.Duration {
	if racing.Detector {
		return d / 5
	}
	return d
}
