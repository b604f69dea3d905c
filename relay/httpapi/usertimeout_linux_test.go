package httpapi_test

import (
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/agora-relay/agora/relay/httpapi"
)

// keepingListener keeps the connections that it has accepted.
type keepingListener struct {
	net.Listener
	mu       sync.Mutex
	accepted []net.Conn
}

func (l *keepingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted = append(l.accepted, c)
	return c, err
}

// TestUserTimeout checks that the kernel closes the connection of a client that acknowledges nothing for 30 seconds.
func TestUserTimeout(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &keepingListener{Listener: tcp}
	runFront(t, newFront(t, unlimited(t), httpapi.Options{Log: quiet}), httpapi.Listener{Listener: l})
	c, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !served(t, c) {
		t.Fatal("the connection was closed")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	raw, err := l.accepted[0].(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const tcpUserTimeout = 18
	var ms int
	var failed error
	if err := raw.Control(func(fd uintptr) {
		ms, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout)
	}); err != nil || failed != nil || ms != 30_000 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms, want 30000: %v %v", ms, err, failed)
	}
}
