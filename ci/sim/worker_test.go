package sim

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// worker is an agent. It crashes and starts again, and has a state file.
type worker struct {
	*system
	name  string
	key   didkey.Key
	clock clock
	path  string // of the state file

	wire  *wire
	state *client.State
	stop  context.CancelFunc
	ended chan error

	mu     sync.Mutex
	random *rand.Rand
	synced int64 // how much of the state file is durable
}

// work is one call of Handler.Work.
type work struct {
	by      *worker
	life    *wire // of the agent
	ended   time.Time
	crashed bool // the agent ended before the outcome was durable
}

// begin starts the agent.
func (a *worker) begin() {
	state, err := client.OpenState(a.path, a.key.DID())
	a.must(err)
	a.state, a.wire = state, a.newWire(a.name)
	a.wire.onPost = a.mark
	a.mark()
	n := a.network(a.key, a.wire, &a.clock, state, nil)
	var ctx context.Context
	ctx, a.stop = context.WithCancel(a.Context())
	a.ended = make(chan error, 1)
	w := a.wire
	go func() {
		a.ended <- n.Serve(ctx, client.ServeOptions{Intents: []string{"work"},
			Manifest: envelope.Manifest{ID: "cap", Intents: []envelope.Intent{{ID: "work"}}}}, client.Handler{
			Work: func(ctx context.Context, job client.Job) (envelope.Result, error) { return a.work(ctx, w, job) }})
	}()
}

// mark notes that the state file is durable up to its present end. The client syncs it before it posts what depends on
// it, and before the work begins.
func (a *worker) mark() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.synced = sizeOf(a.path)
}

// work is Handler.Work.
func (a *worker) work(ctx context.Context, life *wire, job client.Job) (envelope.Result, error) {
	var number int
	if err := json.Unmarshal(job.Request.Params, &number); err != nil {
		return envelope.Result{}, err
	}
	if life.isDead() { // the process is no more
		<-ctx.Done()
		return envelope.Result{}, ctx.Err()
	}
	a.mark()
	a.mu.Lock()
	took, id := time.Duration(a.random.IntN(40_000))*time.Millisecond, a.random.Uint64()>>12
	a.mu.Unlock()
	w := &work{by: a, life: life}
	a.beginWork(number, w)
	select {
	case <-ctx.Done():
		return envelope.Result{}, ctx.Err()
	case <-time.After(took):
	}
	a.endWork(w)
	return envelope.Result{Output: output{number, id}.json()}, nil
}

func (w *wire) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// end stops the agent, or lets it crash: then what it does after this moment has no effect, and the end of the state
// file that was not synced may be lost.
func (a *worker) end(crash bool) {
	var left []byte
	if crash {
		a.wire.mu.Lock()
		a.wire.dead = true
		a.wire.mu.Unlock()
		var err error
		left, err = os.ReadFile(a.path)
		a.must(err)
		a.mu.Lock()
		if lost := int64(len(left)) - a.synced; lost > 0 {
			left = left[:int64(len(left))-a.random.Int64N(lost+1)]
		}
		a.mu.Unlock()
		a.count(func(t *tally) { t.Crashes++ })
	}
	a.interrupt(a.wire)
	a.stop()
	if err := <-a.ended; !errors.Is(err, context.Canceled) {
		a.Errorf("%s ended: %v", a.name, err)
	}
	a.must(a.state.Close())
	if crash {
		a.must(os.WriteFile(a.path, left, 0o600))
	}
}
