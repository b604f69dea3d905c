package hub_test

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/relay"
)

// H-34: at most 1,000 messages are queued for one receiver, and 100 from one sender. The refusals name the limit.
func TestQueuedMessages(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	full, a, b := f.register("full@b"), f.register("a@b"), f.register("b@b")
	post := func(key, sender string) answer {
		return f.post("/messages", key, messageTo("full@b", sender, "hello"))
	}
	f.send(full, "full@b", "a@b", "you may fill the second half")
	f.send(full, "full@b", "b@b", "you too")
	f.queue("a@b", "full@b", 99, 100)
	f.want(post(a, "a@b"), 202, "") // the 100th
	f.wantLimit(post(a, "a@b"), "ERR_INBOX_FULL", "queuedFromSender")
	f.send(a, "a@b", "b@b", "to another receiver")
	for n := range 9 {
		name := fmt.Sprintf("sender%d@b", n)
		f.register(name)
		f.queue(name, "full@b", 99+n/8, 100)
	}
	f.wantLimit(post(a, "a@b"), "ERR_INBOX_FULL", "queuedFromSender")
	for range 8 {
		f.want(post(b, "b@b"), 202, "") // the last one is the 1,000th
	}
	f.wantLimit(post(b, "b@b"), "ERR_INBOX_FULL", "queuedMessages")
	// What the receiver gets no longer counts. The first two messages are its own.
	f.history(full, "?limit=3")
	f.want(post(b, "b@b"), 202, "")
	f.wantLimit(post(b, "b@b"), "ERR_INBOX_FULL", "queuedMessages")
	f.history(full, "?limit=5")
	f.want(post(a, "a@b"), 202, "")
}

// H-34: at most 16 MiB of envelopes are queued for one receiver, in the form of RFC 8785.
func TestQueuedBytes(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	full, a := f.register("full@b"), f.register("a@b")
	f.send(full, "full@b", "a@b", "you may fill the second half")
	for _, sender := range []string{"b@b", "c@b", "d@b"} {
		f.register(sender)
		f.queue(sender, "full@b", 93, 60_000)
	}
	post := func(size int) answer {
		// The spaces do not count.
		return f.post("/messages", a, `{"receiver_id" : "full@b" , "envelope": `+envelopeOf("a@b", size)+` }`)
	}
	const left = 16<<20 - 3*93*60_000
	f.wantLimit(post(left+1), "ERR_INBOX_FULL", "queuedBytes")
	f.want(post(left-100), 202, "")
	f.wantLimit(post(101), "ERR_INBOX_FULL", "queuedBytes")
	f.want(post(100), 202, "")
	f.wantLimit(post(100), "ERR_INBOX_FULL", "queuedBytes")
	f.history(full, "?limit=2")
	f.want(post(59_900), 202, "")
	f.wantLimit(post(101), "ERR_INBOX_FULL", "queuedBytes")
	f.want(post(100), 202, "")
}

// H-34: one address can register 20 new agents an hour. Rotations do not count.
func TestRegistrationLimit(t *testing.T) {
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.Limits.PostsPerAddress.PerSecond = relay.Unlimited })
	register := func(addr string, n int, key string) answer {
		return f.doFrom(addr, call{"POST", "/register", key, registrationOf(fmt.Sprintf("a%d@b", n)), nil})
	}
	key := ""
	for n := range 20 {
		key = f.want(register("198.51.100.7", n, ""), 201, "").text("api_key")
		key = f.want(register("198.51.100.7", n, key), 200, "").text("api_key")
		f.want(register("198.51.100.7", n, ""), 409, "ERR_AGENT_ID_TAKEN")
	}
	f.wantLimit(register("198.51.100.7", 20, ""), "ERR_RATE_LIMITED", "registrations")
	f.want(register("198.51.100.7", 19, key), 200, "")
	f.want(register("203.0.113.7", 20, ""), 201, "")
	f.wait(time.Hour/20 + moment)
	f.want(register("198.51.100.7", 21, ""), 201, "")
	f.wantLimit(register("198.51.100.7", 22, ""), "ERR_RATE_LIMITED", "registrations")
}

