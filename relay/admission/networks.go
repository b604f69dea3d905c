package admission

import (
	"fmt"
	"net/netip"
	"slices"
)

// A client that has an IPv6 address also has the other addresses of its /64, and often those of a /56 or a /48. So an
// IPv6 address counts for all three networks. A /56 or /48 may do more than a single /64, but less than all of its /64s
// together. An IPv4 address counts only for itself (PROTOCOL §5).

// widths are the prefix lengths by which IPv6 addresses are counted, the widest network first.
var widths = [...]struct {
	bits   int
	factor int // how many times the allowance of a single address the network has
}{{48, 16}, {56, 4}, {64, 1}}

// networks returns the networks for which a counts, the widest first. The last one is a's own /64, or an IPv4 address
// itself. The zero Addr counts for one network, which all unknown clients share. The result is stored in buf.
func networks(a netip.Addr, buf *[len(widths)]netip.Prefix) []netip.Prefix {
	a = a.Unmap().WithZone("")
	if !a.Is6() {
		buf[0] = netip.PrefixFrom(a, a.BitLen()) // invalid for the zero Addr, but equal to itself
		return buf[:1]
	}
	for i, w := range widths {
		buf[i] = netip.PrefixFrom(a, w.bits).Masked()
	}
	return buf[:]
}

// network returns the last of networks. It has the allowance of a single address.
func network(a netip.Addr) netip.Prefix {
	var buf [len(widths)]netip.Prefix
	all := networks(a, &buf)
	return all[len(all)-1]
}

// siteNetwork returns the first of networks: the /48 of an IPv6 address, or an IPv4 address itself. Where clients take
// turns by siteNetwork, using many addresses of a /48 gains nothing.
func siteNetwork(a netip.Addr) netip.Prefix {
	var buf [len(widths)]netip.Prefix
	return networks(a, &buf)[0]
}

// networkFactor returns how many times the allowance of a single address n has.
func networkFactor(n netip.Prefix) int {
	for _, w := range widths {
		if n.Addr().Is6() && n.Bits() == w.bits {
			return w.factor
		}
	}
	return 1
}

// describeNetwork returns a description of n for refusals.
func describeNetwork(n netip.Prefix) string {
	if networkFactor(n) == 1 {
		return "this address"
	}
	return fmt.Sprintf("the network of this address (its /%d)", n.Bits())
}

// isWithin reports whether an address is in one of the networks.
func isWithin(a netip.Addr, networks []netip.Prefix) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}
