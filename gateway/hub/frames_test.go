package hub_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// H-18: a stream has the headers and the bytes that HUB describes, and a ping every 20 s.
func TestFrames(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		i := p.open(p.bob, nil)
		for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store",
			"X-Accel-Buffering": "no"} {
			if got := i.header[name]; len(got) != 1 || got[0] != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		i.close()
		synctest.Wait()
		s := p.follow(p.bob, nil)
		want := "retry: 3000\nevent: connected\ndata: {\"agent_id\":\"bob@relay.example\",\"message\":\"Inbox open.\"}\n\n"
		check := func(when string) {
			t.Helper()
			synctest.Wait()
			if got := s.bytes(); got != want {
				t.Fatalf("%s, the stream has %q, want %q", when, got, want)
			}
		}
		check("at the beginning")
		for n, text := range []string{"你好 <&>\u2028\"\\\n", "\u0001\u007f😀"} {
			body := object{"receiver_id": "bob", "envelope": object{"turn_number": 1e3, "chorus_version": "0.4",
				"conversation_id": "", "sender_id": alice, "original_text": text, "sender_culture": "zh-Hans-CN"}}
			a := p.want(p.do(call{"POST", "/messages", p.alice, body, nil}), 200, "")
			text = strings.NewReplacer(`"`, `\"`, "\\", `\\`, "\n", `\n`, "\u0001", `\u0001`).Replace(text)
			timestamp := time.Now().UTC().Add(time.Duration(n) * time.Millisecond).Format("2006-01-02T15:04:05.000Z")
			want += fmt.Sprintf("event: message\nid: %d\ndata: {\"id\":%[1]d,\"trace_id\":\"%s\",\"sender_id\":\"%s\","+
				`"envelope":{"chorus_version":"0.4","conversation_id":"","original_text":"%s","sender_culture":"zh-Hans-CN",`+
				`"sender_id":"%[3]s","turn_number":1000},"timestamp":"%[5]s"}`+"\n\n",
				n+1, a.text("trace_id"), alice, text, timestamp)
			check("after a message")
		}
		for range 3 {
			time.Sleep(20*time.Second - time.Millisecond)
			check("before a ping")
			time.Sleep(time.Millisecond)
			want += ":ping\n\n"
			check("after a ping")
		}
		p.follow(p.bob, since(2))
		want += "event: closed\ndata: {\"reason\":\"replaced\"}\n\n"
		check("at the end")
	})
}

// maxPace is how many bytes a stream may have in 100 ms.
const maxPace = 32 << 10

// checkPace checks the pace of a stream.
func checkPace(t *testing.T, s *feed) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	larger := map[int]bool{} // frames that are larger than maxPace
	for frame := range strings.SplitAfterSeq(s.text, "\n\n") {
		if len(frame) > maxPace {
			larger[len(frame)] = true
		}
	}
	worst := 0
	for i, first := range s.reads {
		sum := 0
		for _, r := range s.reads[i:] {
			if r.at.Sub(first.at) < 100*time.Millisecond {
				sum += r.bytes
			}
		}
		if worst = max(worst, sum); sum > maxPace && !larger[sum] {
			t.Fatalf("%d bytes came in 100 ms", sum)
		}
	}
	t.Logf("%d bytes in %d reads; at most %d in 100 ms", len(s.text), len(s.reads), worst)
}

// H-19: a backlog of 200 KB is written at the pace of HUB, and not slower than necessary.
func TestPaceOfBacklog(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		for i := range 20 {
			p.send(p.alice, alice, "bob", fmt.Sprint(i, strings.Repeat("a", 9998)))
		}
		s := p.follow(p.bob, nil)
		time.Sleep(700 * time.Millisecond)
		synctest.Wait()
		if n := len(s.events()); n != 20 {
			t.Errorf("after 700 ms there are %d messages, want 20", n)
		}
		checkPace(t, s)
	})
}

// H-19: the pace also holds for frames that are larger than 32 KiB, for messages that come one by one, for pings, and
// at the end. Each frame has less than 64,000 characters.
func TestPaceOfLargeFrames(t *testing.T) {
	engine.OnlySQLite(t, "it measures what is sent, not what is stored")
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		largest := strings.Repeat("\u0001", 9970) // 6 bytes each as JSON
		rounds := 10
		if racing.Detector {
			rounds = 4
		}
		tell := func() {
			for i := range rounds {
				p.send(p.alice, alice, "bob", largest)
				p.send(p.alice, alice, "bob", strings.Repeat("a", 1+3*i))
				p.send(p.alice, alice, "bob", strings.Repeat("é", 5000))
			}
		}
		tell()
		s, opened := p.follow(p.bob, nil), time.Now()
		tell() // while the stream is open
		time.Sleep(time.Until(opened.Add(20*time.Second - time.Millisecond)))
		p.send(p.alice, alice, "bob", largest) // just before a ping
		time.Sleep(time.Until(opened.Add(40*time.Second - 50*time.Millisecond)))
		var all sync.WaitGroup
		all.Go(tell) // around another ping
		time.Sleep(300 * time.Millisecond)
		p.follow(p.bob, since(0))
		s.wantClosed("replaced")
		all.Wait()
		if len(s.events()) < 6*rounds || !strings.Contains(s.bytes(), ":ping") {
			t.Fatalf("the stream has %d messages", len(s.events()))
		}
		for _, frame := range s.frames() {
			if len(frame) >= 64_000 {
				t.Errorf("a frame has %d bytes", len(frame))
			}
		}
		checkPace(t, s)
	})
}

