package relay_test

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

const ownOrigin = "https://here.example"

// privateConfig is for a relay that shows directed messages only to their parties.
var privateConfig = relay.Config{Origin: ownOrigin, Reads: relay.ToParties}

// signedPeer is a peer that has signed its read with k. The zero key is an anonymous reader.
func signedPeer(k didkey.Key) relay.Peer { return relay.Peer{Local: true, Reader: k.DID()} }

// idsOf returns the ids of events.
func idsOf(events []relay.Event) []string {
	all := []string{}
	for _, e := range events {
		all = append(all, e.ID)
	}
	return all
}

// TestPartiesSeeTheirOwnEvents checks who sees which events, for each reader, each filter and each kind of poll.
func TestPartiesSeeTheirOwnEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, privateConfig)
		alice, bob, eve := key(t), key(t), key(t)
		ids := map[string]string{}
		post := func(name string, by didkey.Key, d envelope.Draft) {
			e := sign(t, by, d)
			post(t, r, e)
			ids[name] = e.ID
		}
		began := time.Now()
		time.Sleep(time.Second)
		post("toBob", alice, envelope.Draft{Payload: request, Thread: "t", Recipient: bob.DID()})
		post("toAlice", bob, envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Thread: "t", Recipient: alice.DID()})
		post("toAll", alice, envelope.Draft{Payload: envelope.Request{RequestID: "r2", Intent: "echo"}, Thread: "u"})
		post("eves", eve, envelope.Draft{Payload: envelope.Request{RequestID: "r3", Intent: "echo"}, Thread: "v",
			Recipient: bob.DID()})
		synctest.Wait()
		ts := time.Now()
		for _, c := range []struct {
			name   string
			reader didkey.Key
			filter relay.Filter
			want   string // names, in order; "401": the poll is refused
		}{
			{"anonymous", didkey.Key{}, relay.Filter{}, "toAll"},
			{"anonymous, a thread", didkey.Key{}, relay.Filter{Thread: "t"}, ""},
			{"anonymous, a public thread", didkey.Key{}, relay.Filter{Thread: "u"}, "toAll"},
			{"anonymous, a sender", didkey.Key{}, relay.Filter{Sender: alice.DID()}, "toAll"},
			{"anonymous, a type", didkey.Key{}, relay.Filter{Type: envelope.TypeOffer}, ""},
			{"anonymous, an inbox", didkey.Key{}, relay.Filter{Recipient: bob.DID()}, "401"},
			{"anonymous, an inbox and broadcasts", didkey.Key{}, relay.Filter{Recipient: bob.DID(), Broadcast: true}, "401"},
			{"eve, bob's inbox", eve, relay.Filter{Recipient: bob.DID()}, "401"},
			{"eve, what she sent bob", eve, relay.Filter{Recipient: bob.DID(), Sender: eve.DID()}, "401"},
			{"eve", eve, relay.Filter{}, "toAll eves"},
			{"eve, a thread", eve, relay.Filter{Thread: "t"}, ""},
			{"eve, a thread's client", eve, relay.Filter{Thread: "t", Client: alice.DID()}, ""},
			{"eve, a sender", eve, relay.Filter{Sender: alice.DID()}, "toAll"},
			{"eve, a type", eve, relay.Filter{Type: envelope.TypeRequest}, "toAll eves"},
			{"eve, her inbox", eve, relay.Filter{Recipient: eve.DID()}, ""},
			{"alice", alice, relay.Filter{}, "toBob toAlice toAll"},
			{"alice, her inbox", alice, relay.Filter{Recipient: alice.DID()}, "toAlice"},
			{"alice, and broadcasts", alice, relay.Filter{Recipient: alice.DID(), Broadcast: true}, "toAlice toAll"},
			{"bob", bob, relay.Filter{}, "toBob toAlice toAll eves"},
			{"bob, a sender", bob, relay.Filter{Sender: alice.DID()}, "toBob toAll"},
		} {
			var want []string
			for name := range strings.FieldsSeq(c.want) {
				want = append(want, ids[name])
			}
			for way, p := range map[string]relay.Poll{"cursor": {}, "since, before all events": {Since: began},
				"since, a bookmark": {Since: ts}, "before the end": {Cursor: endOf(t, r)}} {
				p.Peer, p.Filter, p.Limit = signedPeer(c.reader), c.filter, 9
				ask := r.Events
				if way == "before the end" {
					ask = r.EventsBefore
				}
				d, err := ask(t.Context(), &p)
				if c.want == "401" {
					if e := wantCode(t, err, envelope.CodeUnauthorized); e.Details["reason"] != envelope.ReasonUnsigned {
						t.Errorf("%s by %s: %v", c.name, way, e.Details)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if way == "before the end" {
					slices.Reverse(d.Events)
				}
				if way == "since, a bookmark" && len(want) > 0 {
					want := want[1:] // the first one is the bookmark
					if got := idsOf(d.Events); !slices.Equal(got, want) {
						t.Errorf("%s by %s: %v, want %v", c.name, way, got, want)
					}
				} else if got := idsOf(d.Events); !slices.Equal(got, want) {
					t.Errorf("%s by %s: %v, want %v of %v", c.name, way, got, want, ids)
				}
			}
		}
	})
}

