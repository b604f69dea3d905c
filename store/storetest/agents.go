package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// list posts a manifest together with a relay.Listing, as the relay does. The Listing has the intents and the text that
// searches look at. list returns the manifest's envelope.
func (f *fixture) list(by didkey.Key, d envelope.Draft, name string, intents ...string) *envelope.Envelope {
	f.Helper()
	m := d.Payload.(envelope.Manifest)
	m.Name = name
	for _, intent := range intents {
		m.Intents = append(m.Intents, envelope.Intent{ID: intent})
	}
	d.Payload = m
	e := f.entry(by, d)
	texts := append([]string{m.ID, name}, intents...)
	e.Listing = &relay.Listing{ID: m.ID, Intents: append([]string{}, intents...),
		Text: strings.ToLower(strings.Join(texts, "\n"))}
	f.append(e)
	return e.Envelope
}

// checkDirectory checks that q at the current time returns exactly these manifests: first on one page, then on pages
// that end early because of q.MaxExamined.
func (f *fixture) checkDirectory(q relay.AgentQuery, want ...*envelope.Envelope) {
	f.Helper()
	q.Now, q.Limit = f.now, 100
	page, err := f.Agents(f.Context(), q)
	f.must(err)
	if page.More {
		f.Errorf("%+v: More is true after %d agents, want all agents on one page", q, len(page.Agents))
	}
	f.equal(fmt.Sprintf("%+v", q), manifests(page.Agents), bodies(want))
	for q.MaxExamined = 1; q.MaxExamined < 4; q.MaxExamined++ {
		got := []string{}
		q.After = 0
		for more := true; more; {
			page, err := f.Agents(f.Context(), q)
			f.must(err)
			if len(page.Agents) > q.MaxExamined && q.DID == "" || page.Partial && (!page.More || page.Next <= q.After) {
				f.Fatalf("%+v: %d agents; too many, or a partial page that does not go on: %+v", q, len(page.Agents), page)
			}
			got = append(got, manifests(page.Agents)...)
			q.After, more = page.Next, page.More
		}
		f.equal(fmt.Sprintf("page by page with MaxExamined, %+v", q), got, bodies(want))
	}
}

// manifests returns the agents in a form that can be compared with bodies.
func manifests(agents []relay.Agent) []string {
	list := []string{}
	for _, a := range agents {
		list = append(list, string(a.DID)+" "+string(a.Manifest))
	}
	return list
}

// bodies returns the messages in a form that can be compared with manifests.
func bodies(messages []*envelope.Envelope) []string {
	list := []string{}
	for _, m := range messages {
		list = append(list, string(m.Sender.ID)+" "+string(m.Canonical()))
	}
	return list
}

