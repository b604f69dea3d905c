package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
	"github.com/agora-relay/agora/thread"
)

// local is the peer in tests that are not about limits.
var local = relay.Peer{Local: true}

// start runs a relay over a new database until the test ends.
func start(t *testing.T, c relay.Config) *relay.Relay {
	t.Helper()
	return startAt(t, filepath.Join(t.TempDir(), "agora.db"), c)
}

// startWith is the same as start, with a store of this policy.
func startWith(t *testing.T, policy relay.Policy, c relay.Config) *relay.Relay {
	t.Helper()
	r, stop := runWith(t, filepath.Join(t.TempDir(), "agora.db"), policy, c)
	t.Cleanup(stop)
	return r
}

func startAt(t *testing.T, path string, c relay.Config) *relay.Relay {
	t.Helper()
	r, stop := runAt(t, path, c)
	t.Cleanup(stop)
	return r
}

// runAt runs a relay over the database at path until stop is called.
func runAt(t *testing.T, path string, c relay.Config) (r *relay.Relay, stop func()) {
	t.Helper()
	return runWith(t, path, relay.Policy{}, c)
}

func runWith(t *testing.T, path string, policy relay.Policy, c relay.Config) (r *relay.Relay, stop func()) {
	t.Helper()
	return runOver(t, path, sqlite.Options{Policy: policy, Reserve: 1 << 22}, c)
}

// runOver is the same as runAt, with these options for the store.
func runOver(t *testing.T, path string, o sqlite.Options, c relay.Config) (r *relay.Relay, stop func()) {
	t.Helper()
	if engine.InBubble() {
		engine.OnlySQLite(t, "it waits in synthetic time, and both stores leave waiting to the relay")
	}
	store, err := engine.Open(t, path, o)
	if err != nil {
		t.Fatal(err)
	}
	if outer, ok := c.Store.(*countingStore); ok {
		outer.Store = store
	} else {
		c.Store = store
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Key.DID() == "" {
		c.Key = key(t)
	}
	if r, err = relay.New(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return r, engine.Run(t, r, store)
}

func key(t *testing.T) didkey.Key {
	t.Helper()
	k, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t *testing.T, k didkey.Key, d envelope.Draft) *envelope.Envelope {
	t.Helper()
	e, err := d.Sign(k, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func post(t *testing.T, r *relay.Relay, e *envelope.Envelope) relay.Receipt {
	t.Helper()
	receipt, err := r.Post(t.Context(), local, e.Canonical())
	if err != nil {
		t.Fatalf("post %s %s: %v", e.Type, e.ID, err)
	}
	return receipt
}

func wantCode(t *testing.T, err error, code envelope.Code) *envelope.Error {
	t.Helper()
	e, ok := errors.AsType[*envelope.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("got error %v, want %s", err, code)
	}
	return e
}

// codeOf returns the code of a refusal. It returns "" for any other error, and for nil.
func codeOf(err error) envelope.Code {
	e, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return ""
	}
	return e.Code
}

func poll(t *testing.T, r *relay.Relay, p relay.Poll) relay.Page {
	t.Helper()
	d, err := r.Events(t.Context(), &p)
	if err != nil {
		t.Fatal(err)
	}
	page := d.Page
	page.Events = nil
	for piece, err := range d.Pieces() {
		if err != nil {
			t.Fatal(err)
		}
		page.Events = append(page.Events, piece...)
	}
	return page
}

var request = envelope.Request{RequestID: "r1", Intent: "echo"}

// runThread posts the messages of a thread up to and including the given type. It returns the id of the thread.
func runThread(t *testing.T, r *relay.Relay, client, agent didkey.Key, upTo envelope.Type) string {
	t.Helper()
	id := envelope.NewID("thread", time.Now())
	for _, step := range []struct {
		from, to didkey.Key
		typ      envelope.Type
		payload  envelope.Payload
	}{
		{client, agent, envelope.TypeRequest, request},
		{agent, client, envelope.TypeOffer, envelope.Offer{RequestID: "r1"}},
		{client, agent, envelope.TypeAccept, envelope.Accept{RequestID: "r1"}},
		{agent, client, envelope.TypeResult, envelope.Result{RequestID: "r1", Status: "success"}},
	} {
		post(t, r, sign(t, step.from, envelope.Draft{Payload: step.payload, Thread: id, Recipient: step.to.DID()}))
		if step.typ == upTo {
			break
		}
	}
	return id
}

func TestPostChecksBeforeItStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Origin: "https://here.example"})
		client, other := key(t), key(t)
		now := time.Now()
		good := envelope.Draft{Payload: request, Thread: "t1"}
		tampered := sign(t, client, good)
		body := []byte(string(tampered.Canonical()))
		body[len(body)/2] ^= 1

		early := good
		early.TS = now.Add(5 * time.Minute)
		expired := good
		expired.TS, expired.TTL = now.Add(-2*time.Second), time.Second
		otherRelay := good
		otherRelay.Relays = []string{"https://there.example"}
		otherHome := good
		otherHome.Home = &envelope.Home{DID: other.DID(), URL: "https://there.example"}
		noRelay := good
		noRelay.Relays = []string{}
		for name, c := range map[string]struct {
			draft envelope.Draft
			code  envelope.Code
		}{
			"too early":           {early, envelope.CodeStaleTimestamp},
			"expired on arrival":  {expired, envelope.CodeExpired},
			"for another relay":   {otherRelay, envelope.CodeForbidden},
			"with another home":   {otherHome, envelope.CodeForbidden},
			"for no relay at all": {noRelay, envelope.CodeForbidden},
			"no such thread": {envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Thread: "t1"},
				envelope.CodeThreadNotFound},
			"no intent": {envelope.Draft{Payload: envelope.Request{RequestID: "r1"}, Thread: "t1"},
				envelope.CodeInvalidRequest},
			"another's key": {envelope.Draft{Payload: envelope.Manifest{ID: "m",
				Auth: &envelope.Auth{PublicKey: other.DID().Multibase()}}},
				envelope.CodeInvalidRequest},
			"an empty key": {envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeManifest,
				JSON: []byte(`{"id":"m","auth":{"public_key":""}}`)}},
				envelope.CodeInvalidRequest},
		} {
			_, err := r.Post(t.Context(), local, sign(t, client, c.draft).Canonical())
			t.Log(name)
			wantCode(t, err, c.code)
		}
		if _, err := r.Post(t.Context(), local, body); err == nil {
			t.Error("a tampered body was accepted")
		}
		if page := poll(t, r, relay.Poll{Limit: 10}); len(page.Events) != 0 {
			t.Errorf("refused messages left %d events", len(page.Events))
		}
		bound := good
		bound.Relays = []string{"https://there.example", "https://here.example"}
		post(t, r, sign(t, client, bound))
		_, err := r.Post(t.Context(), local, sign(t, client, otherHome).Canonical())
		refusal, _ := errors.AsType[*envelope.Error](err)
		if home, _ := refusal.Details["home"].(*envelope.Home); refusal.Details["reason"] != "home" || *home != *otherHome.Home {
			t.Errorf("the details are %v", refusal.Details)
		}
		otherHome.Home.DID, otherHome.Home.URL = r.DID(), "https://anywhere.example" // the url decides nothing
		otherHome.Thread = "t2"
		post(t, r, sign(t, client, otherHome))
	})
}

