package mirror_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/sqlite"
)

// roomless is a store whose room for extensions may be used up.
type roomless struct {
	*sqlite.Store
	full atomic.Bool
}

func (r *roomless) Room() error {
	if r.full.Load() {
		return envelope.NotStored("no room", time.Minute)
	}
	return nil
}

// TestRing checks that three relays in a ring of mirrors store no message twice, and come to rest: also over
// restarts, and when clocks are set back by 15 minutes (RELAYS R-21).
func TestRing(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		ring := []*site{n.site(1), n.site(2), n.site(3)}
		for i, s := range ring {
			s.peers = []witness.Peer{ring[(i+1)%3].peer(), ring[(i+2)%3].peer()}
			s.start()
		}
		alice := key(t)
		var open, manifests []*envelope.Envelope
		rounds := 8
		if testing.Short() {
			rounds = 2
		}
		for round := range rounds {
			s := ring[round%3]
			open = append(open, s.post(alice, envelope.Draft{Payload: request, Home: s.home(), TTL: 40 * time.Minute}))
			manifests = append(manifests, s.post(alice, envelope.Draft{Payload: manifest(fmt.Sprint("m", round%4), s.home()),
				TTL: 30 * time.Minute}))
			time.Sleep(time.Duration(3+round) * time.Minute)
			s.stop()
			s.step.Store(-int64(replay.StepBack))
			s.start()
			settle()
			s.stop()
			s.step.Store(0)
			s.start()
		}
		time.Sleep(2 * time.Minute)
		for _, s := range ring {
			s.once(open...)
			s.once(manifests...)
		}
		before := len(n.requests(ring[0].host))
		time.Sleep(2 * time.Minute)
		// Each of two mirrors polls every 30 seconds.
		if polls := len(n.requests(ring[0].host)) - before; polls > 2*2*2+2 {
			t.Errorf("%d requests in 2 minutes: the ring does not come to rest", polls)
		}
		for _, s := range ring {
			s.stop()
		}
	})
}

// TestReplays checks that a peer which shows all its messages again and again makes the mirror store none twice, also
// after restarts and with a clock that is set back by 15 minutes at the worst moments (RELAYS R-21).
func TestReplays(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		b, peer, alice := n.site(2), key(t), key(t)
		b.peers = []witness.Peer{{DID: peer.DID(), URL: "http://127.0.0.1:1"}}
		var shown []*envelope.Envelope
		messages, minutes := 20, 75
		if testing.Short() {
			messages, minutes = 8, 36
		}
		for i := range messages {
			d := envelope.Draft{Payload: request, Home: &envelope.Home{DID: peer.DID(), URL: "https://a.example"},
				TTL: time.Duration(21+i) * time.Minute}
			if i%2 == 1 {
				d.Home, d.Payload = nil, manifest(fmt.Sprint("m", i%8), b.home())
			}
			shown = append(shown, sign(t, alice, d, time.Now()))
		}
		page := page("1", shown...)
		n.put("127.0.0.1:1", fake{peer.DID(), func(url.Values) (int, string) {
			time.Sleep(10 * time.Second)
			return http.StatusOK, page
		}})
		b.start()
		for minute := range minutes {
			time.Sleep(time.Minute)
			if minute%4 == 3 { // what has expired is forgotten, and then the clock goes back for a while
				b.step.Store(-int64(replay.StepBack))
				time.Sleep(30 * time.Second)
				b.step.Store(0)
			}
			if minute%10 == 9 {
				b.stop()
				b.start()
			}
		}
		b.once(shown...)
		if again := b.observer.again.Load(); again < 100 { // the attack was one
			t.Errorf("%d duplicates", again)
		}
		b.stop()
	})
}

// TestUnknownCursor checks that a mirror begins anew when the peer has another database (RELAYS R-20), and stores
// nothing twice.
func TestUnknownCursor(t *testing.T) {
	pair(t, nil, func(a, b *site) {
		alice := key(t)
		one := a.post(alice, envelope.Draft{Payload: request, Home: a.home()})
		settle()
		a.stop()
		a.folder = t.TempDir()
		a.start()
		if _, err := a.relay.Post(context.Background(), local, one.Canonical()); err != nil {
			t.Fatal(err)
		}
		two := a.post(alice, envelope.Draft{Payload: request, Home: a.home()})
		time.Sleep(time.Minute)
		b.once(one, two)
		again := a.net.requests(a.host)[2:]
		if !slices.ContainsFunc(again, func(r asked) bool { return strings.Contains(r.target, "cursor=0&") }) {
			t.Errorf("the mirror has not begun with 0: %v", again)
		}
	})
}

