package mirror_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
)

// pair runs f with two relays. b mirrors a.
func pair(t *testing.T, setUp func(a, b *site), f func(a, b *site)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a, b := n.site(1), n.site(2)
		b.peers = []witness.Peer{a.peer()}
		if setUp != nil {
			setUp(a, b)
		}
		a.start()
		defer func() { a.stop() }()
		b.start()
		defer func() { b.stop() }()
		f(a, b)
	})
}

// settle lets the mirrors work.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// TestCopies checks what is copied: MANIFESTs that name relays, and REQUESTs of the peer's home, without a recipient
// and not too large, and nothing else (RELAYS R-19).
func TestCopies(t *testing.T) {
	pair(t, nil, func(a, b *site) {
		alice, bob := key(t), key(t)
		filled := func(n int) envelope.Request {
			return envelope.Request{RequestID: "r", Intent: "echo", Title: strings.Repeat("x", n)}
		}
		bare := len(sign(t, alice, envelope.Draft{ID: "m", Thread: "t", Payload: filled(1), Home: a.home()},
			a.now()).Canonical())
		for _, c := range []struct {
			name   string
			copied bool
			draft  envelope.Draft
		}{
			{"a MANIFEST with relays", true, envelope.Draft{Payload: manifest("one", a.home())}},
			{"a MANIFEST without relays", false, envelope.Draft{Payload: manifest("two")}},
			{"a MANIFEST to an agent", false, envelope.Draft{Recipient: bob.DID(), Payload: manifest("three", a.home())}},
			{"a REQUEST with the peer as home", true, envelope.Draft{Payload: request, Home: a.home()}},
			{"a REQUEST without a home", false, envelope.Draft{Payload: request}},
			{"a REQUEST to an agent", false, envelope.Draft{Recipient: bob.DID(), Payload: request, Home: a.home()}},
			{"a REQUEST to the mirroring relay", false, envelope.Draft{Recipient: b.key.DID(), Payload: request,
				Home: a.home()}},
			{"meta.relay with both", true, envelope.Draft{Payload: request, Home: a.home(), Relays: []string{a.url(), b.url()}}},
			{"meta.relay with the peer", false, envelope.Draft{Payload: request, Home: a.home(), Relays: []string{a.url()}}},
			{"16 KiB", true, envelope.Draft{ID: "m", Thread: "t", Payload: filled(relay.MaxMirrored - bare + 1),
				Home: a.home()}},
			{"16 KiB and a byte", false, envelope.Draft{ID: "n", Thread: "u",
				Payload: filled(relay.MaxMirrored - bare + 2), Home: a.home()}},
		} {
			e := a.post(alice, c.draft)
			settle()
			if want := map[bool]int{true: 1}[c.copied]; b.count(e) != want {
				t.Errorf("%s: copied %d times, want %d", c.name, b.count(e), want)
			}
		}
		open := a.post(alice, envelope.Draft{Payload: filled(1), Home: a.home(), Thread: "offers"})
		offer := a.post(bob, envelope.Draft{Payload: envelope.Offer{RequestID: "r"}, Home: a.home(),
			Thread: "offers", Re: open.Hash()})
		settle()
		b.once(open)
		if n := b.count(offer); n != 0 {
			t.Error("an OFFER was copied")
		}
	})
}

// TestOtherHome checks that a REQUEST of another home than the peer is not copied, also if the peer shows it (RELAYS
// R-19), and that one with the mirroring relay as home is not either.
func TestOtherHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		b, peer, alice := n.site(2), key(t), key(t)
		b.peers = []witness.Peer{{DID: peer.DID(), URL: "http://127.0.0.1:1"}}
		var shown []*envelope.Envelope
		for _, home := range []*envelope.Home{{DID: key(t).DID(), URL: "https://c.example"}, b.home(),
			{DID: peer.DID(), URL: "https://a.example"}} {
			shown = append(shown, sign(t, alice, envelope.Draft{Payload: request, Home: home}, time.Now()))
		}
		n.put("127.0.0.1:1", fake{peer.DID(), func(query url.Values) (int, string) {
			if query.Get("cursor") == "1" {
				time.Sleep(30 * time.Second)
				return http.StatusOK, page("1")
			}
			return http.StatusOK, page("1", shown...)
		}})
		b.start()
		defer b.stop()
		settle()
		if b.count(shown[0]) != 0 || b.count(shown[1]) != 0 || b.count(shown[2]) != 1 {
			t.Errorf("copied: other home %d, own home %d, the peer's %d", b.count(shown[0]), b.count(shown[1]),
				b.count(shown[2]))
		}
	})
}

