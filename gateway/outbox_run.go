package gateway

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/relay"
)

// maxSleep is how long Run sleeps at most. Then it looks at the clock of the relay again, which may have been set.
const maxSleep = time.Minute

// lane is what the outbox keeps in memory of a lane. All else is read from the database when the lane is due.
type lane struct {
	number int64
	due    time.Time // when the lane must be looked at
	index  int       // in Outbox.due; -1: the lane is at work
	again  bool      // look at the lane again at the time at, after its work
	at     time.Time
}

// dueLanes is a heap of lanes; the first one is due first.
type dueLanes []*lane

func (d dueLanes) Len() int           { return len(d) }
func (d dueLanes) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d dueLanes) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

// Push implements heap.Interface.
func (d *dueLanes) Push(x any) {
	l := x.(*lane)
	l.index = len(*d)
	*d = append(*d, l)
}

// Pop implements heap.Interface.
func (d *dueLanes) Pop() any {
	last := len(*d) - 1
	l := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	l.index = -1
	return l
}

// Wake makes the outbox look at a lane. Call it after each Update that may have added or removed jobs of the lane, also
// if it is not known whether the Update was stored, and when a lane on hold may continue. It does not shorten the wait
// between two attempts.
func (o *Outbox) Wake(number int64) { o.WakeAt(number, time.Time{}) }

// WakeAt is Wake at a time by the relay's clock. A Courier that answers Hold may call it before. The outbox keeps the time
// only in memory: after a restart it looks at all lanes.
func (o *Outbox) WakeAt(number int64, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lanes[number]
	switch {
	case l == nil:
		o.add(number, at)
	case l.index < 0:
		if !l.again || at.Before(l.at) {
			l.again, l.at = true, at
		}
		return
	case at.Before(l.due):
		l.due = at
		heap.Fix(&o.due, l.index)
	}
	o.notify()
}

// add adds a lane. o.mu is held.
func (o *Outbox) add(number int64, due time.Time) {
	l := &lane{number: number, due: due}
	o.lanes[number] = l
	heap.Push(&o.due, l)
}

// notify makes Run look at the due lanes.
func (o *Outbox) notify() {
	select {
	case o.woken <- struct{}{}:
	default:
	}
}

// Run sends the jobs until ctx ends or the relay drains, because nothing can be stored after that. Then it cuts off the
// attempts that are being made; they are repeated after the next start. When it returns, its goroutines have ended. Run
// can be called once.
func (o *Outbox) Run(ctx context.Context) {
	var atWork sync.WaitGroup
	defer atWork.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.insist(ctx, func() error { return o.load(ctx) }) != nil {
		return
	}
	for {
		all, sleep := o.takeDue()
		for _, l := range all {
			atWork.Go(func() { o.work(ctx, l) })
		}
		select {
		case <-time.After(sleep):
		case <-o.woken:
		case <-o.core.Relay.Drained():
			return
		case <-ctx.Done():
			return
		}
	}
}

// load adds the lanes that have a live job in the database.
func (o *Outbox) load(ctx context.Context) error {
	heads, err := o.heads(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for number, due := range heads {
		if o.lanes[number] == nil { // else Wake was called
			o.add(number, due)
		}
	}
	return nil
}

// takeDue returns the lanes that are due, and how long to wait for the next one. It marks the lanes as being at work.
func (o *Outbox) takeDue() (all []*lane, sleep time.Duration) {
	now := o.core.Relay.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.due) > 0 {
		if until := o.due[0].due.Sub(now); until > 0 {
			return all, min(until, maxSleep)
		}
		all = append(all, heap.Pop(&o.due).(*lane))
	}
	return all, maxSleep
}

