// Package netaddr says which addresses a program may connect to if a stranger has named them. A stranger could make it
// call addresses that only this program can reach, such as those of its network. It also compares the address that a
// server claims to have with the one that its client uses.
package netaddr

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// special are the networks for special uses. IPv6 addresses outside of 2000::/3 are excluded too (IANA special-purpose
// address registries).
var special = func() (all []netip.Prefix) {
	for text := range strings.FieldsSeq("2001::/23 2001:db8::/32 2002::/16 3fff::/20 " +
		"0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 " +
		"192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4") {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

var globalUnicast = netip.MustParsePrefix("2000::/3")

// Public reports whether an address is one of the public internet, and not of this machine. A mapped IPv4 address
// counts as that IPv4 address.
func Public(addr netip.Addr) bool {
	addr = addr.Unmap()
	contains := func(network netip.Prefix) bool { return network.Contains(addr) }
	return addr.Zone() == "" && (addr.Is4() || globalUnicast.Contains(addr)) && !slices.ContainsFunc(special, contains) &&
		!isOwn(addr)
}

// InterfaceAddrs returns the addresses of this machine's interfaces. Tests replace it.
var InterfaceAddrs = net.InterfaceAddrs

// isOwn reports whether an address belongs to an interface of this machine. If that cannot be found out, it reports
// true.
func isOwn(addr netip.Addr) bool {
	own, err := InterfaceAddrs()
	return err != nil || slices.ContainsFunc(own, func(a net.Addr) bool {
		network, err := netip.ParsePrefix(a.String())
		return err != nil || network.Addr().Unmap() == addr
	})
}
