package gateway

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/agora-relay/agora/internal/netaddr"
)

// SweepKeys removes up to limit keys that have expired.
var SweepKeys = sweepKeys

// Followed returns how many things are followed.
func (n *News) Followed() int { return len(n.followed) }

// SetTimeouts makes every step of a call take at most d.
func (o *Outgoing) SetTimeouts(d time.Duration) { o.timeouts = callTimeouts{d, d, d, d} }

// SetInterfaces makes the machine have these addresses until the test ends.
func SetInterfaces(t interface{ Cleanup(func()) }, networks ...string) {
	netaddr.InterfaceAddrs = func() (all []net.Addr, err error) {
		for _, text := range networks {
			ip, network, err := net.ParseCIDR(text)
			if err != nil {
				return nil, err
			}
			all = append(all, &net.IPNet{IP: ip, Mask: network.Mask})
		}
		return all, nil
	}
	t.Cleanup(func() { netaddr.InterfaceAddrs = net.InterfaceAddrs })
}

// Request is a call and its URL.
type Request struct {
	URL, ID string
	Body    []byte
	Header  http.Header
	Wait    time.Duration
}

// Post makes a call as an outbox does: it waits for a slot of the URL's host, and sends the request.
func (o *Outgoing) Post(ctx context.Context, r Request) (Response, error) {
	s, _, err := o.reserve(ctx, r.URL)
	if err != nil {
		return Response{}, err
	}
	defer s.free()
	return s.post(ctx, Call{r.ID, r.Body, r.Header, r.Wait})
}

// SetTransport makes requests go to t instead of the network.
func (o *Outgoing) SetTransport(t http.RoundTripper) { o.client.Transport = t }
