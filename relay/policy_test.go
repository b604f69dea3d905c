package relay_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/thread"
)

// TestPolicyIsTheStores checks that the relay uses the policy with which its store was opened.
func TestPolicyIsTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		given := relay.Policy{
			Window: replay.Window{Skew: time.Minute, Memory: 20 * time.Minute, MaxTTL: time.Hour},
			Rules:  thread.Rules{PendingTimeout: time.Minute, ActiveTimeout: 2 * time.Minute, MaxOffers: 3},
			Inbox:  relay.Quota{Events: 7, Bytes: 1 << 20}, ThreadRetention: time.Minute,
		}
		r := startWith(t, given, relay.Config{})
		if !reflect.DeepEqual(r.Policy(), given) {
			t.Errorf("the relay has %+v; want %+v, which the store was opened with", r.Policy(), given)
		}
		late := sign(t, key(t), envelope.Draft{Payload: request, TS: time.Now().Add(-2 * time.Minute)})
		_, err := r.Post(t.Context(), local, late.Canonical())
		wantCode(t, err, envelope.CodeStaleTimestamp)
		if r := start(t, relay.Config{}); !reflect.DeepEqual(r.Policy(), (relay.Policy{}).WithDefaults()) {
			t.Errorf("by default: %+v", r.Policy())
		}
	})
}

// policyStore is a store with a given policy.
type policyStore struct {
	stubStore
	policy relay.Policy
}

func (d policyStore) Policy() relay.Policy { return d.policy }

func (d policyStore) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }

// TestPolicyIsValidated checks that neither a relay nor a store starts with a policy that breaks a rule about time.
func TestPolicyIsValidated(t *testing.T) {
	for name, c := range map[string]struct {
		policy relay.Policy
		want   string // in the error; empty: no error
	}{
		"the zero value":    {relay.Policy{}, ""},
		"unlimited inboxes": {relay.Policy{Inbox: relay.Quota{Events: -1, Bytes: -1}}, ""},
		"too short a memory": {relay.Policy{Window: replay.Window{Memory: 20 * time.Minute}},
			"policy: window: Memory is 20m0s"},
		"a negative memory": {relay.Policy{Window: replay.Window{Memory: -1}}, "window: Memory"},
		"too large a skew": {relay.Policy{Window: replay.Window{Skew: 10 * time.Minute}},
			"raise Memory to 35m0s or lower Skew"},
		"a negative MaxTTL":         {relay.Policy{Window: replay.Window{MaxTTL: -time.Second}}, "window: MaxTTL"},
		"a negative PendingTimeout": {relay.Policy{Rules: thread.Rules{PendingTimeout: -1}}, "policy: Rules.PendingTimeout"},
		"a negative ActiveTimeout":  {relay.Policy{Rules: thread.Rules{ActiveTimeout: -1}}, "policy: Rules.ActiveTimeout"},
		"a negative MaxOffers":      {relay.Policy{Rules: thread.Rules{MaxOffers: -1}}, "policy: Rules.MaxOffers"},
		"a negative retention":      {relay.Policy{ThreadRetention: -1}, "policy: ThreadRetention"},
		"too long a retention":      {relay.Policy{ThreadRetention: 1<<63 - 1}, "policy: ThreadRetention"},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(who string, err error) {
				t.Helper()
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want %q", who, err, c.want)
				}
			}
			_, err := relay.New(t.Context(), relay.Config{Store: policyStore{policy: c.policy}, Key: key(t),
				Log: slog.New(slog.DiscardHandler)})
			check("the relay", err)
			store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"),
				sqlite.Options{Policy: c.policy, Reserve: 1 << 16})
			check("the store", err)
			if err == nil {
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
