package httpapi_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// These tests send very many frames. What a flood leaves behind is tested in fake time. What it costs while it lasts is
// tested in real time, because a flood cannot slow down others in fake time.

// TestHTTP2RapidReset opens streams and resets them at once (CVE-2023-44487): polls, posts, and posts without a body.
// The relay closes the connection, or answers on it. Other addresses are answered in between. After that, no request is
// in progress, and all slots of the address are free.
func TestHTTP2RapidReset(t *testing.T) {
	racing.Skip(t, "one thing after another")
	const slots = 8
	for name, open := range map[string]func(h *h2Client) uint32{
		"polls":                func(h *h2Client) uint32 { return h.get("/events?cursor=0&timeout=60") },
		"posts":                func(h *h2Client) uint32 { return h.post("/events", []byte("{}")) },
		"posts without a body": func(h *h2Client) uint32 { return h.open(false, "POST", "/events") },
		"reads":                func(h *h2Client) uint32 { return h.get("/agents") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				none := relay.Rate{PerSecond: relay.Unlimited}
				r := limited(t, relay.Limits{RequestsPerAddress: slots, PollsPerAddress: slots,
					ReadsPerAddress: none, PostsPerAddress: none})
				l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
				other := l.dialH2(t, "192.0.2.2:9")
				other.exchange()
				var sent int
				for sent < 2000 {
					h := l.dialH2(t, stranger)
					h.exchange()
					var frames bytes.Buffer
					h.out = http2.NewFramer(&frames, nil)
					for range 1000 {
						h.check(h.out.WriteRSTStream(open(h), http2.ErrCodeCancel))
						sent++
					}
					var reading sync.WaitGroup
					reading.Go(func() { _, _ = io.Copy(io.Discard, h.conn) })
					_, _ = h.conn.Write(frames.Bytes()) // it fails if the relay closes the connection
					other.exchange()
					synctest.Wait()
					if n := r.Waiting(); n != 0 {
						t.Fatalf("%d polls wait after %d resets", n, sent)
					}
					if err := h.conn.NetConn().Close(); err != nil {
						t.Fatal(err)
					}
					reading.Wait()
				}
				h := l.dialH2(t, stranger)
				h.exchange()
				for range slots {
					h.get("/events?cursor=0&timeout=60")
				}
				synctest.Wait()
				if n := r.Waiting(); n != slots {
					t.Errorf("%d polls wait, want %d: a slot was not freed", n, slots)
				}
				again := l.dialH2(t, stranger)
				again.exchange()
				again.answer(again.get("/agents")).wantLimit(t, envelope.LimitRequestsPerAddress)
			})
		})
	}
}

// addressed is a listener whose clients all seem to have the same address.
type addressed struct {
	net.Listener
	from string
}

func (l addressed) Addr() net.Addr { return allInterfaces }

func (l addressed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connFrom{c, netip.MustParseAddrPort(l.from)}, nil
}

