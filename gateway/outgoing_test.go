package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
)

func TestMain(m *testing.M) {
	// No request may use a proxy. This one refuses connections.
	if err := os.Setenv("HTTPS_PROXY", "http://127.0.0.1:1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// fakeDNS returns a resolver that gives every name the next of these addresses, and the last one from then on.
func fakeDNS(t *testing.T, addresses ...string) *net.Resolver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		query := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			addr := netip.MustParseAddr(addresses[0])
			answer, matches := dnsAnswer(query[:n], addr)
			if matches && len(addresses) > 1 {
				addresses = addresses[1:]
			}
			_, _ = conn.WriteTo(answer, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// dnsAnswer answers a query with addr if it asks for addresses of that family, and else with no records (RFC 1035 §4).
func dnsAnswer(query []byte, addr netip.Addr) (answer []byte, matches bool) {
	end := 12 // of the question
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5
	asked := binary.BigEndian.Uint16(query[end-4:])
	recordType := uint16(1) // A
	if addr.Is6() {
		recordType = 28 // AAAA
	}
	answer = append(answer, query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
	answer = append(answer, query[12:end]...)
	if asked != recordType {
		return answer, false
	}
	answer[7] = 1
	data := addr.AsSlice()
	answer = append(answer, 0xc0, 12, 0, byte(recordType), 0, 1, 0, 0, 0, 0, 0, byte(len(data)))
	return append(answer, data...), true
}

// server starts a TLS server for agent.example. It returns the port, its certificate and the number of connections.
func server(t *testing.T, handler http.HandlerFunc) (port string, roots *tls.Config, connections *atomic.Int64) {
	return serverOn(t, nil, handler)
}

// serverOn does the same as server, but accepts the connections of l; nil: of a new listener.
func serverOn(t *testing.T, l net.Listener, handler http.HandlerFunc) (port string, roots *tls.Config, connections *atomic.Int64) {
	connections = new(atomic.Int64)
	s := httptest.NewUnstartedServer(handler)
	if l != nil {
		if err := s.Listener.Close(); err != nil {
			t.Fatal(err)
		}
		s.Listener = l
	}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	return port, &tls.Config{RootCAs: pool}, connections // the certificate of httptest is valid for example.com
}

// inBubble starts a TLS server in a bubble. It returns its URL, an Outgoing whose steps may take as long as step, and the
// number of connections.
func inBubble(t *testing.T, step time.Duration, handler http.HandlerFunc) (url string, o *gateway.Outgoing, connections *atomic.Int64) {
	l := gatetest.NewPipeListener("")
	_, roots, connections := serverOn(t, l, handler)
	o = gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, "127.0.0.1"), TLS: roots, Dial: gatetest.DialPipe})
	o.SetTimeouts(step)
	return "https://" + l.Addr().String(), o, connections
}

func allow(t *testing.T, texts ...string) (d gateway.Destinations) {
	for _, text := range texts {
		e, err := gateway.ParseException(text)
		if err != nil {
			t.Fatal(err)
		}
		d.Exceptions = append(d.Exceptions, e)
	}
	return d
}

// TestNamesAreCheckedWhenDialling checks G-14 for names: what counts is the address to which a name resolves at the time
// of the connection, in each spelling.
func TestNamesAreCheckedWhenDialling(t *testing.T) {
	port, roots, connections := server(t, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(`{}`)) })
	call := gateway.Request{URL: "https://example.com:" + port + "/", ID: "1"}
	for _, address := range []string{"127.0.0.1", "::ffff:127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "64:ff9b::7f00:1", "0.0.0.0"} {
		o := gateway.NewOutgoing(gateway.OutgoingOptions{Resolver: fakeDNS(t, address), TLS: roots})
		if _, err := o.Post(t.Context(), call); err != gateway.Blocked {
			t.Errorf("a name with the address %s: %v, want blocked", address, err)
		}
	}
	// The first lookup gives an address that is not excluded, the next one does not (DNS rebinding).
	o := gateway.NewOutgoing(gateway.OutgoingOptions{Resolver: fakeDNS(t, "2000::1", "127.0.0.1"), TLS: roots})
	o.SetTimeouts(200 * time.Millisecond)
	_, _ = o.Post(t.Context(), call)
	o.SetTimeouts(time.Minute)
	if _, err := o.Post(t.Context(), call); err != gateway.Blocked {
		t.Errorf("the second lookup: %v, want blocked", err)
	}
	if n := connections.Load(); n != 0 {
		t.Fatalf("%d connections were made to excluded addresses", n)
	}
	for _, exception := range []string{"127.0.0.0/8", "example.com"} {
		o := gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, exception), Resolver: fakeDNS(t, "127.0.0.1"), TLS: roots})
		if answer, err := o.Post(t.Context(), call); err != nil || answer.Status != 200 {
			t.Errorf("with the exception %s: %v, %v", exception, answer, err)
		}
	}
}

