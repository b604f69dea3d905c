package admission

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

// TestTurnsOfNetworks checks that the addresses of one IPv6 /48 share the slots of one source, that other addresses have
// slots of their own, and that local jobs may use all slots.
func TestTurnsOfNetworks(t *testing.T) {
	of := func(address string) Source { return Peer{Addr: netip.MustParseAddr(address)}.Source() }
	local := Peer{Local: true}.Source()
	queue := NewTurns(6, 1)
	over, end := context.WithCancel(t.Context())
	end() // a job that may not start at once gives up
	for _, c := range []struct {
		source Source
		starts bool
	}{
		{of("2001:db8::1"), true}, {of("2001:db8:0:ffff::2"), false}, {of("2001:db8:1::1"), true},
		{of("192.0.2.1"), true}, {of("192.0.2.1"), false}, {of("192.0.2.2"), true},
		{local, true}, {local, true}, {local, false},
	} {
		if err := queue.Acquire(over, c.source); (err == nil) != c.starts || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%v: %v, want a slot: %t", c.source, err, c.starts)
		}
	}
}