// TestInvisibleEventsWakeNobody checks that events that a poll may not see do not affect it. The poll does not read the
// store because of them, and it ends when its Wait is over.
func TestInvisibleEventsWakeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &countingStore{}
		c := privateConfig
		c.Store = inner
		r := start(t, c)
		alice, bob, eve := key(t), key(t), key(t)
		began := time.Now()
		ended := make(chan time.Duration, 16)
		for _, f := range []relay.Filter{{}, {Thread: "t"}, {Sender: alice.DID()}, {Type: envelope.TypeRequest}} {
			for _, reader := range []didkey.Key{{}, eve} {
				for _, p := range []relay.Poll{{}, {Since: began}} {
					p.Peer, p.Filter, p.Wait, p.Limit = signedPeer(reader), f, 20*time.Second, 9
					go func() {
						d, err := r.Events(t.Context(), &p)
						if err != nil || len(d.Events) > 0 {
							t.Errorf("%+v: %d events, %v", p, len(d.Events), err)
						}
						ended <- time.Since(began)
					}()
				}
			}
		}
		synctest.Wait()
		before := inner.reads.Load()
		for i := range 5 {
			time.Sleep(time.Second)
			id := fmt.Sprint("t", i)
			if i == 0 {
				id = "t"
			}
			post(t, r, sign(t, alice, envelope.Draft{Payload: request, Thread: id, Recipient: bob.DID()}))
		}
		synctest.Wait()
		if n := inner.reads.Load() - before; n != 0 {
			t.Errorf("the polls read the store %d times because of events that they may not see", n)
		}
		for range cap(ended) {
			if took := <-ended; took != 20*time.Second {
				t.Errorf("a poll ended after %v", took)
			}
		}
	})
}