// TestPost checks the requests and what is reported of the responses.
func TestPost(t *testing.T) {
	var seen *http.Request
	var body []byte
	port, roots, connections := server(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r
		body, _ = io.ReadAll(r.Body)
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(503)
		fmt.Fprint(w, `{"status":"busy"}`)
	})
	o := gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, "example.com"), Resolver: fakeDNS(t, "127.0.0.1"),
		TLS: roots, UserAgent: "agora/test (+https://relay.example)"})
	for range 2 {
		answer, err := o.Post(t.Context(), gateway.Request{URL: "https://example.com:" + port + "/hook?key=1", ID: "id-1",
			Body: []byte(`{"a":1}`), Header: http.Header{"Chorus-Trace-Id": {"t"}}})
		if err != nil || answer.Status != 503 || string(answer.Body) != `{"status":"busy"}` || answer.RetryAfter != "7" {
			t.Fatalf("%+v, %v", answer, err)
		}
		if h := seen.Header; seen.Method != "POST" || seen.RequestURI != "/hook?key=1" || string(body) != `{"a":1}` ||
			h.Get("Content-Type") != "application/json" || h.Get("Idempotency-Key") != "id-1" || h.Get("Cookie") != "" ||
			h.Get("User-Agent") != "agora/test (+https://relay.example)" || h.Get("Chorus-Trace-Id") != "t" || h.Get("Accept-Encoding") != "" {
			t.Errorf("the server got %s %s %v %s", seen.Method, seen.RequestURI, h, body)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections for 2 requests", n)
	}
	untrusted := gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, "example.com"), Resolver: fakeDNS(t, "127.0.0.1")})
	if _, err := untrusted.Post(t.Context(), gateway.Request{URL: "https://example.com:" + port}); err != gateway.Unreachable {
		t.Errorf("an unknown certificate: %v, want unreachable", err)
	}
}

