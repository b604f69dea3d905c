package httpapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/httpapi"
)

// These tests check the deadlines of connections with the fake time of synctest.

func TestSlowHeaderIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serve(t, start(t))
		c, began := l.dial(), time.Now()
		fmt.Fprint(c, "POST /events HTTP/1.1\r\nHost: x\r\nX-")
		readAll(t, c)
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("cut after %v, want 5s", took)
		}
	})
}

func TestSlowBodyIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serve(t, start(t))
		c, began := l.dial(), time.Now()
		fmt.Fprint(c, "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
		text := readAll(t, c)
		if took := time.Since(began); took > 11*time.Second || !strings.Contains(text, "INVALID_REQUEST") {
			t.Errorf("after %v: %s", took, text)
		}
	})
}

// TestTooLargeBodyIsAnswered checks that a client that sends a body that is somewhat too large gets the answer, also if it
// sends slowly and lets the server close the connection.
func TestTooLargeBodyIsAnswered(t *testing.T) {
	const size = 200_000
	for _, header := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n", size),
		fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size)} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := serve(t, start(t))
			c := l.dial()
			fmt.Fprint(c, "POST /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+header)
			text := make(chan string)
			go func() { text <- readAll(t, c) }()
			for range 4 {
				time.Sleep(time.Second)
				if _, err := fmt.Fprint(c, strings.Repeat(" ", size/4)); err != nil {
					t.Error(err)
				}
			}
			fmt.Fprint(c, "\r\n0\r\n\r\n")
			if got := <-text; !strings.Contains(got, "PAYLOAD_TOO_LARGE") {
				t.Errorf("the client gets %q", got)
			}
		})
	}
}

func TestLongPollOutlivesTheOtherDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serve(t, start(t))
		c, began := l.dial(), time.Now()
		reader := bufio.NewReader(c)
		// Two polls on one connection: a deadline that remained from the first would end the second.
		for i := range 2 {
			fmt.Fprint(c, "GET /events?cursor=0&timeout=99 HTTP/1.1\r\nHost: x\r\n\r\n")
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != 200 {
				t.Fatalf("%d %v", response.StatusCode, err)
			}
			if took := time.Since(began); took != time.Duration(i+1)*time.Minute {
				t.Errorf("answered after %v, want 1m each", took)
			}
		}
	})
}

func TestClientThatLeavesFreesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, _ := serve(t, r)
		c := l.dial()
		fmt.Fprint(c, "GET /events?cursor=0&timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		if r.Waiting() != 1 {
			t.Fatalf("%d polls wait, want 1", r.Waiting())
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r.Waiting() != 0 {
			t.Errorf("%d polls still wait after the client has left", r.Waiting())
		}
	})
}

func TestClientThatNeverReadsIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, stop := serveOn(t, allInterfaces, r, httpapi.Options{Log: quiet, Grace: time.Hour})
		c, began := l.dial(), time.Now()
		fmt.Fprint(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait() // the handler blocks in its write, because the client does not read
		stop()
		if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("the connection was held for %v, want 30s", took)
		}
	})
}

// halfClosed is a connection whose client has closed its sending side and still reads, as nc -N does. The server reads
// the sent bytes and then EOF. Its answers are written to a buffer.
type halfClosed struct {
	net.Conn
	sent   io.Reader
	answer bytes.Buffer
	once   sync.Once
	closed chan struct{}
}

func (c *halfClosed) Read(b []byte) (int, error)      { return c.sent.Read(b) }
func (c *halfClosed) Write(b []byte) (int, error)     { return c.answer.Write(b) }
func (c *halfClosed) Close() error                    { c.once.Do(func() { close(c.closed) }); return nil }
func (c *halfClosed) LocalAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (c *halfClosed) RemoteAddr() net.Addr            { return c.LocalAddr() }
func (c *halfClosed) SetDeadline(time.Time) error     { return nil }
func (c *halfClosed) SetReadDeadline(time.Time) error { return nil }
func (c *halfClosed) SetWriteDeadline(time.Time) error {
	return nil
}

// TestHalfClosedClientGetsItsAnswer checks that a client that closes its sending side gets a whole answer, and that a
// post gets its receipt. When the context of a request ended early, the relay once answered with an empty 200.
func TestHalfClosedClientGetsItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, _ := serve(t, r)
		e := sign(t, key(t), envelope.Draft{Payload: envelope.Request{Intent: "echo"}})
		for request, want := range map[string]string{
			fmt.Sprintf("POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(e.Canonical()), e.Canonical()): `{"ok":true,"id":"` + e.ID,
			"GET /events?cursor=0&timeout=5&type=RESULT HTTP/1.1\r\nHost: x\r\n\r\n":                                           `{"ok":false,"error":"UNAVAILABLE"`,
			"GET /agents HTTP/1.1\r\nHost: x\r\n\r\n":                                                                          `{"ok":true,"agents":[]`,
		} {
			c := &halfClosed{sent: strings.NewReader(request), closed: make(chan struct{})}
			l.conns <- c
			<-c.closed
			if text := c.answer.String(); !strings.Contains(text, want) {
				t.Errorf("%.30s: answered %s", request, text)
			}
		}
	})
}

func TestShutdownAnswersWaitingPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, stop := serve(t, r)
		c := l.dial()
		fmt.Fprint(c, "GET /events?cursor=0&timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		began := time.Now()
		ended := make(chan struct{})
		go func() {
			stop()
			close(ended)
		}()
		synctest.Wait()
		select {
		case <-l.closed:
		default:
			t.Error("the listener is open, so a client whose poll was answered may come again")
		}
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != 200 || !response.Close || !strings.Contains(string(body), `"events":[]`) {
			t.Errorf("%d, closes the connection: %t, %s %v", response.StatusCode, response.Close, body, err)
		}
		<-ended
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestShutdownDuringPolls stops servers whose clients poll again as soon as they are answered.
func TestShutdownDuringPolls(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			l, stop := serve(t, r)
			var pollers sync.WaitGroup
			for range 32 {
				c := l.dial()
				pollers.Go(func() {
					reader := bufio.NewReader(c)
					for {
						if _, err := fmt.Fprint(c, "GET /events?cursor=0&timeout=30 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
							return
						}
						response, err := http.ReadResponse(reader, nil)
						if err != nil {
							return
						}
						if _, err := io.Copy(io.Discard, response.Body); err != nil {
							return
						}
					}
				})
			}
			synctest.Wait()
			stop()
			pollers.Wait()
		})
	}
}

// TestShutdownCutsOffClientThatDoesNotRead stops a server while a client does not read its answer. The server ends
// after its grace period.
func TestShutdownCutsOffClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serve(t, start(t))
		c := l.dial()
		fmt.Fprint(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("it took %v, want 4s", took)
		}
		if text, err := io.ReadAll(c); len(text) > 0 || err != nil {
			t.Errorf("the connection is still open: %q, %v", text, err)
		}
	})
}