// TestThreadIsVisibleToPartiesOnly checks that for others a thread does not exist, whatever they read or post.
func TestThreadIsVisibleToPartiesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, privateConfig)
		client, agent, loser, eve := key(t), key(t), key(t), key(t)
		post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t"}))
		for _, by := range []didkey.Key{agent, loser} {
			time.Sleep(time.Minute)
			post(t, r, sign(t, by, envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Thread: "t",
				Recipient: client.DID()}))
		}
		view := func(who didkey.Key) (relay.ThreadView, error) {
			return r.Thread(t.Context(), signedPeer(who), thread.Key{ID: "t"})
		}
		for who, offers := range map[didkey.DID]int{client.DID(): 2, agent.DID(): 1, loser.DID(): 1} {
			v, err := r.Thread(t.Context(), relay.Peer{Local: true, Reader: who}, thread.Key{ID: "t", Client: client.DID()})
			if err != nil || len(v.Offers) != offers || v.OffersMade != offers || len(v.Transitions) != 1+offers ||
				len(v.Events) != 1+offers || v.Expired != 0 {
				t.Errorf("%s: %+v, %v", who, v, err)
			}
		}
		for _, who := range []didkey.Key{{}, eve} {
			if _, err := view(who); err != thread.ErrNotFound {
				t.Errorf("a stranger: %v", err)
			}
		}
		post(t, r, sign(t, client, envelope.Draft{Payload: envelope.Accept{RequestID: "r1"}, Thread: "t",
			Recipient: agent.DID()}))
		if _, err := view(loser); err != thread.ErrNotFound {
			t.Errorf("the agent that was not chosen: %v", err)
		}
		if v, err := view(agent); err != nil || v.State != thread.Active || len(v.Offers) != 1 || len(v.Events) != 3 {
			t.Errorf("the agent that was chosen: %+v, %v", v, err)
		}
		// An older thread with this id does not hide the reader's own thread.
		post(t, r, sign(t, eve, envelope.Draft{Payload: request, Thread: "t", Recipient: loser.DID()}))
		if v, err := view(eve); err != nil || v.Client != eve.DID() {
			t.Errorf("%+v, %v", v, err)
		}
		post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "directed", Recipient: agent.DID()}))

		for _, id := range []string{"t", "directed", "nowhere"} {
			for _, by := range []didkey.Key{eve, loser} {
				for _, payload := range []envelope.Payload{envelope.Offer{RequestID: "r1"}, envelope.Offer{RequestID: "other"},
					envelope.Accept{RequestID: "r1"}, envelope.Result{RequestID: "r1", Status: "success"},
					envelope.Failure{RequestID: "r1", Code: "X", Message: "x"}, envelope.Cancel{RequestID: "r1"}} {
					for _, to := range []didkey.DID{"", client.DID(), agent.DID()} {
						_, err := r.Post(t.Context(), local, sign(t, by,
							envelope.Draft{Payload: payload, Thread: id, Recipient: to}).Canonical())
						// Eve and the loser take part in another thread with this id, so their answer is about that
						// one.
						own := id == "t"
						if err == nil && own {
							continue
						}
						if e := codeOf(err); err == nil || e != envelope.CodeThreadNotFound && !own {
							t.Errorf("%T to %s: %v", payload, id, err)
						}
						if strings.Contains(err.Error(), string(thread.Active)) {
							t.Errorf("%T to %s reveals its state: %v", payload, id, err)
						}
					}
				}
			}
		}
		// A party is told what is wrong.
		_, err := r.Post(t.Context(), local, sign(t, agent,
			envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Thread: "t", Recipient: client.DID()}).Canonical())
		wantCode(t, err, envelope.CodeInvalidTransition)
	})
}

// TestSearchesForThreadsAreCharged checks that the search for a hidden thread is charged, for a read and for a post.
func TestSearchesForThreadsAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &countingStore{took: 900 * time.Millisecond}
		c := privateConfig
		c.Store = inner
		r := start(t, c)
		eve := key(t)
		for addr, ask := range map[string]func(relay.Peer) error{
			"192.0.2.1": func(p relay.Peer) error { _, err := r.Thread(t.Context(), p, thread.Key{ID: "t"}); return err },
			"192.0.2.2": func(p relay.Peer) error {
				_, err := r.Post(t.Context(), p, sign(t, eve,
					envelope.Draft{Payload: envelope.Result{RequestID: "r1", Status: "success"}, Thread: "t"}).Canonical())
				return err
			},
		} {
			p := from(addr)
			p.Reader = eve.DID()
			if err := ask(p); err != thread.ErrNotFound {
				t.Errorf("%s: %v", addr, err)
			}
			// The search takes 180 of 200 tokens.
			if left := readsLeft(r, p); left != 20 {
				t.Errorf("%s may send %d more requests, want 20", addr, left)
			}
		}
	})
}

