package relay_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// TestSetLimits changes the limits of a running relay while a poll waits. The poll keeps waiting, and the new limits hold.
func TestSetLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Limits: relay.Limits{PollsPerAddress: 2}})
		poll := func(wait time.Duration) error {
			_, err := r.Events(t.Context(), &relay.Poll{Peer: from("192.0.2.1"), Wait: wait, Limit: 1})
			return err
		}
		ended := make(chan error, 1)
		began := time.Now()
		go func() { ended <- poll(10 * time.Second) }()
		synctest.Wait()
		once := relay.Rate{PerSecond: 1, Burst: 1}
		r.Gate().SetLimits(relay.Limits{PollsPerAddress: 1, PostsPerAddress: once, ReadsPerAddress: once,
			NewConnectionsPerAddress: once, ConnectionsPerAddress: 1, RequestsPerAddress: 1})
		wantLimit(t, poll(time.Second), envelope.LimitPollsPerAddress)
		for _, limit := range []string{envelope.LimitPostsPerAddress, envelope.LimitReadsPerAddress,
			envelope.LimitNewConnectionsPerAddress, envelope.LimitRequestsPerAddress} {
			ask := map[string]func() error{
				envelope.LimitPostsPerAddress:          func() error { return r.Gate().Admit(from("192.0.2.1"), admission.Posts) },
				envelope.LimitReadsPerAddress:          func() error { return r.Gate().Admit(from("192.0.2.1"), admission.Reads) },
				envelope.LimitNewConnectionsPerAddress: func() error { _, err := r.Gate().Connect(from("192.0.2.1")); return err },
				envelope.LimitRequestsPerAddress:       func() error { _, err := r.Gate().Enter(from("192.0.2.1")); return err },
			}[limit]
			if err := ask(); err != nil {
				t.Errorf("%s: the first is refused: %v", limit, err)
			}
			wantLimit(t, ask(), limit)
		}
		time.Sleep(time.Second) // the rate of new connections admits another one; its slot is not free
		_, err := r.Gate().Connect(from("192.0.2.1"))
		wantLimit(t, err, envelope.LimitConnectionsPerAddress)
		if err := <-ended; err != nil || time.Since(began) != 10*time.Second {
			t.Errorf("the poll ended after %v: %v", time.Since(began), err)
		}
		if got := r.Gate().Limits(); got.PollsPerAddress != 1 || got.Polls != 10_000 {
			t.Errorf("the limits are %+v", got)
		}
		r.Gate().SetLimits(relay.Limits{PollsPerAddress: relay.Unlimited})
		if err := poll(time.Second); err != nil {
			t.Errorf("without a limit: %v", err)
		}
	})
}

func TestBans(t *testing.T) {
	alice, bob := key(t), key(t)
	r := start(t, relay.Config{Origin: ownOrigin, Bans: relay.Bans{
		Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")},
		Agents:   []didkey.DID{alice.DID()}}})
	post := func(k didkey.Key) error {
		_, err := r.Post(t.Context(), from("198.51.100.1"), sign(t, k, envelope.Draft{Payload: requestWithoutID}).Canonical())
		return err
	}
	read := func(k didkey.Key) error {
		_, err := r.VerifyRead(t.Context(), tokenFor(t, k, envelope.Read{}), "GET", "/events")
		return err
	}
	admit := func(p relay.Peer) error { return r.Gate().Admit(p, admission.Reads) }
	connect := func(p relay.Peer) error {
		release, err := r.Gate().Connect(p)
		if err == nil {
			release()
		}
		return err
	}
	for _, addr := range []string{"192.0.2.77", "::ffff:192.0.2.1", "2001:db8:7::1", "2001:db8::1%eth0"} {
		wantCode(t, admit(from(addr)), envelope.CodeForbidden)
		wantCode(t, connect(from(addr)), envelope.CodeForbidden)
	}
	wantCode(t, post(alice), envelope.CodeForbidden)
	wantCode(t, read(alice), envelope.CodeForbidden)
	local := from("192.0.2.1")
	local.Local = true
	for name, err := range map[string]error{"another address": admit(from("192.0.3.1")), "another connection": connect(from("192.0.3.1")),
		"the relay's own machine": admit(local), "another identity": post(bob), "another reader": read(bob), "no address": admit(relay.Peer{})} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.Gate().SetBans(relay.Bans{Agents: []didkey.DID{bob.DID()}})
	wantCode(t, post(bob), envelope.CodeForbidden)
	for name, err := range map[string]error{"address": admit(from("192.0.2.1")), "post": post(alice)} {
		if err != nil {
			t.Errorf("%s: the ban has ended: %v", name, err)
		}
	}
}
