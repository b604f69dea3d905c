package agentprobe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

// network is a network in memory. It works in a synctest bubble, so waiting takes no time.
type network struct {
	mu        sync.Mutex
	listeners map[string]*pipes
}

// pipes is a listener of a network.
type pipes struct {
	address string
	calls   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newNetwork() *network { return &network{listeners: map[string]*pipes{}} }

func (n *network) listen(address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &pipes{address: address, calls: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens at " + address)
	}
	near, far := net.Pipe()
	select {
	case l.calls <- far:
		return near, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// transport returns a new transport for this network.
func (n *network) transport() *http.Transport { return &http.Transport{DialContext: n.dial} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.calls:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr  { return l }
func (l *pipes) Network() string { return "pipe" }
func (l *pipes) String() string  { return l.address }
