package netaddr

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// OtherLoopback reports whether base has a loopback host and claimed names another loopback address with the same scheme
// and port. It returns base at that address. claimed must have an IP address: a name such as localhost may stand for two
// addresses (127.0.0.1 and ::1), on which two different processes may listen.
func OtherLoopback(claimed, base string) (there string, ok bool) {
	a, b, ok := hosts(claimed, base)
	ip, err := netip.ParseAddr(a)
	if !ok || err != nil || !ip.IsLoopback() || !loopback(b) || a == b {
		return "", false
	}
	u, err := url.Parse(base)
	if err != nil {
		return "", false
	}
	return claimed + u.EscapedPath(), true
}

// SameOrigin reports whether the origin that a server claims is the origin of the URL that its client uses.
func SameOrigin(claimed, usedURL string) bool {
	a, b, ok := hosts(claimed, usedURL)
	return ok && a != "" && strings.EqualFold(a, b)
}

// hosts returns the host of the origin that a server claims (a) and of the URL that its client uses (b). ok is false if
// the schemes or ports differ, or if claimed has more than scheme, host and port.
func hosts(claimed, usedURL string) (a, b string, ok bool) {
	claimedURL, err := url.Parse(claimed)
	parsedURL, err2 := url.Parse(usedURL)
	if err != nil || err2 != nil {
		return "", "", false
	}
	isOrigin := claimedURL.Path == "" && claimedURL.RawQuery == "" && claimedURL.Fragment == "" && claimedURL.User == nil
	return claimedURL.Hostname(), parsedURL.Hostname(),
		isOrigin && claimedURL.Scheme == parsedURL.Scheme && port(claimedURL) == port(parsedURL)
}

// port returns the port of u, or the default port of its scheme.
func port(u *url.URL) string {
	_, number, err := net.SplitHostPort(u.Host)
	switch {
	case err == nil:
		return number
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// loopback reports whether host is "localhost" or a loopback address.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}
