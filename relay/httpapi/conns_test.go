package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// connFrom is a connection with a given remote address.
type connFrom struct {
	net.Conn
	addr netip.AddrPort
}

func (c *connFrom) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.addr) }

func (l *pipeListener) dialFrom(addr string) net.Conn {
	ours, theirs := net.Pipe()
	l.conns <- &connFrom{theirs, netip.MustParseAddrPort(addr)}
	return ours
}

// served reports whether the relay answers on a connection. If it does not answer, it must have closed the connection.
func served(t *testing.T, c net.Conn) bool {
	t.Helper()
	if _, err := fmt.Fprint(c, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"); err == io.ErrClosedPipe {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%d %v", response.StatusCode, err)
	}
	return true
}

// TestConnectionsPerAddress opens connections and keeps them open. A connection over the limit is closed, whether or
// not the others have sent requests. When a connection ends, its slot is free again.
func TestConnectionsPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serve(t, limited(t, relay.Limits{ConnectionsPerAddress: 3}))
		var open []net.Conn
		for i := range 3 {
			c := l.dialFrom(fmt.Sprintf("[2001:db8::%x]:9", i+1)) // a /64 is one address
			if i > 0 && !served(t, c) {
				t.Fatalf("connection %d of 3 was closed", i+1)
			}
			open = append(open, c)
		}
		for range 10 { // closing these must not free a slot, because they were not counted
			if served(t, l.dialFrom("[2001:db8::ffff]:9")) {
				t.Fatal("a fourth connection was served")
			}
			synctest.Wait()
		}
		for _, other := range []string{"192.0.2.1:9", "[2001:db8:0:1::1]:9"} {
			if !served(t, l.dialFrom(other)) {
				t.Errorf("a connection from %s was closed because of the connections of another address", other)
			}
		}
		for i, c := range open {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !served(t, l.dialFrom("[2001:db8::5]:9")) {
				t.Errorf("connection %d has ended and its slot is not free", i+1)
			}
			if served(t, l.dialFrom("[2001:db8::5]:9")) {
				t.Errorf("the end of connection %d has freed more than one slot", i+1)
			}
		}
	})
}

// TestConnectionsExempt opens more connections than the limit allows, from addresses that are exempt from the limit,
// and from similar addresses that are not.
func TestConnectionsExempt(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, c := range []struct {
		addr         string
		loopbackOnly bool // the relay listens on loopback only and has no public URL
		exempt       bool
	}{
		{"127.0.0.1:9", true, true}, {"[::1]:9", true, true}, {"[::ffff:127.0.0.1]:9", true, true},
		{"127.0.0.1:9", false, false}, {"[::1]:9", false, false},
		{"10.1.2.3:9", false, true}, {"10.1.2.3:9", true, true}, {"[::ffff:10.1.2.3]:9", false, true},
		{"11.1.2.3:9", false, false}, {"192.0.2.1:9", true, false},
	} {
		t.Run(fmt.Sprint(c.addr, " ", c.loopbackOnly), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				addr := allInterfaces
				if c.loopbackOnly {
					addr = loopback
				}
				l, _ := serveOn(t, addr, limited(t, relay.Limits{ConnectionsPerAddress: 1}), httpapi.Options{Log: quiet,
					Proxies: httpapi.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}})
				for i := range 4 {
					if got, want := served(t, l.dialFrom(c.addr)), c.exempt || i == 0; got != want {
						t.Errorf("connection %d was served: %v, want %v", i+1, got, want)
					}
				}
			})
		})
	}
}