// A registration counts once, even if the store runs its operation twice.
func TestRegistrationCountsOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		for n := range 20 {
			f.register(fmt.Sprintf("a%d@b", n))
		}
		f.wantLimit(f.rotate("a20@b", ""), "ERR_RATE_LIMITED", "registrations")
	}, func(f *fixture) {
		f.From = "192.0.2.1:9"
		f.Limits.PostsPerAddress.PerSecond = relay.Unlimited
	})
}

// wantLimit checks a refusal with 429.
func (f *fixture) wantLimit(a answer, code, limit string) {
	f.t.Helper()
	f.want(a, 429, code)
	got, retry := a.errorMember("limit"), a.Header.Get("Retry-After")
	if got != limit || !regexp.MustCompile(`^[1-9][0-9]*$`).MatchString(retry) {
		f.t.Fatalf("the limit is %q, want %q; Retry-After is %q", got, limit, retry)
	}
}

// TestRegistryFull checks the limit --hub-agents.
func TestRegistryFull(t *testing.T) {
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.options.MaxAgents = 2 })
	key := f.register("a@b")
	f.register("c@b")
	f.wantLimit(f.rotate("d@b", ""), "ERR_REGISTRY_FULL", "agents")
	f.wantLimit(f.post("/agents", f.Operator, object{"agent_id": "d@b", "endpoint": "https://a.example"}),
		"ERR_REGISTRY_FULL", "agents")
	key = f.rotated("a@b", key)
	f.want(f.remove("/agents/a@b", key), 200, "")
	f.want(f.rotate("d@b", ""), 201, "")
	f.wantLimit(f.rotate("a@b", key), "ERR_REGISTRY_FULL", "agents")
}

// TestUnusedAgents: a registration without a message, a stream or a webhook reply for 90 days expires like a DELETE. All
// these agents have had a message, which is no longer stored.
func TestUnusedAgents(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	hook := newFixedHook(t)
	keys := map[string]string{}
	for _, name := range []string{"receives", "sends", "streams", "listens", "crashes", "reads"} {
		keys[name] = f.register(name + "@b")
	}
	f.register("replies@b", object{"endpoint": hook.URL})
	for name := range keys {
		f.send(keys["sends"], "sends@b", name+"@b", "hello")
	}
	i := f.open(keys["listens"], nil) // stays open
	i.frame()
	f.wait(80 * day)
	keys["late"] = f.register("late@b")
	f.send(keys["late"], "late@b", "late@b", "hello")
	f.send(keys["sends"], "sends@b", "replies@b", "hello")
	f.open(keys["streams"], nil).close()
	crashes := f.open(keys["crashes"], nil)
	crashes.frame()
	f.history(keys["reads"], "") // does not count
	f.hub.SweepNow(t.Context())
	f.Restart() // ends the streams
	f.wait(unused - 80*day - moment)
	f.hub.SweepNow(t.Context())
	if n := f.get("/health", "").data("agents_registered"); n != 8. {
		t.Errorf("%v agents are registered before 90 days have passed, want 8", n)
	}
	f.send(keys["late"], "late@b", "receives@b", "hello")
	f.wait(2 * moment)
	f.hub.SweepNow(t.Context())
	for name, want := range map[string]int{"receives": 200, "sends": 200, "streams": 200, "listens": 200, "crashes": 200,
		"replies": 200, "late": 200, "reads": 404} {
		if a := f.get("/agents/"+name+"@b", ""); a.Status != want {
			t.Errorf("after 90 days GET /agents/%s@b is %v, want %d", name, a, want)
		}
	}
	f.want(f.remove("/agents/reads@b", keys["reads"]), 200, "") // like after a DELETE
	f.want(f.rotate("reads@b", ""), 409, "ERR_AGENT_ID_TAKEN")
	f.wantWorks(map[string]bool{keys["reads"]: false, keys["listens"]: true})
}

