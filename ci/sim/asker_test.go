package sim

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// asker is a client. After a crash it continues its jobs.
type asker struct {
	*program
	ctx     context.Context // ends when the program stops or crashes
	network *client.Network
	running sync.WaitGroup

	lock  sync.Mutex // guards what follows; held for moments only
	down  bool
	tasks []*task
}

// task is a job as the client's program has saved it.
type task struct {
	job     int
	to      didkey.DID // empty: every agent
	began   time.Time
	thread  string     // the newest one
	asked   bool       // a relay has, or may have, the REQUEST
	agent   didkey.DID // whose offer the program has accepted, perhaps
	refused bool       // the relay knows the thread, but not the OFFER of the ACCEPT
	moves   int        // how often the job was continued
	ended   chan struct{}
	took    time.Duration
	result  *client.Result
	err     error

	call *client.NetworkCall // of the program that runs now; nil: not opened again yet
}

// begin starts the program, which continues its jobs.
func (c *asker) begin() {
	ctx, n := c.open(c.moved)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.ctx, c.network, c.down = ctx, n, false
	for _, t := range c.tasks {
		if !t.isOver() {
			t.call = nil
			c.start(t)
		}
	}
}

// end stops the program, or lets it crash.
func (c *asker) end(crash bool) {
	c.lock.Lock()
	c.down = true
	for _, t := range c.tasks {
		if !t.isOver() {
			c.interrupted(t.job)
		}
	}
	c.lock.Unlock()
	c.close(crash, func() error { c.running.Wait(); return nil })
}

// dieSoon lets the client crash at its next REQUEST or ACCEPT.
func (c *asker) dieSoon() { c.program.dieSoon(envelope.TypeRequest, envelope.TypeAccept) }

// moved is NetworkOptions.Moved. The program saves the new threads.
func (c *asker) moved(m client.Move) {
	c.count(func(t *tally) { t.Moves++ })
	c.Logf("%s: %s has left %s, which %s", time.Now().Format(time.TimeOnly), c.name, m.From.URL, m.Reason)
	c.lock.Lock()
	defer c.lock.Unlock()
	for _, t := range c.tasks {
		if t.call == nil || t.isOver() || c.wire.isDead() {
			continue
		}
		if id, _ := t.call.Thread(); id == m.Thread {
			t.thread = id
			t.moves++
		}
	}
}

// ask lets the program ask for a job.
func (c *asker) ask(to didkey.DID, faithless bool) *task {
	t := &task{job: c.newJob(faithless), to: to, began: time.Now(), ended: make(chan struct{})}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.tasks = append(c.tasks, t)
	if !c.down {
		c.start(t)
	}
	return t
}

func (t *task) isOver() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// start lets the program do what is left of a job. The caller holds c.lock.
func (c *asker) start(t *task) {
	ctx, n, life := c.ctx, c.network, c.wire
	c.running.Go(func() {
		result, err := c.try(ctx, n, t)
		if life.isDead() || ctx.Err() != nil {
			return // the restarted program continues
		}
		if t.result, t.err, t.took = result, err, time.Since(t.began); err != nil {
			c.Logf("%s: job %d: %v", time.Now().Format(time.TimeOnly), t.job, err)
		} else {
			c.finished(t.job, result)
		}
		close(t.ended)
	})
}

// save changes what the program has saved.
func (c *asker) save(t *task, change func()) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if !c.wire.isDead() {
		change()
	}
}

func (c *asker) try(ctx context.Context, n *client.Network, t *task) (*client.Result, error) {
	call, accepted, err := c.find(ctx, n, t)
	if err != nil {
		return nil, err
	}
	if accepted {
		return call.Result(ctx)
	}
	offer, err := c.choose(ctx, call, t)
	if err != nil {
		return nil, err
	}
	c.save(t, func() { t.agent = offer.Agent })
	if err := call.Accept(ctx, offer); err != nil {
		t.refused = envelope.CodeOf(err) == envelope.CodeInvalidTransition
		return nil, err
	}
	return call.Result(ctx)
}

// find asks for the job, or finds its thread. accepted: the thread has an ACCEPT.
func (c *asker) find(
	ctx context.Context, n *client.Network, t *task,
) (call *client.NetworkCall, accepted bool, err error) {
	if t.thread != "" {
		call, accepted, err = resume(ctx, n, t.thread)
		if envelope.CodeOf(err) != envelope.CodeThreadNotFound || t.asked {
			c.save(t, func() { t.call, t.asked = call, true })
			return call, accepted, err
		}
	}
	for range 5 { // the program tries again if no relay answers
		id := client.NewThread()
		c.save(t, func() { t.thread = id })
		call, err = n.Request(ctx, client.RequestOptions{Intent: "work", Params: t.job, Recipient: t.to, TTL: jobTTL,
			Thread: id})
		if err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Second)
	}
	if err == nil {
		c.save(t, func() {
			t.call, t.asked = call, true
			t.thread, _ = call.Thread()
		})
	}
	return call, false, err
}

// resume finds a thread again. It tries until the relays answer.
func resume(ctx context.Context, n *client.Network, id string) (call *client.NetworkCall, accepted bool, err error) {
	for {
		var state client.CallState
		if call, err = n.Resume(ctx, id); err == nil {
			state, err = call.State(ctx)
			return call, state.Agent != "", err
		}
		if !client.Unanswered(err) || ctx.Err() != nil {
			return nil, false, err
		}
		time.Sleep(time.Second)
	}
}

// choose returns the offer that the program accepts. If it has perhaps accepted one before a crash, that is an offer of
// the same agent.
func (c *asker) choose(ctx context.Context, call *client.NetworkCall, t *task) (client.Offer, error) {
	if t.to == "" && t.agent == "" {
		offers, err := call.Collect(ctx, collecting)
		if err != nil {
			return client.Offer{}, err
		}
		if len(offers) > 1 {
			if c.isFaithless(t.job) {
				c.acceptToo(ctx, call, offers[t.job%2*(len(offers)-1)], t)
			}
			return offers[len(offers)-1], nil
		}
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			return client.Offer{}, err
		}
		if t.agent == "" || t.agent == offer.Agent {
			return offer, nil
		}
	}
	return client.Offer{}, errors.New("there is no offer")
}

// acceptToo accepts a second offer in the same thread, or the same one again, at the same time as the first, which no
// honest client does. The relay must take only one ACCEPT.
func (c *asker) acceptToo(ctx context.Context, call *client.NetworkCall, offer client.Offer, t *task) {
	id, home := call.Thread()
	n := c.network
	c.copies.Go(func() {
		_, _, err := n.Post(ctx, envelope.Draft{Thread: id, Recipient: offer.Agent, Home: &home,
			Re: offer.Envelope.Hash(), Payload: envelope.Accept{RequestID: offer.RequestID}, TTL: jobTTL})
		c.Logf("job %d: the second ACCEPT: %v", t.job, err)
	})
}

// output is the output of a RESULT.
type output struct {
	Job  int
	Work uint64 // another number each time that the work is done
}

func (o *output) read(text json.RawMessage) error { return json.Unmarshal(text, o) }

func (o output) json() json.RawMessage {
	text, _ := json.Marshal(o) // numbers only
	return text
}