// work does for a lane what is due now, and puts the lane back into the heap.
func (o *Outbox) work(ctx context.Context, l *lane) {
	var next time.Time
	err := o.insist(ctx, func() (err error) {
		next, err = o.step(ctx, l.number)
		return err
	})
	if err != nil {
		return // ctx has ended, and Run ends
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case l.again && (next.IsZero() || l.at.Before(next)):
		next = l.at
	case next.IsZero():
		delete(o.lanes, l.number)
		return
	}
	l.due, l.again = next, false
	heap.Push(&o.due, l)
	o.notify()
}

// step does for a lane what is due now. next is when to look at the lane again; zero: when it is woken.
func (o *Outbox) step(ctx context.Context, number int64) (next time.Time, err error) {
	d, err := o.decide(ctx, number)
	if err == nil && d.do == send {
		d, err = o.send(ctx, d)
	}
	if err != nil {
		return time.Time{}, err
	}
	switch d.do {
	case drop:
		err = o.update(ctx, func(tx relay.ExtTx) error { return o.record(tx, d.row, Done) })
	case kill:
		err = o.update(ctx, func(tx relay.ExtTx) error { return o.killIfGone(tx, number) })
	case clear:
		err = o.update(ctx, func(tx relay.ExtTx) error { return o.clear(tx, number) })
	case settle:
		err = o.settle(ctx, d)
	default:
		return d.next, nil
	}
	return o.core.Relay.Now(), err
}

// decision is what to do for a lane. It is not kept on the stacks of goroutines, because thousands may wait for a host.
type decision struct {
	do       deed
	row      jobRow    // the oldest live job
	url      string    // where to send it
	attempts int       // how many were made, for settle
	verdict  Verdict   // for settle
	next     time.Time // for wait: when to look at the lane again; zero: when it is woken
}

type deed int

const (
	wait deed = iota
	send
	drop
	kill
	clear
	settle
)

// expires returns when the job is dead.
func (d *decision) expires() time.Time { return d.row.Created.Add(JobLife) }

// follow makes d follow a plan of the courier.
func (d *decision) follow(p Plan) {
	switch p {
	case Hold:
		d.do, d.next = wait, d.expires()
	case Drop:
		d.do = drop
	case Kill:
		d.do = kill
	case Clear:
		d.do = clear
	default:
		d.do = send
	}
}

// decide decides what to do for a lane. It changes nothing.
func (o *Outbox) decide(ctx context.Context, number int64) (d *decision, err error) {
	d = &decision{}
	var found bool
	if d.row, found, err = o.head(ctx, number); err != nil || !found {
		return d, err
	}
	switch now := o.core.Relay.Now(); {
	case !now.Before(d.expires()):
		d.do, d.attempts, d.verdict = settle, d.row.Attempt, Verdict{Outcome: Dead, Failure: d.row.Failure}
		return d, nil
	case now.Before(d.row.due):
		d.next = d.row.due
		if d.expires().Before(d.next) {
			d.next = d.expires()
		}
		return d, nil
	}
	url, p, err := o.courier.Target(ctx, d.row.Job)
	d.url = url
	d.follow(p)
	return d, err
}

