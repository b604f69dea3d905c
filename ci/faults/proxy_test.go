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

// proxy forwards connections to a relay and makes some of them fail.
type proxy struct {
	net.Listener
	relay *server
	mu    sync.Mutex
	*rand.Rand
	faultCounts map[string]int // by kind of fault
}

// connectionFaults are the faults that the proxy chooses from at random. The empty text means no fault.
var connectionFaults = []string{
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"",
	"refused",
	"cut during the request",
	"cut before the answer",
	"cut during the answer",
	"delayed",
}

func newProxy(t *testing.T, relay *server) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{Listener: listener, relay: relay, Rand: random(t), faultCounts: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // the listener was closed below
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

func (p *proxy) pickFault() (kind string, amount int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind = connectionFaults[p.IntN(len(connectionFaults))]
	if kind != "" {
		p.faultCounts[kind]++
	}
	return kind, 1 + p.Int64N(300)
}

// forward forwards one connection, with a random fault or none. An error on either side ends the connection.
func (p *proxy) forward(ctx context.Context, c net.Conn) {
	defer c.Close()
	kind, amount := p.pickFault()
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
		if kind == "cut during the request" {
			_, _ = io.CopyN(relay, c, amount)
			return
		}
		_, _ = io.Copy(relay, c)
	})
	switch kind {
	case "cut before the answer":
		_, _ = io.ReadFull(relay, make([]byte, 1)) // the first byte of the answer: the relay has handled the request
	case "cut during the answer":
		_, _ = io.CopyN(c, relay, amount)
	case "delayed":
		sleep(time.Duration(amount) * time.Millisecond)
		fallthrough
	default:
		_, _ = io.Copy(c, relay)
	}
}

// client returns a client that uses the proxy, with a new connection for each request.
func (p *proxy) client(t *testing.T, key didkey.Key) *client.Client {
	t.Helper()
	// About one connection in six fails. With 12 attempts the client practically never gives up.
	c, err := client.New("http://"+p.Addr().String(), key, client.Options{Attempts: 12,
		HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}})
	must(t, err)
	return c
}

// counter counts handled items by name. Its methods may be called by any goroutine.
type counter struct {
	mu    sync.Mutex
	times map[string]int
}

func (c *counter) add(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times == nil {
		c.times = map[string]int{}
	}
	c.times[what]++
	return len(c.times)
}

// TestFlakyNetwork tests the Go client over a network that cuts connections at random places. The client must post each
// message once, handle each event once, and finish its conversations.
func TestFlakyNetwork(t *testing.T) {
	// Each request closes its connection, as with many proxies, so the relay treats it as remote.
	relay := newServer(t,
		append(slices.Clone(longTimeouts), "--post-rate-ip", "0", "--read-rate-ip", "0", "--post-rate-did", "0",
			"--connections-per-ip", "0", "--requests-per-ip", "0")...)
	relay.start()
	p := newProxy(t, relay)
	keys := newKeys(t, 3)
	calls, messages := scaled(20), scaled(50)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var readers, talk sync.WaitGroup
	var work, received counter
	readers.Go(func() { serve(ctx, t, p.client(t, keys[0]), &work) })
	read := make(chan struct{})
	readers.Go(func() {
		follow(ctx, t, p.client(t, keys[1]), keys[1].DID(), messages, &received)
		close(read)
	})
	asking, writing := p.client(t, keys[2]), p.client(t, keys[2])
	for range calls {
		talk.Go(func() { callAgent(ctx, t, asking, keys[0].DID()) })
	}
	for i := range messages {
		talk.Go(func() { postMessage(ctx, t, writing, keys[1].DID(), i) })
	}
	talk.Wait()
	select {
	case <-read:
	case <-ctx.Done():
		t.Error("the reader did not receive all messages in time")
	}
	cancel()
	readers.Wait()

	exactlyOnce(t, "a job was done", work.times, calls)
	exactlyOnce(t, "a message was read", received.times, messages)
	events, _ := relay.stored("0")
	kinds := map[envelope.Type]map[string]int{}
	for _, e := range events {
		if kinds[e.Type] == nil {
			kinds[e.Type] = map[string]int{}
		}
		kinds[e.Type][e.Thread]++
	}
	exactlyOnce(t, "a REQUEST was stored", kinds[envelope.TypeRequest], calls+messages)
	for _, kind := range []envelope.Type{envelope.TypeOffer, envelope.TypeAccept, envelope.TypeResult} {
		exactlyOnce(t, string(kind)+" was stored", kinds[kind], calls)
	}
	t.Logf("%d calls, %d messages; connections %v", calls, messages, p.faultCounts)
}

func exactlyOnce(t *testing.T, what string, times map[string]int, want int) {
	t.Helper()
	if len(times) != want {
		t.Errorf("%s: %d different ones instead of %d", what, len(times), want)
	}
	for of, n := range times {
		if n != 1 {
			t.Errorf("%s %d times instead of once: %s", what, n, of)
		}
	}
}

// serve runs an agent until ctx ends.
func serve(ctx context.Context, t *testing.T, c *client.Client, work *counter) {
	err := c.Serve(ctx, client.ServeOptions{
		Intents: []string{"echo"}, Cursor: client.FileCursor(filepath.Join(t.TempDir(), "cursor"))},
		client.Handler{Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
			work.add(job.Envelope.Thread)
			return envelope.Result{Output: job.Request.Params}, nil
		}},
	)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the agent ended with the wrong error: %v", err)
	}
}

var errAllReceived = errors.New("all messages were received")

// follow reads an inbox until it has received want messages.
func follow(ctx context.Context, t *testing.T, c *client.Client, inbox didkey.DID, want int, received *counter) {
	err := c.Follow(ctx,
		client.FollowOptions{Filter: client.Filter{Recipient: inbox}, FromOldest: true, Page: 10},
		func(_ context.Context, e *envelope.Envelope) error {
			if received.add(e.ID) == want {
				return errAllReceived
			}
			return nil
		},
	)
	if !errors.Is(err, errAllReceived) {
		t.Errorf("the reader ended with the wrong error: %v", err)
	}
}

func callAgent(ctx context.Context, t *testing.T, c *client.Client, agent didkey.DID) {
	question := json.RawMessage(fmt.Sprintf(`{"n":%q}`, envelope.NewID("q", time.Now())))
	asked, err := c.Request(ctx, client.RequestOptions{Intent: "echo", Recipient: agent, Params: question})
	if asked == nil {
		t.Errorf("cannot send the REQUEST: %v", err)
		return
	}
	for offer, err := range asked.Offers(ctx) {
		if err == nil {
			err = asked.Accept(ctx, offer)
		}
		if err != nil {
			t.Errorf("cannot accept an offer: %v", err)
			return
		}
		break
	}
	result, err := asked.Result(ctx)
	if err != nil {
		t.Errorf("got no result: %v", err)
	} else if string(result.Output) != string(question) {
		t.Errorf("sent the params %s and got the output %s", question, result.Output)
	}
}

func postMessage(ctx context.Context, t *testing.T, c *client.Client, to didkey.DID, n int) {
	request := envelope.Request{Intent: "message", Title: fmt.Sprint(n)}
	if _, _, err := c.Post(ctx, envelope.Draft{Recipient: to, Payload: request}); err != nil {
		t.Errorf("cannot post a message: %v", err)
	}
}