// serveAddressed runs a Front with a TCP listener for each of these client addresses. dial connects to one of them.
func serveAddressed(t *testing.T, r *relay.Relay, addresses ...string) (dial func(t *testing.T, from string) net.Conn) {
	t.Helper()
	var listeners []httpapi.Listener
	at := map[string]string{}
	config := serverConfig(t)
	config.SessionTicketsDisabled = false // as in cmd/agora
	for _, from := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at[from] = l.Addr().String()
		listeners = append(listeners, httpapi.Listener{Listener: addressed{l, from}, TLS: config})
	}
	runFront(t, httpapi.New(r, httpapi.Options{Log: quiet}), listeners...)
	return func(t *testing.T, from string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", at[from])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// flooding is a flood of frames on one connection.
type flooding struct {
	setUp func(h *h2Client)              // opens a stream; nil: none is needed
	write func(h *h2Client, last uint32) // writes some frames; last is the last stream that the client has opened
}

// floods returns floods of frames, each of which once was an attack on some server, or is similar to one.
func floods() map[string]flooding {
	const poll = "/events?cursor=0&timeout=60"
	padding := make([]byte, 255)
	large := strings.Repeat("~", 3000)
	openPoll := func(h *h2Client) { h.open(false, "GET", poll) }
	beginHeader := func(h *h2Client) {
		h.last += 2
		h.check(h.out.WriteHeaders(http2.HeadersFrameParam{StreamID: h.last - 1,
			BlockFragment: h.requestBlock("GET", "/agents")}))
	}
	return map[string]flooding{
		"SETTINGS": {nil, func(h *h2Client, _ uint32) { h.check(h.out.WriteSettings()) }},
		"SETTINGS of windows": {openPoll, func(h *h2Client, _ uint32) {
			h.check(h.out.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
		}},
		"SETTINGS acknowledged": {nil, func(h *h2Client, _ uint32) { h.check(h.out.WriteSettingsAck()) }},
		"PING":                  {nil, func(h *h2Client, _ uint32) { h.check(h.out.WritePing(false, [8]byte{})) }},
		"WINDOW_UPDATE":         {nil, func(h *h2Client, _ uint32) { h.check(h.out.WriteWindowUpdate(0, 1)) }},
		"WINDOW_UPDATE of a stream": {openPoll, func(h *h2Client, last uint32) {
			h.check(h.out.WriteWindowUpdate(last, 1))
		}},
		"large WINDOW_UPDATE":    {nil, func(h *h2Client, _ uint32) { h.check(h.out.WriteWindowUpdate(0, 1<<30)) }},
		"PRIORITY":               {nil, func(h *h2Client, _ uint32) { h.check(h.out.WritePriority(99, http2.PriorityParam{Weight: 1})) }},
		"unknown frames":         {nil, func(h *h2Client, _ uint32) { h.check(h.out.WriteRawFrame(99, 0, 0, nil)) }},
		"empty DATA":             {openPoll, func(h *h2Client, last uint32) { h.check(h.out.WriteData(last, false, nil)) }},
		"padded DATA":            {openPoll, func(h *h2Client, last uint32) { h.check(h.out.WriteDataPadded(last, false, nil, padding)) }},
		"DATA that is not read":  {openPoll, func(h *h2Client, last uint32) { h.check(h.out.WriteData(last, false, padding)) }},
		"DATA of closed streams": {func(h *h2Client) { h.get("/health") }, func(h *h2Client, last uint32) { h.check(h.out.WriteData(last, false, padding)) }},
		"empty CONTINUATION":     {beginHeader, func(h *h2Client, last uint32) { h.check(h.out.WriteContinuation(last, false, nil)) }},
		"CONTINUATION": {beginHeader, func(h *h2Client, last uint32) {
			h.check(h.out.WriteContinuation(last, false, h.encode("x-a", "aaaaaaaaaa")))
		}},
		"RST_STREAM": {nil, func(h *h2Client, _ uint32) { h.check(h.out.WriteRSTStream(h.get(poll), http2.ErrCodeCancel)) }},
		"RST_STREAM of posts": {nil, func(h *h2Client, _ uint32) {
			h.check(h.out.WriteRSTStream(h.post("/events", []byte("{}")), http2.ErrCodeCancel))
		}},
		"polls":            {nil, func(h *h2Client, _ uint32) { h.get(poll) }},
		"requests":         {nil, func(h *h2Client, _ uint32) { h.get("/agents") }},
		"invalid requests": {nil, func(h *h2Client, _ uint32) { h.get("/agents", "connection", "close") }},
		"posts":            {nil, func(h *h2Client, _ uint32) { h.post("/events", padding) }},
		"half a post": {nil, func(h *h2Client, _ uint32) {
			h.check(h.out.WriteData(h.open(false, "POST", "/events"), false, padding))
		}},
		"large health checks": {nil, func(h *h2Client, _ uint32) { h.get("/health", "x-a", large) }},
	}
}

// begin prepares a flood. It returns a function that returns the next frames.
func (f flooding) begin(h *h2Client) func(count int) []byte {
	var frames bytes.Buffer
	h.out = http2.NewFramer(&frames, nil)
	if f.setUp != nil {
		f.setUp(h)
	}
	return func(count int) []byte {
		for range count {
			f.write(h, h.last-1)
		}
		return frames.Next(frames.Len())
	}
}

// httpGoroutines returns how many goroutines of net/http there are: those of connections, and those of handlers.
func httpGoroutines() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("\ncreated by net/http."))
}

