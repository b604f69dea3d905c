package gateway_test

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/store/storetest/engine"
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

// TestCounters checks G-30: counters continue after a restart, and skip numbers in a restored backup. So no number that
// the original gave after the backup is given again.
func TestCounters(t *testing.T) {
	engine.OnlySQLite(t, "it copies a file")
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
	restored := startRelayOver(t, copied, time.Now)
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

// TestRunSweeps checks that Run removes expired keys and answers once a minute, many of them too, and writes nothing
// when there is nothing to remove.
func TestRunSweeps(t *testing.T) {
	racing.Skip(t, "one thing after another")
	engine.OnlySQLite(t, "it reads the last number from a file")
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "agora.db")
		var ahead atomic.Int64 // how far the relay's clock is ahead of the bubble's
		r := startRelayOver(t, path, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
		c := newCore(t, r, newKey(t))
		answers := gateway.NewAnswers(c)
		update(t, r, func(tx relay.ExtTx) error {
			for n := range 250 {
				if err := answers.Add(tx, repeat("1", strconv.Itoa(n)), 1); err != nil {
					return err
				}
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
		rows := func(table string) (n int) {
			synctest.Wait()
			err := r.View(t.Context(), local, func(q relay.Querier) error {
				return q.Query(func(scan func(...any) error) error { return scan(&n) }, "SELECT count(*) FROM "+table)
			})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		time.Sleep(59 * time.Second)
		if n := rows("gate_key WHERE kind = 'sk_'"); n != 250 {
			t.Errorf("%d keys after 59 s, want 250", n)
		}
		time.Sleep(2 * time.Second)
		if n := rows("gate_key WHERE kind = 'sk_'"); n != 1 {
			t.Errorf("%d keys after a minute, want 1", n)
		}
		number := lastNumber(t, path)
		time.Sleep(30 * time.Minute)
		if now := lastNumber(t, path); now != number {
			t.Errorf("there was nothing to remove, and the last number grew from %d to %d", number, now)
		}
		ahead.Store(int64(23*time.Hour + 28*time.Minute - 10*time.Second))
		time.Sleep(time.Minute)
		if n := rows("gate_answer"); n != 250 {
			t.Errorf("%d answers before a day is over, want 250", n)
		}
		time.Sleep(time.Minute)
		if n := rows("gate_answer"); n != 0 {
			t.Errorf("%d answers after a day, want none", n)
		}
		cancel()
		<-ended
	})
}

// lastNumber returns the last number that the store has given. Each Update that writes takes one.
func lastNumber(t *testing.T, path string) relay.Seq {
	t.Helper()
	report, err := check.Database(t.Context(), path, check.Options{})
	if err != nil || report.Findings > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	return report.Seq
}
