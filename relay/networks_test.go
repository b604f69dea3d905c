package relay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// subnetAddr returns an address in the n-th /64 of 2001:db8:1::/48.
func subnetAddr(n int) string { return fmt.Sprintf("2001:db8:1:%x::1", n) }

// TestNetworksHaveAllowances sends requests from all 65,536 /64s of a /48. The /48 gets the allowance of 16 addresses,
// and no more. A /56 gets that of 4 addresses.
func TestNetworksHaveAllowances(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name                      string
			kind                      admission.Kind
			perAddress, p56, p48      int
			secondly, s56, secondly48 int
		}{
			{envelope.LimitPostsPerAddress, admission.Posts, 100, 400, 1600, 50, 200, 800},
			{envelope.LimitReadsPerAddress, admission.Reads, 200, 800, 3200, 100, 400, 1600},
		} {
			r := start(t, relay.Config{})
			count := func(addresses func(yield func(string) bool)) (admitted int) {
				for addr := range addresses {
					if r.Gate().Admit(from(addr), c.kind) == nil {
						admitted++
					}
				}
				return admitted
			}
			subnets := func(from, to, times int) func(yield func(string) bool) {
				return func(yield func(string) bool) {
					for range times {
						for n := from; n < to; n++ {
							if !yield(subnetAddr(n)) {
								return
							}
						}
					}
				}
			}
			if got := count(subnets(0, 1, 1000)); got != c.perAddress {
				t.Errorf("%s: a /64 gets %d at once, want %d", c.name, got, c.perAddress)
			}
			if got := count(subnets(0, 256, 4)); got != c.p56-c.perAddress {
				t.Errorf("%s: the others of its /56 get %d, want %d", c.name, got, c.p56-c.perAddress)
			}
			if got := count(subnets(0, 8192, 1)); got != c.p48-c.p56 {
				t.Errorf("%s: the others of its /48 get %d, want %d", c.name, got, c.p48-c.p56)
			}
			wantLimit(t, r.Gate().Admit(from(subnetAddr(0xffff)), c.kind), c.name)
			if err := errors.Join(r.Gate().Admit(from("2001:db8:2::1"), c.kind), r.Gate().Admit(from("192.0.2.1"), c.kind)); err != nil {
				t.Errorf("%s: other networks: %v", c.name, err)
			}
			time.Sleep(time.Second)
			if got := count(subnets(0, 8192, 1)); got != c.secondly48 {
				t.Errorf("%s: after a second the /48 gets %d, want %d", c.name, got, c.secondly48)
			}
			time.Sleep(time.Second)
			if got := count(subnets(256, 512, 100)); got != c.s56+c.secondly && got > c.p56 {
				t.Errorf("%s: another /56 gets %d", c.name, got)
			}
		}
	})
}

// TestNetworksHaveSlots takes slots from many /64s of one /48, and releases them.
func TestNetworksHaveSlots(t *testing.T) {
	r := start(t, relay.Config{Limits: relay.Limits{ConnectionsPerAddress: 5, RequestsPerAddress: 3,
		NewConnectionsPerAddress: noLimit}})
	for _, c := range []struct {
		limit   string
		one     int
		acquire func(relay.Peer) (func(), error)
	}{{envelope.LimitConnectionsPerAddress, 5, r.Gate().Connect}, {envelope.LimitRequestsPerAddress, 3, r.Gate().Enter}} {
		for range 2 { // the second time, the released slots are taken again
			var release []func()
			acquire := func(subnets, times int) {
				for n := range subnets {
					for range times {
						if l, err := c.acquire(from(subnetAddr(n))); err == nil {
							release = append(release, l)
						} else {
							wantLimit(t, err, c.limit)
						}
					}
				}
			}
			acquire(1, 10)
			if len(release) != c.one {
				t.Errorf("%s: a /64 has %d slots, want %d", c.limit, len(release), c.one)
			}
			acquire(256, 10)
			if len(release) != 4*c.one {
				t.Errorf("%s: a /56 has %d slots, want %d", c.limit, len(release), 4*c.one)
			}
			acquire(8192, 1)
			if len(release) != 16*c.one {
				t.Errorf("%s: a /48 has %d slots, want %d", c.limit, len(release), 16*c.one)
			}
			if l, err := c.acquire(from("2001:db8:2::1")); err != nil {
				t.Errorf("%s: another /48: %v", c.limit, err)
			} else {
				l()
			}
			for _, l := range release {
				l()
			}
		}
	}
}

