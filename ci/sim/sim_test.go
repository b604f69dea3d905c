package sim

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/thread"
)

var (
	seeds = flag.Int("seeds", 0, "how many simulations to run; 0: 40, or 12 with -short")
	first = flag.Uint64("seed", 1, "seed of the first simulation; the others follow")
)

// TestMain fails if a goroutine outlives the tests. Goroutines run one at a time, so that a seed mostly gives the same
// order of events again. Using more memory saves most of the garbage collection.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(800)
	goleak.VerifyTestMain(m)
}

// TestSimulations runs relays over disks that fail. The seed decides the messages, the times and the faults. After each
// start the test checks what the relay must know: see oracle.
func TestSimulations(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = 40
		if testing.Short() {
			n = 12
		}
	}
	for i := range n {
		seed := *first + uint64(i)
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			folder := t.TempDir()
			synctest.Test(t, func(t *testing.T) { newWorld(t, seed, folder).run() })
		})
	}
}

// policy has short timeouts, so that threads time out in every simulation.
var policy = relay.Policy{Rules: thread.Rules{PendingTimeout: 2 * time.Minute, ActiveTimeout: 4 * time.Minute}}

// extension has a table with a row for each message that was posted in an Update.
var extension = relay.Extension{Name: "sim", Migrations: []string{
	"CREATE TABLE sim_message (id TEXT PRIMARY KEY, seq INTEGER NOT NULL)"}}

// extensions are the extensions of all databases.
var extensions = []relay.Extension{extension, mirror.Extension}

// local is the peer of all requests: limits of rates are not what is tested here.
var local = relay.Peer{Local: true}

// world is one simulation: a relay that is stopped or crashes again and again, and its clients.
type world struct {
	*machine
	agents []*agent
	talks  []*talk
	oracle *oracle
	copies int
}

// agent is a client with a poll that never ends.
type agent struct {
	did    didkey.DID
	key    didkey.Key
	cursor relay.Cursor // used by one poll at a time
	last   relay.Seq    // number of the last event that it got
}

// talk is a thread as its parties know it.
type talk struct {
	id            string
	client, agent *agent
	state         thread.State // as the last receipt said
}

func newWorld(t *testing.T, seed uint64, parent string) *world {
	w := &world{machine: newMachine(t, rand.New(rand.NewPCG(seed, 0)), parent)}
	w.policy = policy
	for range 6 {
		k := newKey(t, w.random)
		w.agents = append(w.agents, &agent{did: k.DID(), key: k})
	}
	w.logs = seed%4 > 0
	w.oracle = newOracle(t, &w.clock, w.key)
	w.oracle.logs = w.logs
	return w
}

// run lives several lives with faults, and a last one without.
func (w *world) run() {
	w.must(makeFolder(w.folder()))
	w.newDisk()
	defer func() { w.disk.Close() }()
	for range 2 + w.random.IntN(4) {
		if w.random.IntN(3) == 0 {
			w.planFault(30)
		}
		if w.start() {
			w.oracle.audit(w.life.store, w.disk, w.path())
			for range w.random.IntN(3) {
				w.planFault(400)
			}
			w.work(10 + w.random.IntN(100))
		}
		w.stop()
		w.recover()
		time.Sleep([]time.Duration{0, time.Second, 10 * time.Minute, 30 * time.Hour}[w.random.IntN(4)])
	}
	w.disk.Calm()
	if !w.start() {
		w.Fatal("the relay does not start, though its disk has no faults")
	}
	w.oracle.audit(w.life.store, w.disk, w.path())
	w.finish()
	w.stop()
}

// planFault plans a fault within the next operations.
func (w *world) planFault(within int) {
	fault, after := Fault(w.random.IntN(int(faults))), w.random.IntN(within)
	w.Logf("%s: %v after %d operations", w.clock.now().Format(time.TimeOnly), fault, after)
	w.disk.Plan(after, fault)
}

// start starts the relay and its pollers. It returns false if a fault prevents that.
func (w *world) start() bool {
	ctx := w.machine.start()
	if ctx == nil {
		return false
	}
	for _, a := range w.agents {
		w.life.uses.Go(func() { w.poll(ctx, w.life.relay, a) })
	}
	return true
}