// TestIdleAgents: an agent that never sent or received a message expires after 3 days without a stream.
func TestIdleAgents(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	keys := map[string]string{}
	for _, name := range []string{"sends", "receives", "listened", "listens", "idle"} {
		keys[name] = f.register(name + "@b")
	}
	f.send(keys["sends"], "sends@b", "receives@b", "hello")
	f.open(keys["listens"], nil).frame() // stays open
	f.wait(day)
	f.listen(keys["listened"])
	f.wait(2*day - moment)
	f.hub.SweepNow(t.Context())
	if n := f.get("/health", "").data("agents_registered"); n != 5. {
		t.Errorf("%v agents are registered before 3 days have passed, want 5", n)
	}
	f.wait(2 * moment)
	f.hub.SweepNow(t.Context())
	for name, want := range map[string]int{"sends": 200, "receives": 200, "listened": 200, "listens": 200, "idle": 404} {
		if a := f.get("/agents/"+name+"@b", ""); a.Status != want {
			t.Errorf("after 3 days GET /agents/%s@b is %v, want %d", name, a, want)
		}
	}
	f.wait(day)
	f.hub.SweepNow(t.Context())
	f.want(f.get("/agents/listened@b", ""), 404, "ERR_AGENT_NOT_FOUND")
	f.want(f.rotate("idle@b", ""), 409, "ERR_AGENT_ID_TAKEN") // like after a DELETE
	f.want(f.rotate("idle@b", keys["idle"]), 201, "")
}

// TestRegistryMakesRoom: if the registry is full, an agent that never sent or received a message and has no stream makes
// room for a new one after an hour.
func TestRegistryMakesRoom(t *testing.T) {
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.options.MaxAgents = 4 })
	sends, listens := f.register("sends@b"), f.register("listens@b")
	f.send(sends, "sends@b", "sends@b", "hello")
	f.open(listens, nil).frame() // stays open
	f.register("idle@b")
	f.wait(moment)
	f.register("later@b")
	f.wait(time.Hour - moment)
	f.wantLimit(f.rotate("new0@b", ""), "ERR_REGISTRY_FULL", "agents")
	f.wait(2 * moment)
	for n, gone := range []string{"idle@b", "later@b"} {
		f.register(fmt.Sprintf("new%d@b", n))
		f.want(f.get("/agents/"+gone, ""), 404, "ERR_AGENT_NOT_FOUND")
	}
	f.wantLimit(f.rotate("new2@b", ""), "ERR_REGISTRY_FULL", "agents")
	f.wantWorks(map[string]bool{sends: true, listens: true})
}

// An agent does not expire if its stream opens while expired agents are being removed.
func TestAgentReturnsDuringSweep(t *testing.T) {
	t.Parallel()
	var updates atomic.Int64
	f := startLocal(t, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return afterUpdate{s, &updates} }
	})
	// NewCore makes one Update, New makes one, and the sweep at the start makes five. That sweep must not delete the agent.
	eventually(t, "the sweep at the start has ended", func() bool { return updates.Load() == 7 })
	key := f.register("a@b")
	f.wait(unused + moment)
	returns := sync.OnceFunc(func() { f.open(key, nil).frame() })
	// The first Update of a sweep records which agents have a stream.
	f.hub.SweepNow(context.WithValue(t.Context(), afterUpdateKey{}, returns))
	if !f.works(key) {
		t.Error("the agent has expired although it has a stream")
	}
}

// afterUpdate counts Updates. After each Update whose context has a function, it calls the function.
type afterUpdate struct {
	relay.Extender
	updates *atomic.Int64
}

type afterUpdateKey struct{}

func (s afterUpdate) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	took, err := s.Extender.Update(ctx, f)
	s.updates.Add(1)
	if call, ok := ctx.Value(afterUpdateKey{}).(func()); ok {
		call()
	}
	return took, err
}

// G-25: an operation that takes the store too long is undone and answered with 503.
func TestSlowOperation(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	inBubble(t, func(t *testing.T, f *fixture) {
		slow.Store(true)
		f.wantError("a slow operation", f.post("/register", "", registrationOf(bob)), 503, "ERR_UNAVAILABLE")
		slow.Store(false)
		f.register(bob)
	}, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return slowUpdates{s, &slow} }
	})
}

// slowUpdates makes each Update take ten seconds while slow is set.
type slowUpdates struct {
	relay.Extender
	slow *atomic.Bool
}

func (s slowUpdates) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	return s.Extender.Update(ctx, func(tx relay.StoreTx) error {
		if s.slow.Load() {
			time.Sleep(10 * time.Second)
		}
		return f(tx)
	})
}
