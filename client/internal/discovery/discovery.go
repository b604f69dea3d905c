// Package discovery says which relays that somebody else has named a client may contact, and how many (RELAYS R-13).
package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/internal/netaddr"
)

// maxNewHosts is how many new hosts a Network contacts in an hour (RELAYS R-13).
const maxNewHosts = 16

// Hosts counts the new hosts that were contacted in the last hour. The zero value is ready. It is safe for concurrent
// use.
type Hosts struct {
	mu        sync.Mutex
	contacted []time.Time
}

// Count counts a new host, or returns an error if there were too many.
func (h *Hosts) Count(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.contacted = slices.DeleteFunc(h.contacted, func(at time.Time) bool { return now.Sub(at) >= time.Hour })
	if len(h.contacted) >= maxNewHosts {
		return fmt.Errorf("client: %d new relays were contacted in the last hour; no further one is contacted now",
			maxNewHosts)
	}
	h.contacted = append(h.contacted, now)
	return nil
}

// CheckOrigin checks the URL of a relay that somebody else has named. The address is checked when dialling.
func CheckOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("client: %q is not the https origin of a relay", wire.Shorten(origin))
	}
	return nil
}

// errInside is the error of a connection to an address that no stranger may name.
var errInside = errors.New("the address is not public, or its port is below 1024 and not 443")

// Transport returns a transport that connects only to public addresses, without a proxy. It checks the address that a
// name has when it connects.
func Transport() http.RoundTripper {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !netaddr.Public(to.Addr()) || to.Port() != 443 && to.Port() < 1024 {
			return errInside
		}
		return nil
	}}
	return &http.Transport{DialContext: dialer.DialContext, MaxResponseHeaderBytes: wire.MaxHeaders, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: time.Minute}
}
