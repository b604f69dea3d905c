package admin

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// withShortPath calls f with a path of the same file that fits into the address of a socket. A long path is replaced by
// one that begins at an open folder.
func withShortPath(path string, f func(short string) error) error {
	if len(path) <= maxSocketPath {
		return f(path)
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close() // it was only read
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)))
}

// userOf returns the user of the process at the other end. known is false if the system does not say it.
func userOf(c *net.UnixConn) (uid int, known bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if known = err == nil; known {
			uid = int(peer.Uid)
		}
	})
	return uid, known && err == nil
}

// isOwn reports whether the other end belongs to the user of this process or to root. The mode of the socket says the
// same. This also holds if the mode was changed.
func isOwn(c *net.UnixConn) bool {
	uid, known := userOf(c)
	return known && mayGovern(uid, os.Geteuid())
}

// mayGovern reports whether a user may govern a relay that runs as the user self: it is that user, or root.
func mayGovern(user, self int) bool { return user == 0 || user == self }
