package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

var systems = flag.Int("systems", 0, "how many simulations of whole systems to run; 0: 200, or 10 with -short")

// TestSystems runs whole systems: 3 relays, 3 agents, and 2 clients that ask them, over a network and disks that fail.
// The seed decides the jobs and the faults. See checker for what is checked.
func TestSystems(t *testing.T) {
	n := *systems
	if n == 0 {
		n = 200
		if testing.Short() {
			n = 10
		}
	}
	var all tally
	for i := range n {
		seed := *first + uint64(i)
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			folder := t.TempDir()
			cryptotest.SetGlobalRandom(t, seed)
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t, seed, folder)
				s.run()
				all.add(s.tally)
			})
			if t.Failed() {
				t.Logf("run it again with: go test ./ci/sim -run TestSystems -systems 1 -seed %d -count 5", seed)
			}
		})
	}
	t.Logf("%+v", all)
	if n >= 10 && (all.Results < all.Jobs/2 || all.Moves == 0 || all.Crashes == 0 || all.Deaths == 0) {
		t.Error("too few jobs were done or continued, or there were too few faults, so the simulations show little")
	}
}

// tally counts what happened.
type tally struct{ Jobs, Results, Moves, Crashes, Deaths, Interrupted int }

func (t *tally) add(o tally) {
	t.Jobs += o.Jobs
	t.Results += o.Results
	t.Moves += o.Moves
	t.Crashes += o.Crashes
	t.Deaths += o.Deaths
	t.Interrupted += o.Interrupted
}

// Times of a simulation.
const (
	jobTTL        = 30 * time.Minute
	activeTimeout = 10 * time.Minute
	jobBound      = jobTTL + activeTimeout + 5*time.Minute // from a REQUEST to the end of its job
	calmBound     = 3 * time.Minute                        // the same, without faults
)

// system is one simulation.
type system struct {
	*testing.T
	seed    uint64
	random  *rand.Rand // of the goroutine of the test
	folder  string
	sites   []*site
	agents  []*worker
	parties []*wire
	clocks  []*clock
	copies  sync.WaitGroup // requests that a relay gets once more
	lives   sync.WaitGroup // of the relays
	*checker

	mu   sync.Mutex
	calm bool
	over chan struct{} // closed at the end
}

func newSystem(t *testing.T, seed uint64, folder string) *system {
	s := &system{T: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), folder: folder, over: make(chan struct{})}
	s.checker = &checker{T: t, begun: map[int][]*work{}, faithless: map[int]bool{}, results: map[int]uint64{}}
	for i := range 3 {
		name := string(rune('a' + i))
		m := newMachine(t, rand.New(rand.NewPCG(seed, uint64(1+i))), filepath.Join(folder, name))
		m.policy = relay.Policy{Rules: thread.Rules{ActiveTimeout: activeTimeout}}
		m.logs, m.maxBytes = (seed+uint64(i))%3 > 0, 256<<20
		m.origin = "http://" + name + ".test"
		r := &site{machine: m, host: name + ".test", acked: map[string]acknowledged{}}
		s.sites = append(s.sites, r)
		s.must(makeFolder(m.parent))
		s.must(makeFolder(m.folder()))
		m.newDisk()
	}
	return s
}

func (s *system) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *system) site(host string) *site { return s.sites[host[0]-'a'] }

func (s *system) isCalm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calm
}

