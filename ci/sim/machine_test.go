package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

// machine has a relay, the disk with its database, and a clock.
type machine struct {
	*testing.T
	random *rand.Rand
	parent string // has a folder for each disk
	clock  clock

	key      didkey.Key // of the relay
	origin   string     // of the relay
	policy   relay.Policy
	logs     bool  // the relay keeps a log
	maxBytes int64 // of the database

	disks int
	disk  *Disk
	life  *life // of the relay; nil: it is stopped
}

func newMachine(t *testing.T, random *rand.Rand, parent string) *machine {
	return &machine{T: t, random: random, parent: parent, maxBytes: 8 << 20, key: newKey(t, random)}
}

// clock is the machine's clock. It can be set. It remembers the latest time that it has shown.
type clock struct {
	offset atomic.Int64
	from   time.Time    // the start of the drift
	drift  float64      // how many seconds it gains in a second
	latest atomic.Int64 // nanoseconds
}

func (c *clock) now() time.Time {
	now := time.Now().Add(time.Duration(c.offset.Load()))
	if c.drift != 0 {
		now = now.Add(time.Duration(float64(time.Since(c.from)) * c.drift))
	}
	for {
		latest := c.latest.Load()
		if now.UnixNano() <= latest || c.latest.CompareAndSwap(latest, now.UnixNano()) {
			return now
		}
	}
}

// set changes the time by step. It is never set back more than relays allow.
func (c *clock) set(step time.Duration) {
	back := time.Unix(0, c.latest.Load()).Add(time.Minute - allowedStepBack).Sub(c.now())
	c.offset.Add(int64(max(step, min(back, 0))))
	c.now()
}

// life is the time from a start of the relay to its end.
type life struct {
	store *sqlite.Store
	relay *relay.Relay
	end   context.CancelFunc
	ended sync.WaitGroup
	uses  sync.WaitGroup // what uses the relay, and ends with it
}

func newKey(t *testing.T, random *rand.Rand) didkey.Key {
	seed := make([]byte, 32)
	for i := range seed {
		seed[i] = byte(random.Uint32())
	}
	k, err := didkey.FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// folder returns the folder of the present disk.
func (m *machine) folder() string { return filepath.Join(m.parent, fmt.Sprint("disk", m.disks)) }

func (m *machine) path() string { return filepath.Join(m.folder(), database) }

func (m *machine) newDisk() {
	var err error
	m.disk, err = NewDisk(m.folder(), rand.New(rand.NewPCG(m.random.Uint64(), 0)))
	m.must(err)
}

// start starts the relay. It returns a context that ends with the relay, or nil if a fault prevents the start.
func (m *machine) start() context.Context {
	before := m.disk.Occurred()
	log := m.log()
	store, err := sqlite.Open(m.Context(), m.path(), sqlite.Options{Policy: m.policy, Log: log, Now: m.clock.now,
		MaxBytes: m.maxBytes, Reserve: 1 << 20, Extensions: extensions,
		Rewrote: m.disk.Rewrote})
	if err != nil {
		if m.disk.Occurred() == before && !m.disk.dead() {
			m.Fatalf("the database cannot be opened: %v", err)
		}
		return nil
	}
	r, err := relay.New(m.Context(), relay.Config{Store: store, Key: m.key, Log: log, Now: m.clock.now,
		Origin: m.origin, Transparency: m.logs})
	if err != nil {
		if m.disk.Occurred() == before && !m.disk.dead() {
			m.Fatalf("the relay cannot be opened: %v", err)
		}
		_ = store.Close() // its disk has failed
		return nil
	}
	ctx, end := context.WithCancel(m.Context())
	m.life = &life{store: store, relay: r, end: end}
	m.life.ended.Go(func() {
		if err := r.Run(ctx); err != nil {
			m.Errorf("Run: %v", err)
		}
	})
	return ctx
}

// stop ends the relay.
func (m *machine) stop() {
	if m.life == nil {
		return
	}
	m.life.end()
	m.life.uses.Wait()
	m.life.ended.Wait()
	if err := m.life.store.Close(); err != nil && m.disk.Occurred() == 0 {
		m.Errorf("Close: %v", err)
	}
	m.life = nil
}

// recover replaces a disk that has died by what is left of it.
func (m *machine) recover() {
	m.must(m.disk.SetRoom(-1))
	if !m.disk.dead() {
		return
	}
	died := m.disk
	m.disks++
	m.must(died.Restore(m.folder()))
	died.Close()
	m.newDisk()
}

// log returns the log of the machine. It is shown if the test fails.
func (m *machine) log() *slog.Logger { return slog.New(slog.NewTextHandler(m.Output(), nil)) }
