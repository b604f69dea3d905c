package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
)

// listenAddress is HOST:PORT, or unix:PATH. HOST:PORT must not be empty: the relay would then listen on all interfaces
// and a random port.
type listenAddress string

const unixPrefix = "unix:"

// maxSocketPath is the longest path of a Unix socket, in bytes, that all systems allow.
const maxSocketPath = 103

func (a *listenAddress) UnmarshalText(text []byte) error {
	if path, isUnix := strings.CutPrefix(string(text), unixPrefix); isUnix && path != "" {
		if len(path) > maxSocketPath {
			return fmt.Errorf("the path of a Unix socket may have at most %d bytes", maxSocketPath)
		}
		*a = listenAddress(text)
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
	*a = listenAddress(text)
	return nil
}

// isLoopback reports whether only this machine can connect over TCP. It looks only at the text and does not resolve
// names.
func (a listenAddress) isLoopback() bool {
	host, _, err := net.SplitHostPort(string(a))
	ip := net.ParseIP(host)
	return !a.isUnix() && err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

func (a listenAddress) isUnix() bool { return strings.HasPrefix(string(a), unixPrefix) }

// equals reports whether two listeners cannot have the addresses a and b, because these are equal. It looks only at the
// text. An empty address means that there is no listener. With port 0, each listener gets its own port.
func (a listenAddress) equals(b listenAddress) bool {
	return a == b && a != "" && (a.isUnix() || !strings.HasSuffix(string(a), ":0"))
}

// listen listens on the address. flag is the flag that changes it, for errors.
func (a listenAddress) listen(flag string) (net.Listener, error) {
	var l net.Listener
	var err error
	if path, isUnix := strings.CutPrefix(string(a), unixPrefix); isUnix {
		l, err = listenUnix(path)
	} else {
		l, err = net.Listen("tcp", string(a))
	}
	switch {
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another address with %s, or allow the program to use ports "+
			"below 1024, for example with AmbientCapabilities=CAP_NET_BIND_SERVICE in a systemd unit", a, err, flag)
	case a.isUnix() && err != nil && !errors.Is(err, syscall.EADDRINUSE):
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

// Names of the sockets that systemd may pass for another purpose than that of --addr.
const httpSocket, metricsSocket = "http", "metrics"

// passesSocket reports whether systemd has passed a socket with this name.
func passesSocket(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("LISTEN_FDNAMES"), ":"), name)
}

// passedSockets returns how many files systemd has passed to this process.
func passedSockets() int {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return 0
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil {
		return 0
	}
	return n
}

// sockets are the listeners of serve.
type sockets struct {
	main          []net.Listener
	http, metrics net.Listener // nil: there is none
}

// listen opens the listeners. Sockets that systemd has opened replace those of the flags: the sockets named http and
// metrics those of --http-addr and --metrics-addr, and all others that of --addr.
func (c *serveCmd) listen() (s sockets, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	count := passedSockets()
	passed, err := activation.ListenersWithNames()
	if err != nil {
		return s, fmt.Errorf("the sockets that systemd has passed: %w", err)
	}
	for name, listeners := range passed {
		for _, l := range listeners {
			count--
			switch {
			case name == httpSocket && !c.TLS.isOn():
				return s, fmt.Errorf("systemd has passed a socket named %s, which is for redirects to HTTPS, but the relay has no "+
					"TLS; give --domain, or --tls-cert and --tls-key", name)
			case name == httpSocket && s.http == nil:
				s.http = l
			case name == metricsSocket && s.metrics == nil:
				s.metrics = l
			default:
				s.main = append(s.main, l)
			}
		}
	}
	if count > 0 {
		return s, fmt.Errorf("%d of the files that systemd has passed are not listening stream sockets", count)
	}
	if s.main == nil {
		l, err := c.Addr.listen("--addr")
		if err != nil {
			return s, err
		}
		s.main = []net.Listener{l}
	}
	if s.http == nil && c.TLS.HTTPAddr.isOn() {
		if s.http, err = c.TLS.HTTPAddr.listen("--http-addr"); err != nil {
			return s, err
		}
	}
	if s.metrics == nil && c.Observe.MetricsAddr != "" {
		if s.metrics, err = c.Observe.MetricsAddr.listen("--metrics-addr"); err != nil {
			return s, err
		}
	}
	return s, nil
}

// all returns the listeners that are open.
func (s sockets) all() (all []net.Listener) {
	for _, l := range append(s.main[:len(s.main):len(s.main)], s.http, s.metrics) {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// close closes the listeners. It is for a relay that does not start to serve them.
func (s sockets) close() (err error) {
	for _, l := range s.all() {
		err = errors.Join(err, l.Close())
	}
	return err
}

// listenerURL returns the address of a listener for people, as a URL if it is one.
func listenerURL(at net.Addr, secured bool) string {
	switch {
	case at.Network() == "unix":
		return unixPrefix + at.String()
	case secured:
		return "https://" + at.String()
	}
	return "http://" + at.String()
}

// optionalAddress is a listenAddress, or off.
type optionalAddress string

func (a *optionalAddress) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		*a = "off"
		return nil
	}
	return (*listenAddress)(a).UnmarshalText(text)
}

func (a optionalAddress) isOn() bool { return a != "" && a != "off" }

func (a optionalAddress) listen(flag string) (net.Listener, error) {
	return listenAddress(a).listen(flag)
}
