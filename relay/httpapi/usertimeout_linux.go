package httpapi

import (
	"net"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of <linux/tcp.h>, which package syscall does not have.
const tcpUserTimeout = 18

// limitUnacknowledged lets the kernel close a TCP connection when the client has not acknowledged sent data for
// writeTimeout (RFC 5482). A write deadline does not detect that a client's network has vanished: a write succeeds as
// soon as the kernel has buffered the data.
func limitUnacknowledged(c net.Conn) error {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(writeTimeout.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