// newWire connects a party to the network.
func (s *system) newWire(name string) *wire {
	w := &wire{system: s, name: name, sent: map[string]uint64{}, cuts: map[string]cut{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parties = append(s.parties, w)
	return w
}

// network returns a Network of key over all relays.
func (s *system) network(key didkey.Key, w *wire, c *clock, state *client.State,
	moved func(client.Move)) *client.Network {
	var urls []string
	for _, r := range s.sites {
		urls = append(urls, r.origin)
	}
	n, err := client.NewNetwork(urls, key, client.NetworkOptions{State: state, Moved: moved, Options: client.Options{
		HTTPClient: &http.Client{Transport: w}, Now: c.now, Logger: s.sites[0].log().With("party", w.name)}})
	s.must(err)
	return n
}

// run runs the system with faults, and then without.
func (s *system) run() {
	for _, r := range s.sites {
		s.drift(&r.clock)
		s.lives.Go(func() { s.keep(r) })
	}
	watching := s.watch()
	for i := range 3 {
		a := &worker{system: s, name: fmt.Sprint("agent", i), key: newKey(s.T, s.random)}
		a.path = filepath.Join(s.folder, a.name)
		a.random = rand.New(rand.NewPCG(s.seed, uint64(10+i)))
		s.agents = append(s.agents, a)
		s.drift(&a.clock)
		a.begin()
	}
	time.Sleep(10 * time.Second) // the agents announce themselves
	var asking sync.WaitGroup
	asks := []*asker{s.newAsker(0, &asking), s.newAsker(1, &asking)}
	s.disturb()
	s.heal()
	asking.Wait()
	time.Sleep(2 * time.Minute) // what waits between attempts tries again
	for _, c := range asks {
		for _, a := range s.agents {
			asking.Go(func() {
				if err := c.ask(a.key.DID(), calmBound); err != nil {
					s.Errorf("a job without faults: %v", err)
				}
			})
		}
	}
	asking.Wait()
	time.Sleep(time.Minute) // the watcher reads the last messages
	for _, a := range s.agents {
		a.end(false)
	}
	watching()
	s.copies.Wait()
	close(s.over)
	s.lives.Wait()
}

// drift lets a clock go too fast or too slow by at most 1 second in 1000, and be set.
func (s *system) drift(c *clock) {
	c.from, c.drift = time.Now(), (s.random.Float64()*2-1)/1000
	s.clocks = append(s.clocks, c)
}

// keep starts a relay again and again until the end.
func (s *system) keep(r *site) {
	random := rand.New(rand.NewPCG(s.seed, uint64(r.host[0])))
	defer func() { r.disk.Close() }()
	for {
		ctx := r.start()
		if ctx == nil && s.isCalm() && !r.disk.dead() {
			s.Errorf("%s does not start", r.host)
			return
		}
		if ctx != nil {
			if s.isCalm() {
				r.disk.Calm()
			}
			r.open(ctx)
			select {
			case <-ctx.Done(): // stopped
			case <-r.disk.Died():
			case <-s.over:
				r.close()
				s.stored(r)
				r.stop()
				return
			}
			r.close()
			r.stop()
			s.count(func(t *tally) { t.Deaths++ })
		}
		r.recover()
		if !s.isCalm() {
			time.Sleep([]time.Duration{0, 5 * time.Second, 40 * time.Second, 2 * time.Minute}[random.IntN(4)])
		}
	}
}

// disturb lets things fail for some minutes.
func (s *system) disturb() {
	for range 10 + s.random.IntN(25) {
		time.Sleep(time.Duration(s.random.IntN(20_000)) * time.Millisecond)
		r, a := s.sites[s.random.IntN(len(s.sites))], s.agents[s.random.IntN(len(s.agents))]
		switch n := s.random.IntN(10); {
		case n < 2:
			f, after := []Fault{Kill, PowerLoss}[s.random.IntN(2)], s.random.IntN(40)
			s.Logf("%s: %s has %v after %d operations", time.Now().Format(time.TimeOnly), r.host, f, after)
			r.mu.Lock()
			if r.handler != nil {
				r.disk.Plan(after, f)
			}
			r.mu.Unlock()
		case n == 2:
			r.mu.Lock()
			if r.handler != nil {
				s.Logf("%s: %s is stopped", time.Now().Format(time.TimeOnly), r.host)
				r.life.end()
			}
			r.mu.Unlock()
		case n < 6:
			w := s.parties[s.random.IntN(len(s.parties))]
			c := cut{time.Now().Add(time.Duration(s.random.IntN(120)) * time.Second), s.random.IntN(2) == 0}
			s.Logf("%s: %s is cut off from %s: %v", time.Now().Format(time.TimeOnly), w.name, r.host, c)
			w.mu.Lock()
			w.cuts[r.host] = c
			w.mu.Unlock()
		case n < 9:
			s.Logf("%s: %s ends", time.Now().Format(time.TimeOnly), a.name)
			a.end(s.random.IntN(3) > 0)
			time.Sleep([]time.Duration{0, time.Second, 30 * time.Second}[s.random.IntN(3)])
			a.begin()
		default:
			c, step := s.clocks[s.random.IntN(len(s.clocks))], time.Duration(s.random.IntN(180)-90)*time.Second
			s.Logf("%s: a clock is set by %v", time.Now().Format(time.TimeOnly), step)
			c.set(step - time.Duration(c.offset.Load()))
		}
	}
}

// heal ends all faults.
func (s *system) heal() {
	s.Logf("%s: no more faults", time.Now().Format(time.TimeOnly))
	s.mu.Lock()
	s.calm = true
	parties := s.parties
	s.mu.Unlock()
	for _, w := range parties {
		w.mu.Lock()
		w.cuts = map[string]cut{}
		w.mu.Unlock()
	}
	for _, r := range s.sites {
		r.mu.Lock()
		if r.handler != nil {
			r.disk.Calm()
		}
		r.mu.Unlock()
	}
}

// watch follows all relays until the returned function is called. Nothing comes twice.
func (s *system) watch() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	w := s.newWire("watcher")
	w.pages = map[string]*pages{}
	n := s.network(newKey(s.T, s.random), w, &clock{}, nil, nil)
	s.watched = map[envelope.Hash]bool{}
	ended := make(chan error, 1)
	go func() {
		ended <- n.Follow(ctx, client.FollowOptions{FromOldest: true}, func(_ context.Context, e *envelope.Envelope) error {
			if s.watched[e.Hash()] {
				s.Errorf("%s %s was delivered twice to one follower", e.Type, e.ID)
			}
			s.watched[e.Hash()] = true
			return nil
		})
	}()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			s.Errorf("the watcher ended: %v", err)
		}
	}
}