// TestCopyIsABroadcast checks how a copy looks (RELAYS R-22): it has a leaf without a REQUEST, no thread, a mark in the
// directory, and moves no presence.
func TestCopyIsABroadcast(t *testing.T) {
	pair(t, nil, func(a, b *site) {
		alice, bob := key(t), key(t)
		waiting := make(chan []relay.Event, 1)
		go func() {
			page, err := b.relay.Events(context.Background(), &relay.Poll{Peer: local,
				Filter: relay.Filter{Thread: "t1"}, Limit: 9,
				Wait: 5 * time.Second})
			if err != nil {
				t.Error(err)
			}
			waiting <- page.Events
		}()
		r := a.post(alice, envelope.Draft{Payload: request, Home: a.home(), Thread: "t1"})
		m := a.post(bob, envelope.Draft{Payload: manifest("bob", a.home())})
		settle()
		b.once(r, m)

		offer := sign(t, bob, envelope.Draft{Payload: envelope.Offer{}, Home: a.home(), Thread: "t1", Re: r.Hash()}, b.now())
		_, err := b.relay.Post(context.Background(), local, offer.Canonical())
		if envelope.CodeOf(err) != envelope.CodeForbidden {
			t.Errorf("an OFFER at the mirror: %v", err)
		}
		if status, body := b.get("/threads/t1"); status != http.StatusNotFound {
			t.Errorf("GET /threads: %d\n%s", status, body)
		}
		if _, body := b.get("/agents"); !strings.Contains(body, `"online":false`) || !strings.Contains(body,
			`"mirrored":true`) {
			t.Errorf("the directory of the mirror:\n%s", body)
		}
		if _, body := a.get("/agents"); !strings.Contains(body, `"online":true`) || strings.Contains(body, `"mirrored"`) {
			t.Errorf("the directory of the home:\n%s", body)
		}
		if _, body := b.get("/events?cursor=0&timeout=0"); !strings.Contains(body, r.ID) || !strings.Contains(body, m.ID) {
			t.Errorf("the events of the mirror:\n%s", body)
		}
		if events := <-waiting; len(events) != 0 {
			t.Errorf("a poll of the thread got %d events", len(events))
		}
		proved, err := b.relay.Post(context.Background(), local, r.Canonical())
		if envelope.CodeOf(err) != envelope.CodeForbidden {
			t.Errorf("the REQUEST was taken at the mirror: %+v, %v", proved, err)
		}
		text, err := b.relay.ProofOf(context.Background(), local, alice.DID(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		p, err := proof.Parse(text)
		if err != nil || !strings.HasSuffix(p.Extra, "\nrequest -\n") {
			t.Errorf("the leaf: %v\n%s", err, text)
		}
	})
}

// TestOlderManifestStays checks that a copied MANIFEST replaces only an older one (RELAYS R-22), also if the peer shows
// old ones again.
func TestOlderManifestStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		b, peer, bob := n.site(2), key(t), key(t)
		b.peers = []witness.Peer{{DID: peer.DID(), URL: "http://127.0.0.1:1"}}
		at := func(id string, age time.Duration) *envelope.Envelope {
			return sign(t, bob, envelope.Draft{ID: id, Payload: manifest("bob", b.home())}, time.Now().Add(-age))
		}
		shown := make(chan *envelope.Envelope)
		n.put("127.0.0.1:1", fake{peer.DID(), func(url.Values) (int, string) {
			select {
			case e := <-shown:
				return http.StatusOK, page("1", e)
			case <-time.After(30 * time.Second):
				return http.StatusOK, page("1")
			}
		}})
		b.start()
		defer b.stop()
		listed := func(want string) {
			t.Helper()
			settle()
			agents, err := b.relay.Agents(context.Background(), local, relay.AgentQuery{Limit: 9})
			if err != nil || len(agents.Agents) != 1 || !strings.Contains(string(agents.Agents[0].Manifest), `"id":"`+want+`"`) {
				t.Errorf("want %s, listed: %+v, %v", want, agents, err)
			}
		}
		shown <- at("old", time.Hour)
		listed("old")
		posted := b.post(bob, envelope.Draft{ID: "posted", Payload: manifest("bob", b.home())})
		listed("posted")
		shown <- at("older", 2*time.Hour)
		listed("posted")
		shown <- sign(t, bob, envelope.Draft{ID: "same", Payload: manifest("bob", b.home())}, posted.TS)
		listed("posted")
		time.Sleep(time.Minute)
		shown <- at("new", 0)
		listed("new")
	})
}

