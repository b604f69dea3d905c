package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// proxy forwards connections to a relay, and harms some.
type proxy struct {
	net.Listener
	relay *server
	mu    sync.Mutex
	*rand.Rand
	harmed map[string]int // by kind
}

// fates are what the proxy does to a connection; the empty one is nothing.
var fates = []string{"", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "refused", "cut amid the request", "cut before the answer", "cut amid the answer", "delayed"}

func newProxy(t *testing.T, relay *server) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{Listener: listener, relay: relay, Rand: random(t), harmed: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // closed below
			}
			all.Go(func() { p.forward(ctx, c) })
		}
	})
	t.Cleanup(func() {
		cancel()
		must(t, listener.Close())
		all.Wait()
	})
	return p
}

func (p *proxy) fate() (kind string, some int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind = fates[p.IntN(len(fates))]
	if kind != "" {
		p.harmed[kind]++
	}
	return kind, 1 + p.Int64N(300)
}

// forward passes one connection on, as far as its fate lets it. Errors of either side end it, as they would elsewhere.
func (p *proxy) forward(ctx context.Context, c net.Conn) {
	defer c.Close()
	kind, some := p.fate()
	address, err := p.relay.address(ctx)
	if err != nil || kind == "refused" {
		return
	}
	relay, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		return
	}
	defer relay.Close()
	defer context.AfterFunc(ctx, func() { c.Close(); relay.Close() })()
	var upward sync.WaitGroup
	defer upward.Wait()
	defer c.Close()
	upward.Go(func() {
		defer relay.Close()
		if kind == "cut amid the request" {
			_, _ = io.CopyN(relay, c, some)
			return
		}
		_, _ = io.Copy(relay, c)
	})
	switch kind {
	case "cut before the answer":
		_, _ = io.ReadFull(relay, make([]byte, 1)) // the relay has done what it was asked
	case "cut amid the answer":
		_, _ = io.CopyN(c, relay, some)
	case "delayed":
		pass(time.Duration(some) * time.Millisecond)
		fallthrough
	default:
		_, _ = io.Copy(c, relay)
	}
}

// through returns a client that reaches the relay by the proxy, each request on a connection of its own.
func (p *proxy) through(t *testing.T, key didkey.Key) *client.Client {
	t.Helper()
	// One connection in six fails. With twelve attempts no message is given up.
	c, err := client.New("http://"+p.Addr().String(), key, client.Options{Attempts: 12,
		HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}})
	must(t, err)
	return c
}

// tally counts what was handled. Any goroutine may call it.
type tally struct {
	mu    sync.Mutex
	times map[string]int
}

func (c *tally) add(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times == nil {
		c.times = map[string]int{}
	}
	c.times[what]++
	return len(c.times)
}

// Over a network that cuts connections anywhere the Go client posts everything once, handles every event once, and
// brings its conversations to their end.
func TestFlakyNetwork(t *testing.T) {
	// Each request closes its connection, as with many proxies, so the relay treats it as remote.
	relay := newServer(t, append(slices.Clone(patient), "--post-rate-ip", "0", "--read-rate-ip", "0", "--post-rate-did", "0",
		"--connections-per-ip", "0", "--requests-per-ip", "0")...)
	relay.start()
	p := newProxy(t, relay)
	keys := newKeys(t, 3)
	calls, letters := scaled(20), scaled(50)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var readers, talk sync.WaitGroup
	var work, mail tally
	readers.Go(func() { serve(ctx, t, p.through(t, keys[0]), &work) })
	read := make(chan struct{})
	readers.Go(func() {
		follow(ctx, t, p.through(t, keys[1]), keys[1].DID(), letters, &mail)
		close(read)
	})
	asking, writing := p.through(t, keys[2]), p.through(t, keys[2])
	for range calls {
		talk.Go(func() { commission(ctx, t, asking, keys[0].DID()) })
	}
	for i := range letters {
		talk.Go(func() { write(ctx, t, writing, keys[1].DID(), i) })
	}
	talk.Wait()
	select {
	case <-read:
	case <-ctx.Done():
		t.Error("the reader did not come to the end")
	}
	cancel()
	readers.Wait()

	exactlyOnce(t, "a job was done", work.times, calls)
	exactlyOnce(t, "a letter was read", mail.times, letters)
	events, _ := relay.stored("0")
	kinds := map[envelope.Type]map[string]int{}
	for _, e := range events {
		if kinds[e.Type] == nil {
			kinds[e.Type] = map[string]int{}
		}
		kinds[e.Type][e.Thread]++
	}
	exactlyOnce(t, "a REQUEST was stored", kinds[envelope.TypeRequest], calls+letters)
	for _, kind := range []envelope.Type{envelope.TypeOffer, envelope.TypeAccept, envelope.TypeResult} {
		exactlyOnce(t, string(kind)+" was stored", kinds[kind], calls)
	}
	t.Logf("%d calls, %d letters; connections %v", calls, letters, p.harmed)
}

func exactlyOnce(t *testing.T, what string, times map[string]int, want int) {
	t.Helper()
	if len(times) != want {
		t.Errorf("%s for %d, not for %d", what, len(times), want)
	}
	for of, n := range times {
		if n != 1 {
			t.Errorf("%s %d times: %s", what, n, of)
		}
	}
}

// serve is an agent at work until ctx ends.
func serve(ctx context.Context, t *testing.T, c *client.Client, work *tally) {
	err := c.Serve(ctx, client.ServeOptions{Intents: []string{"echo"}, Cursor: client.FileCursor(filepath.Join(t.TempDir(), "cursor"))},
		client.Handler{Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
			work.add(job.Envelope.Thread)
			return envelope.Result{Output: job.Request.Params}, nil
		}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the agent ended: %v", err)
	}
}

var errEnough = errors.New("enough")

// follow reads an inbox until so many have come.
func follow(ctx context.Context, t *testing.T, c *client.Client, inbox didkey.DID, want int, mail *tally) {
	err := c.Follow(ctx, client.FollowOptions{Filter: client.Filter{Recipient: inbox}, FromOldest: true, Page: 10}, func(_ context.Context, e *envelope.Envelope) error {
		if mail.add(e.ID) == want {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Errorf("the reader ended: %v", err)
	}
}

func commission(ctx context.Context, t *testing.T, c *client.Client, agent didkey.DID) {
	question := json.RawMessage(fmt.Sprintf(`{"n":%q}`, envelope.NewID("q", time.Now())))
	asked, err := c.Request(ctx, client.RequestOptions{Intent: "echo", Recipient: agent, Params: question})
	if asked == nil {
		t.Errorf("asking: %v", err)
		return
	}
	for offer, err := range asked.Offers(ctx) {
		if err == nil {
			err = asked.Accept(ctx, offer)
		}
		if err != nil {
			t.Errorf("accepting: %v", err)
			return
		}
		break
	}
	result, err := asked.Result(ctx)
	if err != nil {
		t.Errorf("the result: %v", err)
	} else if string(result.Output) != string(question) {
		t.Errorf("asked %s, was answered %s", question, result.Output)
	}
}

func write(ctx context.Context, t *testing.T, c *client.Client, to didkey.DID, n int) {
	if _, _, err := c.Post(ctx, envelope.Draft{Recipient: to, Payload: envelope.Request{Intent: "letter", Title: fmt.Sprint(n)}}); err != nil {
		t.Errorf("a letter was not sent: %v", err)
	}
}
