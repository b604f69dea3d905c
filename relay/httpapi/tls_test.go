package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// These tests check the handshake and HTTP/1.1 over TLS, mostly with the fake time of synctest. http2_test.go checks
// HTTP/2.

// certificate makes the certificate of the tests. It is valid in fake time and in real time.
var certificate = sync.OnceValues(func() (tls.Certificate, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}
	text, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(text)
	return tls.Certificate{Certificate: [][]byte{text}, PrivateKey: private, Leaf: leaf}, err
})

// serverConfig returns the configuration of a listener. A server without session tickets writes nothing after the
// handshake. On a pipe, which has no buffers, it would wait until its client reads.
func serverConfig(t testing.TB) *tls.Config {
	t.Helper()
	c, err := certificate()
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{c}, SessionTicketsDisabled: true}
}

// clientConfig returns the configuration of a client that offers these protocols.
func clientConfig(t testing.TB, protocols ...string) *tls.Config {
	t.Helper()
	c, err := certificate()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.Leaf)
	return &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: protocols}
}

// serveTLS runs a Front with one listener, which has TLS, until stop is called or the test ends.
func serveTLS(t testing.TB, r *relay.Relay, o httpapi.Options) (l *pipeListener, stop func()) {
	t.Helper()
	l = newPipeListener(allInterfaces)
	return l, runFront(t, newFront(t, r, o), httpapi.Listener{Listener: l, TLS: serverConfig(t)})
}

// stranger is the address of a client that has no privileges.
const stranger = "192.0.2.1:9"

// dialTLS connects from an address and makes a handshake with these protocols.
func (l *pipeListener) dialTLS(t testing.TB, from string, protocols ...string) *tls.Conn {
	t.Helper()
	c, _ := l.dialWatched(t, from)
	return handshake(t, c, protocols...)
}

func handshake(t testing.TB, c net.Conn, protocols ...string) *tls.Conn {
	t.Helper()
	secured := tls.Client(c, clientConfig(t, protocols...))
	if err := secured.Handshake(); err != nil {
		t.Fatal(err)
	}
	return secured
}

// watchedConn is the server's side of a connection. closed is closed as soon as the server closes the connection.
type watchedConn struct {
	connFrom
	once   sync.Once
	closed chan struct{}
}

func (c *watchedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.connFrom.Close()
}

// dialWatched connects from an address. When the server closes the connection, closed is closed. The client closes it
// at the end of the test.
func (l *pipeListener) dialWatched(t testing.TB, from string) (c net.Conn, closed <-chan struct{}) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close() })
	watched := &watchedConn{connFrom: connFrom{theirs, netip.MustParseAddrPort(from)}, closed: make(chan struct{})}
	l.conns <- watched
	return ours, watched.closed
}

// clientHello returns the first bytes that a client sends.
func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = tls.Client(ours, config).Handshake() // it fails, because the other end hangs up
	}()
	buf := make([]byte, 64<<10)
	n, err := theirs.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	return buf[:n]
}

// TestTLSHandshakeIsCut connects and does not finish the handshake. The connection uses the only slot of its address.
// It is cut after five seconds, and then another connection gets the slot.
func TestTLSHandshakeIsCut(t *testing.T) {
	racing.Skip(t, "one thing after another")
	hello := clientHello(t, clientConfig(t, "h2", "http/1.1"))
	for name, send := range map[string]func(net.Conn){
		"nothing":         func(net.Conn) {},
		"one byte":        func(c net.Conn) { _, _ = c.Write(hello[:1]) },
		"half a hello":    func(c net.Conn) { _, _ = c.Write(hello[:len(hello)/2]) },
		"all but a byte":  func(c net.Conn) { _, _ = c.Write(hello[:len(hello)-1]) },
		"no further step": func(c net.Conn) { _, _ = c.Write(hello); _, _ = io.Copy(io.Discard, c) },
		"never reads":     func(c net.Conn) { _, _ = c.Write(hello) },
		"a byte a second": func(c net.Conn) {
			for i := range hello {
				if _, err := c.Write(hello[i : i+1]); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := serveTLS(t, limited(t, relay.Limits{ConnectionsPerAddress: 1}), httpapi.Options{Log: quiet})
				c, closed := l.dialWatched(t, stranger)
				began := time.Now()
				var sending sync.WaitGroup
				sending.Go(func() { send(c) })
				synctest.Wait()
				_, refused := l.dialWatched(t, stranger)
				if <-refused; time.Since(began) > 0 {
					t.Error("a second connection was not refused at once")
				}
				if <-closed; time.Since(began) != 5*time.Second {
					t.Errorf("cut after %v, want 5s", time.Since(began))
				}
				synctest.Wait()
				if !served(t, l.dialTLS(t, stranger, "http/1.1")) {
					t.Error("the slot is not free")
				}
				sending.Wait()
			})
		})
	}
}

