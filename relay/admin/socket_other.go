//go:build !linux

package admin

import (
	"fmt"
	"net"
)

// withShortPath calls f with the path, unless it is too long for the address of a socket.
func withShortPath(path string, f func(short string) error) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("%s has more than %d bytes, and this system cannot make a socket there; use a shorter path for the "+
			"data folder", path, maxSocketPath)
	}
	return f(path)
}

// isOwn relies on the mode of the socket.
func isOwn(*net.UnixConn) bool { return true }

// userOf returns known = false: this system is not asked.
func userOf(*net.UnixConn) (uid int, known bool) { return 0, false }