// TestBansPolicyAndRoom checks that copies obey bans, the policy and the limit of the database (RELAYS R-22). While
// there is no room, the cursor stays, and the message is copied later.
func TestBansPolicyAndRoom(t *testing.T) {
	racing.Skip(t, "one thing after another")
	alice, banned := key(t), key(t)
	var full roomless
	pair(t, func(_, b *site) {
		b.config.Screen = noSecrets{}
		b.config.Bans.Agents = append(b.config.Bans.Agents, banned.DID())
		b.wrap = func(store relay.Extender) relay.Store {
			full.Store = store.(*sqlite.Store)
			return &full
		}
	}, func(a, b *site) {
		good := a.post(alice, envelope.Draft{Payload: request, Home: a.home()})
		bad := a.post(banned, envelope.Draft{Payload: request, Home: a.home()})
		secret := a.post(alice, envelope.Draft{Payload: envelope.Request{Intent: "secret"}, Home: a.home()})
		settle()
		b.once(good)
		if b.count(bad)+b.count(secret) != 0 || b.observer.refused.Load() != 2 {
			t.Errorf("banned %d, against the policy %d, refused %d", b.count(bad), b.count(secret), b.observer.refused.Load())
		}
		full.full.Store(true)
		later := a.post(alice, envelope.Draft{Payload: request, Home: a.home()})
		settle()
		if b.count(later) != 0 || b.observer.failed.Load() == 0 {
			t.Error("a message was copied although there was no room")
		}
		full.full.Store(false)
		time.Sleep(30 * time.Second)
		b.once(good, later)
	})
}

// noSecrets is a policy.
type noSecrets struct{}

func (noSecrets) Screen(_ context.Context, _ relay.Peer, e *envelope.Envelope) error {
	if e.PayloadString("intent") == "secret" {
		return envelope.Errorf(envelope.CodeForbidden, "no secrets here")
	}
	return nil
}

// TestCheck checks that agora check finds nothing wrong with a database that has copies, and finds a changed row of the
// mirrors (RELAYS R-20).
func TestCheck(t *testing.T) {
	folder := t.TempDir()
	var at time.Time
	pair(t, func(_, b *site) { b.folder = folder }, func(a, b *site) {
		a.post(key(t), envelope.Draft{Payload: request, Home: a.home()})
		a.post(key(t), envelope.Draft{Payload: manifest("one", a.home())})
		settle()
		at = time.Now()
		if b.observer.stored.Load() != 2 {
			t.Fatalf("%d messages were copied", b.observer.stored.Load())
		}
	})
	path := folder + "/agora.db"
	find := func() string {
		t.Helper()
		var all []string
		_, err := check.Database(t.Context(), path, check.Options{Now: at, Extensions: []relay.Extension{mirror.Extension},
			Found: func(f check.Finding) { all = append(all, f.String()) }})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(all)
	}
	if found := find(); found != "[]" {
		t.Errorf("found %s", found)
	}
	store, err := sqlite.Open(t.Context(), path, sqlite.Options{Log: quiet, Reserve: 1 << 20,
		Extensions: []relay.Extension{mirror.Extension}})
	if err != nil {
		t.Fatal(err)
	}
	err = relay.UpdateStore(t.Context(), store, func(tx relay.ExtTx) error {
		_, err := tx.Exec("UPDATE mirror_peer SET url = 'nowhere', cursor = ''")
		return err
	})
	if err != nil || store.Close() != nil {
		t.Fatal(err)
	}
	if found := find(); !strings.Contains(found, "it is not a relay") || !strings.Contains(found,
		"its cursor is not one") {
		t.Errorf("found %s", found)
	}
}
