package relay_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/store/sqlite"
)

// recorder is an Observer that keeps all reports.
type recorder struct {
	mu        sync.Mutex
	posts     []relay.PostReport
	commits   []relay.CommitReport
	delivered []relay.DeliveryReport
	waiting   []int
	sweeps    []error
	screened  []envelope.Code
	queued    []time.Duration
	mirrored  []envelope.Code
}

func note[T any](r *recorder, list *[]T, item T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*list = append(*list, item)
}

func (r *recorder) Posted(p relay.PostReport)                    { note(r, &r.posts, p) }
func (r *recorder) Screened(_ time.Duration, code envelope.Code) { note(r, &r.screened, code) }
func (r *recorder) Served(string, admission.Kind)                {}
func (r *recorder) Refused(int, envelope.Code, string)           {}
func (r *recorder) Mirrored(code envelope.Code, _ bool)          { note(r, &r.mirrored, code) }
func (r *recorder) MirrorFailed()                                {}
func (r *recorder) Queued(waited time.Duration)                  { note(r, &r.queued, waited) }
func (r *recorder) Committed(c relay.CommitReport)               { note(r, &r.commits, c) }
func (r *recorder) Waiting(change int)                           { note(r, &r.waiting, change) }
func (r *recorder) Delivered(d relay.DeliveryReport)             { note(r, &r.delivered, d) }
func (r *recorder) Swept(_ time.Duration, failed error)          { note(r, &r.sweeps, failed) }

// observed runs a relay whose recorder gets the reports of the relay and of its store.
func observed(t *testing.T, c relay.Config) (*relay.Relay, *recorder) {
	t.Helper()
	seen := &recorder{}
	c.Observer = seen
	r, stop := runOver(t, t.TempDir()+"/agora.db", sqlite.Options{Reserve: 1 << 22, Observer: seen}, c)
	t.Cleanup(stop)
	return r, seen
}

func TestObserverSeesPosts(t *testing.T) {
	r, seen := observed(t, relay.Config{})
	e := sign(t, key(t), envelope.Draft{Payload: request})
	forged := slices.Clone(e.Canonical())
	forged[len(forged)/2] ^= 1
	for _, body := range [][]byte{e.Canonical(), e.Canonical(), forged, []byte("{}")} {
		_, _ = r.Post(t.Context(), local, body)
	}
	r.Drain()
	_, _ = r.Post(t.Context(), local, e.Canonical())
	size := len(e.Canonical())
	want := []relay.PostReport{{Bytes: size}, {Bytes: size, Duplicate: true}, {Bytes: size, Code: seen.posts[2].Code},
		{Bytes: 2, Code: envelope.CodeUnsupportedVersion}, {Bytes: size, Code: envelope.CodeUnavailable}}
	if seen.posts[2].Code == "" {
		t.Error("a forged body is reported as stored")
	}
	for i, got := range seen.posts {
		stored, checked := i < 2, i < 4
		if (got.Store > 0) != stored || (got.Check > 0) != checked {
			t.Errorf("post %d: %+v", i, got)
		}
		got.Check, got.Store = 0, 0
		if got != want[i] {
			t.Errorf("post %d: %+v, want %+v", i, got, want[i])
		}
	}
	if len(seen.posts) != len(want) {
		t.Errorf("%d posts are reported, want %d", len(seen.posts), len(want))
	}
	events := 0
	for _, c := range seen.commits {
		events += c.Events
		if c.Work <= 0 || c.Commit <= 0 {
			t.Errorf("%+v", c)
		}
	}
	if events != 1 {
		t.Errorf("%d events are reported as durable, want 1", events)
	}
}

func TestObserverSeesDeliveriesAndSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, seen := observed(t, relay.Config{})
		alice, bob := key(t), key(t)
		e := sign(t, alice, envelope.Draft{Recipient: bob.DID(), Payload: request})
		read := func(wait time.Duration) {
			if _, err := r.Events(t.Context(), &relay.Poll{Peer: local, Filter: relay.Filter{Recipient: bob.DID()}, Wait: wait,
				Limit: 9}); err != nil {
				t.Error(err)
			}
		}
		var reading sync.WaitGroup
		reading.Go(func() { read(time.Minute) })
		synctest.Wait()
		if _, err := r.Post(t.Context(), local, e.Canonical()); err != nil {
			t.Fatal(err)
		}
		reading.Wait()
		read(0)
		r2, seen2 := observed(t, relay.Config{})
		if _, err := r2.Events(t.Context(), &relay.Poll{Peer: local, Wait: time.Second, Limit: 9}); err != nil {
			t.Fatal(err)
		}
		size := len(e.Canonical())
		want := []relay.DeliveryReport{{Events: 1, Bytes: size, Waited: true}, {Events: 1, Bytes: size}, {}}
		for i, got := range append(seen.delivered, seen2.delivered...) {
			if got.Wake < 0 || got.Wake > time.Second {
				t.Errorf("delivery %d: %+v", i, got)
			}
			if got.Wake = 0; got != want[i] {
				t.Errorf("delivery %d: %+v, want %+v", i, got, want[i])
			}
		}
		if !slices.Equal(seen.waiting, []int{1, -1, 1, -1}) {
			t.Errorf("changes of the number of waiting polls: %v", seen.waiting)
		}
		time.Sleep(3 * time.Second)
		seen2.mu.Lock()
		defer seen2.mu.Unlock()
		if n := len(seen2.sweeps); n < 3 || slices.ContainsFunc(seen2.sweeps, func(err error) bool { return err != nil }) {
			t.Errorf("sweeps: %v", seen2.sweeps)
		}
	})
}

// counters is an Observer that only counts, as metrics do.
type counters struct {
	relay.NoObserver
	posts, deliveries int
}

func (c *counters) Posted(relay.PostReport)        { c.posts++ }
func (c *counters) Delivered(relay.DeliveryReport) { c.deliveries++ }

// TestObserverCostsNoAllocation checks that an Observer causes no allocations.
func TestObserverCostsNoAllocation(t *testing.T) {
	list := make([][]byte, 20)
	for i := range list {
		list[i] = sign(t, key(t), envelope.Draft{Payload: request}).Canonical()
	}
	count := func(o relay.Observer) (post, read float64) {
		r, err := relay.New(t.Context(), relay.Config{Store: sink{}, Key: key(t), Observer: o})
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		post = testing.AllocsPerRun(100, func() {
			if _, err := r.Post(t.Context(), local, list[i%len(list)]); err != nil {
				t.Fatal(err)
			}
			i++
		})
		read = testing.AllocsPerRun(100, func() {
			if _, err := r.Events(t.Context(), &relay.Poll{Peer: local, Limit: 1}); err != nil {
				t.Fatal(err)
			}
		})
		return post, read
	}
	seen := &counters{}
	post, read := count(nil)
	if p, d := count(seen); p != post || d != read || seen.posts == 0 || seen.deliveries == 0 {
		t.Errorf("with an observer a post allocates %v and a read %v times, without %v and %v; it saw %+v",
			p, d, post, read, seen)
	}
}
