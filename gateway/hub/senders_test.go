package hub_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// sender is an agent that was registered from a network address.
type sender struct{ name, key string }

// registerFrom registers an agent from a network address.
func (f *fixture) registerFrom(addr, name string) sender {
	f.t.Helper()
	a := f.want(f.doFrom(addr, call{"POST", "/register", "", registrationOf(name), nil}), 201, "")
	return sender{name, a.text("api_key")}
}

// flood sends messages until one is refused. It returns how many were accepted, and the refusal.
func (f *fixture) flood(from sender, to string, most int) (accepted int, refusal answer) {
	f.t.Helper()
	for n := range most {
		a := f.post("/messages", from.key, messageTo(to, from.name, fmt.Sprint("flood ", n)))
		if a.Status != 202 {
			return n, a
		}
	}
	return most, refusal
}

func unlimited(f *fixture) {
	f.Limits.PostsPerAddress.PerSecond = relay.Unlimited
	f.Limits.PostsPerAgent.PerSecond = relay.Unlimited
}

// G-37: all agents that were registered from one network count as one sender, also if it is the /48 of an IPv6 address.
func TestSendersOfANetwork(t *testing.T) {
	t.Parallel()
	f := startLocal(t, unlimited)
	bob := f.register("bob@b")
	for i, network := range [][]string{{"198.51.100.7"}, {"2001:db8:7::1", "2001:db8:7:8::1", "2001:db8:7:ff00::1"}} {
		sum := 0
		for n := range 10 {
			name := fmt.Sprintf("a%d-%d@b", i, n)
			accepted, refusal := f.flood(f.registerFrom(network[n%len(network)], name), "bob@b", 30)
			if sum += accepted; accepted < 30 {
				f.wantLimit(refusal, "ERR_INBOX_FULL", "queuedFromSender")
			}
		}
		if sum != 100 {
			t.Errorf("%d messages from %v are queued, want 100", sum, network)
		}
	}
	f.history(bob, "?limit=1") // the first message is no longer queued
	if accepted, _ := f.flood(f.registerFrom("198.51.100.7", "more@b"), "bob@b", 3); accepted != 1 {
		t.Errorf("%d more messages are accepted, want 1", accepted)
	}
	f.want(f.remove("/agents/bob@b", bob), 200, "") // counts what has failed
}

// G-37: strangers fill half of an inbox. The other half is for senders that its owner has written to, or heard from.
func TestInboxKeepsHalfForPeers(t *testing.T) {
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
	t.Parallel()
	f := startLocal(t, unlimited)
	bob := f.register("bob@b")
	friend, heard := f.registerFrom("203.0.113.1", "friend@b"), f.registerFrom("203.0.113.2", "heard@b")
	f.send(bob, "bob@b", "friend@b", "hello friend")
	f.send(heard.key, "heard@b", "bob@b", "hello bob")
	f.history(bob, "")
	sum := 0
	var refusal answer
	for n := range 6 {
		var accepted int
		accepted, refusal = f.flood(f.registerFrom(fmt.Sprintf("198.51.100.%d", n), fmt.Sprintf("a%d@b", n)), "bob@b", 100)
		sum += accepted
	}
	f.wantLimit(refusal, "ERR_INBOX_FULL", "queuedMessages")
	if sum != 500 {
		t.Errorf("strangers have queued %d messages, want 500", sum)
	}
	for _, known := range []sender{friend, heard} {
		accepted, refusal := f.flood(known, "bob@b", 101)
		f.wantLimit(refusal, "ERR_INBOX_FULL", "queuedFromSender")
		if accepted != 100 {
			t.Errorf("%s has queued %d messages, want 100", known.name, accepted)
		}
	}
	f.hub.SweepNow(t.Context())
	if rows := f.history(bob, ""); len(rows) != 702 {
		t.Errorf("bob has %d messages, want 702", len(rows))
	}
}

// G-37: strangers fill half of the bytes of an inbox.
func TestInboxBytesKeepHalfForPeers(t *testing.T) {
	t.Parallel()
	f := startLocal(t, unlimited)
	bob := f.register("bob@b")
	friend := f.registerFrom("203.0.113.1", "friend@b")
	f.send(bob, "bob@b", "friend@b", "hello friend")
	for n := range 2 {
		name := fmt.Sprintf("filler%d@b", n)
		f.register(name)
		f.queue(name, "bob@b", 69, 60_000)
	}
	send := func(from sender, size int) answer {
		return f.post("/messages", from.key, `{"receiver_id":"bob@b","envelope":`+envelopeOf(from.name, size)+`}`)
	}
	const left = 8<<20 - 2*69*60_000
	strange := f.registerFrom("198.51.100.1", "strange@b")
	for rest := left; rest > 0; rest -= 50_000 {
		f.want(send(strange, min(rest, 50_000)), 202, "")
	}
	f.wantLimit(send(strange, 100), "ERR_INBOX_FULL", "queuedBytes")
	f.want(send(friend, 50_000), 202, "")
}

