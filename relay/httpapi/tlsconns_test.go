package httpapi_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// These tests check which connections the relay closes before their handshake.

// countHandshakes makes the listener count the handshakes that begin.
func countHandshakes(config *tls.Config) *atomic.Int64 {
	n := &atomic.Int64{}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		n.Add(1)
		return nil, nil
	}
	return n
}

// tryHandshake connects from an address and reports whether the relay makes a handshake. If it does not, the relay must
// close the connection at once and send nothing. So the client does not pay for the relay's refusal with a timeout.
func (l *pipeListener) tryHandshake(t *testing.T, from string) bool {
	t.Helper()
	c, closed := l.dialWatched(t, from)
	synctest.Wait()
	select {
	case <-closed:
		if text, err := io.ReadAll(c); len(text) > 0 || err != nil {
			t.Errorf("a refused connection got %q, %v", text, err)
		}
		return false
	default:
		return served(t, handshake(t, c, "http/1.1"))
	}
}

// TestTLSNewConnectionsAreLimited opens connections faster than the relay allows, and closes them again. The relay
// closes those over the rate before their handshake. Other addresses, and later connections, are served.
func TestTLSNewConnectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := serverConfig(t)
		handshakes := countHandshakes(config)
		seen := &refusals{}
		r := startWith(t, asIs, relay.Config{Observer: seen,
			Limits: relay.Limits{NewConnectionsPerAddress: relay.Rate{PerSecond: 0.5, Burst: 3}}})
		l := newPipeListener(allInterfaces)
		front := newFront(t, r, httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: networks("10.0.0.0/8")}})
		runFront(t, front, httpapi.Listener{Listener: l, TLS: config})
		count := func(from string, tries int) (served int64) {
			t.Helper()
			before := handshakes.Load()
			for i := range tries {
				if l.tryHandshake(t, fmt.Sprintf(from, i)) {
					served++
				}
			}
			if made := handshakes.Load() - before; made != served {
				t.Errorf("%s: %d handshakes were made for %d connections", from, made, served)
			}
			return served
		}
		for _, c := range []struct {
			from string
			want int64
		}{
			{"192.0.2.1:%d", 3}, {"192.0.2.2:%d", 3}, {"[2001:db8::%x]:9", 3}, {"[2001:db8:0:1::%x]:9", 3},
			{"10.0.0.1:%d", 20}, // a trusted proxy
			{"192.0.2.1:%d", 0},
		} {
			if got := count(c.from, 20); got != c.want {
				t.Errorf("%s: %d of 20 connections were served, want %d", c.from, got, c.want)
			}
		}
		if len(seen.seen) != 4*17+20 || seen.seen[0] != "0 RATE_LIMITED newConnectionsPerAddress" {
			t.Errorf("%d refusals were observed: %.200q", len(seen.seen), seen.seen)
		}
		time.Sleep(4 * time.Second)
		if got := count("192.0.2.1:%d", 20); got != 2 {
			t.Errorf("after 4s, %d connections were served, want 2", got)
		}
		// A proxy that is not trusted any more is limited from its next connection on.
		front.SetProxies(httpapi.Proxies{})
		if got := count("10.0.0.1:%d", 20); got != 3 {
			t.Errorf("%d connections of the former proxy were served, want 3", got)
		}
	})
}

// TestTLSBannedNetwork connects from a banned network. The relay closes the connection before the handshake. A
// connection that is open when the ban comes gets 403. The ban of a client does not close the connection of its proxy.
func TestTLSBannedNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, _ := serveTLS(t, r, httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: networks("192.0.2.7/32")}})
		open := l.dialTLS(t, stranger, "http/1.1")
		if status := statusOf(t, open, "/agents", "localhost"); status != 200 {
			t.Errorf("before the ban: %d", status)
		}
		r.Gate().SetBans(relay.Bans{Networks: networks("192.0.2.0/24")})
		for from, want := range map[string]bool{
			stranger: false, "[::ffff:192.0.2.99]:9": false, "192.0.3.1:9": true, "192.0.2.7:9": true,
		} {
			if l.tryHandshake(t, from) != want {
				t.Errorf("a connection from %s was served: %v, want %v", from, !want, want)
			}
		}
		if status := statusOf(t, open, "/agents", "localhost"); status != 403 {
			t.Errorf("a request on a connection from before the ban: %d", status)
		}
		r.Gate().SetBans(relay.Bans{})
		if !l.tryHandshake(t, stranger) {
			t.Error("a connection was refused after the end of the ban")
		}
	})
}

// TestHTTP2ConnectionsAreLimited opens many connections from one address and keeps them open. The first speak HTTP/2, and
// the others HTTP/1.1. When connections have ended, new ones speak HTTP/2 again. Trusted proxies always speak HTTP/2.
func TestHTTP2ConnectionsAreLimited(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		l, _ := serveTLS(t, start(t), httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: networks("10.0.0.1/32")}})
		for from, want := range map[string]int{stranger: 16, "[2001:db8::1]:9": 16, "10.0.0.1:9": 40} {
			var open []*tls.Conn
			count := 0
			for range 40 {
				c := l.dialTLS(t, from, "h2", "http/1.1")
				open = append(open, c)
				if c.ConnectionState().NegotiatedProtocol == "h2" {
					count++
				}
			}
			if count != want {
				t.Errorf("%s: %d connections of 40 speak HTTP/2, want %d", from, count, want)
			}
			for _, c := range open {
				if err := c.NetConn().Close(); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			c := l.dialTLS(t, from, "h2", "http/1.1")
			if got := c.ConnectionState().NegotiatedProtocol; got != "h2" {
				t.Errorf("%s: a new connection speaks %q", from, got)
			}
			if err := c.NetConn().Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
