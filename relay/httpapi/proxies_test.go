package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// These tests check which proxies are trusted: those on a Unix socket, and those that change while the relay runs.

// unixSocket is the address of a listener whose clients have no addresses.
var unixSocket = &net.UnixAddr{Name: "/run/agora.sock", Net: "unix"}

// askOver sends a GET over an open connection, with headers given as names and values. It decodes the answer into v.
func askOver(t testing.TB, c net.Conn, target string, v any, headers ...string) *http.Response {
	t.Helper()
	text := "GET " + target + " HTTP/1.1\r\nHost: x\r\n"
	for i := 0; i < len(headers); i += 2 {
		text += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if _, err := fmt.Fprint(c, text+"\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatal(err)
	}
	return response
}

// seenPeer is what the gateway of these tests answers.
type seenPeer struct {
	From  netip.Addr
	Local bool
}

func networks(all ...string) (prefixes []netip.Prefix) {
	for _, n := range all {
		prefixes = append(prefixes, netip.MustParsePrefix(n))
	}
	return prefixes
}

// TestProxiesOnUnixSockets checks which address is taken as the client's on a Unix socket. X-Forwarded-For is used only
// if the clients of Unix sockets are trusted. No client of such a socket is local, except if the listener says so.
func TestProxiesOnUnixSockets(t *testing.T) {
	r := unlimited(t)
	const none = ""
	for name, c := range map[string]struct {
		trusted   bool
		networks  []netip.Prefix
		local     bool // the listener is Local
		forwarded string
		want      string
		wantLocal bool
	}{
		"not trusted":                  {false, nil, false, "198.51.100.1", none, false},
		"not trusted, with networks":   {false, networks("0.0.0.0/0", "::/0"), false, "198.51.100.1", none, false},
		"trusted":                      {true, nil, false, "198.51.100.1", "198.51.100.1", false},
		"trusted, no header":           {true, nil, false, none, none, false},
		"trusted, IPv6":                {true, nil, false, "2001:db8::7", "2001:db8::7", false},
		"an entry of the client":       {true, nil, false, "203.0.113.7, 198.51.100.1", "198.51.100.1", false},
		"a second proxy":               {true, networks("198.51.100.0/24"), false, "203.0.113.7, 198.51.100.1", "203.0.113.7", false},
		"a second proxy, not trusted":  {false, networks("198.51.100.0/24"), false, "203.0.113.7, 198.51.100.1", none, false},
		"garbage":                      {true, nil, false, "203.0.113.7, garbage", none, false},
		"this machine, by a proxy":     {true, nil, false, "127.0.0.1", "127.0.0.1", false},
		"a local listener":             {false, nil, true, none, none, true},
		"a local listener and a proxy": {true, nil, true, "198.51.100.1", "198.51.100.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPipeListener(unixSocket)
			proxies := httpapi.Proxies{Networks: c.networks, UnixSockets: c.trusted}
			runFront(t, httpapi.New(r, httpapi.Options{Log: quiet, Proxies: proxies}),
				httpapi.Listener{Listener: l, Local: c.local, Mounts: []httpapi.Mount{gateway{r}.mount("")}})
			var headers []string
			if c.forwarded != "" {
				headers = []string{"X-Forwarded-For", c.forwarded}
			}
			var seen seenPeer
			askOver(t, l.dial(), "/", &seen, headers...)
			if want, _ := netip.ParseAddr(c.want); seen.From != want || seen.Local != c.wantLocal {
				t.Errorf("the peer is %+v, want %q, local %v", seen, c.want, c.wantLocal)
			}
		})
	}
}

