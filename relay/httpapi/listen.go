package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/relay"
)

// Deadlines of one request. The wait of a long poll may be longer; reading a body and writing an answer may not.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // headers and body
	writeTimeout      = 30 * time.Second
	idleTimeout       = 75 * time.Second
	maxHeaderBytes    = 16 << 10
	maxStreams        = 250 // of an HTTP/2 connection, however many requests its address may have
)

// Listener is a net.Listener on which a Front accepts connections.
type Listener struct {
	net.Listener
	// Mounts are the only handlers on this listener. nil: the relay's own routes and Options.Mounts.
	Mounts []Mount
	// TLS is the configuration of TLS on this listener, with HTTP/2 and HTTP/1.1. nil: the listener has no TLS.
	TLS *tls.Config
	// Local means that all clients of this Unix socket count as the relay's own machine. Otherwise they count as
	// remote. Because they have no addresses, they then share the limits of one address, see Proxies.UnixSockets.
	Local bool
}

// listenerInfo says which clients can connect to a listener.
type listenerInfo struct {
	loopback bool // only this machine can connect
	trusted  bool // every client counts as this machine
	unix     bool // a Unix socket, whose clients have no addresses
}

func (l Listener) info() listenerInfo {
	switch addr := l.Addr().(type) {
	case *net.TCPAddr:
		return listenerInfo{loopback: addr.IP.IsLoopback()}
	case *net.UnixAddr:
		return listenerInfo{trusted: l.Local, unix: true}
	}
	return listenerInfo{}
}

// Run serves the listeners until ctx ends, or until one of them fails. Then it drains the relay, so that every waiting
// poll is answered while the listeners are still open. It waits until the requests that had begun are answered, closes
// the listeners and returns. After Options.Grace it cuts off requests that are not answered yet. It returns the error
// of the listener that failed first, nil if ctx ended.
func (f *Front) Run(ctx context.Context, listeners ...Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var servers []*http.Server
	var serving sync.WaitGroup
	for _, l := range listeners {
		server := f.newServer(l)
		servers = append(servers, server)
		serving.Go(func() {
			serve := func() error { return server.Serve(l.Listener) }
			if l.TLS != nil {
				serve = func() error { return server.ServeTLS(meteredListener{l.Listener, f, l.info()}, "", "") }
			}
			if err := serve(); !errors.Is(err, http.ErrServerClosed) {
				stop(err)
			}
		})
	}
	<-ctx.Done()
	f.shutDown(context.WithoutCancel(ctx), servers, &serving)
	if err := context.Cause(ctx); !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
}

// newServer returns the http.Server of a listener.
func (f *Front) newServer(l Listener) *http.Server {
	mounts := l.Mounts
	if mounts == nil {
		mounts = f.mounts()
	}
	return &http.Server{
		Handler:           f.handler(mounts, l.info()),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout, // of answers that net/http gives itself, see clearWriteDeadline
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         newConnections(f, l.info()).changed,
		TLSConfig:         f.tlsConfig(l),
		HTTP2:             f.http2(),

		DisableGeneralOptionsHandler: true, // it would answer OPTIONS * with an empty 200
		ErrorLog:                     slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
	}
}

// maxHTTP2Connections is how many connections of an address may speak HTTP/2. Each of their streams can hold some memory
// until its deadline, even if its request was refused. Further connections speak HTTP/1.1.
const maxHTTP2Connections = 16

// tlsConfig returns a copy of the TLS configuration of a listener, because net/http changes it; nil: there is none.
func (f *Front) tlsConfig(l Listener) *tls.Config {
	config := l.TLS.Clone()
	if config == nil {
		return nil
	}
	older := l.TLS.Clone()
	older.NextProtos = slices.DeleteFunc(slices.Clone(older.NextProtos), func(name string) bool { return name == "h2" })
	info := l.info()
	given := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if given != nil {
			if c, err := given(hello); c != nil || err != nil {
				return c, err
			}
		}
		from := remoteAddr(hello.Conn.RemoteAddr().String())
		if f.exempts(from, info) || f.relay.Gate().HasFewConnections(relay.Peer{Addr: from}, maxHTTP2Connections) {
			return nil, nil
		}
		return older, nil
	}
	return config
}

