package postgres

import (
	"strings"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7), in milliseconds.
const tcpUserTimeout, unansweredTime = 0x12, 6000

// limitUnanswered makes a TCP connection fail when sent data is not acknowledged for six seconds. By default that takes
// a quarter of an hour.
func limitUnanswered(network, _ string, c syscall.RawConn) (err error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	failed := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, unansweredTime)
	})
	if failed != nil {
		return failed
	}
	return err
}
