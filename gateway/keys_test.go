package gateway_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

const origin = "https://relay.example"

var (
	local = relay.Peer{Local: true}
	quiet = slog.New(slog.DiscardHandler)
)

// startRelay returns a relay whose store has the tables of gateways, and the path of its database.
func startRelay(t *testing.T) (*relay.Relay, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agora.db")
	return startRelayOver(t, path, time.Now), path
}

// startRelayOver returns a relay over the database at path, with a clock. It is closed when the test ends.
func startRelayOver(t *testing.T, path string, now func() time.Time) *relay.Relay {
	t.Helper()
	r, _ := gatetest.Run(t, path, sqlite.Options{Extensions: []relay.Extension{gateway.Extension}},
		relay.Config{Origin: origin, Now: now})
	return r
}

func update(t *testing.T, r *relay.Relay, f func(relay.ExtTx) error) {
	t.Helper()
	if err := r.Update(t.Context(), local, f); err != nil {
		t.Fatal(err)
	}
}

func findKey(t *testing.T, r *relay.Relay, key string, now time.Time) (h gateway.Holder, found bool) {
	t.Helper()
	err := r.View(t.Context(), local, func(q relay.Querier) (err error) {
		h, found, err = gateway.FindKey(q, key, now)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return h, found
}

// wantKeys checks which keys a holder has: those that may do everything, and those that may only do "rotate".
func wantKeys(t *testing.T, r *relay.Relay, k gateway.Kind, owner int64, all, rotate bool) {
	t.Helper()
	for only, want := range map[string]bool{"": all, "rotate": rotate, "delete": false} {
		if err := r.View(t.Context(), local, func(q relay.Querier) error {
			found, err := gateway.HasKey(q, k, owner, only)
			if found != want {
				t.Errorf("holder %s %d has a key for %q: %t, want %t", k, owner, only, found, want)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewKey(t *testing.T) {
	for kind, form := range map[gateway.Kind]string{
		gateway.HubAgent: "^ca_[0-9a-f]{32}$", gateway.HubStream: "^cs_[0-9a-f]{32}$", gateway.Channel: "^ck_[A-Za-z0-9_-]{43}$",
		gateway.Member: "^cm_[A-Za-z0-9_-]{43}$", gateway.Inbox: "^sk_[A-Za-z0-9_-]{43}$", gateway.Callback: "^tok_[A-Za-z0-9_-]{43}$",
		gateway.ToolUser: "^mt_[A-Za-z0-9_-]{43}$", gateway.Principal: "^cj_[A-Za-z0-9_-]{43}$", gateway.Operator: "^op_[A-Za-z0-9_-]{43}$",
	} {
		one, two := gateway.NewKey(kind), gateway.NewKey(kind)
		if !regexp.MustCompile(form).MatchString(one) || one == two {
			t.Errorf("%s: %s and %s", kind, one, two)
		}
		if got := gateway.Redact("GET /x/" + one + "/y?k=" + two); got != "GET /x/…/y?k=…" { // G-8
			t.Errorf("redacted: %s", got)
		}
	}
	for _, text := range []string{"", "/events", "/ca_1234", "sk_live", "/agent/messages_since", "broca_0123456789abcdef"} {
		if got := gateway.Redact(text); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

// TestKeys checks G-10: a key is known only as what it was stored for. It checks G-7: the database does not contain it.
func TestKeys(t *testing.T) {
	r, path := startRelay(t)
	now := time.Now().UTC()
	one, two, other := gateway.NewKey(gateway.HubAgent), gateway.NewKey(gateway.HubAgent), gateway.NewKey(gateway.Channel)
	update(t, r, func(tx relay.ExtTx) error {
		return errors.Join(gateway.AddKey(tx, one, gateway.Holder{Kind: gateway.HubAgent, Owner: 7}),
			gateway.AddKey(tx, other, gateway.Holder{Kind: gateway.Channel, Owner: 7, Expires: now.Add(time.Hour)}))
	})
	if h, found := findKey(t, r, one, now); !found || h != (gateway.Holder{Kind: gateway.HubAgent, Owner: 7}) {
		t.Errorf("%+v, %t", h, found)
	}
	for name, key := range map[string]string{"an unknown key": two, "no key": "", "another case": strings.ToUpper(one),
		"a part": one[:34], "a longer one": one + "0", "another kind": "cs_" + one[3:]} {
		if h, found := findKey(t, r, key, now); found {
			t.Errorf("%s is known: %+v", name, h)
		}
	}
	wantKeys(t, r, gateway.HubAgent, 7, true, false)
	wantKeys(t, r, gateway.HubAgent, 8, false, false)
	wantKeys(t, r, gateway.Member, 7, false, false)
	if _, found := findKey(t, r, other, now.Add(time.Hour-1)); !found {
		t.Error("a key expires too early")
	}
	if _, found := findKey(t, r, other, now.Add(time.Hour)); found {
		t.Error("a key does not expire")
	}
	update(t, r, func(tx relay.ExtTx) error {
		return errors.Join(gateway.LimitKeys(tx, gateway.HubAgent, 7, "rotate", now.Add(time.Minute)),
			gateway.AddKey(tx, two, gateway.Holder{Kind: gateway.HubAgent, Owner: 7}))
	})
	wantKeys(t, r, gateway.HubAgent, 7, true, true)
	wantKeys(t, r, gateway.Channel, 7, true, false)
	if h, found := findKey(t, r, one, now); !found || h.Only != "rotate" || !h.Expires.Equal(now.Add(time.Minute)) {
		t.Errorf("the old key: %+v, %t", h, found)
	}
	if h, found := findKey(t, r, two, now); !found || h.Only != "" {
		t.Errorf("the new key: %+v, %t", h, found)
	}
	update(t, r, func(tx relay.ExtTx) error { return gateway.DropKeys(tx, gateway.HubAgent, 7, "rotate") })
	if _, found := findKey(t, r, one, now); found {
		t.Error("a dropped key is known")
	}
	wantKeys(t, r, gateway.HubAgent, 7, true, false)
	update(t, r, func(tx relay.ExtTx) error {
		return gateway.LimitKeys(tx, gateway.Channel, 7, "rotate", now.Add(2*time.Hour))
	})
	if _, found := findKey(t, r, other, now.Add(time.Hour)); found {
		t.Error("a limit has made a key valid for longer")
	}
	update(t, r, func(tx relay.ExtTx) error {
		n, err := gateway.SweepKeys(tx, now.Add(time.Hour), 10)
		if n != 1 {
			t.Errorf("%d keys were swept, want 1", n)
		}
		return err
	})
	if _, found := findKey(t, r, two, now.Add(100*365*24*time.Hour)); !found {
		t.Error("a key without expiry was swept")
	}
	for _, name := range engine.Files(t, path) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{one, two, other} {
			if bytes.Contains(text, []byte(key[4:])) {
				t.Errorf("%s contains a key", filepath.Base(name))
			}
		}
	}
}

// TestStatements checks the statements of this package, including those that no test runs.
func TestStatements(t *testing.T) { gatetest.Statements(t, gateway.Extension) }