// poll reads the inbox of a until ctx ends.
func (w *world) poll(ctx context.Context, r *relay.Relay, a *agent) {
	for ctx.Err() == nil {
		began := w.clock.now()
		page, err := r.Events(ctx, &relay.Poll{Filter: relay.Filter{Recipient: a.did}, Peer: local, Cursor: a.cursor,
			Wait: 30 * time.Second, Limit: 7})
		var events []relay.Event
		for piece, failed := range page.Pieces() {
			events, err = append(events, piece...), cmp.Or(err, failed)
		}
		if err != nil {
			time.Sleep(time.Second) // the page is read again
			continue
		}
		w.oracle.delivered(a, events, began)
		a.cursor = page.Cursor
	}
}

// work posts messages until the disk dies, at most in so many steps.
func (w *world) work(steps int) {
	for range steps {
		if w.disk.dead() {
			return
		}
		switch n := w.random.IntN(20); {
		case n < 9:
			w.postSome(1 + w.random.IntN(12))
		case n < 11:
			w.postBulk(1 + w.random.IntN(40))
		case n < 13:
			w.update(1 + w.random.IntN(4))
		case n == 13:
			w.govern()
		case n < 16:
			time.Sleep(time.Duration(w.random.IntN(5000)) * time.Millisecond)
		case n == 16:
			time.Sleep(time.Duration(w.random.IntN(120)) * time.Second)
		case n == 17:
			synctest.Wait() // what was posted is delivered
			w.clock.set(time.Duration(w.random.IntN(1200)-600) * time.Second)
		case n == 18:
			w.must(w.disk.SetRoom(int64(w.random.IntN(64 << 10))))
		default:
			w.must(w.disk.SetRoom(-1))
		}
	}
}

// postSome posts n messages at once and notes what the relay answers.
func (w *world) postSome(n int) {
	posts := w.drawSome(n)
	answers := make([]relay.Outcome, len(posts))
	var waiting sync.WaitGroup
	for i, p := range posts {
		waiting.Go(func() {
			a := &answers[i]
			a.Receipt, a.Err = w.life.relay.Post(w.Context(), local, p.envelope.Canonical())
		})
	}
	waiting.Wait()
	for i, p := range posts {
		w.answered(p, answers[i])
	}
}

// drawSome returns up to n different messages.
func (w *world) drawSome(n int) (posts []*post) {
	for range n {
		if p := w.draw(); !slices.Contains(posts, p) { // the order of two attempts at once would not be known
			posts = append(posts, p)
		}
	}
	return posts
}

// answered notes what the relay has answered.
func (w *world) answered(p *post, o relay.Outcome) {
	w.oracle.answered(p, o.Receipt, o.Err)
	if o.Err == nil {
		p.talk.state = o.Receipt.State
	}
}

// lines are the lines of a bulk request.
type lines struct{ rest []*post }

func (l *lines) Next() ([]byte, error) {
	if len(l.rest) == 0 {
		return nil, io.EOF
	}
	p := l.rest[0]
	l.rest = l.rest[1:]
	return p.envelope.Canonical(), nil
}

func (l *lines) Stop() {}

// postBulk posts n messages in one bulk request. What has no answer may be stored.
func (w *world) postBulk(n int) {
	posts := w.drawSome(n)
	answered := 0
	_, _ = w.life.relay.PostAll(w.Context(), local, &lines{posts}, func(o relay.Outcome) {
		w.answered(posts[answered], o)
		answered++
	})
	for _, p := range posts[answered:] {
		p.maybePosted = true
		w.oracle.unanswered(p)
	}
}

// errUndo lets an Update fail.
var errUndo = errors.New("the update is undone")

// update posts n messages in one Update, with a row for each. Some updates fail at their end.
func (w *world) update(n int) {
	undo := w.random.IntN(4) == 0
	posts := w.drawSome(n)
	checked, checks, outcomes := make([]relay.Checked, len(posts)), make([]relay.Outcome, len(posts)),
		make([]relay.Outcome, len(posts))
	for i, p := range posts {
		checked[i], checks[i].Err = w.life.relay.Check(local, p.envelope.Canonical())
	}
	err := w.life.relay.Update(w.Context(), local, func(tx relay.ExtTx) error {
		for i, p := range posts {
			o := &outcomes[i]
			if *o = checks[i]; o.Err == nil {
				o.Receipt, o.Err = tx.Append(checked[i], thread.Terms{})
			}
			if _, refused := errors.AsType[*envelope.Error](o.Err); o.Err != nil && !refused {
				return o.Err
			}
			if o.Err != nil || o.Receipt.Duplicate {
				continue
			}
			seq := int64(o.Receipt.Cursor.Seq)
			if _, err := tx.Exec("INSERT INTO sim_message VALUES (?, ?)", p.envelope.ID, seq); err != nil {
				return err
			}
		}
		if undo {
			return errUndo
		}
		return nil
	})
	for i, p := range posts {
		switch {
		case errors.Is(err, errUndo): // nothing has changed
		case err != nil:
			p.maybeUpdated = true
			w.oracle.unanswered(p)
		default:
			w.answered(p, outcomes[i])
			p.updated = p.updated || outcomes[i].Err == nil && !outcomes[i].Receipt.Duplicate
		}
	}
}