// TestRedirectIsNotFollowed checks G-14 for redirects.
func TestRedirectIsNotFollowed(t *testing.T) {
	secret, _, connections := server(t, func(http.ResponseWriter, *http.Request) {})
	for _, status := range []int{301, 302, 303, 307, 308} {
		port, roots, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://127.0.0.1:"+secret+"/", status)
		})
		o := gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, "127.0.0.0/8"), TLS: roots})
		answer, err := o.Post(t.Context(), gateway.Request{URL: "https://127.0.0.1:" + port + "/"})
		if err != nil || answer.Status != status {
			t.Errorf("%d: %v, %v", status, answer, err)
		}
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// TestHostileServers checks G-15: a slow, endless or huge response ends within its limits. It checks G-16: the error is
// one of three words.
func TestHostileServers(t *testing.T) {
	const step = time.Second
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	huge := strings.Repeat("a", 64<<10)
	// abort ends a handler after its caller has left. Without it, net/http would end the answer properly, and its end could
	// reach the caller while it still closes the connection.
	abort := func() { panic(http.ErrAbortHandler) }
	for name, c := range map[string]struct {
		answer   http.HandlerFunc
		want     error
		noBody   bool
		bodySize int
	}{
		"no answer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); abort() }, gateway.Timeout, true, 0},
		"endless early responses": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.WriteHeader(103)
				time.Sleep(step / 10)
			}
			abort()
		}, gateway.Timeout, true, 0},
		"a slow body": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write([]byte("a"))
				flush(w)
				time.Sleep(step / 10)
			}
			abort()
		}, nil, true, 0},
		"a huge header": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", huge) }, gateway.Unreachable, true, 0},
		"a large body":  {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, huge) }, nil, false, 64 << 10},
		"a larger body": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, huge+"a") }, nil, true, 0},
		"an endless one": {func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; {
				_, err = io.WriteString(w, huge)
			}
		}, nil, true, 0},
		"a broken body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "a")
			flush(w)
			abort()
		}, nil, true, 0},
		"a broken header": {func(http.ResponseWriter, *http.Request) { abort() }, gateway.Unreachable, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				url, o, connections := inBubble(t, step, c.answer)
				began := time.Now()
				answer, err := o.Post(t.Context(), gateway.Request{URL: url, Wait: step})
				if took := time.Since(began); took > 2*step { // for the header and for the body
					t.Errorf("it took %v", took)
				}
				if !errors.Is(err, c.want) || (answer.Body == nil) != c.noBody || len(answer.Body) != c.bodySize {
					t.Errorf("%v with %d bytes (nil: %t), want %v", err, len(answer.Body), answer.Body == nil, c.want)
				}
				if n := connections.Load(); n != 1 {
					t.Errorf("%d connections were made, want 1", n)
				}
			})
		})
	}
	t.Run("no TLS", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := gatetest.NewPipeListener("")
			go func() {
				if c, err := l.Accept(); err != nil {
					t.Error(err)
				} else {
					_, _ = io.Copy(io.Discard, c) // until the client closes the connection
				}
			}()
			o := gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, "127.0.0.1"), Dial: gatetest.DialPipe})
			o.SetTimeouts(step)
			began := time.Now()
			_, err := o.Post(t.Context(), gateway.Request{URL: "https://" + l.Addr().String()})
			if took := time.Since(began); err != gateway.Timeout || took > 3*step {
				t.Errorf("%v after %v, want timeout", err, took)
			}
			time.Sleep(5 * step) // until net/http has given up the handshake
		})
	})
	t.Run("no server", func(t *testing.T) {
		o := gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, "127.0.0.1")})
		if _, err := o.Post(t.Context(), gateway.Request{URL: "https://127.0.0.1:1"}); err != gateway.Unreachable {
			t.Errorf("%v, want unreachable", err)
		}
	})
}

// TestCallsAtATime checks that one host gets at most four requests at a time, and that others need not wait for it.
func TestCallsAtATime(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 10)
	port, roots, _ := server(t, func(http.ResponseWriter, *http.Request) { started <- struct{}{}; <-release })
	quick, _, _ := server(t, func(http.ResponseWriter, *http.Request) {})
	o := gateway.NewOutgoing(gateway.OutgoingOptions{Destinations: allow(t, "example.com", "127.0.0.1"),
		Resolver: fakeDNS(t, "127.0.0.1"), TLS: roots})
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if _, err := o.Post(t.Context(), gateway.Request{URL: "https://example.com:" + port}); err != nil {
				t.Error(err)
			}
		})
	}
	for range 4 {
		<-started
	}
	_, _ = o.Post(t.Context(), gateway.Request{URL: "https://127.0.0.1:" + quick}) // does not wait
	waiting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := o.Post(waiting, gateway.Request{URL: "https://example.com:" + port}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that waits for a slot until its context ends: %v", err)
	}
	select {
	case <-started:
		t.Error("a fifth call to one host has begun")
	default:
	}
	close(release)
	all.Wait()
	if len(started) != 1 {
		t.Errorf("%d calls began after the others had ended, want 1", len(started))
	}
}

// TestLongWait checks that a call may wait longer for the header of the response than connecting may take.
func TestLongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = time.Second
		url, o, _ := inBubble(t, step, func(http.ResponseWriter, *http.Request) { time.Sleep(6 * step) })
		call := gateway.Request{URL: url, Wait: 20 * step}
		if answer, err := o.Post(t.Context(), call); err != nil || answer.Status != 200 {
			t.Errorf("%+v, %v", answer, err)
		}
		call.Wait = step
		if _, err := o.Post(t.Context(), call); err != gateway.Timeout {
			t.Errorf("%v, want timeout", err)
		}
		time.Sleep(6 * step) // until the handler has ended
	})
}
