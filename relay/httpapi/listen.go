package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/relay"
)

// Time limits of one request. A long poll may wait beyond them; reading a body and writing an answer may not.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // headers and body
	writeTimeout      = 30 * time.Second
	idleTimeout       = 75 * time.Second
	maxHeaderBytes    = 16 << 10
)

// Listener is where a Front takes connections.
type Listener struct {
	net.Listener
	// Mounts are all that answers here. nil: the relay's own routes and Options.Mounts.
	Mounts []Mount
	// Local says that all who can connect to this Unix socket count as the relay's own machine. Otherwise they are
	// remote and, having no address, share the limits of one.
	Local bool
}

// place is what a listener tells of the requests that come through it.
type place struct {
	loopback bool // only this machine can connect
	trusted  bool // whoever connects counts as this machine
}

func (l Listener) place() place {
	switch addr := l.Addr().(type) {
	case *net.TCPAddr:
		return place{loopback: addr.IP.IsLoopback()}
	case *net.UnixAddr:
		return place{trusted: l.Local}
	}
	return place{}
}

// Run serves the listeners until ctx ends, or until one of them fails. Then it drains the relay, so that every waiting poll
// is answered while the listeners are still open. It closes the listeners and returns when the requests that had begun are
// answered. After Options.Grace it cuts off those that are not. It returns the errors of listeners.
func (f *Front) Run(ctx context.Context, listeners ...Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var servers []*http.Server
	var serving sync.WaitGroup
	for _, l := range listeners {
		server := f.newServer(l)
		servers = append(servers, server)
		serving.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				stop(err)
			}
		})
	}
	<-ctx.Done()
	f.shutDown(context.WithoutCancel(ctx), servers)
	serving.Wait()
	if err := context.Cause(ctx); !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
}

// newServer returns the server of a listener.
func (f *Front) newServer(l Listener) *http.Server {
	mounts := l.Mounts
	if mounts == nil {
		mounts = f.mounts()
	}
	return &http.Server{
		Handler:           f.handler(mounts, l.place()),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         newConnections(f, l.place()).changed,

		DisableGeneralOptionsHandler: true, // it would answer OPTIONS * with an empty 200
		ErrorLog:                     slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
	}
}

// shutDown answers what waits and then closes the servers.
func (f *Front) shutDown(ctx context.Context, servers []*http.Server) {
	f.log.Info("stopping", "waiting", f.relay.Waiting())
	f.relay.Drain()
	f.mu.Lock()
	f.draining = true
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, f.options.Grace)
	defer cancel()
	answered := make(chan struct{})
	go func() { // ends with the last request, which its time limits bound
		f.requests.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-ctx.Done():
	}
	var closing sync.WaitGroup
	for _, server := range servers {
		closing.Go(func() {
			if err := server.Shutdown(ctx); err != nil {
				f.log.Warn("requests were cut off", "err", errors.Join(err, server.Close()))
			}
		})
	}
	closing.Wait()
}

// connections counts the open connections of a listener by where they come from.
type connections struct {
	front *Front
	place place

	mu    sync.Mutex
	leave map[net.Conn]func() // gives back the slots of those that took one
}

func newConnections(f *Front, at place) *connections {
	return &connections{front: f, place: at, leave: map[net.Conn]func(){}}
}

// changed is an http.Server's ConnState. It closes a connection that is one too many: nothing has been asked on it yet,
// so there is nothing to answer. The server then reports it as closed, like any other.
func (c *connections) changed(connection net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		from := connected(connection.RemoteAddr().String())
		if c.front.spares(from, c.place) {
			return
		}
		leave, err := c.front.relay.Connect(relay.Peer{Addr: from})
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
