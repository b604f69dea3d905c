package admission

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/racing"
)

// fakeClock is a clock that moves only when the test moves it.
type fakeClock struct{ at time.Time }

func (c *fakeClock) now() time.Time { return c.at }

func newFakeClock() *fakeClock { return &fakeClock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func v4(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
}

// TestBucketEvictionKeepsLimits compares buckets with buckets that never drop a key, under random use.
func TestBucketEvictionKeepsLimits(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := newFakeClock()
	evicting := newBuckets[int](Rate{PerSecond: 7, Burst: 10}, nil)
	var reference [20]*buckets[int] // with one key each, so that no bucket is dropped because of other keys
	for i := range reference {
		reference[i] = newBuckets[int](Rate{PerSecond: 7, Burst: 10}, nil)
		reference[i].refill = 1000 * time.Hour
	}
	refused := 0
	for range 50_000 {
		c.at = c.at.Add(time.Duration(random.ExpFloat64() * float64(20*time.Millisecond)))
		if random.IntN(500) == 0 {
			c.at = c.at.Add(time.Duration(random.IntN(4000)) * time.Millisecond)
		}
		k := random.IntN(len(reference)) * random.IntN(2) // the key 0 is used for half of the time
		got, _ := evicting.take(c.now, k)
		want, _ := reference[k].take(c.now, k)
		if got != want {
			t.Fatalf("key %d must wait %v; if no bucket were dropped, it would be %v", k, got, want)
		}
		if got > 0 {
			refused++
		}
	}
	if refused < 1000 {
		t.Errorf("only %d refusals in all", refused)
	}
	if n := len(evicting.fresh) + len(evicting.old); n > 2*len(reference) {
		t.Errorf("%d buckets", n)
	}
}

// TestBucketsAreBounded sends one request from each of more addresses than two generations hold. At the same time, one
// address sends many requests.
func TestBucketsAreBounded(t *testing.T) {
	racing.Skip(t, "one thing after another")
	c := newFakeClock()
	b := newBuckets[netip.Addr](Rate{PerSecond: 50, Burst: 100}, nil)
	greedy := netip.MustParseAddr("192.0.2.1")
	admitted, addresses := 0, 3*maxGeneration
	for i := range addresses {
		c.at = c.at.Add(time.Second / time.Duration(addresses)) // all of them within a second
		if wait, _ := b.take(c.now, v4(i)); wait != 0 {
			t.Fatalf("address %d must wait %v for its first request", i, wait)
		}
		if i%10 == 0 {
			if wait, _ := b.take(c.now, greedy); wait == 0 {
				admitted++
			}
		}
		if len(b.fresh) > maxGeneration || len(b.old) > maxGeneration {
			t.Fatalf("generations of %d and %d buckets", len(b.fresh), len(b.old))
		}
	}
	if admitted < 149 || admitted > 150 {
		t.Errorf("the greedy address was admitted %d times, want a burst of 100, and 50 a second", admitted)
	}
	c.at = c.at.Add(3 * time.Second)
	b.take(c.now, greedy)
	c.at = c.at.Add(3 * time.Second)
	b.take(c.now, greedy)
	if len(b.fresh)+len(b.old) > 2 {
		t.Errorf("%d and %d buckets are left when all but one are full again", len(b.fresh), len(b.old))
	}
}

// TestBucketsAfterClockSetBack checks that no key is refused until the clock has caught up.
func TestBucketsAfterClockSetBack(t *testing.T) {
	c := newFakeClock()
	b := newBuckets[int](Rate{PerSecond: 1, Burst: 2}, nil)
	for range 2 {
		b.take(c.now, 1)
	}
	c.at = c.at.Add(-time.Hour)
	for i, want := range []time.Duration{0, 0, time.Second} {
		if wait, _ := b.take(c.now, 1); wait != want {
			t.Errorf("request %d must wait %v, want %v", i+1, wait, want)
		}
	}
}

func TestNetwork(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", true},
		{"2001:db8:1:2::1", "2001:db8:1:3::1", false},
		{"fe80::1%eth0", "fe80::2%eth1", true},
		{"fe80::1%eth0", "fe80::1", true},
		{"::1", "127.0.0.1", false},
	} {
		if got := network(netip.MustParseAddr(c.a)) == network(netip.MustParseAddr(c.b)); got != c.same {
			t.Errorf("%s and %s count together: %v", c.a, c.b, got)
		}
	}
	if network(netip.Addr{}).Addr().IsValid() || network(netip.Addr{}) != (netip.Prefix{}) {
		t.Error("the network of the zero Addr is not the zero Prefix")
	}
	var buf [len(widths)]netip.Prefix
	for addr, want := range map[string]string{
		"192.0.2.1": "[192.0.2.1/32]", "::ffff:192.0.2.1": "[192.0.2.1/32]",
		"2001:db8:1:2ff:3::1":  "[2001:db8:1::/48 2001:db8:1:200::/56 2001:db8:1:2ff::/64]",
		"2001:db8:1:ffff::%e0": "[2001:db8:1::/48 2001:db8:1:ff00::/56 2001:db8:1:ffff::/64]",
	} {
		if got := fmt.Sprint(networks(netip.MustParseAddr(addr), &buf)); got != want {
			t.Errorf("%s is part of %s, want %s", addr, got, want)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	withPosts := func(rate Rate) *Gate {
		return New(Options{Limits: Limits{PostsPerAddress: rate}, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	}
	g, off := withPosts(Rate{PerSecond: 1e9, Burst: 1e9}), withPosts(Rate{PerSecond: Unlimited})
	bench := func(name string, g *Gate, peer func(int) Peer) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := g.Admit(peer(i), Posts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	bench("local", g, func(int) Peer { return Peer{Local: true} })
	bench("off", off, func(int) Peer { return Peer{Addr: v4(1)} })
	bench("one address", g, func(int) Peer { return Peer{Addr: v4(1)} })
	bench("one IPv6 network", g, func(int) Peer { return Peer{Addr: netip.IPv6LinkLocalAllNodes()} })
	bench("a thousand addresses", g, func(i int) Peer { return Peer{Addr: v4(i % 1000)} })
	bench("new addresses", g, func(i int) Peer { return Peer{Addr: v4(i)} })
	b.Run("refused", func(b *testing.B) {
		b.ReportAllocs()
		g := withPosts(Rate{PerSecond: 0.01, Burst: 1})
		for b.Loop() {
			_ = g.Admit(Peer{Addr: v4(1)}, Posts)
		}
	})
	b.Run("one address, parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := g.Admit(Peer{Addr: v4(1)}, Posts); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// TestBucketsRememberDebts checks that the debt of a key stays if the key is not used for some time.
func TestBucketsRememberDebts(t *testing.T) {
	c := newFakeClock()
	b := newBuckets[netip.Addr](Rate{PerSecond: 50, Burst: 100}, nil)
	greedy := v4(1)
	b.charge(c.now, 1100, greedy) // the tokens of 20 seconds, beyond the burst
	for range 19 {
		c.at = c.at.Add(time.Second)
		b.take(c.now, v4(2))
	}
	if wait, _ := b.take(c.now, greedy); wait < 900*time.Millisecond || wait > 1100*time.Millisecond {
		t.Errorf("after 19 seconds it must wait %v, want one second", wait)
	}
}

// TestBucketsReport checks that a report has the tokens taken since the last report, and that its size is bounded.
func TestBucketsReport(t *testing.T) {
	c := newFakeClock()
	b := newBuckets[int](Rate{PerSecond: 10, Burst: 10}, nil)
	b.take(c.now, 1)
	if got := b.report(); got != nil {
		t.Errorf("the first report has %v, want nothing", got)
	}
	b.take(c.now, 1, 2)
	b.charge(c.now, 5, 2)
	b.refund(c.now, 1)
	b.refund(c.now, 3)
	b.applyRemote(c.now, map[int]int{1: 7, 4: 8, 5: -2})
	if got := b.report(); !maps.Equal(got, map[int]int{1: 0, 2: 6, 3: -1}) {
		t.Errorf("reported %v", got)
	}
	if got := b.report(); len(got) != 0 {
		t.Errorf("reported twice: %v", got)
	}
	for k, want := range map[int]int{1: 2, 2: 4, 3: 10, 4: 2, 5: 10} { // the tokens that are left
		for n := range want + 1 {
			if wait, _ := b.take(c.now, k); (wait > 0) != (n == want) {
				t.Errorf("token %d of key %d, which has %d: must wait %v", n+1, k, want, wait)
			}
		}
	}
	for k := range 2 * MaxReported {
		b.take(c.now, k)
	}
	if got := b.report(); len(got) != MaxReported {
		t.Errorf("%d keys in a report", len(got))
	}
	off := newBuckets[int](Rate{PerSecond: Unlimited}, nil)
	off.take(c.now, 1)
	off.applyRemote(c.now, map[int]int{1: 1})
	off.report()
	off.take(c.now, 1)
	if len(off.report()) > 0 {
		t.Error("an unlimited Rate reports tokens")
	}
}

// TestBucketsChangeTheirRate changes the rate of a bucket that has been used. It keeps its tokens, up to the new size.
func TestBucketsChangeTheirRate(t *testing.T) {
	c := newFakeClock()
	b := newBuckets[int](Rate{PerSecond: 1, Burst: 10}, nil)
	taken := func() (n int) {
		for n < 1000 {
			if wait, _ := b.take(c.now, 1); wait > 0 {
				return n
			}
			n++
		}
		return n
	}
	for range 4 {
		b.take(c.now, 1)
	}
	b.setRate(c.now(), Rate{PerSecond: 2, Burst: 20})
	if n := taken(); n != 6 {
		t.Errorf("%d tokens after the bucket has grown, want the 6 that were left", n)
	}
	c.at = c.at.Add(5 * time.Second)
	if n := taken(); n != 10 {
		t.Errorf("%d tokens after 5 s at 2 a second, want 10", n)
	}
	c.at = c.at.Add(5 * time.Second)
	b.setRate(c.now(), Rate{PerSecond: 2, Burst: 3})
	if n := taken(); n != 3 {
		t.Errorf("%d tokens after the bucket has shrunk to 3", n)
	}
	b.setRate(c.now(), Rate{PerSecond: Unlimited})
	if n := taken(); n != 1000 {
		t.Errorf("%d tokens without a limit", n)
	}
	b.setRate(c.now(), Rate{PerSecond: 1, Burst: 2})
	if n := taken(); n != 2 {
		t.Errorf("%d tokens of a new bucket of 2", n)
	}
}