// TestCursorsRevealNothing checks that nobody can count hidden events with cursors, and that nobody can make up a
// cursor.
func TestCursorsRevealNothing(t *testing.T) {
	r := start(t, privateConfig)
	alice, bob := key(t), key(t)
	empty := poll(t, r, relay.Poll{Limit: 9})
	first, again := r.FormatCursor(empty.Cursor), r.FormatCursor(empty.Cursor)
	if len(first) != 32 || first == again {
		t.Errorf("two cursors of the same position are %s and %s", first, again)
	}
	receipt := post(t, r, sign(t, alice, envelope.Draft{Payload: request, Thread: "t", Recipient: bob.DID()}))
	if a := r.FormatReceipt(receipt.Cursor); a != r.FormatReceipt(receipt.Cursor) || a == r.FormatCursor(receipt.Cursor) {
		t.Error("a receipt's cursor changes")
	}
	for _, text := range []string{first, again, r.FormatReceipt(receipt.Cursor), "0"} {
		c, err := r.ParseCursor(text)
		if err != nil || text != "0" && c.Epoch != receipt.Cursor.Epoch || text == r.FormatReceipt(receipt.Cursor) &&
			c != receipt.Cursor {
			t.Errorf("%s is parsed as %v, %v", text, c, err)
		}
	}
	for _, text := range []string{receipt.Cursor.String(), strings.Repeat("00", 16), strings.ToUpper(first), first[:30],
		first + "00", "1", ""} {
		c, err := r.ParseCursor(text)
		if err == nil {
			_, err = r.Events(t.Context(), &relay.Poll{Cursor: c, Limit: 9})
		}
		if codeOf(err) != envelope.CodeInvalidRequest {
			t.Errorf("%q is accepted: %v", text, err)
		}
	}
	other := start(t, privateConfig)
	if _, err := other.ParseCursor(first); err != relay.ErrUnknownCursor {
		t.Errorf("another relay's cursor: %v", err)
	}
	open := start(t, relay.Config{Origin: ownOrigin})
	if got := open.FormatCursor(receipt.Cursor) + open.FormatReceipt(receipt.Cursor); got !=
		strings.Repeat(receipt.Cursor.String(), 2) {
		t.Errorf("the cursors of an open relay: %s", got)
	}
}

// TestPresenceRevealsNoMessage checks the directory: an agent is online if it has posted a broadcast or signs reads.
func TestPresenceRevealsNoMessage(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, privateConfig)
		agent, bob := key(t), key(t)
		post(t, r, sign(t, agent, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}))
		hidden := sign(t, bob, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}},
			Recipient: agent.DID()})
		post(t, r, hidden)
		announced := time.Now()
		time.Sleep(10 * time.Minute)
		post(t, r, sign(t, agent, envelope.Draft{Payload: request, Thread: "t", Recipient: bob.DID()}))
		row := func(q relay.AgentQuery, by relay.Peer) []relay.Agent {
			t.Helper()
			q.Limit = 9
			page, err := r.Agents(t.Context(), by, q)
			if err != nil {
				t.Fatal(err)
			}
			return page.Agents
		}
		if all := row(relay.AgentQuery{}, local); len(all) != 1 || r.Online(all[0]) || !all[0].LastSeen.Equal(announced) {
			t.Errorf("%+v, announced at %v", all, announced)
		}
		if all := row(relay.AgentQuery{}, signedPeer(agent)); len(all) != 2 {
			t.Errorf("a manifest's recipient does not see it: %+v", all)
		}
		if _, _, err := r.Agent(t.Context(), local, bob.DID()); codeOf(err) != envelope.CodeAgentNotFound {
			t.Errorf("a manifest for another reader: %v", err)
		}
		token := tokenFor(t, agent, envelope.Read{})
		if _, err := r.VerifyRead(t.Context(), token, "GET", "/events"); err != nil {
			t.Fatal(err)
		}
		since := time.Now().Add(-relay.OnlineWithin)
		all := row(relay.AgentQuery{OnlineSince: since}, local)
		if len(all) != 1 || !r.Online(all[0]) || all[0].LastSeen != all[0].LastSeen.Truncate(time.Minute) {
			t.Errorf("%+v", all)
		}
		if off := row(relay.AgentQuery{OnlineSince: since, OfflineOnly: true}, local); len(off) != 0 {
			t.Errorf("offline: %+v", off)
		}
		time.Sleep(11 * time.Minute)
		if all := row(relay.AgentQuery{OnlineSince: time.Now().Add(-relay.OnlineWithin)}, local); len(all) != 0 {
			t.Errorf("eleven minutes later: %+v", all)
		}
	})
}