// TestWrongDID checks that nothing is read from a relay with another DID than the operator has given (RELAYS R-20).
func TestWrongDID(t *testing.T) {
	racing.Skip(t, "one thing after another")
	other := key(t)
	pair(t, func(_, b *site) { b.peers[0].DID = other.DID() }, func(a, b *site) {
		e := a.post(key(t), envelope.Draft{Payload: manifest("m", a.home())})
		time.Sleep(time.Minute)
		for _, r := range a.net.requests(a.host) {
			if r.target != "/.well-known/agora.json" {
				t.Errorf("it was asked for %s", r.target)
			}
		}
		if b.count(e) != 0 || b.observer.failed.Load() < 3 {
			t.Errorf("copied %d, failed %d", b.count(e), b.observer.failed.Load())
		}
	})
}

// TestPolls checks the form of the polls, and that they are signed if and only if the peer is private (RELAYS R-20).
func TestPolls(t *testing.T) {
	for reads, signed := range map[relay.Visibility]bool{relay.ToAll: false, relay.ToParties: true} {
		pair(t, func(a, _ *site) { a.config.Reads = reads }, func(a, b *site) {
			e := a.post(key(t), envelope.Draft{Payload: manifest("m", a.home())})
			time.Sleep(time.Minute)
			b.once(e)
			asked := a.net.requests(a.host)
			if len(asked) < 3 || asked[0].target != "/.well-known/agora.json" {
				t.Fatalf("requests: %v", asked)
			}
			for _, r := range asked[1:] {
				u, err := url.ParseRequestURI(r.target)
				if err != nil || u.Path != "/events" || r.signed != signed {
					t.Errorf("%s, signed %t, want %t", r.target, r.signed, signed)
				}
				query := u.Query()
				if query.Get("recipient") != string(b.key.DID()) || query.Get("broadcast") != "true" ||
					query.Get("timeout") != "30" {
					t.Errorf("%s", r.target)
				}
			}
			if b.observer.failed.Load() > 0 {
				t.Error("a poll has failed")
			}
		})
	}
}

// TestRate checks that at most 500 messages come at once from a peer, and then 5 a second (RELAYS R-23): so a day
// costs at most 432,500. The peer would send a million.
func TestRate(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		b, peer := n.site(2), key(t)
		b.peers = []witness.Peer{{DID: peer.DID(), URL: "http://127.0.0.1:1"}}
		var sent atomic.Int64
		junk := `{"events":[` + string(sign(t, key(t), envelope.Draft{Payload: request}, time.Now()).Canonical())
		for range 19 {
			junk += `,{}`
		}
		n.put("127.0.0.1:1", fake{peer.DID(), func(url.Values) (int, string) {
			sent.Add(20)
			return http.StatusOK, junk + `],"cursor":"1"}`
		}})
		b.start()
		defer b.stop()
		for _, c := range []struct {
			wait time.Duration
			most int64
		}{{time.Second, 505}, {time.Minute, 805}, {10 * time.Minute, 3805}} {
			time.Sleep(c.wait)
			synctest.Wait()
			// The answer that waits, and one more.
			if n := sent.Load(); n < c.most-20 || n > c.most+40 {
				t.Errorf("%d messages were taken after %v more, want about %d", n, c.wait, c.most)
			}
		}
	})
}

// TestEmptyAnswers checks that a peer that answers at once is not asked all the time (RELAYS R-23).
func TestEmptyAnswers(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		b, peer := n.site(2), key(t)
		b.peers = []witness.Peer{{DID: peer.DID(), URL: "http://127.0.0.1:1"}}
		n.put("127.0.0.1:1", fake{peer.DID(), func(url.Values) (int, string) { return http.StatusOK, page("1") }})
		b.start()
		defer b.stop()
		time.Sleep(2 * time.Minute)
		if asked := len(n.requests("127.0.0.1:1")); asked > 500+5*120+2 {
			t.Errorf("%d requests in 2 minutes", asked)
		}
	})
}

// TestBackoff checks the pauses after failures: 1 second, doubled up to 5 minutes (RELAYS R-20). After a success they
// begin with 1 second again.
func TestBackoff(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		b, a := n.site(2), n.site(1)
		b.peers = []witness.Peer{a.peer()}
		b.start()
		defer b.stop()
		pauses := func() (all []time.Duration) {
			asked := n.requests(a.host)
			for i := range asked[1:] {
				all = append(all, asked[i+1].at.Sub(asked[i].at).Round(time.Second))
			}
			return all
		}
		want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}
		if testing.Short() {
			want = want[:7]
		}
		for _, pause := range want {
			time.Sleep(pause * time.Second)
		}
		synctest.Wait()
		for i := range want {
			want[i] *= time.Second
		}
		if got := pauses(); !slices.Equal(got, want) {
			t.Errorf("pauses %v, want %v", got, want)
		}
		a.start()
		time.Sleep(5*time.Minute + time.Second) // more than the longest pause
		a.stop()
		before := len(n.requests(a.host))
		time.Sleep(time.Minute)
		if got := pauses()[before:]; len(got) < 4 || !slices.Equal(got[:4], want[:4]) {
			t.Errorf("pauses after a success %v, want %v", got, want[:4])
		}
	})
}