// TestTLSHostileHello sends bytes that no TLS client sends. The relay closes the connection. It logs nothing at level
// INFO or higher and does not panic, and it still serves other clients.
func TestTLSHostileHello(t *testing.T) {
	racing.Skip(t, "one thing after another")
	log, logged := logTo(slog.LevelDebug)
	l, _ := serveTLS(t, unlimited(t), httpapi.Options{Log: log})
	hello := clientHello(t, clientConfig(t, "h2", "http/1.1"))
	old := clientConfig(t)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS10
	protocols := make([]string, 250)
	for i := range protocols {
		protocols[i] = strings.Repeat("x", 240)
	}
	hostile := map[string][]byte{
		"plain HTTP":           []byte("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"a plain POST":         []byte("POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{"),
		"plain HTTP/2":         []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		"a proxy's header":     []byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"),
		"zeros":                make([]byte, 100),
		"text":                 []byte(strings.Repeat("garbage ", 1000)),
		"SSL 2":                []byte("\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x07\x00\xc0"),
		"a record too large":   append([]byte{22, 3, 1, 255, 255}, make([]byte, 65535)...),
		"a message too large":  append([]byte{22, 3, 1, 64, 0, 1, 255, 255, 255}, make([]byte, 16380)...),
		"an empty message":     {22, 3, 1, 0, 4, 1, 0, 0, 0},
		"empty records":        bytes.Repeat([]byte{22, 3, 1, 0, 0}, 1000),
		"alerts":               bytes.Repeat([]byte{21, 3, 1, 0, 2, 1, 90}, 1000),
		"application data":     append([]byte{23, 3, 3, 1, 0}, make([]byte, 256)...),
		"an unknown version":   append([]byte{22, 9, 9}, hello[3:]...),
		"TLS 1.0":              clientHello(t, old),
		"an unknown protocol":  clientHello(t, clientConfig(t, "gopher")),
		"very many protocols":  clientHello(t, clientConfig(t, protocols...)),
		"the hello, twice":     append(bytes.Clone(hello), hello...),
		"the hello, then text": append(bytes.Clone(hello), "GET / HTTP/1.1\r\n\r\n"...),
	}
	random := mathrand.New(mathrand.NewPCG(1, 2))
	for i := range 300 {
		changed := bytes.Clone(hello)
		for range 1 + random.IntN(4) {
			changed[random.IntN(len(changed))] = byte(random.Uint32())
		}
		hostile[fmt.Sprint("changed hello ", i)] = changed
	}
	for name, text := range hostile {
		c, closed := l.dialWatched(t, stranger)
		var answer []byte
		read := make(chan struct{})
		go func() {
			defer close(read)
			answer, _ = io.ReadAll(c)
		}()
		_, _ = c.Write(text) // it fails if the relay closes the connection before it has read everything
		_, _ = c.Write(text[:1])
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		<-closed
		<-read
		if bytes.Contains(answer, []byte(" 200 ")) {
			t.Errorf("%s: answered %q", name, answer)
		}
		if name == "plain HTTP" && !bytes.HasPrefix(answer, []byte("HTTP/1.0 400 ")) {
			t.Errorf("%s: answered %q", name, answer)
		}
	}
	for _, protocols := range [][]string{{"http/1.1"}, nil} {
		if !served(t, l.dialTLS(t, stranger, protocols...)) {
			t.Errorf("a client with the protocols %q is not served", protocols)
		}
	}
	for line := range strings.Lines(logged()) {
		if !strings.Contains(line, `"level":"DEBUG"`) || strings.Contains(line, "panic") {
			t.Errorf("logged %s", line)
		}
	}
}

// TestTLSSlowHeaderIsCut sends half a header over TLS. The connection is cut after five seconds.
func TestTLSSlowHeaderIsCut(t *testing.T) {
	for _, sent := range []string{"", "GET", "POST /events HTTP/1.1\r\nHost: x\r\nX-"} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := serveTLS(t, start(t), httpapi.Options{Log: quiet})
			c, began := l.dialTLS(t, stranger, "http/1.1"), time.Now()
			fmt.Fprint(c, sent)
			readAll(t, c)
			if took := time.Since(began); took != 5*time.Second {
				t.Errorf("after %q, cut after %v, want 5s", sent, took)
			}
		})
	}
}