// tokenFor signs a read of /events at ownOrigin, now. The fields that r has take precedence.
func tokenFor(t *testing.T, k didkey.Key, r envelope.Read) string {
	t.Helper()
	r.Audience, r.Method, r.Target = cmp.Or(r.Audience, ownOrigin), cmp.Or(r.Method, "GET"), cmp.Or(r.Target, "/events")
	if r.TS.IsZero() {
		r.TS = time.Now()
	}
	token, err := r.Sign(k)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestTokensAreForOneRead checks that a token is valid only at one relay, for one request, within its minute, and once.
// A token that is refused is not recorded as used.
func TestTokensAreForOneRead(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, privateConfig)
		time.Sleep(10 * time.Minute)
		k, eve := key(t), key(t)
		now := time.Now()
		const nonce = "one-and-the-same-nonce"
		verify := func(who didkey.Key, read envelope.Read) (didkey.DID, error) {
			read.Nonce = nonce
			return r.VerifyRead(t.Context(), tokenFor(t, who, read), "GET", "/events")
		}
		for name, c := range map[string]struct {
			read   envelope.Read
			reason string
		}{
			"another relay":                  {envelope.Read{Audience: "https://there.example"}, envelope.ReasonAudience},
			"this relay in another spelling": {envelope.Read{Audience: ownOrigin + "/"}, envelope.ReasonAudience},
			"another target":                 {envelope.Read{Target: "/events?"}, envelope.ReasonRequest},
			"another method":                 {envelope.Read{Method: "HEAD"}, envelope.ReasonRequest},
			"too old":                        {envelope.Read{TS: now.Add(-relay.ReadSkew)}, envelope.ReasonTime},
			"too new":                        {envelope.Read{TS: now.Add(relay.ReadSkew)}, envelope.ReasonTime},
		} {
			if _, err := verify(k, c.read); wantCode(t, err, envelope.CodeUnauthorized).Details["reason"] != c.reason {
				t.Errorf("%s: %v", name, err)
			}
		}
		token := tokenFor(t, k, envelope.Read{Nonce: nonce})
		text, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			t.Fatal(err)
		}
		forged := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(text), string(k.DID()),
			string(eve.DID()), 1)))
		if _, err := r.VerifyRead(t.Context(), forged, "GET", "/events"); wantCode(
			t, err, envelope.CodeUnauthorized).Details["reason"] != envelope.ReasonMalformed {
			t.Errorf("forged: %v", err)
		}
		if did, err := r.VerifyRead(t.Context(), token, "GET", "/events"); err != nil || did != k.DID() {
			t.Fatalf("%s, %v", did, err)
		}
		if _, err := r.VerifyRead(t.Context(), token, "GET", "/events"); wantCode(
			t, err, envelope.CodeUnauthorized).Details["reason"] != envelope.ReasonUsed {
			t.Errorf("again: %v", err)
		}
		if _, err := verify(k, envelope.Read{TS: now.Add(time.Second)}); wantCode(
			t, err, envelope.CodeUnauthorized).Details["reason"] != envelope.ReasonUsed {
			t.Errorf("the same nonce in another token: %v", err)
		}
		if did, err := verify(eve, envelope.Read{}); err != nil || did != eve.DID() {
			t.Errorf("the same nonce from another reader: %v", err)
		}
	})
}

func TestPrivateNeedsAnOrigin(t *testing.T) {
	store := &countingStore{}
	start(t, relay.Config{Store: store})
	if _, err := relay.New(t.Context(), relay.Config{Reads: relay.ToParties, Store: store, Key: key(t)}); err == nil {
		t.Error("a relay with ToParties starts without an origin")
	}
}
