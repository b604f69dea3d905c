// Package hostname has the one form of host names in which they are compared. Clients map names before they look them up
// (IDNA, UTS #46): ｒelay.example is relay.example, and x。local is x.local. A comparison of names as they are written lets
// others pass with another spelling (G-38).
package hostname

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/idna"
)

// profile maps names as clients do. It takes names with _, which some servers have.
var profile = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(false))

// Map returns a host in the form in which hosts are compared: a name is mapped to ASCII, in lower case and without a final
// dot; an address has its usual form. An IPv6 address has no brackets. A name that no client would look up stays as it is
// written, in lower case.
func Map(host string) string {
	if mapped, err := profile.ToASCII(host); err == nil {
		host = mapped
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	return host
}

// Of returns the mapped host of a URL, without its port.
func Of(u *url.URL) string { return Map(u.Hostname()) }

// Origin returns the origin of a URL: scheme, mapped host, and the port unless it is the default port of http or https. It
// keeps the final dot of a name, because for browsers that is another origin.
func Origin(u *url.URL) string {
	host, port := Of(u), u.Port()
	if strings.HasSuffix(u.Hostname(), ".") {
		host += "."
	}
	switch {
	case port != "" && !(u.Scheme == "http" && port == "80") && !(u.Scheme == "https" && port == "443"):
		host = net.JoinHostPort(host, port)
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	return u.Scheme + "://" + host
}

// WithoutPort returns the mapped host in a Host header.
func WithoutPort(header string) string {
	if name, _, err := net.SplitHostPort(header); err == nil {
		return Map(name)
	}
	return Map(strings.Trim(header, "[]"))
}
