package gateway

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/relay"
)

// Times of the outbox's own work.
const (
	maxSleep  = time.Minute // the clock of the relay may have been set
	firstWait = time.Second // before a failed step is repeated; each further wait is twice as long
	maxWait   = time.Minute
)

// lane is what the outbox keeps in memory of a lane. All else is read from the database when the lane is due.
type lane struct {
	number int64
	due    time.Time // when the lane must be looked at
	index  int       // in Outbox.due; -1: the lane is at work
	again  bool      // look at the lane again after its work
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
// if it is not known whether the Update was stored, and when a lane on hold may go on. It does not shorten the wait
// between two attempts.
func (o *Outbox) Wake(number int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lanes[number]
	switch {
	case l == nil:
		o.add(number, time.Time{})
	case l.index < 0:
		l.again = true
		return
	default:
		l.due = time.Time{}
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

// Run sends the jobs until ctx ends. Then it cuts off the attempts that are being made; the next Run repeats them. When
// it returns, its goroutines have ended. Run can be called once.
func (o *Outbox) Run(ctx context.Context) {
	var atWork sync.WaitGroup
	defer atWork.Wait()
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

// work looks at a lane and does what is to do for it now.
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
	case l.again:
		next = o.core.Relay.Now()
	case next.IsZero():
		delete(o.lanes, l.number)
		return
	}
	l.due, l.again = next, false
	heap.Push(&o.due, l)
	o.notify()
}

// step does what is to do for a lane now. next is when to look at the lane again; zero: when it is woken.
func (o *Outbox) step(ctx context.Context, number int64) (next time.Time, err error) {
	r, found, err := o.head(ctx, number)
	if err != nil || !found {
		return time.Time{}, err
	}
	now := o.core.Relay.Now()
	expires := r.Created.Add(jobLife)
	switch {
	case !now.Before(expires):
		return now, o.settle(ctx, r.Job, r.Attempt, Verdict{Outcome: Dead, Failure: r.Failure})
	case now.Before(r.due):
		return earlier(r.due, expires), nil
	}
	v, plan, err := o.attempt(ctx, r.Job, expires.Sub(now))
	switch {
	case errors.Is(err, errExpired) || errors.Is(err, errOtherHost):
		return o.core.Relay.Now().Add(firstWait), nil
	case err != nil:
		return time.Time{}, err
	case plan == Hold:
		return expires, nil
	case plan == Drop:
		return now, o.update(ctx, func(tx relay.ExtTx) error { return o.record(tx, r, Done) })
	}
	return now, o.settle(ctx, r.Job, r.Attempt+1, v)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// errExpired is the error if a job gets too old while it waits for a slot.
var errExpired = errors.New("the job is too old")

// attempt makes an attempt, if the plan is Send. It waits at most life for a slot.
func (o *Outbox) attempt(ctx context.Context, j Job, life time.Duration) (v Verdict, p Plan, err error) {
	url, p, err := o.courier.Target(ctx, j)
	if err != nil || p != Send {
		return Verdict{}, p, err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, life, errExpired)
	defer cancel()
	s, err := o.out.reserve(waiting, url)
	if errors.Is(err, context.DeadlineExceeded) {
		return Verdict{}, Send, context.Cause(waiting)
	}
	var answer Response
	if err == nil {
		defer s.free()
		var c Call
		if c, p, err = o.courier.Call(ctx, j); err != nil || p != Send {
			return Verdict{}, p, err
		}
		answer, err = s.post(ctx, c)
	}
	if _, failed := errors.AsType[Failure](err); err != nil && !failed {
		return Verdict{}, Send, err
	}
	return o.courier.Judge(j, answer, err), Send, nil
}

// settle stores the verdict on a job after a number of attempts.
func (o *Outbox) settle(ctx context.Context, j Job, attempts int, v Verdict) error {
	r, now := jobRow{Job: j}, o.core.Relay.Now()
	r.Attempt, r.Failure = attempts, v.Failure
	switch v.Outcome {
	case Retry:
		r.due = now.Add(retryDelay(attempts, v.RetryAfter, now))
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

// insist calls f until it succeeds. It returns an error only if ctx ends.
func (o *Outbox) insist(ctx context.Context, f func() error) error {
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		o.complain(err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
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
