package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/coreos/go-systemd/v22/activation"
)

// Names of sockets that systemd may pass. A socket with another name replaces --addr.
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

// listen opens the listeners. Sockets that systemd has opened replace the addresses in flags: a socket named http
// replaces --http-addr, one named metrics replaces --metrics-addr, and all others replace --addr.
func (c *Cmd) listen() (s sockets, err error) {
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
		l, err := c.Addr.Listen("--addr")
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
		if s.metrics, err = c.Observe.MetricsAddr.Listen("--metrics-addr"); err != nil {
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
		return cli.UnixPrefix + at.String()
	case secured:
		return "https://" + at.String()
	}
	return "http://" + at.String()
}

// optionalAddress is a cli.ListenAddress, or off.
type optionalAddress string

func (a *optionalAddress) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		*a = "off"
		return nil
	}
	return (*cli.ListenAddress)(a).UnmarshalText(text)
}

func (a optionalAddress) isOn() bool { return a != "" && a != "off" }

func (a optionalAddress) listen(flag string) (net.Listener, error) {
	return cli.ListenAddress(a).Listen(flag)
}
