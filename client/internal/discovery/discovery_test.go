package discovery

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/netaddr"
)

// TestDialer checks that a client that discovers relays connects to no address inside of its network, whatever name or
// redirect leads there (RELAYS R-13).
func TestDialer(t *testing.T) {
	netaddr.InterfaceAddrs = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("198.51.99.7"), Mask: net.CIDRMask(24, 32)}}, nil
	}
	defer func() { netaddr.InterfaceAddrs = net.InterfaceAddrs }()
	transport := Transport()
	inner := "0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.0.1 " +
		"169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1 192.168.255.255 198.18.0.1 " +
		"198.19.255.255 198.51.100.1 198.51.99.7 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 " +
		"::ffff:127.0.0.1 ::ffff:10.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 100::1 2001::1 2001:db8::1 2002:7f00:1::1 3fff::1 " +
		"fc00::1 fd12:3456::1 fe80::1 fec0::1 ff02::1"
	for address := range strings.FieldsSeq(inner) {
		for _, port := range []string{"443", "8443"} {
			refusedInside(t, transport, net.JoinHostPort(address, port))
		}
	}
	for _, port := range []string{"22", "80", "1023"} {
		refusedInside(t, transport, net.JoinHostPort("9.9.9.9", port))
	}
	refusedInside(t, transport, "localhost:8443") // a name is checked by its address
	for _, origin := range []string{"http://relay.example", "https://relay.example/x", "https://me@relay.example",
		"relay.example", ""} {
		if CheckOrigin(origin) == nil {
			t.Errorf("%q counts as the origin of a relay that may be discovered", origin)
		}
	}
	if err := CheckOrigin("https://relay.example:8443"); err != nil {
		t.Error(err)
	}
}

func refusedInside(t *testing.T, transport http.RoundTripper, host string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err == nil {
		err = response.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), errInside.Error()) {
		t.Errorf("%s: %v", host, err)
	}
}

// TestNewHostsAreCounted: at most 16 new hosts an hour (RELAYS R-13).
func TestNewHostsAreCounted(t *testing.T) {
	h, now := &Hosts{}, time.Now()
	for i := range maxNewHosts {
		if err := h.Count(now); err != nil {
			t.Fatal(i, err)
		}
	}
	if h.Count(now.Add(time.Hour-1)) == nil {
		t.Error("a further host within the hour is contacted")
	}
	if err := h.Count(now.Add(time.Hour)); err != nil {
		t.Error(err)
	}
}
