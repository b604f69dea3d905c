package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The deadlines of a connection, on a clock that only moves while everybody waits.

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

func TestLongPollOutlivesTheOtherDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serve(t, start(t))
		c, began := l.dial(), time.Now()
		reader := bufio.NewReader(c)
		// Twice on one connection: a deadline that was left behind would cut the second.
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

func TestClientThatLeavesFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, _ := serve(t, r)
		c := l.dial()
		fmt.Fprint(c, "GET /events?cursor=0&timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		if r.Waiting() != 1 {
			t.Fatalf("%d polls wait", r.Waiting())
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r.Waiting() != 0 {
			t.Errorf("%d polls wait after the client has gone", r.Waiting())
		}
	})
}

func TestReaderThatNeverReadsIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, server := serve(t, r)
		c, began := l.dial(), time.Now()
		fmt.Fprint(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait() // the handler hangs in its write, as nobody reads
		ended, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := server.Shutdown(ended); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("the connection was held for %v, want 30s", took)
		}
	})
}

func TestShutdownAnswersWaitingPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, server := serve(t, r)
		c := l.dial()
		fmt.Fprint(c, "GET /events?cursor=0&timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		began := time.Now()
		r.Drain()
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != 200 || !strings.Contains(string(body), `"events":[]`) {
			t.Errorf("%d %s %v", response.StatusCode, body, err)
		}
		if err := server.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