// TestManifestRelays checks the form of payload.relays (RELAYS R-10).
func TestManifestRelays(t *testing.T) {
	r, agent := start(t, relay.Config{}), key(t)
	one, two := `{"did":"`+string(key(t).DID())+`","url":"https://a.example"`,
		`{"did":"`+string(key(t).DID())+`","url":"https://b.example:8443"}`
	list := func(count int) (text string) {
		for i := range count {
			text += fmt.Sprintf(`,{"did":%q,"url":"https://%d.example"}`, key(t).DID(), i)
		}
		return text[1:]
	}
	for relays, good := range map[string]bool{
		`[` + one + `}]`: true, `[` + one + `,"note":[1]},` + two + `]`: true, `[` + list(4) + `]`: true,
		`[` + list(5) + `]`: false, `[]`: false, `null`: false, `{}`: false, `"https://a.example"`: false,
		`[null]`: false, `[1]`: false,
		`[` + one + `},` + one + `}]`: false, `[{"url":"https://a.example"}]`: false,
		`[` + strings.Replace(one, "a.example", "a.example/", 1) + `}]`:     false,
		`[` + strings.Replace(one, "https://a", "ftp://a", 1) + `}]`:        false,
		`[` + strings.Replace(one, "did:key:z", "did:key:x", 1) + `}]`:      false,
		`[` + strings.Replace(one, `"https://a.example"`, `null`, 1) + `}]`: false,
	} {
		e := sign(t, agent, envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeManifest,
			JSON: []byte(`{"id":"m","relays":` + relays + `}`)}})
		_, err := r.Post(t.Context(), local, e.Canonical())
		if want := map[bool]envelope.Code{false: envelope.CodeInvalidRequest}[good]; envelope.CodeOf(err) != want {
			t.Errorf("%s: %v, want %q", relays, err, want)
		}
	}
}

func TestMaxTTLAppliesToExpiryCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, relay.Policy{Window: replay.Window{MaxTTL: 10 * time.Second}}, relay.Config{})
		e := sign(t, key(t), envelope.Draft{Payload: request, TS: time.Now().Add(-20 * time.Second)})
		_, err := r.Post(t.Context(), local, e.Canonical())
		wantCode(t, err, envelope.CodeExpired)
	})
}

func TestRequestToSelfTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		client := key(t)
		post(t, r, sign(t, client, envelope.Draft{Payload: request, Recipient: client.DID()}))
		time.Sleep(thread.DefaultPendingTimeout + 2*time.Second)
		if page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: client.DID(), Type: envelope.TypeError},
			Limit: 10}); len(page.Events) != 1 {
			t.Errorf("%d notices, want one", len(page.Events))
		}
	})
}

func TestReplay(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "agora.db")
		store, err := sqlite.Open(t.Context(), path, sqlite.Options{Reserve: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var clockBack time.Duration
		r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key(t),
			Now: func() time.Time { return time.Now().Add(-clockBack) }})
		if err != nil {
			t.Fatal(err)
		}
		client := key(t)
		// This is the worst case for the memory of ids: the ts is at the end of the window, and the message expires
		// soon.
		e := sign(t, client, envelope.Draft{Payload: request, Thread: "t1",
			TS: time.Now().Add(5*time.Minute - time.Millisecond), TTL: time.Second})
		first := post(t, r, e)
		again := post(t, r, e)
		if !again.Duplicate || again.Cursor != first.Cursor || again.Thread != first.Thread || again.State != thread.Pending {
			t.Errorf("the repeated post got %+v, the first %+v", again, first)
		}
		expire := func() {
			if err := store.Expire(t.Context(), time.Now(), nil); err != nil {
				t.Fatal(err)
			}
		}
		deliveries := func() int { return len(poll(t, r, relay.Poll{Limit: 10}).Events) }
		if n := deliveries(); n != 1 {
			t.Fatalf("stored %d times", n)
		}
		for range 60 {
			time.Sleep(time.Minute)
			expire()
			for _, clockBack = range []time.Duration{0, 15 * time.Minute} {
				receipt, err := r.Post(t.Context(), local, e.Canonical())
				if err == nil && !receipt.Duplicate {
					t.Fatalf("accepted again with the clock set back by %v", clockBack)
				}
			}
			clockBack = 0
			if n := deliveries(); n != 0 && time.Since(e.TS) > time.Second {
				t.Fatalf("delivered %d times after its expiry", n)
			}
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPollIsWokenByItsOwnEventsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		client, agent, stranger := key(t), key(t), key(t)
		began := time.Now()
		filters := map[string]relay.Filter{
			"recipient":           {Recipient: agent.DID()},
			"recipient+broadcast": {Recipient: agent.DID(), Broadcast: true},
			"sender":              {Sender: client.DID()},
			"thread":              {Thread: "t1"},
			"type":                {Type: envelope.TypeRequest},
			"none":                {},
		}
		woken := make(chan string, len(filters)+1)
		wait := func(name string, f relay.Filter) {
			go func() {
				page, err := r.Events(t.Context(), &relay.Poll{Filter: f, Wait: time.Minute, Limit: 10})
				if err == nil && len(page.Events) == 1 {
					woken <- name
				}
			}()
		}
		for name, f := range filters {
			wait(name, f)
		}
		wait("another inbox", relay.Filter{Recipient: stranger.DID()})
		synctest.Wait()
		if n := r.Waiting(); n != len(filters)+1 {
			t.Fatalf("%d polls wait", n)
		}
		time.Sleep(time.Second)
		post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t1", Recipient: agent.DID()}))
		got := map[string]bool{}
		for range filters {
			got[<-woken] = true
		}
		if since := time.Since(began); since != time.Second {
			t.Errorf("polls were answered after %v, the event came after 1s", since)
		}
		for name := range filters {
			if !got[name] {
				t.Errorf("%s was not woken", name)
			}
		}
		synctest.Wait()
		if n := r.Waiting(); n != 1 {
			t.Errorf("%d polls still wait, want only that of the other inbox", n)
		}
		r.Drain()
	})
}

func TestPollEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		began := time.Now()
		for _, p := range []relay.Poll{{Wait: 7 * time.Second, Limit: 1}, {Since: began, Wait: 7 * time.Second, Limit: 1}} {
			before := time.Now()
			if page := poll(t, r, p); len(page.Events) != 0 || time.Since(before) != 7*time.Second {
				t.Errorf("%+v: %d events after %v", p, len(page.Events), time.Since(before))
			}
			gone, leave := context.WithCancel(t.Context())
			go func() {
				time.Sleep(time.Second)
				leave()
			}()
			if _, err := r.Events(gone, &p); !errors.Is(err, context.Canceled) || r.Waiting() != 0 {
				t.Errorf("a poll whose client left ended with %v, %d wait", err, r.Waiting())
			}
		}
		answered := make(chan relay.Page, 2)
		for _, p := range []relay.Poll{{Wait: time.Minute, Limit: 1}, {Since: began, Wait: time.Minute, Limit: 1}} {
			go func() {
				page, err := r.Events(t.Context(), &p)
				if err != nil {
					t.Errorf("drained poll: %v", err)
				}
				answered <- page.Page
			}()
		}
		synctest.Wait()
		before := time.Now()
		r.Drain()
		for range 2 {
			if page := <-answered; len(page.Events) != 0 {
				t.Errorf("a drained poll got %d events", len(page.Events))
			}
		}
		if waited := time.Since(before); waited != 0 {
			t.Errorf("draining took %v", waited)
		}
		// A poll that arrives now does not wait.
		page := poll(t, r, relay.Poll{Wait: time.Minute, Limit: 1})
		if len(page.Events) != 0 || time.Since(before) != 0 {
			t.Errorf("a poll after Drain got %d events after %v", len(page.Events), time.Since(before))
		}
		_, err := r.Post(t.Context(), local, sign(t, key(t), envelope.Draft{Payload: request}).Canonical())
		wantCode(t, err, envelope.CodeUnavailable)
	})
}

func TestTimeoutIsAnnouncedOnceToEachParty(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "agora.db")
		relayKey := key(t)
		client, agent := key(t), key(t)
		var ids []string
		func() {
			r, stop := runAt(t, path, relay.Config{Key: relayKey})
			defer stop()
			pending := runThread(t, r, client, agent, envelope.TypeOffer)
			active := runThread(t, r, client, agent, envelope.TypeAccept)
			ids = []string{pending, active}
			time.Sleep(thread.DefaultPendingTimeout - time.Nanosecond)
			if v, err := r.Thread(t.Context(), local, thread.Key{ID: pending}); err != nil || v.State != thread.Pending {
				t.Fatalf("just before its deadline: %v %v", v.State, err)
			}
			time.Sleep(time.Nanosecond)
			// The thread has timed out although no sweep has run. A read shows this, and a message is refused.
			if v, err := r.Thread(t.Context(), local, thread.Key{ID: pending}); err != nil || v.State != thread.Failed ||
				!v.TimedOut() {
				t.Fatalf("at its deadline: %v %v", v.State, err)
			}
			_, err := r.Post(t.Context(), local, sign(t, client,
				envelope.Draft{Payload: envelope.Accept{RequestID: "r1"}, Thread: pending}).Canonical())
			if e := wantCode(t, err, envelope.CodeInvalidTransition); e.Details["state"] != thread.Failed {
				t.Errorf("the details are %v", e.Details)
			}
			time.Sleep(thread.DefaultActiveTimeout)
		}()
		r := startAt(t, path, relay.Config{Key: relayKey})
		time.Sleep(time.Hour)
		for _, did := range []didkey.DID{client.DID(), agent.DID()} {
			page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: did, Sender: relayKey.DID()}, Limit: 100})
			told := map[string]int{}
			for _, event := range page.Events {
				e, err := envelope.Parse(event.Body, 0)
				if err == nil {
					err = e.Verify()
				}
				if err != nil || e.PayloadString("code") != string(envelope.AgentTimeout) || e.RequestID != "r1" {
					t.Errorf("notice %s: %v", event.Body, err)
				}
				told[e.Thread]++
			}
			for _, id := range ids {
				if told[id] != 1 || len(told) != len(ids) {
					t.Errorf("%s got notices for %v, want one for each of %v", did, told, ids)
				}
			}
		}
	})
}