// testAgents checks Agents, and how Append and Expire change the directory.
func testAgents(t *testing.T, open Opener) {
	t.Run("search", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		polyglot := f.list(alice, manifest("polyglot"), "Ärzte-Übersetzer 50%", "translate", "explain")
		painter := f.list(alice, manifest("painter"), "Colours", "draw")
		f.advance(time.Minute)
		clerk := f.list(bob, manifest("clerk"), "Files & forms", "translate_forms", `say "hi"`)
		f.post(carol, in("t", request)) // not a manifest, so carol is not in the directory

		for name, c := range map[string]struct {
			q    relay.AgentQuery
			want []*envelope.Envelope
		}{
			"all manifests":                   {relay.AgentQuery{}, []*envelope.Envelope{polyglot, painter, clerk}},
			"one agent":                       {relay.AgentQuery{DID: alice.DID()}, []*envelope.Envelope{polyglot, painter}},
			"an agent without manifest":       {relay.AgentQuery{DID: carol.DID()}, nil},
			"an unknown agent":                {relay.AgentQuery{DID: dave.DID()}, nil},
			"an intent":                       {relay.AgentQuery{Intent: "translate"}, []*envelope.Envelope{polyglot}},
			"a prefix of an intent":           {relay.AgentQuery{Intent: "tran"}, nil},
			"an intent with quotes":           {relay.AgentQuery{Intent: `say "hi"`}, []*envelope.Envelope{clerk}},
			"text":                            {relay.AgentQuery{Text: "translate"}, []*envelope.Envelope{polyglot, clerk}},
			"text beyond ASCII":               {relay.AgentQuery{Text: "ärzte-ü"}, []*envelope.Envelope{polyglot}},
			"% in text is found":              {relay.AgentQuery{Text: "50%"}, []*envelope.Envelope{polyglot}},
			"% in text is no wildcard":        {relay.AgentQuery{Text: "c%s"}, nil},
			"text and intent must both match": {relay.AgentQuery{Text: "colours", Intent: "translate"}, nil},
			"agent, text and intent all match": {relay.AgentQuery{DID: bob.DID(), Text: "forms", Intent: "translate_forms"},
				[]*envelope.Envelope{clerk}},
		} {
			t.Run(name, func(t *testing.T) {
				f := *f
				f.tb = t
				f.checkDirectory(c.q, c.want...)
			})
		}
	})

	t.Run("the newest manifest of each id", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		first := f.list(alice, manifest("m"), "first", "old")
		others := f.list(bob, manifest("m"), "of another", "old")
		f.advance(time.Minute)
		newest := f.list(alice, manifest("m"), "newest", "new")
		f.checkDirectory(relay.AgentQuery{}, newest, others)
		late := manifest("m")
		late.TS = first.TS.Add(time.Second)
		f.advance(time.Minute)
		f.list(alice, late, "sent before, arrives after", "old")
		f.checkDirectory(relay.AgentQuery{}, newest, others)
		f.checkDirectory(relay.AgentQuery{Intent: "old"}, others)
		f.checkDirectory(relay.AgentQuery{Text: "newest"}, newest)
		f.checkDirectory(relay.AgentQuery{Intent: "new"}, newest)
		f.reopen()
		f.checkDirectory(relay.AgentQuery{}, newest, others)
	})

	t.Run("the limit per agent", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		var all []*envelope.Envelope
		for n := range relay.MaxManifests {
			all = append(all, f.list(alice, withTTL(time.Hour, manifest(fmt.Sprint("m", n))), ""))
		}
		more := f.entry(alice, manifest("more"))
		more.Listing = &relay.Listing{ID: "more", Intents: []string{}}
		f.refused(more, envelope.CodeRateLimited)
		f.checkDirectory(relay.AgentQuery{}, all...)
		others := f.list(bob, manifest("more"), "")
		f.advance(time.Minute)
		all[3] = f.list(alice, withTTL(time.Hour, manifest("m3")), "in its place")
		f.checkDirectory(relay.AgentQuery{}, append(all, others)...)
		f.advance(time.Hour - time.Minute)
		f.list(alice, manifest("more"), "")
	})

	t.Run("pages limited in bytes", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		var want []string
		size := 0
		for n := range 10 {
			e := f.list(alice, manifest(fmt.Sprint("m", n)), strings.Repeat("x", n*100))
			want = append(want, string(alice.DID())+" "+string(e.Canonical()))
			size = max(size, len(e.Canonical()))
		}
		var got []string
		q := relay.AgentQuery{Now: f.now, Limit: 100, MaxBytes: 2*size - 1}
		for more := true; more; {
			page, err := f.Agents(f.Context(), q)
			f.must(err)
			bytes := 0
			for _, a := range page.Agents {
				bytes += len(a.Manifest)
			}
			if bytes > q.MaxBytes || len(page.Agents) == 0 {
				t.Fatalf("a page of %d manifests and %d bytes", len(page.Agents), bytes)
			}
			got = append(got, manifests(page.Agents)...)
			q.After, more = page.Next, page.More
		}
		f.equal("page by page", got, want)
	})

	t.Run("expired manifests disappear", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		short := f.list(alice, withTTL(time.Hour, manifest("short")), "", "a", "a")
		long := f.list(alice, withTTL(2*time.Hour, manifest("long")), "", "a")
		f.advance(time.Hour - 1)
		f.checkDirectory(relay.AgentQuery{}, short, long)
		f.advance(1)
		f.checkDirectory(relay.AgentQuery{}, long)
		f.checkDirectory(relay.AgentQuery{Intent: "a"}, long)
		f.expire()
		f.checkDirectory(relay.AgentQuery{Intent: "a"}, long)
	})

	t.Run("online", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		quiet := f.list(alice, manifest("m"), "")
		busy := f.list(bob, manifest("m"), "")
		f.advance(time.Hour)
		f.post(bob, in("t", request)) // any post shows that bob is online
		f.reopen()
		f.post(carol, in("t", request))
		for _, c := range []struct {
			since   time.Time
			online  []*envelope.Envelope
			offline []*envelope.Envelope
		}{
			{noon.Add(-1), []*envelope.Envelope{quiet, busy}, nil},
			{noon, []*envelope.Envelope{busy}, []*envelope.Envelope{quiet}},
			{f.now, nil, []*envelope.Envelope{quiet, busy}},
		} {
			f.checkDirectory(relay.AgentQuery{OnlineSince: c.since}, c.online...)
			f.checkDirectory(relay.AgentQuery{OnlineSince: c.since, OfflineOnly: true}, c.offline...)
		}
		page, err := f.Agents(t.Context(), relay.AgentQuery{DID: bob.DID(), Now: f.now, Limit: 1})
		f.must(err)
		if got := page.Agents[0].LastSeen; !got.Equal(f.now) {
			t.Errorf("bob's LastSeen is %v, want %v", got, f.now)
		}
		f.advance(time.Minute)
		f.post(bob, in("u", request))
		f.reopen()
		f.checkDirectory(relay.AgentQuery{OnlineSince: noon.Add(time.Hour)}, busy)

		// A message with Entry.Unseen does not make its sender online. AgentQuery.Online can make other agents online.
		f.advance(time.Hour)
		unseen := f.entry(bob, in("v", request))
		unseen.Unseen = true
		f.append(unseen)
		since := f.now.Add(-time.Minute)
		f.checkDirectory(relay.AgentQuery{OnlineSince: since})
		heard := func(did didkey.DID) bool { return did == carol.DID() || did == quiet.Sender.ID }
		f.checkDirectory(relay.AgentQuery{OnlineSince: since, Online: heard}, quiet)
		f.checkDirectory(relay.AgentQuery{OnlineSince: since, Online: heard, OfflineOnly: true}, busy)
	})

	t.Run("copies of other relays", func(t *testing.T) { testCopies(t, open) })

	t.Run("manifests for one reader", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		public := f.list(alice, manifest("m"), "Alice")
		hidden := f.list(bob, to(carol, manifest("m")), "Bob")
		for reader, sees := range map[didkey.DID][]*envelope.Envelope{
			"": {public}, alice.DID(): {public}, bob.DID(): {public, hidden}, carol.DID(): {public, hidden},
		} {
			f.checkDirectory(relay.AgentQuery{Viewer: relay.Viewer{Limited: true, DID: reader}}, sees...)
		}
		f.checkDirectory(relay.AgentQuery{}, public, hidden)
	})

	// Manifests that a reader may not see must not change the reader's pages, not even their More and Partial.
	// Otherwise the reader could infer that hidden manifests exist.
	t.Run("hidden manifests do not change pages", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		listing := func(by didkey.Key, d envelope.Draft) *envelope.Envelope { return f.list(by, d, "x", "a") }
		first := listing(alice, manifest("first"))
		for n := range 12 {
			listing(bob, to(carol, manifest(fmt.Sprint("m", n))))
		}
		last := listing(alice, manifest("last"))
		for _, intent := range []string{"", "a"} {
			for reader, sees := range map[didkey.DID][]*envelope.Envelope{"": {first, last}, dave.DID(): {first, last}} {
				q := relay.AgentQuery{Now: f.now, Limit: 10, MaxExamined: 3, Intent: intent,
					Viewer: relay.Viewer{Limited: true, DID: reader}}
				page, err := f.Agents(f.Context(), q)
				f.must(err)
				if page.More || page.Partial || len(page.Agents) != len(sees) {
					t.Errorf("reader %q sees %d manifests, More %v, Partial %v; want %d, false, false",
						reader, len(page.Agents), page.More, page.Partial, len(sees))
				}
			}
		}
	})

	t.Run("pages limited in number", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		var all []*envelope.Envelope
		for i := range 5 {
			all = append(all, f.list(alice, manifest(fmt.Sprint("m", i)), "", "a"))
			f.list(alice, manifest(fmt.Sprint("n", i)), "", "b")
		}
		for limit := 1; limit <= 6; limit++ {
			var seen []relay.Agent
			q := relay.AgentQuery{Intent: "a", Now: f.now, Limit: limit}
			for more := true; more; {
				page, err := f.Agents(t.Context(), q)
				f.must(err)
				if len(page.Agents) > limit || page.More && len(page.Agents) < limit {
					t.Errorf("limit %d: %d agents, more %v", limit, len(page.Agents), page.More)
				}
				seen = append(seen, page.Agents...)
				q.After, more = page.Next, page.More
			}
			f.equal(fmt.Sprint("limit ", limit), manifests(seen), bodies(all))
		}
	})
}