// http2 returns the limits of HTTP/2 connections. A connection has at most as many streams as its address may have
// requests. That number is taken when the listener starts: a later change of the limits does not change it. Each
// request still counts against the limit that is then in force. Buffers are small, because a client can fill the
// buffers of each connection with bodies that no handler reads. A connection that is silent in the middle of a frame is
// closed, because it does not answer the ping.
func (f *Front) http2() *http.HTTP2Config {
	streams := f.relay.Gate().Limits().RequestsPerAddress
	if streams < 0 {
		streams = maxStreams
	}
	return &http.HTTP2Config{
		MaxConcurrentStreams:          min(streams, maxStreams),
		MaxReadFrameSize:              16 << 10,
		MaxReceiveBufferPerConnection: 256 << 10,
		MaxReceiveBufferPerStream:     64 << 10,
		SendPingTimeout:               idleTimeout,
		PingTimeout:                   readTimeout,
		WriteByteTimeout:              writeTimeout,
	}
}

// shutDown closes the listeners, answers the waiting polls, and waits for the other requests that have begun. The
// listeners come first, and each connection is closed after its answer. So clients poll again at another node. serving
// has the loops that accept connections.
func (f *Front) shutDown(ctx context.Context, servers []*http.Server, serving *sync.WaitGroup) {
	f.log.Info("stopping", "waiting", f.relay.Waiting())
	ctx, cancel := context.WithTimeout(ctx, f.options.Grace)
	defer cancel()
	var closing sync.WaitGroup
	for _, server := range servers {
		closing.Go(func() {
			if err := server.Shutdown(ctx); err != nil {
				f.log.Warn("requests were cut off", "err", errors.Join(err, server.Close()))
			}
		})
	}
	serving.Wait()
	f.relay.Drain()
	f.mu.Lock()
	f.draining = true
	f.mu.Unlock()
	answered := make(chan struct{})
	go func() { // ends with the last request, at the latest after its deadlines
		f.requests.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-ctx.Done():
	}
	closing.Wait()
}

// connections counts the open connections of a listener by client address.
type connections struct {
	front *Front
	info  listenerInfo

	mu    sync.Mutex
	leave map[net.Conn]func() // frees the slot of each connection that is counted
}

func newConnections(f *Front, info listenerInfo) *connections {
	return &connections{front: f, info: info, leave: map[net.Conn]func(){}}
}

// changed is the ConnState callback of an http.Server. It closes a new connection that is over the limit. No request
// has come over that connection yet, so there is nothing to answer. The server then reports it as closed, like any
// other.
func (c *connections) changed(connection net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if err := limitUnacknowledged(socketOf(connection)); err != nil {
			c.front.log.Debug("TCP_USER_TIMEOUT cannot be set", "err", err)
		}
		from := remoteAddr(connection.RemoteAddr().String())
		if c.front.exempts(from, c.info) {
			return
		}
		leave, err := c.front.relay.Gate().Connect(relay.Peer{Addr: from})
		if err != nil {
			c.front.observe(0, err)
			c.front.log.Debug("connection closed", "from", from, "err", errors.Join(err, connection.Close()))
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leave[connection] = leave
	case http.StateClosed, http.StateHijacked:
		c.mu.Lock()
		defer c.mu.Unlock()
		if leave, counted := c.leave[connection]; counted {
			delete(c.leave, connection)
			leave()
		}
	}
}

// socketOf returns the connection as its listener has accepted it, without TLS.
func socketOf(c net.Conn) net.Conn {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	if metered, ok := c.(*meteredConn); ok {
		c = metered.Conn
	}
	return c
}
