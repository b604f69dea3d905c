package gateway_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

func newKey(t *testing.T) didkey.Key {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newCore returns the Core of a relay, with a new key of the operator.
func newCore(t *testing.T, r *relay.Relay, key didkey.Key) *gateway.Core {
	t.Helper()
	c, err := gateway.NewCore(t.Context(), gateway.CoreOptions{Relay: r, Key: key,
		Operator: gateway.NewKey(gateway.Operator), Build: "v1.2.3", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// next returns the next number of a counter.
func next(t *testing.T, r *relay.Relay, counter string) (n int64) {
	t.Helper()
	update(t, r, func(tx relay.ExtTx) (err error) {
		n, err = gateway.Next(tx, counter)
		return err
	})
	return n
}

func TestCoreOptions(t *testing.T) {
	r, _ := startRelay(t)
	c := newCore(t, r, newKey(t))
	if c.Outgoing.Origin != origin || c.Outgoing.UserAgent != "agora/v1.2.3 (+https://relay.example)" {
		t.Errorf("requests to other servers: %+v", c.Outgoing)
	}
	c, err := gateway.NewCore(t.Context(), gateway.CoreOptions{Relay: r, Key: c.Key,
		Operator: gateway.NewKey(gateway.Operator), Build: "(devel)"})
	if err != nil || c.Outgoing.UserAgent != "agora/devel (+https://relay.example)" {
		t.Errorf("a development build: %+v, %v", c, err)
	}
	for _, operator := range []string{"", gateway.NewKey(gateway.Principal), gateway.NewKey(gateway.Operator) + "\n"} {
		if _, err := gateway.NewCore(t.Context(), gateway.CoreOptions{Relay: r, Key: newKey(t), Operator: operator}); err == nil {
			t.Errorf("the operator's key %q is taken", operator)
		}
	}
}

// TestOperatorKey checks that only the present key of the operator is known.
func TestOperatorKey(t *testing.T) {
	r, _ := startRelay(t)
	key, one, two := newKey(t), gateway.NewKey(gateway.Operator), gateway.NewKey(gateway.Operator)
	for _, operator := range []string{one, one, two} {
		if _, err := gateway.NewCore(t.Context(), gateway.CoreOptions{Relay: r, Key: key, Operator: operator}); err != nil {
			t.Fatal(err)
		}
		if h, found := findKey(t, r, operator, time.Now()); !found || h != (gateway.Holder{Kind: gateway.Operator}) {
			t.Errorf("the present key: %+v, %t", h, found)
		}
	}
	if _, found := findKey(t, r, one, time.Now()); found {
		t.Error("an earlier key is known")
	}
}

// TestAnotherGatewayKey checks G-31: a database that was used with one gateway key is refused with another one, and the
// refusal changes nothing.
func TestAnotherGatewayKey(t *testing.T) {
	r, _ := startRelay(t)
	recorded := func() (did didkey.DID) {
		err := r.View(t.Context(), local, func(q relay.Querier) (err error) {
			did, err = gateway.RecordedDID(q)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return did
	}
	if did := recorded(); did != "" {
		t.Errorf("an unused database has the gateway key of %s", did)
	}
	key, other, operator := newKey(t), newKey(t), gateway.NewKey(gateway.Operator)
	newCore(t, r, key)
	_, err := gateway.NewCore(t.Context(), gateway.CoreOptions{Relay: r, Key: other, Operator: operator})
	if err == nil || !strings.Contains(err.Error(), string(key.DID())) || !strings.Contains(err.Error(), "gateway.key") {
		t.Errorf("with another key: %v", err)
	}
	if _, found := findKey(t, r, operator, time.Now()); found {
		t.Error("the refused start has stored its operator's key")
	}
	newCore(t, r, key)
	if did := recorded(); did != key.DID() {
		t.Errorf("%s is recorded, want %s", did, key.DID())
	}
}

// TestCounters checks G-30: counters go on after a restart, and skip numbers in a restored backup. So no number that
// the original gave after the backup is given again.
func TestCounters(t *testing.T) {
	r, path := startRelay(t)
	key := newKey(t)
	newCore(t, r, key)
	for want := int64(1); want <= 3; want++ {
		if n := next(t, r, "hub_message"); n != want {
			t.Errorf("the number is %d, want %d", n, want)
		}
	}
	if n := next(t, r, "other"); n != 1 {
		t.Errorf("the first number of another counter is %d", n)
	}
	newCore(t, r, key)
	if n := next(t, r, "hub_message"); n != 4 {
		t.Errorf("after a restart, the number is %d, want 4", n)
	}
	copied := filepath.Join(t.TempDir(), "agora.db")
	if _, err := sqlite.Backup(t.Context(), path, copied, func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	restored := startRelayOver(t, copied)
	for range 2 { // the second start skips nothing
		newCore(t, restored, key)
	}
	if n := next(t, restored, "hub_message"); n != 1_000_005 {
		t.Errorf("in the backup, the number is %d, want 1000005", n)
	}
	if n := next(t, restored, "other"); n != 1_000_002 {
		t.Errorf("in the backup, the number of the other counter is %d, want 1000002", n)
	}
	if n := next(t, restored, "new"); n != 1 {
		t.Errorf("the first number of a new counter is %d", n)
	}
}

// TestRunSweeps checks that Run removes expired keys once a minute, many of them too, and writes nothing when there is
// nothing to remove.
func TestRunSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := startRelay(t)
		c := newCore(t, r, newKey(t))
		update(t, r, func(tx relay.ExtTx) error {
			for n := range 250 {
				h := gateway.Holder{Kind: gateway.Inbox, Owner: int64(n), Expires: time.Now().Add(30 * time.Second)}
				if n == 0 {
					h.Expires = time.Now().Add(time.Hour)
				}
				if err := gateway.AddKey(tx, gateway.NewKey(gateway.Inbox), h); err != nil {
					return err
				}
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		keys := func() (n int) {
			synctest.Wait()
			err := r.View(t.Context(), local, func(q relay.Querier) error {
				return q.Query(func(scan func(...any) error) error { return scan(&n) },
					"SELECT count(*) FROM gate_key WHERE kind = 'sk_'")
			})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		time.Sleep(59 * time.Second)
		if n := keys(); n != 250 {
			t.Errorf("%d keys after 59 s, want 250", n)
		}
		time.Sleep(2 * time.Second)
		if n := keys(); n != 1 {
			t.Errorf("%d keys after a minute, want 1", n)
		}
		cancel()
		<-ended
	})
}