// govern removes a message, or makes a backup and checks it.
func (w *world) govern() {
	if w.random.IntN(2) == 0 {
		w.oracle.remove(w.random, w.life.relay)
		return
	}
	w.copies++
	to, before := filepath.Join(w.parent, fmt.Sprint("copy", w.copies, ".db")), w.disk.Occurred()
	if _, err := sqlite.Backup(w.Context(), w.path(), to, nil); err != nil {
		if w.disk.Occurred() == before && !w.disk.dead() {
			w.Errorf("Backup: %v", err)
		}
		return
	}
	w.must(w.oracle.check(to))
}

// draw returns a message: mostly the next one of a thread, sometimes one that was posted before.
func (w *world) draw() *post {
	if p := w.oracle.again(w.random); p != nil {
		return p
	}
	var t *talk
	if len(w.talks) > 0 && w.random.IntN(4) > 0 {
		t = w.talks[len(w.talks)-1-w.random.IntN(min(len(w.talks), 20))]
	} else {
		t = w.newTalk()
	}
	by, d := w.step(t)
	d.ID = fmt.Sprintf("msg_%d_%d", len(w.oracle.posts), w.random.Uint32())
	d.Thread = t.id
	d.TTL = []time.Duration{time.Minute, 10 * time.Minute, 48 * time.Hour}[w.random.IntN(3)]
	e, err := d.Sign(by.key, w.clock.now())
	w.must(err)
	return w.oracle.post(e, t)
}

func (w *world) newTalk() *talk {
	order := w.random.Perm(len(w.agents))
	t := &talk{id: fmt.Sprintf("thread_%d_%d", len(w.talks), w.random.Uint32()), state: thread.Open,
		client: w.agents[order[0]], agent: w.agents[order[1]]}
	w.talks = append(w.talks, t)
	return t
}

// step returns a message that fits the state of t, or with a small probability any message.
func (w *world) step(t *talk) (by *agent, d envelope.Draft) {
	n := map[thread.State]int{thread.Open: 0, thread.Pending: 1 + w.random.IntN(3), thread.Active: 4}[t.state]
	if w.random.IntN(10) == 0 {
		n = w.random.IntN(6)
	}
	by, to := t.client, t.agent
	if n == 1 || n == 4 {
		by, to = to, by
	}
	var p envelope.Payload
	switch n {
	case 0:
		params := fmt.Sprintf("%q", strings.Repeat("x", w.random.IntN(9000)))
		p = envelope.Request{RequestID: "r", Intent: "translate", Params: []byte(params)}
	case 1:
		p = envelope.Offer{RequestID: "r"}
	case 2:
		p = envelope.Accept{RequestID: "r"}
	case 3:
		p = envelope.Cancel{RequestID: "r"}
	case 4:
		p = envelope.Result{RequestID: "r", Status: "success"}
	case 5:
		p = envelope.Failure{RequestID: "r", Code: "INTERNAL_ERROR", Message: "no"}
	}
	return by, envelope.Draft{Payload: p, Recipient: to.did}
}

// finish posts everything again whose outcome is not known, waits until all threads have ended, and checks the end.
func (w *world) finish() {
	for _, p := range w.oracle.unsettled() {
		receipt, err := w.life.relay.Post(w.Context(), local, p.envelope.Canonical())
		w.oracle.answered(p, receipt, err)
	}
	began := time.Now()
	w.postSome(20)
	synctest.Wait()
	if waited := time.Since(began); waited > time.Second {
		w.Errorf("posting and delivering without faults took %s", waited)
	}
	w.oracle.allDelivered()
	time.Sleep(time.Unix(0, w.clock.latest.Load()).Sub(w.clock.now()) + 10*time.Minute)
	for _, t := range w.talks {
		view, err := w.life.relay.Thread(w.Context(), local, thread.Key{ID: t.id, Client: t.client.did})
		if envelope.CodeOf(err) == envelope.CodeThreadNotFound {
			continue
		}
		w.must(err)
		if view.State != thread.Completed && view.State != thread.Failed {
			w.Errorf("thread %s is %s long after its timeout", t.id, view.State)
		}
	}
	w.oracle.audit(w.life.store, w.disk, w.path())
	w.oracle.blameless()
}
