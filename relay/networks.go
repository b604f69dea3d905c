package relay

import (
	"fmt"
	"net/netip"
)

// Whoever has an IPv6 address has the other addresses of its /64 too, and often those of a /56 or a /48. So an IPv6
// address is counted as part of all three. The wider ones may have more than a single /64 may, but not as much as all
// of theirs together. An IPv4 address is counted alone (PROTOCOL §5).

// widths are the prefixes by which IPv6 addresses are counted, the widest first.
var widths = [...]struct {
	bits  int
	share int // how many times the allowance of a single address they have together
}{{48, 16}, {56, 4}, {64, 1}}

// networks returns what a is counted as part of, the widest first and a's own /64 or a itself last. The zero Addr is
// part of one network, which all who are unknown share. The slice is in place.
func networks(a netip.Addr, place *[len(widths)]netip.Prefix) []netip.Prefix {
	a = a.Unmap().WithZone("")
	if !a.Is6() {
		place[0] = netip.PrefixFrom(a, a.BitLen()) // invalid for the zero Addr, and equal to itself
		return place[:1]
	}
	for i, w := range widths {
		place[i] = netip.PrefixFrom(a, w.bits).Masked()
	}
	return place[:]
}

// network returns the last of networks, which has the allowance of a single address.
func network(a netip.Addr) netip.Prefix {
	var place [len(widths)]netip.Prefix
	all := networks(a, &place)
	return all[len(all)-1]
}

// site returns the first of networks. Who takes turns by it gains nothing by coming from many addresses of a /48.
func site(a netip.Addr) netip.Prefix {
	var place [len(widths)]netip.Prefix
	return networks(a, &place)[0]
}

// share returns how many times the allowance of a single address n has.
func share(n netip.Prefix) int {
	for _, w := range widths {
		if n.Addr().Is6() && n.Bits() == w.bits {
			return w.share
		}
	}
	return 1
}

// named returns n in the words of a refusal.
func named(n netip.Prefix) string {
	if share(n) == 1 {
		return "this address"
	}
	return fmt.Sprintf("the network of this address (its /%d)", n.Bits())
}
