package gatetest

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// PipeListener accepts connections that are in memory, so that a bubble of testing/synctest can have clients and
// servers. Clients connect with DialPipe to its address.
type PipeListener struct {
	addr   net.Addr
	remote netip.AddrPort // of the clients
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// pipes are the open PipeListeners.
var pipes struct {
	sync.Mutex
	byAddr map[string]*PipeListener
	last   int // port
}

// NewPipeListener returns a listener on 127.0.0.1, on a port that no real listener has. remote is the address that its
// clients seem to have; empty: 127.0.0.1:9.
func NewPipeListener(remote string) *PipeListener {
	pipes.Lock()
	defer pipes.Unlock()
	pipes.last = pipes.last%1000 + 1
	l := &PipeListener{addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: pipes.last}, conns: make(chan net.Conn),
		remote: netip.MustParseAddrPort(cmp.Or(remote, "127.0.0.1:9")), closed: make(chan struct{})}
	if pipes.byAddr == nil {
		pipes.byAddr = map[string]*PipeListener{}
	}
	pipes.byAddr[l.addr.String()] = l
	return l
}

// Addr implements net.Listener.
func (l *PipeListener) Addr() net.Addr { return l.addr }

// Close implements net.Listener.
func (l *PipeListener) Close() error {
	l.once.Do(func() {
		pipes.Lock()
		defer pipes.Unlock()
		delete(pipes.byAddr, l.addr.String())
		close(l.closed)
	})
	return nil
}

// Accept implements net.Listener.
func (l *PipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// pipeEnd is the server's end of a connection.
type pipeEnd struct {
	net.Conn
	local  net.Addr
	remote netip.AddrPort
}

// LocalAddr implements net.Conn.
func (p pipeEnd) LocalAddr() net.Addr { return p.local }

// RemoteAddr implements net.Conn.
func (p pipeEnd) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(p.remote) }

// DialPipe connects to a PipeListener. It has the form of DialContext of a net.Dialer.
func DialPipe(ctx context.Context, _, addr string) (net.Conn, error) {
	pipes.Lock()
	l := pipes.byAddr[addr]
	pipes.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- pipeEnd{theirs, l.addr, l.remote}:
		return ours, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