// send waits until a job may be sent, and sends it. The result is what to do next. When send returns, the job has no
// slot.
func (o *Outbox) send(ctx context.Context, d *decision) (*decision, error) {
	if o.Own != nil {
		if answer := o.Own(d.url); answer != nil {
			return o.attempt(ctx, d, answer)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, d.expires().Sub(o.core.Relay.Now()))
	defer cancel()
	s, release, waited, err := o.reserve(waiting, d)
	switch {
	case errors.Is(err, Blocked):
		o.judge(d, Response{}, err)
		return d, nil
	case err != nil && ctx.Err() == nil: // the job is now too old
		return &decision{next: o.core.Relay.Now().Add(firstPause)}, nil
	case err != nil:
		return d, err
	}
	defer release()
	if waited { // the job may have been removed, and the URL may have changed
		again, err := o.decide(ctx, d.row.Lane)
		if err != nil || again.do != send {
			return again, err
		}
		if again.url != d.url {
			return &decision{next: o.core.Relay.Now()}, nil
		}
		d = again
	}
	return o.attempt(ctx, d, s.post)
}

// reserve waits until a job may be sent: until its payer may have another attempt, and its host another call. While it
// waits for one of them, it does not hold the other. waited is false if it did not wait. The caller must call release
// after the attempt. Errors: those of Outgoing.reserve.
func (o *Outbox) reserve(ctx context.Context, d *decision) (s slot, release func(), waited bool, err error) {
	if o.share == nil {
		s, waited, err = o.out.reserve(ctx, d.url)
		return s, s.free, waited, err
	}
	payer := o.payer(d.row.Job)
	both := func() {
		s.free()
		o.share.Release(payer)
	}
	for {
		late, err := acquire(ctx, o.share, payer)
		if waited = waited || late; err != nil {
			return slot{}, nil, waited, err
		}
		if s, _, err = o.out.reserve(ended, d.url); err == nil {
			return s, both, waited, nil
		}
		o.share.Release(payer)
		if errors.Is(err, Blocked) {
			return slot{}, nil, waited, err
		}
		if s, _, err = o.out.reserve(ctx, d.url); err != nil {
			return slot{}, nil, true, err
		}
		if o.share.Acquire(ended, payer) == nil {
			return s, both, true, nil
		}
		s.free()
		waited = true
	}
}

// attempt sends a job, and judges the answer.
func (o *Outbox) attempt(ctx context.Context, d *decision, post Answerer) (*decision, error) {
	c, p, err := o.courier.Call(ctx, d.row.Job)
	if d.follow(p); err != nil || d.do != send {
		return d, err
	}
	r, err := post(ctx, c)
	if _, failed := errors.AsType[Failure](err); err != nil && !failed {
		return d, err
	}
	o.judge(d, r, err)
	return d, nil
}

// judge asks the courier what the answer to an attempt means.
func (o *Outbox) judge(d *decision, r Response, err error) {
	d.do, d.attempts, d.verdict = settle, d.row.Attempt+1, o.courier.Judge(d.row.Job, r, err)
}

// settle stores the verdict on a job.
func (o *Outbox) settle(ctx context.Context, d *decision) error {
	j, v, now := d.row.Job, d.verdict, o.core.Relay.Now()
	r := jobRow{Job: j}
	r.Attempt, r.Failure = d.attempts, v.Failure
	switch v.Outcome {
	case Retry:
		r.due = now.Add(retryDelay(d.attempts, v.RetryAfter, now))
	case Dead:
		r.dead = now
	}
	err := o.update(ctx, func(tx relay.ExtTx) error {
		if err := o.record(tx, r, v.Outcome); err != nil {
			return err
		}
		return o.courier.Settle(tx, j, v)
	})
	if err == nil {
		o.courier.Settled(j, v)
	}
	return err
}

// update runs an Update until it succeeds or ctx ends. An Update that has begun is not cut off, so its result is known.
func (o *Outbox) update(ctx context.Context, f func(relay.ExtTx) error) error {
	return o.insist(ctx, func() error {
		return o.core.Relay.Update(context.WithoutCancel(ctx), own, f)
	})
}

// insist calls Insist, and logs failures.
func (o *Outbox) insist(ctx context.Context, f func() error) error {
	return Insist(ctx, f, func(err error) {
		if !errors.Is(err, relay.ErrShuttingDown) {
			o.complain(err)
		}
	})
}

// complain logs an error, at most once a minute. When a disk is full, all lanes have the same error.
func (o *Outbox) complain(err error) {
	now := o.core.Relay.Now()
	o.mu.Lock()
	quiet := now.Sub(o.complained).Abs() < time.Minute
	if !quiet {
		o.complained = now
	}
	o.mu.Unlock()
	if !quiet {
		o.core.Log.Error("an outbox cannot go on; it tries again", "gateway", o.gateway, "err", err)
	}
}
