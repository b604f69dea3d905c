package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/fsync"
)

// program is a program of a client or of an agent. It crashes and starts again, and has a state file.
type program struct {
	*system
	name  string
	key   didkey.Key
	clock clock
	path  string // of the state file

	wire  *wire // of its present life
	state *client.State
	stop  context.CancelFunc

	mu     sync.Mutex
	random *rand.Rand
	synced int64  // how much of the state file is durable
	left   []byte // what a crash leaves of the state file
	fatal  moment // when the program crashes; zero: it does not
}

// moment is the time before a program posts a message of this type, or after the relay has answered.
type moment struct {
	kind  envelope.Type
	after bool
}

// programs are the programs that run now, by the paths of their state files.
var programs sync.Map

func init() {
	fsync.Synced = func(path string) {
		if p, ok := programs.Load(path); ok {
			p.(*program).mark()
		}
	}
}

func (s *system) newProgram(name string, stream uint64) *program {
	p := &program{system: s, name: name, key: newKey(s.T, s.random), path: filepath.Join(s.folder, name),
		random: rand.New(rand.NewPCG(s.seed, stream))}
	s.drift(&p.clock)
	return p
}

// mark notes that the state file is durable up to its present end.
func (p *program) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced = sizeOf(p.path)
}

// open starts the program. The context ends with it.
func (p *program) open(moved func(client.Move)) (context.Context, *client.Network) {
	programs.Store(p.path, p)
	var err error
	p.state, err = client.OpenState(p.path, p.key.DID())
	p.must(err)
	p.wire = p.newWire(p.name)
	p.wire.onPost = p.posts
	var ctx context.Context
	ctx, p.stop = context.WithCancel(p.Context())
	return ctx, p.network(p.key, p.wire, &p.clock, p.state, moved)
}

// posts is called at each moment.
func (p *program) posts(now moment) {
	p.mu.Lock()
	fatal := p.fatal == now
	p.mu.Unlock()
	if fatal {
		p.die()
	}
}

// dieSoon lets the program crash when it posts a message of one of these types.
func (p *program) dieSoon(kinds ...envelope.Type) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fatal = moment{kinds[p.random.IntN(len(kinds))], p.random.IntN(2) == 0}
}

// die lets the program crash: what it does after this moment has no effect, and the end of the state file that was not
// synced may be lost.
func (p *program) die() {
	w := p.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return
	}
	w.dead = true
	left, err := os.ReadFile(p.path)
	p.must(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if lost := int64(len(left)) - p.synced; lost > 0 {
		left = left[:int64(len(left))-p.random.Int64N(lost+1)]
	}
	p.left = left
	p.interrupt(w)
	p.count(func(t *tally) { t.Crashes++ })
}

// close ends the program. wait waits until it has ended.
func (p *program) close(crash bool, wait func() error) {
	if crash {
		p.die()
	}
	p.interrupt(p.wire)
	p.stop()
	if err := wait(); err != nil && !errors.Is(err, context.Canceled) {
		p.Errorf("%s ended: %v", p.name, err)
	}
	for relay, why := range p.state.Caught() {
		p.Errorf("%s has caught %s, which does not lie: %s", p.name, relay, why)
	}
	p.must(p.state.Close())
	programs.Delete(p.path)
	if p.wire.isDead() {
		p.must(os.WriteFile(p.path, p.left, 0o600))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.fatal, p.synced = nil, moment{}, sizeOf(p.path)
}
