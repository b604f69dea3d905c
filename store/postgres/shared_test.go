//go:build postgres

package postgres

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// TestNoncesAreShared checks that of many uses of a signed read, on two nodes, one is accepted. After the memory was
// lost, a read that may have been used is refused.
func TestNoncesAreShared(t *testing.T) {
	place := t.TempDir()
	nodes := []relay.Nonces{open(t, place, Options{}).Nonces(), open(t, place, Options{}).Nonces()}
	now := time.Now()
	must(t, nodes[0].Use(t.Context(), [16]byte{1}, now, now))
	now = now.Add(time.Second)
	for n := range byte(10) {
		var accepted atomic.Int64
		var uses sync.WaitGroup
		for i := range 8 {
			uses.Go(func() {
				switch err := nodes[i%2].Use(t.Context(), [16]byte{2, n}, now, now); {
				case err == nil:
					accepted.Add(1)
				case !errors.Is(err, relay.ErrReadUsed):
					t.Error(err)
				}
			})
		}
		uses.Wait()
		if accepted.Load() != 1 {
			t.Fatalf("%d uses of one read were accepted", accepted.Load())
		}
	}
	direct(t, place, func(conn *pgx.Conn) error { // as a crash of the server does
		_, err := conn.Exec(t.Context(), "TRUNCATE nonce")
		return err
	})
	later := now.Add(10 * time.Second)
	if err := nodes[0].Use(t.Context(), [16]byte{2, 1}, now, later); !errors.Is(err, relay.ErrReadTime) {
		t.Errorf("a read from before the loss: %v", err)
	}
	must(t, nodes[0].Use(t.Context(), [16]byte{3}, later, later))
}

// TestNoncesAreForgotten checks that the sweep removes ids that no node accepts any more.
func TestNoncesAreForgotten(t *testing.T) {
	place := t.TempDir()
	s := open(t, place, Options{})
	now := time.Now()
	must(t, s.Nonces().Use(t.Context(), [16]byte{1}, now, now))
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{nonceLifetime - time.Second, 2}, {nonceLifetime, 1}} {
		must(t, s.Expire(t.Context(), now.Add(c.after), nil))
		var n int
		direct(t, place, func(conn *pgx.Conn) error {
			return conn.QueryRow(t.Context(), "SELECT count(*) FROM nonce").Scan(&n)
		})
		if n != c.want { // one row shows when the table was last empty
			t.Errorf("after %v there are %d rows, want %d", c.after, n, c.want)
		}
	}
}

// TestReports checks that each node gets the reports of the others once, and not those from before its start.
func TestReports(t *testing.T) {
	place := t.TempDir()
	exchange := func(s relay.Siblings, mine relay.Report) relay.Report {
		t.Helper()
		others, err := s.Exchange(t.Context(), mine)
		must(t, err)
		return others
	}
	of := func(n int) relay.Report {
		return relay.Report{Report: admission.Report{Posts: map[netip.Prefix]int{netip.MustParsePrefix("192.0.2.0/24"): n}},
			Seen: map[didkey.DID]time.Time{key(1).DID(): time.Unix(int64(n), 0)}}
	}
	sum := func(r relay.Report) (n int) {
		for _, v := range r.Posts {
			n += v
		}
		return n
	}
	a := open(t, place, Options{}).Siblings()
	exchange(a, of(1))
	b := open(t, place, Options{}).Siblings()
	if got := sum(exchange(b, relay.Report{})); got != 0 {
		t.Errorf("a new node gets %d posts from before its start", got)
	}
	exchange(a, of(2))
	exchange(a, of(4))
	got := exchange(b, of(8))
	if sum(got) != 6 || !got.Seen[key(1).DID()].Equal(time.Unix(4, 0)) {
		t.Errorf("the node gets %+v, want 6 posts", got)
	}
	if got := sum(exchange(b, relay.Report{})); got != 0 {
		t.Errorf("the node gets %d posts again", got)
	}
	if got := sum(exchange(a, relay.Report{})); got != 8 {
		t.Errorf("the first node gets %d posts, want 8", got)
	}
}
