package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ListenAddress is HOST:PORT, or unix:PATH. HOST:PORT must not be empty: the relay would then listen on all interfaces
// and a random port.
type ListenAddress string

// UnixPrefix begins the address of a Unix socket.
const UnixPrefix = "unix:"

// maxSocketPath is the longest path of a Unix socket, in bytes, that all systems allow.
const maxSocketPath = 103

func (a *ListenAddress) UnmarshalText(text []byte) error {
	if path, isUnix := strings.CutPrefix(string(text), UnixPrefix); isUnix && path != "" {
		if len(path) > maxSocketPath {
			return fmt.Errorf("the path of a Unix socket may have at most %d bytes", maxSocketPath)
		}
		*a = ListenAddress(text)
		return nil
	}
	_, port, err := net.SplitHostPort(string(text))
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q: want HOST:PORT, such as 127.0.0.1:8789, or :8789 for every interface; or unix:PATH for "+
			"a Unix socket", text)
	}
	*a = ListenAddress(text)
	return nil
}

// IsLoopback reports whether only this machine can connect over TCP. It looks only at the text and does not resolve
// names.
func (a ListenAddress) IsLoopback() bool {
	host, _, err := net.SplitHostPort(string(a))
	ip := net.ParseIP(host)
	return !a.IsUnix() && err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// IsUnix reports whether the address is a Unix socket.
func (a ListenAddress) IsUnix() bool { return strings.HasPrefix(string(a), UnixPrefix) }

// Equals reports whether a and b are the same address, so that only one listener can have it. It looks only at the
// text. An empty address means that there is no listener. With port 0, each listener gets its own port.
func (a ListenAddress) Equals(b ListenAddress) bool {
	return a == b && a != "" && (a.IsUnix() || !strings.HasSuffix(string(a), ":0"))
}

// Listen listens on the address. flag is the flag that changes it, for errors.
func (a ListenAddress) Listen(flag string) (net.Listener, error) {
	var l net.Listener
	var err error
	if path, isUnix := strings.CutPrefix(string(a), UnixPrefix); isUnix {
		l, err = listenUnix(path)
	} else {
		l, err = net.Listen("tcp", string(a))
	}
	switch {
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another address with %s, or allow the program to use ports "+
			"below 1024, for example with AmbientCapabilities=CAP_NET_BIND_SERVICE in a systemd unit", a, err, flag)
	case a.IsUnix() && err != nil && !errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("cannot listen on %s: %w; check that its folder exists, or choose another path with %s", a, err, flag)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another address with %s, or stop the program that "+
			"listens there", a, err, flag)
	}
	return l, nil
}

// socketMode is the mode of a Unix socket: its owner and its group can connect.
const socketMode = 0o660

// listenUnix listens on a Unix socket. If a process that was killed has left the socket, listenUnix replaces it. It
// does not replace other files.
func listenUnix(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && isAbandoned(path) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if runtime.GOOS == "windows" {
		return l, nil
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// isAbandoned reports whether path is a Unix socket on which nobody listens.
func isAbandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close() // it was opened only to see whether somebody listens
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
