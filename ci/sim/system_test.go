package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/thread"
)

var systems = flag.Int("systems", 0, "how many simulations of whole systems to run; 0: 200, or 10 with -short")

// TestSystems runs whole systems: 3 relays, which mirror each other, 3 agents, and 2 clients that ask them, over a
// network and disks that fail. The seed decides the jobs and the faults. See checker for what is checked. It ends at
// the first seed that fails.
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
		passed := t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			folder := t.TempDir()
			cryptotest.SetGlobalRandom(t, seed)
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t, seed, folder)
				s.run()
				all.add(s.tally)
			})
		})
		if !passed {
			t.Logf("run it again with: go test ./ci/sim -run TestSystems -systems 1 -seed %d -count 5", seed)
			return
		}
	}
	t.Logf("%+v", all)
	few := all.Results < all.Jobs*2/3 || all.Moves == 0 || all.Crashes == 0 || all.Deaths == 0 || all.Restores == 0
	if n >= 10 && few {
		t.Error("too few jobs were done or continued, or there were too few faults, so the simulations show little")
	}
}

// tally counts what happened.
type tally struct{ Jobs, Results, Moves, Crashes, Deaths, Restores, Interrupted int }

func (t *tally) add(o tally) {
	t.Jobs += o.Jobs
	t.Results += o.Results
	t.Moves += o.Moves
	t.Crashes += o.Crashes
	t.Deaths += o.Deaths
	t.Restores += o.Restores
	t.Interrupted += o.Interrupted
}

// Times of a simulation.
const (
	tick          = 10 * time.Millisecond // delays are multiples of it, so that much happens at the same time
	jobTTL        = time.Hour
	activeTimeout = 10 * time.Minute
	collecting    = 5 * time.Second
	settling      = 2 * time.Minute                // what waits between attempts tries again, and reads all again if it must
	copyable      = 30 * time.Minute               // what lives longer is copied by a mirror
	promptly      = 2 * time.Second                // from storing a message to its delivery
	calmBound     = 8 * time.Second                // for a job without faults, besides the work
	roundBound    = 4 * time.Minute                // for a job with one fault, besides the work
	jobBound      = activeTimeout + 10*time.Minute // for any job, after the faults
	mirrorPause   = 5 * time.Minute                // between the attempts of a mirror
)

// system is one simulation.
type system struct {
	*testing.T
	seed    uint64
	random  *rand.Rand // of the goroutine of the test
	folder  string
	sites   []*site
	agents  []*worker
	clients []*asker
	clocks  []*clock
	copies  sync.WaitGroup // requests that a relay gets once more
	lives   sync.WaitGroup // of the relays
	lossy   atomic.Bool    // requests are late, come twice, and answers are lost
	calmed  chan struct{}  // closed when the many faults are over
	over    chan struct{}  // closed at the end
	*checker

	mu      sync.Mutex
	parties map[string]*wire
}

func newSystem(t *testing.T, seed uint64, folder string) *system {
	s := &system{T: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), folder: folder,
		calmed: make(chan struct{}), over: make(chan struct{}), checker: newChecker(t), parties: map[string]*wire{}}
	s.lossy.Store(true)
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
	for i, r := range s.sites {
		r.wire = s.newWire("mirror at " + r.host)
		r.wire.pages = map[string]*pages{}
		for j, other := range s.sites {
			if i != j && (uint64(i) == seed%3 && uint64(j) == (seed+1)%3 || s.random.IntN(3) == 0) {
				r.mirrors = append(r.mirrors, witness.Peer{DID: other.key.DID(), URL: other.origin})
			}
		}
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

func (s *system) siteOf(relay didkey.DID) *site {
	return s.sites[slices.IndexFunc(s.sites, func(r *site) bool { return r.key.DID() == relay })]
}

func (s *system) isCalm() bool {
	select {
	case <-s.calmed:
		return true
	default:
		return false
	}
}

// newWire connects a party to the network.
func (s *system) newWire(name string) *wire {
	w := &wire{system: s, name: name, sent: map[string]uint64{}, cuts: map[string]cut{}, onPost: func(moment) {}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parties[name] = w
	return w
}

// network returns a Network of key over all relays. Programs prefer different ones.
func (s *system) network(key didkey.Key, w *wire, c *clock, state *client.State,
	moved func(client.Move)) *client.Network {
	var urls []string
	for i := range s.sites {
		urls = append(urls, s.sites[(int(key.DID()[20])+i)%len(s.sites)].origin)
	}
	n, err := client.NewNetwork(urls, key, client.NetworkOptions{State: state, Moved: moved, Options: client.Options{
		HTTPClient: &http.Client{Transport: w}, Now: c.now, Logger: s.sites[0].log().With("party", w.name)}})
	s.must(err)
	return n
}

// run runs the system with many faults, then without, and then with one.
func (s *system) run() {
	for _, r := range s.sites {
		s.drift(&r.clock)
		s.lives.Go(func() { s.keep(r) })
	}
	watching := s.watch()
	for i := range 3 {
		s.agents = append(s.agents, &worker{program: s.newProgram(fmt.Sprint("agent", i), uint64(10+i))})
		s.agents[i].begin()
	}
	for i := range 2 {
		s.clients = append(s.clients, &asker{program: s.newProgram(fmt.Sprint("client", i), uint64(15+i))})
		s.clients[i].begin()
	}
	time.Sleep(10 * time.Second) // the agents announce themselves
	interfering := s.disturbThreads()
	tasks := s.disturb()
	s.heal()
	s.await(tasks)
	time.Sleep(settling)
	from := time.Now()
	s.round(single{name: "nothing fails", still: true, happen: func([]*task) func() { return s.nothing }}, calmBound)
	to := time.Now()
	all := s.singles()
	s.round(all[s.random.IntN(len(all))], roundBound)
	interfering()
	s.settle()
	for _, c := range s.clients {
		c.end(false)
	}
	for _, a := range s.agents {
		a.end(false)
	}
	watching()
	s.copies.Wait()
	s.prompt(from, to)
	close(s.over)
	s.lives.Wait()
}

// settle waits until the watcher and the mirrors have everything.
func (s *system) settle() {
	await := func(bound time.Duration, left func(*site) []string, what string) {
		for _, r := range s.sites {
			for began := time.Now(); len(left(r)) > 0; time.Sleep(bound / 20) {
				if time.Since(began) > bound {
					s.Errorf("%s %s %s", r.host, what, left(r))
					break
				}
			}
		}
	}
	await(settling, s.missed, "has stored, but not delivered")
	await(mirrorPause+time.Minute, s.lacks, "mirrors other relays, but lacks")
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
		if r.recover() {
			s.count(func(t *tally) { t.Restores++ })
		}
		r.awaitRelease()
		select {
		case <-time.After([]time.Duration{0, 5 * time.Second, 40 * time.Second, 2 * time.Minute}[random.IntN(4)]):
		case <-s.calmed:
		}
	}
}