// TestHTTP2FloodsLeaveNothing sends some thousand frames. Another address is answered meanwhile. After the client has
// left, no poll and no goroutine of it remains, and its slots are free.
func TestHTTP2FloodsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 4
		r := limited(t, relay.Limits{RequestsPerAddress: slots, ConnectionsPerAddress: 1})
		l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
		other := l.dialH2(t, "192.0.2.2:9")
		for name, f := range floods() {
			other.exchange()
			synctest.Wait()
			before := httpGoroutines()
			for _, reads := range []bool{true, false} {
				h := l.dialH2(t, stranger)
				h.exchange()
				next := f.begin(h)
				var reading sync.WaitGroup
				if reads {
					reading.Go(func() { _, _ = io.Copy(io.Discard, h.conn) })
				}
				for range 10 {
					// The relay may not read any more.
					_ = h.conn.SetWriteDeadline(time.Now().Add(time.Millisecond))
					if _, err := h.conn.Write(next(200)); err != nil {
						break
					}
					other.exchange()
				}
				h.check(h.conn.NetConn().Close())
				reading.Wait()
				time.Sleep(2 * time.Second) // a connection stays for a second after a GOAWAY
				synctest.Wait()
				if waiting, goroutines := r.Waiting(), httpGoroutines(); waiting > 0 || goroutines != before {
					t.Errorf("%s: %d polls and %d goroutines remain", name, waiting, goroutines-before)
				}
			}
			time.Sleep(30 * time.Second) // until the rates allow requests again
			h := l.dialH2(t, stranger)
			h.exchange()
			for range slots {
				h.get("/events?cursor=0&timeout=60")
			}
			synctest.Wait()
			if n := r.Waiting(); n != slots {
				t.Errorf("%s: %d polls wait, want %d", name, n, slots)
			}
			h.check(h.conn.NetConn().Close())
			synctest.Wait()
		}
	})
}

// inUse returns how many bytes of memory the process uses for its heap and stacks.
func inUse() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestHTTP2FloodsAreBounded sends frames as fast as possible, on two connections, one of which never reads an answer.
// The memory and the goroutines of the process stay bounded. Another address gets its answers in well under a second. The
// machine may pause, so an answer that takes longer is asked for again, for up to a minute. There are no limits on rates,
// because they would end the floods.
func TestHTTP2FloodsAreBounded(t *testing.T) {
	engine.OnlySQLite(t, "it is about HTTP, not about what is stored")
	racing.Skip(t, "one thing after another")
	const shortest, longest, attackers, victim = 40 * time.Millisecond, time.Minute, 2, "192.0.2.2:9"
	none := relay.Rate{PerSecond: relay.Unlimited}
	dial := serveAddressed(t, limited(t, relay.Limits{ReadsPerAddress: none, PostsPerAddress: none}), stranger, victim)
	c := handshake(t, dial(t, victim), "http/1.1")
	runtime.GC()
	memory, goroutines := inUse(), runtime.NumGoroutine()
	for name, f := range floods() {
		t.Run(name, func(t *testing.T) {
			runtime.GC()
			var clients []*h2Client
			for range attackers {
				clients = append(clients, newH2(t, dial(t, stranger), nil))
			}
			began := time.Now()
			if err := c.SetDeadline(began.Add(longest)); err != nil {
				t.Fatal(err)
			}
			var attacking sync.WaitGroup
			var frames atomic.Int64
			for i, h := range clients {
				if i%2 == 0 {
					attacking.Go(func() { _, _ = io.Copy(io.Discard, h.conn) })
				}
				attacking.Go(func() {
					for next := f.begin(h); ; frames.Add(100) {
						if _, err := h.conn.Write(next(100)); err != nil {
							return // one side has closed the connection
						}
					}
				})
			}
			var most int64
			var goroutinesMost, answers int
			for time.Since(began) < shortest || answers < 2 {
				asked := time.Now()
				if !served(t, c) {
					t.Fatal("the connection of another address was closed")
				}
				if time.Since(asked) < time.Second {
					answers++
				}
				most, goroutinesMost = max(most, inUse()), max(goroutinesMost, runtime.NumGoroutine())
			}
			took := time.Since(began)
			for _, h := range clients {
				_ = h.conn.NetConn().Close() // the relay may have closed it
			}
			attacking.Wait()
			text := fmt.Sprintf("%d frames and %d answers in %v, %d MiB and %d goroutines more", frames.Load(), answers, took,
				(most-memory)>>20, goroutinesMost-goroutines)
			if t.Log(text); (most-memory)>>20 > 64 || goroutinesMost-goroutines > 500 {
				t.Error(text)
			}
		})
	}
}