// TestLimitsOfUnixSockets sends requests from many addresses over Unix sockets. If their clients are not trusted, all
// of them share the limits of one address, on requests and on connections. If they are trusted, each address has its
// own, and connections are not limited.
func TestLimitsOfUnixSockets(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, trusted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const burst, connections, tries = 3, 2, 10
			r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: burst},
				ConnectionsPerAddress: connections})
			first := newPipeListener(unixSocket)
			second := newPipeListener(&net.UnixAddr{Name: "/run/other.sock", Net: "unix"})
			runFront(t, httpapi.New(r, httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{UnixSockets: trusted}}),
				httpapi.Listener{Listener: first}, httpapi.Listener{Listener: second})
			open := []net.Conn{first.dial(), second.dial()}
			count := func(forwarded string) (answered int) {
				for i := range tries {
					response := askOver(t, open[i%2], "/nowhere", new(answer),
						"X-Forwarded-For", fmt.Sprintf(forwarded, i))
					if response.StatusCode == 404 {
						answered++
					} else if response.StatusCode != 429 {
						t.Errorf("status %d", response.StatusCode)
					}
				}
				return answered
			}
			want := map[bool][]int{false: {burst, 0, 0}, true: {tries, burst, burst}}[trusted]
			for i, forwarded := range []string{"198.51.100.%d", "198.51.100.%d, 203.0.113.9", "2001:db8::%x"} {
				if got := count(forwarded); got != want[i] {
					t.Errorf("trusted %v, %s: %d requests were answered, want %d", trusted, forwarded, got, want[i])
				}
			}
			for range 5 {
				if got := served(t, first.dial()); got != trusted {
					t.Errorf("trusted %v: a third connection was served: %v", trusted, got)
				}
			}
		})
	}
}

// TestSetProxies changes the trusted proxies while connections are open. The change holds for the next request on each
// of them, over TCP and over a Unix socket: for the client's address and for the id of the request.
func TestSetProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := unlimited(t)
		log, logged := logTo(slog.LevelInfo)
		tcp, unix := newPipeListener(allInterfaces), newPipeListener(unixSocket)
		front := httpapi.New(r, httpapi.Options{Log: log, AccessLog: true})
		mounts := []httpapi.Mount{gateway{r}.mount("")}
		runFront(t, front, httpapi.Listener{Listener: tcp, Mounts: mounts},
			httpapi.Listener{Listener: unix, Mounts: mounts})
		const client, proxy = "198.51.100.1", "10.0.0.1"
		overTCP, overUnix := tcp.dialFrom(proxy+":9"), unix.dial()
		for i, p := range []httpapi.Proxies{
			{}, {Networks: networks("10.0.0.0/8")}, {UnixSockets: true},
			{Networks: networks("10.0.0.0/8"), UnixSockets: true}, {},
		} {
			if i > 0 {
				front.SetProxies(p)
			}
			for _, c := range []struct {
				conn    net.Conn
				trusted bool
				own     string // the address of the connection
			}{{overTCP, p.Networks != nil, proxy}, {overUnix, p.UnixSockets, ""}} {
				var seen seenPeer
				response := askOver(t, c.conn, "/", &seen, "X-Forwarded-For", client, "X-Request-Id", "chosen")
				want := c.own
				if c.trusted {
					want = client
				}
				id := response.Header.Get("X-Request-Id")
				if addr, _ := netip.ParseAddr(want); seen.From != addr || seen.Local || (id == "chosen") != c.trusted {
					t.Errorf("proxies %+v: the peer is %+v with the id %s, want %q", p, seen, id, want)
				}
				if synctest.Wait(); !strings.Contains(logged(), id) {
					t.Errorf("the id %s is not in the log", id)
				}
			}
		}
	})
}

// TestSetProxiesOverHTTP2 changes the trusted proxies between two streams of a connection. The clients of a trusted
// proxy have limits of their own.
func TestSetProxiesOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 2}})
		l := newPipeListener(allInterfaces)
		front := httpapi.New(r, httpapi.Options{Log: quiet})
		runFront(t, front, httpapi.Listener{Listener: l, TLS: serverConfig(t)})
		h := l.dialH2(t, "10.0.0.1:9")
		h.exchange()
		for range 2 {
			h.answer(h.get("/nowhere", "x-forwarded-for", "198.51.100.1")).want(t, "404", "NOT_FOUND")
		}
		h.answer(h.get("/nowhere", "x-forwarded-for", "198.51.100.1")).wantLimit(t, envelope.LimitReadsPerAddress)
		front.SetProxies(httpapi.Proxies{Networks: networks("10.0.0.1/32")})
		for i := range 5 {
			h.answer(h.get("/nowhere", "x-forwarded-for", fmt.Sprint("198.51.100.", i))).want(t, "404", "NOT_FOUND")
		}
		front.SetProxies(httpapi.Proxies{})
		h.answer(h.get("/nowhere", "x-forwarded-for", "198.51.100.9")).wantLimit(t, envelope.LimitReadsPerAddress)
	})
}