// TestHostileAnswers checks that answers of a wrong form are errors, that none of them is stored, and that a good
// answer after them is (RELAYS R-20).
func TestHostileAnswers(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		b, peer := n.site(2), key(t)
		b.peers = []witness.Peer{{DID: peer.DID(), URL: "http://127.0.0.1:1"}}
		good := sign(t, key(t), envelope.Draft{Payload: manifest("m", b.home())}, time.Now())
		forged := slices.Clone(good.Canonical())
		forged[len(forged)-10] ^= 1
		list := func(count int) (text string) {
			for range count {
				text += `,{}`
			}
			return text[1:]
		}
		answers := []string{``, `[]`, `{}`, `{"events":[]}`, `{"events":[],"cursor":""}`, `{"events":[],"cursor":"a b"}`,
			`{"events":[],"cursor":"\u0000"}`, `{"events":{},"cursor":"1"}`, `{"events":[` + list(21) + `],"cursor":"1"}`,
			`{"events":[],"cursor":"` + string(make([]byte, 300)) + `"}`, `{"events":[`, string(make([]byte, 9<<20))}
		next := 0
		n.put("127.0.0.1:1", fake{peer.DID(), func(url.Values) (int, string) {
			if next++; next <= len(answers) {
				return http.StatusOK, answers[next-1]
			}
			if next > len(answers)+1 {
				time.Sleep(30 * time.Second)
				return http.StatusOK, page("1")
			}
			return http.StatusOK, `{"events":[1,"x",null,` + string(forged) + `,` + string(good.Canonical()) + `],"cursor":"1"}`
		}})
		b.start()
		defer b.stop()
		time.Sleep(25 * time.Minute)
		b.once(good)
		if failed, refused := b.observer.failed.Load(), b.observer.refused.Load(); failed != int64(len(answers)) ||
			refused != 4 {
			t.Errorf("%d failures, want %d; %d refused, want 4", failed, len(answers), refused)
		}
	})
}

// TestNew checks that a relay does not mirror itself, nor another one twice.
func TestNew(t *testing.T) {
	pair(t, nil, func(a, b *site) {
		for _, peers := range [][]witness.Peer{{b.peer()}, {a.peer(), a.peer()}} {
			if _, err := mirror.New(mirror.Options{Relay: b.relay, Key: b.key, Peers: peers}); err == nil {
				t.Errorf("it mirrors %v", peers)
			}
		}
	})
}

// TestDeliveryTime measures the delivery through a mirror, over sockets: two relays, 5 messages a second (RELAYS §9:
// p99 at most 200 ms).
func TestDeliveryTime(t *testing.T) {
	racing.Skip(t, "one thing after another")
	count, most := 300, 200*time.Millisecond
	if testing.Short() {
		count, most = 5, 2*time.Second // other tests run beside this one
	}
	n := newNetwork(t)
	a, b := n.site(1), n.site(2)
	a.start()
	defer a.stop()
	server := httptest.NewServer(n.hosts[a.host])
	defer server.Close()
	n.put(a.host, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Error("the mirror does not use the socket")
	}))
	b.peers, b.direct = []witness.Peer{{DID: a.key.DID(), URL: server.URL}}, true
	b.start()
	defer b.stop()
	alice := key(t)
	arrived := make(chan time.Time, count)
	ctx := t.Context()
	go func() {
		_ = b.relay.Watch(ctx, relay.Cursor{}, func(events []relay.Posted) {
			for range events {
				arrived <- time.Now()
			}
		})
	}()
	var took []time.Duration
	tick := time.NewTicker(time.Second / 5)
	defer tick.Stop()
	for range count {
		began := <-tick.C
		a.post(alice, envelope.Draft{Payload: request, Home: a.home()})
		took = append(took, (<-arrived).Sub(began))
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("p50 %v, p99 %v, most %v", took[len(took)/2], p99, took[len(took)-1])
	if p99 > most {
		t.Errorf("p99 is %v, want at most %v", p99, most)
	}
}
