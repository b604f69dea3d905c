package httpapi_test

import (
	"bytes"
	"strings"
	"sync"
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

// These tests check the deadlines of HTTP/2, with the fake time of synctest. http2limits_test.go checks its limits, and
// http2flood_test.go floods of frames.

// TestHTTP2SilentConnectionIsClosed stops talking at each stage of a connection. The connection is closed, and its slot
// is free.
func TestHTTP2SilentConnectionIsClosed(t *testing.T) {
	racing.Skip(t, "one thing after another")
	preface := []byte(http2.ClientPreface)
	var settings bytes.Buffer
	if err := http2.NewFramer(&settings, nil).WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		sent []byte
		want time.Duration
	}{
		"before the preface":       {nil, 10 * time.Second},
		"in the preface":           {preface[:10], 10 * time.Second},
		"a wrong preface":          {bytes.Repeat([]byte("x"), len(preface)), 0},
		"before SETTINGS":          {preface, 2 * time.Second},
		"in SETTINGS":              {append(bytes.Clone(preface), settings.Bytes()[:5]...), 2 * time.Second},
		"another first frame":      {append(bytes.Clone(preface), 0, 0, 0, 99, 0, 0, 0, 0, 0), time.Second},
		"after SETTINGS":           {append(bytes.Clone(preface), settings.Bytes()...), 76 * time.Second},
		"in a frame":               {append(append(bytes.Clone(preface), settings.Bytes()...), 0, 0, 8, 6, 0), 76 * time.Second},
		"in a frame that is large": {append(append(bytes.Clone(preface), settings.Bytes()...), 0, 0x40, 0, 6, 0, 0, 0, 0, 0), 76 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := serveTLS(t, limited(t, relay.Limits{ConnectionsPerAddress: 1}), httpapi.Options{Log: quiet})
				raw, closed := l.dialWatched(t, stranger)
				h := newMuteH2(t, raw, closed)
				began := time.Now()
				h.silent = true
				if _, err := h.conn.Write(c.sent); err != nil {
					t.Fatal(err)
				}
				h.drain()
				if <-closed; time.Since(began) != c.want {
					t.Errorf("closed after %v, want %v", time.Since(began), c.want)
				}
				synctest.Wait()
				if !served(t, l.dialTLS(t, stranger, "http/1.1")) {
					t.Error("the slot is not free")
				}
			})
		})
	}
}

// TestHTTP2SlowHeaderIsCut sends a header without its end, and then nothing, or an empty frame each second. A header is
// not a stream yet, so the connection counts as idle. If a poll waits on it, the missing answer to a PING ends it.
func TestHTTP2SlowHeaderIsCut(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, c := range []struct {
		poll, trickle bool
		want          time.Duration
	}{
		{false, false, 76 * time.Second}, {false, true, 76 * time.Second},
		{true, false, 85 * time.Second}, {true, true, 85 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
			h := l.dialH2(t, stranger)
			h.exchange()
			if c.poll {
				h.get("/events?cursor=0&timeout=60")
			}
			began := time.Now()
			h.last, h.silent = h.last+2, true
			id := h.last - 1
			h.check(h.out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true,
				BlockFragment: h.requestBlock("GET", "/health")}))
			var sending sync.WaitGroup
			sending.Go(func() {
				for c.trickle {
					time.Sleep(time.Second)
					if h.out.WriteContinuation(id, false, nil) != nil {
						return
					}
				}
			})
			h.drain()
			if took := time.Since(began); took != c.want {
				t.Errorf("with a poll %v, with frames %v: cut after %v, want %v", c.poll, c.trickle, took, c.want)
			}
			sending.Wait()
			if r.Waiting() != 0 {
				t.Errorf("%d polls wait", r.Waiting())
			}
		})
	}
}

// TestHTTP2ClientWithoutPingIsCut polls and then answers no PING, like a client whose network is gone. Its
// connection is cut. A client that answers is not cut until it has been idle for 75 seconds.
func TestHTTP2ClientWithoutPingIsCut(t *testing.T) {
	for silent, want := range map[bool]time.Duration{true: 85 * time.Second, false: (60 + 76) * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := serveTLS(t, start(t), httpapi.Options{Log: quiet})
			h := l.dialH2(t, stranger)
			h.exchange()
			began := time.Now()
			id := h.get("/events?cursor=0&timeout=60")
			h.silent = silent
			h.drain()
			if took := time.Since(began); took != want || silent == (h.goAway != nil) {
				t.Errorf("silent %v: cut after %v, want %v, GOAWAY %v", silent, took, want, h.goAway)
			}
			h.answers[id].want(t, "200", `"events":[]`)
		})
	}
}