// H-19: a client that takes a write late does not get the next one together with it.
func TestPaceForSlowClient(t *testing.T) {
	engine.OnlySQLite(t, "it measures what is sent, not what is stored")
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		for range 40 {
			p.send(p.alice, alice, "bob", strings.Repeat("a", 9900))
		}
		i := p.open(p.bob, nil)
		s := &feed{t: t, body: i.body}
		b := make([]byte, 128<<10)
		for len(s.events()) < 40 {
			n, err := i.body.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			s.text += string(b[:n])
			s.reads = append(s.reads, chunk{time.Now(), n})
			if strings.HasSuffix(s.text, "\n\n") { // a whole write
				time.Sleep(95 * time.Millisecond)
			}
		}
		checkPace(t, s)
	})
}

// H-19: the pace also holds during a shutdown.
func TestPaceDuringShutdown(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		for range 20 {
			p.send(p.alice, alice, "bob", strings.Repeat("a", 9900))
		}
		s := p.follow(p.bob, nil)
		time.Sleep(150 * time.Millisecond)
		p.Stop()
		s.wantClosed("shutdown")
		checkPace(t, s)
		p.Run()
		again := p.follow(p.bob, nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		received := map[string]bool{}
		for _, e := range append(s.events(), again.events()...) {
			received[e.Trace] = true
		}
		// Two batches of three came before the shutdown. A third one was waiting for its turn.
		if len(s.events()) > 9 || len(received) != 20 {
			t.Errorf("%d messages came before the restart, want at most 9; %d in all, want 20", len(s.events()), len(received))
		}
	})
}

// stalled opens a stream on its own connection and reads nothing.
func (p party) stalled() net.Conn {
	p.t.Helper()
	host := strings.TrimPrefix(p.URL, "http://")
	c, err := gatetest.DialPipe(p.t.Context(), "tcp", host)
	if err == nil {
		_, err = fmt.Fprintf(c, "GET /hub/agent/inbox HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", host, p.bob)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait() // until the stream is open
	return c
}

// A stream continues while the relay refuses its reads for the moment: it has pings, and its messages come afterwards.
func TestStreamWhileReadsAreRefused(t *testing.T) {
	t.Parallel()
	var refused atomic.Bool
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		synctest.Wait()
		p.queue(alice, bob, 1, 100) // does not wake the stream
		refused.Store(true)
		time.Sleep(65 * time.Second)
		if pings := strings.Count(s.bytes(), ":ping\n\n"); pings != 3 || len(s.events()) != 0 || !s.end().IsZero() {
			t.Errorf("after 65 s there are %d pings and %d messages, and the end is %v", pings, len(s.events()), s.end())
		}
		refused.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.events()) != 1 {
			t.Errorf("%d messages have come afterwards, want 1", len(s.events()))
		}
	}, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return refusingStore{s, &refused} }
	})
}

// refusingStore refuses Views for the moment while refused is set.
type refusingStore struct {
	relay.Extender
	refused *atomic.Bool
}

func (s refusingStore) View(ctx context.Context, f func(relay.Querier) error) (time.Duration, error) {
	if s.refused.Load() {
		return 0, &envelope.Error{Code: envelope.CodeRateLimited, RetryAfter: time.Second}
	}
	return s.Extender.View(ctx, f)
}

// H-17: a client that takes no byte for 30 s is cut off, at the beginning or later. Its messages are not lost.
func TestClientThatStopsReadingIsCutOff(t *testing.T) {
	t.Parallel()
	for _, reads := range []bool{false, true} {
		inParty(t, func(t *testing.T, p party) {
			c := p.stalled()
			in := bufio.NewReader(c)
			if reads {
				response, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(response.Body, make([]byte, 60)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
			}
			began := time.Now()
			a := p.send(p.alice, alice, "bob", strings.Repeat("a", 8000)) // more than the buffer of the client
			if took := time.Since(began); a.Status != 202 || a.text("state") != "queued" || took != 15*time.Second {
				t.Errorf("after %v, the sender has %v", took, a)
			}
			time.Sleep(14900 * time.Millisecond)
			if n := p.Relay.Waiting(); n != 1 {
				t.Errorf("after 29.9 s, %d streams are open", n)
			}
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			if n := p.Relay.Waiting(); n != 0 {
				t.Errorf("after 30.1 s, %d streams are open", n)
			}
			if _, err := io.Copy(io.Discard, in); err != nil {
				t.Errorf("the connection is not closed: %v", err)
			}
			p.wantStates("after the end", p.alice, strings.Repeat("a", 8000)+" queued")
			p.follow(p.bob, nil).wantTexts("the next stream", strings.Repeat("a", 8000))
		})
	}
}

// H-17: a client that stops reading costs bounded memory, however much waits for it. Messages are read from the store.
func TestClientThatStopsReadingCostsLittleMemory(t *testing.T) {
	engine.OnlySQLite(t, "it measures what is sent, not what is stored")
	inParty(t, func(t *testing.T, p party) {
		const senders = 2
		each := 100
		if racing.Detector {
			each = 25
		}
		text := strings.Repeat("语", 10_000) // 30 KB
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC() // also what finalizers have freed
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		var all sync.WaitGroup
		for i := range senders {
			all.Go(func() {
				name := fmt.Sprintf("sender%d@x", i)
				key := p.register(name)
				for range each {
					p.send(key, name, "bob", text)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		before := heap()
		c := p.stalled()
		in := bufio.NewReader(c)
		if _, err := in.Peek(1); err != nil { // so that the headers are sent
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		cost := heap() - before
		if cost > 1<<20 {
			t.Errorf("%d MB wait, and a client that does not read costs %d bytes", senders*each*len(text)>>20, cost)
		}
		t.Logf("the stream costs %d bytes", cost)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