// testCopies checks what the directory and the threads have of messages that were copied from other relays (RELAYS
//
func testCopies(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	mirrored := func(id string) (before relay.Entry) {
		before = f.entry(alice, envelope.Draft{ID: id, Payload: envelope.Manifest{ID: "m"}})
		before.Mirrored, before.Unseen = true, true
		before.Listing = &relay.Listing{ID: "m", Intents: []string{"echo"}}
		return before
	}
	listed := func(want relay.Entry, copied bool, seen time.Time) {
		t.Helper()
		page, err := f.Agents(f.Context(), relay.AgentQuery{Now: f.now, Limit: 9})
		f.must(err)
		if len(page.Agents) != 1 || string(page.Agents[0].Manifest) != string(want.Envelope.Canonical()) ||
			page.Agents[0].Mirrored != copied || !page.Agents[0].LastSeen.Equal(seen) {
			t.Errorf("listed: %+v, want %s, a copy: %t, seen %v", page.Agents, want.Envelope.ID, copied, seen)
		}
	}
	older, never := mirrored("older"), time.Unix(0, 0)
	f.advance(time.Minute)
	first, same := mirrored("first"), mirrored("same")
	f.append(first)
	listed(first, true, never)
	f.append(older)
	listed(first, true, never)
	f.append(same)
	listed(first, true, never)
	f.advance(time.Minute)
	own := mirrored("own")
	own.Mirrored, own.Unseen = false, false
	f.append(own)
	listed(own, false, f.now)
	f.reopen()
	listed(own, false, f.now)

	asked := f.entry(bob, in("t", request))
	asked.Mirrored = true
	if r := f.append(asked); r.Thread != (thread.Key{}) || r.State != "" {
		t.Errorf("a copied REQUEST has the thread %v, %s", r.Thread, r.State)
	}
	f.noThread("t")
	if r := f.append(asked); !r.Duplicate {
		t.Error("a copy was stored twice")
	}
}