// TestHTTP2SlowBodyIsCut sends a part of a body and stops, or continues with a byte a second. After ten seconds the
// client gets an error. The other streams of its connection are not affected.
func TestHTTP2SlowBodyIsCut(t *testing.T) {
	for _, bytes := range []int{0, 100} {
		synctest.Test(t, func(t *testing.T) {
			r := limited(t, relay.Limits{RequestsPerAddress: 2})
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
			h := l.dialH2(t, stranger)
			h.exchange()
			began := time.Now()
			poll := h.get("/events?cursor=0&timeout=20")
			id := h.open(false, "POST", "/events", "content-length", "1000")
			h.check(h.out.WriteData(id, false, []byte("{")))
			var sending sync.WaitGroup
			sending.Go(func() {
				for range bytes {
					time.Sleep(time.Second)
					if time.Since(began) > 15*time.Second || h.out.WriteData(id, false, []byte(" ")) != nil {
						return
					}
				}
			})
			a := h.answer(id)
			if took := time.Since(began); took != 10*time.Second {
				t.Errorf("answered after %v, want 10s", took)
			}
			a.want(t, "400", "INVALID_REQUEST")
			h.answer(poll).want(t, "200", `"events":[]`)
			sending.Wait()
			if took := time.Since(began); took != 20*time.Second {
				t.Errorf("the poll was answered after %v, want 20s", took)
			}
		})
	}
}

// TestHTTP2ClientThatNeverReadsIsCut reads nothing, from the beginning or after some answers. The connection is cut
// after 30 seconds. The end of TLS, which the client does not read either, takes five seconds more.
func TestHTTP2ClientThatNeverReadsIsCut(t *testing.T) {
	for _, reads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
			h := l.dialH2(t, stranger)
			if reads {
				h.exchange()
			}
			began := time.Now()
			h.get("/health")
			h.get("/events?cursor=0&timeout=60")
			if <-h.closed; time.Since(began) < 30*time.Second || time.Since(began) > 35*time.Second {
				t.Errorf("the connection was held for %v, want 30s to 35s", time.Since(began))
			}
			synctest.Wait()
			if r.Waiting() != 0 {
				t.Errorf("%d polls wait", r.Waiting())
			}
		})
	}
}

// TestHTTP2WindowOfZero reads the connection, but its window does not allow the body of any answer. Each stream is cut
// 30 seconds after its answer began, also if net/http gave the answer itself. A poll may wait longer before. Then the
// slot of the request is free.
func TestHTTP2WindowOfZero(t *testing.T) {
	racing.Skip(t, "one thing after another")
	large := []string{"x-a", strings.Repeat("a", 9<<10), "x-b", strings.Repeat("b", 9<<10)}
	for _, c := range []struct {
		status, method, path string
		header               []string
		want                 time.Duration
	}{
		{"200", "GET", "/health", nil, 30 * time.Second},
		{"200", "GET", "/agents", nil, 30 * time.Second},
		{"404", "GET", "/nowhere", nil, 30 * time.Second},
		{"400", "POST", "/events", nil, 30 * time.Second},
		{"200", "GET", "/events?cursor=0&timeout=60", nil, 90 * time.Second},
		{"400", "GET", "/health", []string{"connection", "close"}, 30 * time.Second},
		{"431", "GET", "/health", large, 30 * time.Second},
	} {
		t.Run(c.status+" "+c.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := limited(t, relay.Limits{RequestsPerAddress: 1})
				l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
				h := l.dialH2(t, stranger, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				h.check(h.out.WriteWindowUpdate(0, 1<<20))
				for len(h.settings) == 0 {
					h.next()
				}
				// The client gives up later than the relay should.
				ended := time.AfterFunc(time.Hour, func() { h.conn.NetConn().Close() })
				defer ended.Stop()
				began := time.Now()
				a := h.answer(h.open(true, c.method, c.path, c.header...))
				if took := time.Since(began); took != c.want || a.status != c.status || a.body.Len() > 0 {
					t.Errorf("cut after %v, want %v: %+v", took, c.want, a)
				}
				a.wantReset(t, http2.ErrCodeInternal)
				synctest.Wait()
				if statusOf(t, l.dialTLS(t, stranger, "http/1.1"), "/agents", "x") != 200 {
					t.Error("the slot is not free")
				}
			})
		})
	}
}

