package relay_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// TestOpenRelaysMarkPresence checks that at an open relay, a valid token marks its signer as online. An invalid one has
// no effect, and neither has one of a banned signer.
func TestOpenRelaysMarkPresence(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Origin: ownOrigin})
		agent, eve := key(t), key(t)
		post(t, r, sign(t, agent, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}))
		time.Sleep(10 * time.Minute)
		peer := relay.Peer{Addr: netip.MustParseAddr("192.0.2.1")}
		online := func() bool {
			t.Helper()
			found, err := r.Agents(t.Context(), local, relay.AgentQuery{OnlineSince: time.Now().Add(-relay.OnlineWithin),
				Limit: 9})
			if err != nil {
				t.Fatal(err)
			}
			all, _, err := r.Agent(t.Context(), local, agent.DID())
			if err != nil || len(all) != 1 || r.Online(all[0]) != (len(found.Agents) == 1) {
				t.Fatalf("%v, %v, found %v", all, err, found.Agents)
			}
			return len(found.Agents) == 1
		}
		forged := tokenFor(t, eve, envelope.Read{})
		now := time.Now()
		for name, token := range map[string]string{
			"of another agent": forged, "not a token": "x", "an empty one": "",
			"for another relay":  tokenFor(t, agent, envelope.Read{Audience: "https://other.example"}),
			"for another target": tokenFor(t, agent, envelope.Read{Target: "/agents"}),
			"for another method": tokenFor(t, agent, envelope.Read{Method: "HEAD"}),
			"an old one":         tokenFor(t, agent, envelope.Read{TS: now.Add(-time.Minute)}),
			"from the future":    tokenFor(t, agent, envelope.Read{TS: now.Add(time.Minute)}),
			"signed by another":  impostorToken(t, eve, agent.DID()), "huge": strings.Repeat("x", 1<<20),
		} {
			if r.MarkPresent(peer, token, "GET", "/events"); online() {
				t.Fatalf("a token, %s, marks the agent as online", name)
			}
		}
		token := tokenFor(t, agent, envelope.Read{})
		r.Gate().SetBans(relay.Bans{Agents: []didkey.DID{agent.DID()}})
		if r.MarkPresent(peer, token, "GET", "/events"); online() {
			t.Error("a banned agent is marked as online")
		}
		r.Gate().SetBans(relay.Bans{})
		r.MarkPresent(peer, token, "GET", "/events")
		if !online() {
			t.Error("a valid token has no effect")
		}
		time.Sleep(59 * time.Second)
		r.MarkPresent(peer, token, "GET", "/events") // a second time, within its minute
		time.Sleep(time.Second)
		for range 10 { // after its minute, it has no effect
			r.MarkPresent(peer, token, "GET", "/events")
			time.Sleep(time.Minute)
		}
		if online() {
			t.Error("an old token, sent again, keeps its signer online")
		}
	})
}

// impostor signs in the name of another identity.
type impostor struct {
	didkey.Key
	name didkey.DID
}

func (i impostor) DID() didkey.DID { return i.name }

func impostorToken(t *testing.T, by didkey.Key, name didkey.DID) string {
	t.Helper()
	token, err := envelope.Read{Audience: ownOrigin, Method: "GET", Target: "/events",
		TS: time.Now()}.Sign(impostor{by, name})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestPresenceOfOneNetworkIsBounded checks that a client with many keys does not keep others from being shown online.
func TestPresenceOfOneNetworkIsBounded(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Origin: ownOrigin})
		agent := key(t)
		post(t, r, sign(t, agent, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}))
		time.Sleep(10 * time.Minute)
		mark := func(k didkey.Key, from string) bool {
			t.Helper()
			r.MarkPresent(relay.Peer{Addr: netip.MustParseAddr(from)}, tokenFor(t, k, envelope.Read{}), "GET", "/events")
			found, err := r.Agents(t.Context(), local, relay.AgentQuery{OnlineSince: time.Now().Add(-relay.OnlineWithin),
				Limit: 9})
			if err != nil {
				t.Fatal(err)
			}
			return len(found.Agents) == 1
		}
		for i := range 1024 {
			r.MarkPresent(relay.Peer{Addr: netip.MustParseAddr([]string{"2001:db8::1", "2001:db8::2"}[i%2])},
				tokenFor(t, key(t), envelope.Read{}), "GET", "/events")
		}
		if mark(agent, "2001:db8::3") {
			t.Error("one network marks more than 1024 signers")
		}
		if !mark(agent, "192.0.2.1") {
			t.Error("another network cannot mark a signer")
		}
	})
}