// TestBroadcastsPerAddress posts broadcast REQUESTs from one address with many keys.
func TestBroadcastsPerAddress(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}}})
		agent := key(t)
		flood := from("192.0.2.66")
		post := func(p relay.Peer, d envelope.Draft) (*envelope.Envelope, error) {
			e := sign(t, key(t), d)
			receipt, err := r.Post(t.Context(), p, e.Canonical())
			if err == nil && receipt.Duplicate {
				t.Error("a new message is marked as a duplicate")
			}
			return e, err
		}
		var first *envelope.Envelope
		for n := range 20 {
			e, err := post(flood, envelope.Draft{Payload: requestWithoutID})
			if err != nil {
				t.Fatalf("broadcast %d: %v", n+1, err)
			}
			first = e
		}
		refused, err := post(flood, envelope.Draft{Payload: requestWithoutID})
		if wait := wantLimit(t, err, envelope.LimitBroadcastsPerAddress); wait != 200*time.Millisecond {
			t.Errorf("Retry-After is %v", wait)
		}
		for n := range 100 { // not counted are duplicates, REQUESTs with a recipient, and other types
			if receipt, err := r.Post(t.Context(), flood, first.Canonical()); n < 5 &&
				wantLimit(t, err, envelope.LimitBroadcastsPerAddress) <= 0 {
				t.Errorf("%+v", receipt)
			}
			if _, err := post(flood, envelope.Draft{Payload: requestWithoutID, Recipient: agent.DID()}); err != nil {
				t.Fatalf("a REQUEST with a recipient: %v", err)
			}
			if _, err := post(flood, envelope.Draft{
				Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{{ID: "echo"}}},
			}); err != nil {
				t.Fatalf("a MANIFEST: %v", err)
			}
		}
		for _, p := range []relay.Peer{from("192.0.2.1"), local} {
			for range 20 {
				if _, err := post(p, envelope.Draft{Payload: requestWithoutID}); err != nil {
					t.Fatalf("from %v: %v", p, err)
				}
			}
		}
		if _, err := post(local, envelope.Draft{Payload: requestWithoutID}); err != nil {
			t.Errorf("local: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
		for range 10 { // a duplicate gets a receipt, and its token is refunded
			if receipt, err := r.Post(t.Context(), flood, first.Canonical()); err != nil || !receipt.Duplicate {
				t.Fatalf("%+v, %v", receipt, err)
			}
		}
		if receipt, err := r.Post(t.Context(), flood, refused.Canonical()); err != nil || receipt.Duplicate {
			t.Errorf("the refused REQUEST, posted again: %+v, %v", receipt, err)
		}
		_, err = post(flood, envelope.Draft{Payload: requestWithoutID})
		wantLimit(t, err, envelope.LimitBroadcastsPerAddress)
	})
}

// TestRefusedBodiesAreCharged checks that the time spent on a refused body is charged to its address. The time spent on
// an accepted body is not.
func TestRefusedBodiesAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		now := func() time.Time { // the relay calls it between parsing and verifying
			if slow.Swap(false) {
				time.Sleep(100 * time.Millisecond)
			}
			return time.Now()
		}
		r := start(t, relay.Config{Now: now})
		synctest.Wait()
		good := sign(t, key(t), envelope.Draft{Payload: requestWithoutID}).Canonical()
		forged := bytes.Replace(sign(t, key(t), envelope.Draft{Payload: requestWithoutID}).Canonical(), []byte("echo"),
			[]byte("evil"), 1)
		for addr, body := range map[string][]byte{"192.0.2.1": good, "192.0.2.2": forged} {
			for range 3 {
				if err := r.Gate().Admit(from(addr), admission.Posts); err != nil {
					t.Fatal(err)
				}
				slow.Store(true)
				_, err := r.Post(t.Context(), from(addr), body)
				if wantErr := addr == "192.0.2.2"; (err != nil) != wantErr {
					t.Errorf("from %s: %v", addr, err)
				}
			}
		}
		if err := r.Gate().Admit(from("192.0.2.1"), admission.Posts); err != nil {
			t.Errorf("good bodies are charged: %v", err)
		}
		// The address began with 100 tokens and got 5 in each tenth of a second. It paid 1 for each post and 50 for
		// each body.
		if wait := wantLimit(t, r.Gate().Admit(from("192.0.2.2"), admission.Posts),
			envelope.LimitPostsPerAddress); wait < 500*time.Millisecond || wait > time.Second {
			t.Errorf("Retry-After is %v", wait)
		}
	})
}