// TestTLSSlowBodyIsCut sends a part of a body over TLS and stops, or continues with a byte a second. After ten seconds
// the client gets an error.
func TestTLSSlowBodyIsCut(t *testing.T) {
	for _, bytes := range []int{0, 100} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := serveTLS(t, start(t), httpapi.Options{Log: quiet})
			c, began := l.dialTLS(t, stranger, "http/1.1"), time.Now()
			fmt.Fprint(c, "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
			var sending sync.WaitGroup
			sending.Go(func() {
				for range bytes {
					time.Sleep(time.Second)
					if _, err := fmt.Fprint(c, " "); err != nil {
						return
					}
				}
			})
			text := readAll(t, c)
			took := time.Since(began)
			if took < 10*time.Second || took > 11*time.Second || !strings.Contains(text, "INVALID_REQUEST") {
				t.Errorf("after %v: %s", took, text)
			}
			sending.Wait()
		})
	}
}

// TestTLSClientThatNeverReadsIsCut asks for an answer over TLS and does not read it. The connection is cut after 30
// seconds. The end of TLS, which the client does not read either, takes up to five seconds more.
func TestTLSClientThatNeverReadsIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serveTLS(t, start(t), httpapi.Options{Log: quiet})
		raw, closed := l.dialWatched(t, stranger)
		c, began := handshake(t, raw, "http/1.1"), time.Now()
		fmt.Fprint(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		<-closed
		if took := time.Since(began); took < 30*time.Second || took > 35*time.Second {
			t.Errorf("the connection was held for %v, want 30s to 35s", took)
		}
	})
}

// TestTLSLongPollOutlivesTheOtherDeadlines makes two polls of a minute on one connection. The deadlines of the
// handshake and of the first poll do not end the second.
func TestTLSLongPollOutlivesTheOtherDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serveTLS(t, start(t), httpapi.Options{Log: quiet})
		c, began := l.dialTLS(t, stranger, "http/1.1"), time.Now()
		reader := bufio.NewReader(c)
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

// TestTLSClientThatLeavesFreesItsSlot closes connections while their polls wait: with an alert, as TLS wants it, and
// without. The polls end.
func TestTLSClientThatLeavesFreesItsSlot(t *testing.T) {
	for name, leave := range map[string]func(*tls.Conn) error{
		"close_notify": (*tls.Conn).Close, "no close_notify": func(c *tls.Conn) error { return c.NetConn().Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
			c := l.dialTLS(t, stranger, "http/1.1")
			fmt.Fprint(c, "GET /events?cursor=0&timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
			synctest.Wait()
			if r.Waiting() != 1 {
				t.Fatalf("%d polls wait, want 1", r.Waiting())
			}
			go func() { _, _ = io.Copy(io.Discard, c) }() // the relay sends an alert too
			if err := leave(c); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if r.Waiting() != 0 {
				t.Errorf("%s: %d polls still wait after the client has left", name, r.Waiting())
			}
		})
	}
}

// slowStore is a store that needs a second for each message. It gives up if its caller does.
type slowStore struct{ engine.Store }

func (s slowStore) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	select {
	case <-ctx.Done():
		return relay.Receipt{}, ctx.Err()
	case <-time.After(time.Second):
		return s.Store.Append(ctx, e)
	}
}

// TestTLSPostOfClientThatLeaves closes the connection while a post is being stored. The post is stored nevertheless.
func TestTLSPostOfClientThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWrapped(t, func(s relay.Store) relay.Store { return slowStore{s.(engine.Store)} })
		l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
		c := l.dialTLS(t, stranger, "http/1.1")
		body := sign(t, key(t), envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical()
		fmt.Fprintf(c, "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		synctest.Wait()
		if err := c.NetConn().Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if n := storedCount(t, r); n != 1 {
			t.Errorf("%d events are stored, want 1", n)
		}
	})
}

// TestTLSShutdownAnswersWaitingPolls stops the relay while a poll waits over TLS. The poll gets an empty answer.
func TestTLSShutdownAnswersWaitingPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serveTLS(t, start(t), httpapi.Options{Log: quiet})
		c := l.dialTLS(t, stranger, "http/1.1")
		fmt.Fprint(c, "GET /events?cursor=0&timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		began := time.Now()
		ended := make(chan struct{})
		go func() {
			stop()
			close(ended)
		}()
		synctest.Wait()
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != 200 || !strings.Contains(string(body), `"events":[]`) {
			t.Errorf("%d %s %v", response.StatusCode, body, err)
		}
		go func() { _, _ = io.Copy(io.Discard, c) }()
		<-ended
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