// G-37: strangers have at most half of a full history. What the stranger with most messages has sent leaves it first.
func TestHistoryKeepsPeers(t *testing.T) {
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
	racing.Skip(t, "10,000 messages are too many for the race detector")
	t.Parallel()
	f := startLocal(t, unlimited)
	bob := f.register("bob@b")
	friend, quiet := f.register("friend@b"), f.register("quiet@b")
	f.store("bob@b", "friend@b", 2_000, 100, 1)
	f.send(bob, "bob@b", "friend@b", "hello friend")
	f.store("friend@b", "bob@b", 2_997, 100, 1)
	f.send(friend, "friend@b", "bob@b", "an old message of a friend")
	f.send(quiet, "quiet@b", "bob@b", "an old message of a stranger")
	for n := range 2 {
		name := fmt.Sprintf("loud%d@b", n)
		f.register(name)
		f.store(name, "bob@b", 2_500, 100, 1)
	}
	f.wantHistory("bob@b", bob, 10_000, 1)
	loud := f.registerFrom("198.51.100.1", "loudest@b")
	for range 3 {
		f.flood(loud, "bob@b", 100)
		f.history(bob, "")
	}
	count := func(sender string) int64 {
		return f.stored("hub_entry e JOIN hub_message m ON m.n = e.message JOIN hub_agent a ON a.n = e.agent " +
			"WHERE a.address = 'bob@b' AND m.sender_id = '" + sender + "'")
	}
	for name, want := range map[string]int64{"bob@b": 2_001, "friend@b": 2_998, "quiet@b": 1, "loudest@b": 300} {
		if got := count(name); got != want {
			t.Errorf("bob's history has %d messages of %s, want %d", got, name, want)
		}
	}
	if a, b := count("loud0@b"), count("loud1@b"); a+b != 10_000-2_001-2_998-301 || max(a, b)-min(a, b) > 1 {
		t.Errorf("the loud ones have %d and %d messages left", a, b)
	}
}

// G-33: each 64 KiB of a list counts as a read of the client's address.
func TestListsAreCharged(t *testing.T) {
	engine.OnlySQLite(t, "it measures what is sent, not what is stored")
	t.Parallel()
	const burst = 2_000 // the clock stands still, so the list never ends if the time for it costs more than that
	f := startLocal(t, func(f *fixture) {
		f.Frozen = time.Now()
		f.Limits.ReadsPerAddress = relay.Rate{PerSecond: 1, Burst: burst}
	})
	bob := f.register("bob@b")
	f.register("alice@b")
	f.store("alice@b", "bob@b", 10_000, 100, 1) // about 3 MiB
	get := func(path string) answer { return f.doFrom("198.51.100.1", call{"GET", path, bob, nil, nil}) }
	units := len(f.want(get("/agent/messages"), 200, "").Body) / admission.AnswerUnit
	reads := 0
	for ; get("/agents/alice@b").Status == 200; reads++ {
	}
	if units < 30 || reads > burst-1-units {
		t.Errorf("after a list that counts as %d reads, %d of %d reads are left", units, reads, burst)
	}
}

// What is known of a source is forgotten with its last message, when it is old.
func TestPeersAreForgotten(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	bob := f.register("bob@b")
	for n := range 3 {
		from := f.registerFrom(fmt.Sprintf("198.51.100.%d", n), fmt.Sprintf("a%d@b", n))
		f.send(from.key, from.name, "bob@b", "hello")
	}
	f.history(bob, "")
	if n := f.stored("hub_peer WHERE known = 1"); n != 3 {
		t.Errorf("bob has heard from %d sources, want 3", n)
	}
	f.wait(80 * day)
	f.hub.SweepNow(t.Context())
	f.send(bob, "bob@b", "bob@b", "still here")
	f.wait(unused - 80*day + time.Hour)
	f.hub.SweepNow(t.Context())
	if n := f.stored("hub_peer"); n != 1 {
		t.Errorf("%d rows of sources are left, want that of bob himself", n)
	}
	f.wait(31 * day) // the others were deleted
	f.hub.SweepNow(t.Context())
	if n := f.stored("hub_origin"); n != 0 {
		t.Errorf("%d rows of origins are left", n)
	}
}
