package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func originOf(address string) origin { return Peer{Addr: netip.MustParseAddr(address)}.origin() }

// An origin with many reads delays the read of another by one read.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		order := readAll(t, newTurns(1, 1), "a a a here here b b c neighbour")
		if want := "a0 here1 b2 c3 a4 here5 b6 neighbour7 a8"; order != want {
			t.Errorf("read at\n%s, want\n%s", order, want)
		}
	})
}

// A network has so many places at a time and no more, whoever else works. What is local may have all.
func TestANetworkHasSoManyPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			each          int
			readers, want string
		}{
			{1, "a a b here here", "a0 b0 here0 here0 a1"},
			{1, "here here here c", "c0 here0 here0 here0"},
			{1, "c neighbour a a a", "a0 c0 a1 neighbour1 a2"},
			{2, "a a a a b", "a0 a0 b0 a1 a1"},
			{2, "a a a b b b c", "a0 a0 b0 b0 a1 b1 c1"},
			{2, "here here here here a", "here0 here0 here0 here0 a1"},
		} {
			if order := readAll(t, newTurns(4, c.each), c.readers); order != c.want {
				t.Errorf("%s: read at %s, want %s", c.readers, order, c.want)
			}
		}
	})
}

// readAll has so many readers, named by their addresses, come one after the other at once, and each read for a second. It
// returns when each began.
func readAll(t *testing.T, turns *turns, readers string) string {
	t.Helper()
	origins := map[string]origin{"a": originOf("192.0.2.1"), "b": originOf("192.0.2.2"), "c": originOf("2001:db8::1"),
		"neighbour": originOf("2001:db8:0:ffff::2"), "here": Peer{Local: true}.origin()}
	began := time.Now()
	free := turns.free
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	for _, name := range strings.Fields(readers) {
		all.Go(func() {
			if err := turns.take(t.Context(), origins[name]); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, fmt.Sprintf("%s%.0f", name, time.Since(began).Seconds()))
			mu.Unlock()
			time.Sleep(time.Second)
			turns.leave(origins[name])
		})
		synctest.Wait()
	}
	all.Wait()
	if turns.free != free || len(turns.lines) != 0 || len(turns.next) != 0 {
		t.Errorf("left behind: %+v", turns)
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Or(cmp.Compare(a[len(a)-1], b[len(b)-1]), cmp.Compare(a, b)) })
	return strings.Join(order, " ")
}

// Who gives up leaves the line, and a turn that comes at that moment goes to the next.
func TestTurnsAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1, 1)
		a, b := originOf("192.0.2.1"), originOf("192.0.2.2")
		ctx, cancel := context.WithCancel(t.Context())
		if err := turns.take(ctx, a); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, s := range []origin{a, a, b} {
			all.Go(func() {
				if err := turns.take(ctx, s); !errors.Is(err, context.Canceled) {
					t.Errorf("a turn after leaving: %v", err)
				}
			})
			synctest.Wait()
		}
		got := false
		all.Go(func() {
			if err := turns.take(t.Context(), b); err != nil {
				t.Error(err)
			}
			got = true
		})
		synctest.Wait()
		cancel()
		turns.giveUp(a, make(chan struct{})) // as if its turn had come just then
		all.Wait()
		if !got {
			t.Error("the last of them got no turn")
		}
		turns.leave(b)
		if turns.free != 1 || len(turns.lines) != 0 || len(turns.next) != 0 {
			t.Errorf("left behind: %+v", turns)
		}
		if err := turns.take(ctx, a); err != nil {
			t.Errorf("a free turn: %v", err)
		}
	})
}