// TestLargeBodiesAtOnce sends many large bodies that are admitted together. The relay must parse only as many as the
// allowance of the address covers.
func TestLargeBodiesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		large := bytes.Repeat([]byte("x"), 128<<10)
		for range 64 {
			if err := r.Gate().Admit(from("192.0.2.1"), admission.Posts); err != nil {
				t.Fatal(err)
			}
		}
		parsed := 0
		for range 64 {
			_, err := r.Post(t.Context(), from("192.0.2.1"), large)
			if codeOf(err) == envelope.CodeInvalidRequest {
				parsed++
				continue
			}
			wantLimit(t, err, envelope.LimitPostsPerAddress)
		}
		if parsed != 3 { // 36 tokens are left, and each body takes 16
			t.Errorf("%d bodies were parsed, want 3", parsed)
		}
		small := sign(t, key(t), envelope.Draft{Payload: requestWithoutID}).Canonical()
		_, err := r.Post(t.Context(), from("192.0.2.1"), small)
		wantLimit(t, err, envelope.LimitPostsPerAddress) // an address that is in debt can store nothing
		if _, err := r.Post(t.Context(), from("192.0.2.2"), small); err != nil {
			t.Errorf("another address: %v", err)
		}
	})
}

// refusalLog is a log in memory.
type refusalLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *refusalLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// refusals returns the logged refusals since its last call.
func (l *refusalLog) refusals(t *testing.T) (all []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(fields["msg"].(string), "refused by") {
			all = append(all, fields)
		}
	}
	l.text.Reset()
	return all
}

func TestRefusalsAreLogged(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		log := &refusalLog{}
		r := start(t, relay.Config{Log: slog.New(slog.NewJSONHandler(log, nil)), Limits: relay.Limits{
			ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 1}, PostsPerAgent: relay.Rate{PerSecond: 0.01, Burst: 1}}})
		ask := func(addr string, times int) {
			for range times {
				_ = r.Gate().Admit(from(addr), admission.Reads)
			}
		}
		ask("192.0.2.1", 1)
		if got := log.refusals(t); got != nil {
			t.Errorf("logged before any refusal: %v", got)
		}
		ask("192.0.2.1", 500)
		got := log.refusals(t)
		if len(got) != 1 || got[0]["limit"] != envelope.LimitReadsPerAddress || got[0]["addr"] != "192.0.2.1" ||
			got[0]["count"] != 1.0 {
			t.Errorf("%v", got)
		}
		alice := key(t)
		for range 3 {
			_, _ = r.Post(t.Context(), from("2001:db8::7"),
				sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical())
		}
		got = log.refusals(t)
		if len(got) != 1 || got[0]["limit"] != envelope.LimitPostsPerAgent || got[0]["did"] != string(alice.DID()) ||
			got[0]["network"] != "2001:db8::/64" {
			t.Errorf("%v", got)
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if got := log.refusals(t); got != nil {
			t.Errorf("within the minute: %v", got)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := log.refusals(t); len(got) != 2 || got[0]["count"].(float64)+got[1]["count"].(float64) != 499+1 {
			t.Errorf("after a minute: %v", got)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := log.refusals(t); got != nil {
			t.Errorf("logged after the refusals have ended: %v", got)
		}

		// Many addresses together get only a bounded number of lines.
		for i := range 10_000 {
			ask(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}).String(), 2)
		}
		if got := log.refusals(t); len(got) != 256 {
			t.Errorf("%d lines", len(got))
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := log.refusals(t); len(got) != 1 || got[0]["count"] != 10_000.0-256 {
			t.Errorf("refusals without lines of their own: %v", got)
		}
	})
}