// TestHTTP2LongPollOutlivesTheOtherDeadlines makes two polls of a minute at the same time, and then two more. The
// deadlines of the connection and of other streams do not end them.
func TestHTTP2LongPollOutlivesTheOtherDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serveTLS(t, start(t), httpapi.Options{Log: quiet})
		h := l.dialH2(t, stranger)
		h.exchange()
		began := time.Now()
		for i := range 2 {
			first, second := h.get("/events?cursor=0&timeout=99"), h.get("/events?since=1999-01-01T00:00:00Z&timeout=99")
			for _, id := range []uint32{first, second} {
				h.answer(id).want(t, "200", `"events":[]`)
				if took := time.Since(began); took != time.Duration(i+1)*time.Minute {
					t.Errorf("answered after %v, want 1m each", took)
				}
			}
		}
		if h.goAway != nil {
			t.Error("the relay has sent GOAWAY")
		}
	})
}

// TestHTTP2ClientThatLeavesFreesItsSlot ends polls by resetting their stream and by closing the connection. Each frees
// the slots of the poll and of the request.
func TestHTTP2ClientThatLeavesFreesItsSlot(t *testing.T) {
	for name, leave := range map[string]func(h *h2Client, id uint32){
		"RST_STREAM": func(h *h2Client, id uint32) { h.check(h.out.WriteRSTStream(id, http2.ErrCodeCancel)) },
		"closing":    func(h *h2Client, _ uint32) { h.check(h.conn.NetConn().Close()) },
		"a wrong frame": func(h *h2Client, _ uint32) {
			h.check(h.out.WriteRawFrame(http2.FrameSettings, 0, 0, []byte("xxxxx")))
			h.drain()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := limited(t, relay.Limits{PollsPerAddress: 2, RequestsPerAddress: 2})
				l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
				h, other := l.dialH2(t, stranger), l.dialH2(t, stranger)
				h.exchange()
				other.exchange()
				const poll = "/events?cursor=0&timeout=60"
				first := h.get(poll)
				synctest.Wait()
				began, second := time.Now(), other.get(poll)
				synctest.Wait()
				if r.Waiting() != 2 {
					t.Fatalf("%d polls wait, want 2", r.Waiting())
				}
				leave(h, first)
				synctest.Wait()
				if r.Waiting() != 1 {
					t.Errorf("%d polls wait, want 1", r.Waiting())
				}
				third := other.get("/events?cursor=0&timeout=1")
				other.answer(third).want(t, "200", `"events":[]`)
				other.answer(second).want(t, "200", `"events":[]`)
				if took := time.Since(began); took != time.Minute {
					t.Errorf("the poll of the other connection was answered after %v", took)
				}
			})
		})
	}
}

// TestHTTP2ShutdownAnswersWaitingPolls stops the relay while two polls wait on a connection and another connection is
// idle. The polls get empty answers. Both connections get GOAWAY, and they are closed.
func TestHTTP2ShutdownAnswersWaitingPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serveTLS(t, start(t), httpapi.Options{Log: quiet})
		h, idle := l.dialH2(t, stranger), l.dialH2(t, stranger)
		h.exchange()
		idle.exchange()
		polls := []uint32{h.get("/events?cursor=0&timeout=60"), h.get("/events?cursor=0&timeout=60")}
		synctest.Wait()
		began := time.Now()
		var stopping sync.WaitGroup
		stopping.Go(stop)
		synctest.Wait()
		select {
		case <-l.closed:
		default:
			t.Error("the listener is open, so a client whose poll was answered may come again")
		}
		for _, id := range polls {
			h.answer(id).want(t, "200", `"events":[]`)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the polls were answered after %v", took)
		}
		stopping.Go(idle.drain)
		h.drain()
		stopping.Wait()
		for _, c := range []*h2Client{h, idle} {
			if c.goAway == nil || *c.goAway != http2.ErrCodeNo {
				t.Errorf("GOAWAY %v, want NO_ERROR", c.goAway)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestHTTP2PostOfClientThatResets resets the streams of posts: as soon as the body is sent, or while the post is being
// stored. The posts are stored nevertheless.
func TestHTTP2PostOfClientThatResets(t *testing.T) {
	for _, storing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := startWrapped(t, func(s relay.Store) relay.Store { return slowStore{s.(engine.Store)} })
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
			h := l.dialH2(t, stranger)
			h.exchange()
			const count = 8
			for range count {
				e := sign(t, key(t), envelope.Draft{Recipient: key(t).DID(), Payload: envelope.Request{Intent: "echo"}})
				id := h.post("/events", e.Canonical())
				if storing {
					synctest.Wait()
				}
				h.check(h.out.WriteRSTStream(id, http2.ErrCodeCancel))
			}
			time.Sleep(10 * time.Second)
			if n := storedCount(t, r); n != count {
				t.Errorf("storing %v: %d events are stored, want %d", storing, n, count)
			}
			h.exchange()
		})
	}
}
