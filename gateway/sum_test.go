package gateway_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
)

func TestSum(t *testing.T) {
	rows := [][]any{{}, {1}, {2}, {"1"}, {[]byte("1")}, {1, 2}, {2, 1}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {""}, {"", ""}}
	seen := map[int64]string{}
	for _, table := range []string{"one", "two"} {
		for _, row := range rows {
			sum, name := gateway.Sum(table, row...), fmt.Sprintf("%s %#v", table, row)
			if other, found := seen[sum]; found || sum != gateway.Sum(table, row...) {
				t.Errorf("%s has the sum of %s", name, other)
			}
			seen[sum] = name
		}
	}
	if gateway.Sum("one", 1) != gateway.Sum("one", int64(1)) {
		t.Error("an int and an int64 have different sums")
	}
	defer func() {
		if recover() == nil {
			t.Error("a float has a sum")
		}
	}()
	gateway.Sum("one", 1.5)
}

// TestCheckFindsEveryChange checks G-28 for the shared tables.
func TestCheckFindsEveryChange(t *testing.T) {
	t.Setenv(gatetest.Env, "") // only SQLite allows these changes
	r, _ := startRelay(t)
	core := newCore(t, r, newKey(t))
	answers, outbox := gateway.NewAnswers(core), gateway.NewOutbox(core, "hub", nil, nil)
	next(t, r, "hub_message")
	next(t, r, "other")
	update(t, r, func(tx relay.ExtTx) error {
		return errors.Join(
			gateway.AddKey(tx, gateway.NewKey(gateway.Inbox), gateway.Holder{Kind: gateway.Inbox, Owner: 1}),
			gateway.AddKey(tx, gateway.NewKey(gateway.HubAgent), gateway.Holder{Kind: gateway.HubAgent, Owner: 7}),
			gateway.LimitKeys(tx, gateway.HubAgent, 7, "rotate", time.Now().Add(time.Minute)),
			answers.Add(tx, repeat("1", "one"), 1), answers.Add(tx, repeat("1", "two"), 2),
			answers.Finish(tx, repeat("1", "two"), 200, []byte(`{}`)),
			outbox.Add(tx, 1, 2))
	})
	gatetest.Tamper(t, r, gateway.Extension)
}
