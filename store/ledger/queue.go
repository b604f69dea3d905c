package ledger

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// MaxGroup is the largest number of jobs in one transaction.
const MaxGroup = 256

// UpdateTime is how long the function of an Update may occupy the goroutine that writes. Such a function takes less than
// a millisecond, but on an overloaded machine it may have to wait for the processor.
const UpdateTime = 5 * time.Second

// Errors of an Update.
var (
	ErrTooLong = envelope.NotStored("this took the relay's database too long; nothing was stored, try again in a moment",
		time.Second)
	ErrOver     = errors.New("the transaction is over")
	ErrPanicked = errors.New("the update panicked")
)

// Update is one call of relay.Extender.Update.
type Update struct {
	F        func(relay.StoreTx) error
	Panicked any // the value that F panicked with
}

// Run calls the function. If it panics, Run logs the panic and returns ErrPanicked.
func (u *Update) Run(tx relay.StoreTx, log *slog.Logger) (err error) {
	defer func() {
		if p := recover(); p != nil {
			u.Panicked, err = p, ErrPanicked
			log.Error("an update panicked; none of its changes are stored",
				slog.Any("panic", p), "stack", string(debug.Stack()))
		}
	}()
	return u.F(tx)
}

// Job is work for the goroutine that writes: an entry to append, an update, or a task.
type Job struct {
	Entry  relay.Entry
	Update *Update
	Task   func() error
	Done   chan relay.Outcome // has room for one outcome, so the writer never waits for a caller that has left
	More   []Job              // entries that follow in the same transaction; they have no taken and no More
	taken  *atomic.Bool       // see Take; nil: the caller does not give up
}

// Take reports whether the job is still open. The first call decides: the writer then does the job, or its caller knows
// that it will not be done.
func (j Job) Take() bool { return j.taken == nil || j.taken.CompareAndSwap(false, true) }

// Queue hands jobs over from their callers to the goroutine of an engine that writes. That goroutine receives from
// Appends and Tasks, takes each job, and sends an outcome to its Done.
type Queue struct {
	Appends chan Job // entries and updates
	Tasks   chan Job
	QueueOptions
}

// QueueOptions say how callers wait.
type QueueOptions struct {
	Refusal  func(Job) error // why the job cannot be done at the moment; nil: it can
	Closing  <-chan struct{} // closed when the store is being closed
	Stopped  <-chan struct{} // closed when the writer has ended
	Batch    func([]Job) int // how many of the jobs, at least one, AppendAll puts into one transaction; nil: all
	Patience time.Duration   // how long a caller waits; 0: as long as it takes
	Stuck    error           // after Patience, if the writer has not begun with the job
	Late     error           // after Patience, if the writer has begun
}

// NewQueue returns an empty queue.
func NewQueue(o QueueOptions) *Queue {
	return &Queue{Appends: make(chan Job, MaxGroup), Tasks: make(chan Job), QueueOptions: o}
}

// Append does the work of relay.Store.Append.
func (q *Queue) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	return q.do(ctx, q.Appends, Job{Entry: e})
}

// Update does the work of relay.Extender.Update. If f panics, Update panics with the same value.
func (q *Queue) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	u := &Update{F: f}
	receipt, err := q.do(ctx, q.Appends, Job{Update: u})
	if errors.Is(err, ErrPanicked) {
		panic(u.Panicked)
	}
	return receipt.Took, err
}

// Task runs f in the goroutine that writes, and waits for it.
func (q *Queue) Task(ctx context.Context, f func() error) error {
	_, err := q.do(ctx, q.Tasks, Job{Task: f})
	return err
}

// AppendAll does the work of relay.Store.AppendAll.
func (q *Queue) AppendAll(ctx context.Context, entries []relay.Entry) []relay.Outcome {
	jobs := make([]Job, len(entries))
	for i, e := range entries {
		jobs[i] = Job{Entry: e, Done: make(chan relay.Outcome, 1)}
	}
	outcomes := make([]relay.Outcome, 0, len(jobs))
	for len(outcomes) < len(jobs) {
		batch := jobs[len(outcomes):]
		if q.Batch != nil {
			batch = batch[:q.Batch(batch)]
		}
		err := q.doAll(ctx, batch, &outcomes)
		for err != nil && len(outcomes) < len(jobs) {
			outcomes = append(outcomes, relay.Outcome{Err: err})
		}
	}
	return outcomes
}

// do gives a job to the writer and waits for its outcome. If ctx ends first, do returns ctx's error and the outcome is
// unknown.
func (q *Queue) do(ctx context.Context, to chan<- Job, j Job) (relay.Receipt, error) {
	late, stop := q.patience(&j)
	defer stop()
	j.Done = make(chan relay.Outcome, 1)
	if err := q.send(ctx, to, j, late); err != nil {
		return relay.Receipt{}, err
	}
	o := q.wait(ctx, j, j.Done, late)
	return o.Receipt, o.Err
}

// doAll gives jobs to the writer, for one transaction, and adds their outcomes. An error is the outcome of those that
// are left.
func (q *Queue) doAll(ctx context.Context, jobs []Job, outcomes *[]relay.Outcome) error {
	first := jobs[0]
	first.More = jobs[1:]
	late, stop := q.patience(&first)
	defer stop()
	if err := q.send(ctx, q.Appends, first, late); err != nil {
		return err
	}
	for _, j := range jobs {
		o := q.wait(ctx, first, j.Done, late)
		*outcomes = append(*outcomes, o)
		if !o.Decided() {
			return o.Err
		}
	}
	return nil
}

// patience prepares j for a caller that gives up. late fires when the caller has waited too long.
func (q *Queue) patience(j *Job) (late <-chan time.Time, stop func()) {
	if q.Patience == 0 {
		return nil, func() {}
	}
	j.taken = new(atomic.Bool)
	timer := time.NewTimer(q.Patience)
	return timer.C, func() { timer.Stop() }
}

// send gives a job to the writer. After an error, the writer does not get it.
func (q *Queue) send(ctx context.Context, to chan<- Job, j Job, late <-chan time.Time) error {
	if err := q.Refusal(j); err != nil {
		return err
	}
	select {
	case to <- j:
		return nil
	case <-late:
		return q.Stuck
	case <-q.Closing:
		return relay.ErrShuttingDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait waits for an outcome of j, or of one of j.More, that the writer has got.
func (q *Queue) wait(ctx context.Context, j Job, done <-chan relay.Outcome, late <-chan time.Time) relay.Outcome {
	select {
	case o := <-done:
		return o
	case <-late:
		if j.Take() {
			return relay.Outcome{Err: q.Stuck}
		}
		return relay.Outcome{Err: q.Late}
	case <-q.Stopped:
		select {
		case o := <-done:
			return o
		default:
			return relay.Outcome{Err: relay.ErrShuttingDown}
		}
	case <-ctx.Done():
		return relay.Outcome{Err: ctx.Err()}
	}
}

// Group returns first, which was taken, and the jobs that wait behind it. It does not wait for a group to fill: a group
// is what arrived while the group before was being written, plus what runnable goroutines add when Group yields. It
// stops when the sizes of the jobs have reached most.
func (q *Queue) Group(first Job, size func(Job) int, most int) []Job {
	var group []Job
	filled := 0
	add := func(j Job) {
		n := len(group)
		group = append(append(group, j), j.More...)
		for _, j := range group[n:] {
			filled += size(j)
		}
	}
	add(first)
	for yielded := false; len(group) < MaxGroup && filled < most; {
		select {
		case j := <-q.Appends:
			if j.Take() {
				add(j)
			}
			yielded = false
		default:
			if yielded {
				return group
			}
			// A commit costs as much as writing many envelopes. So let goroutines that are about to hand over an
			// envelope run first. This takes no time if no goroutine is runnable.
			runtime.Gosched()
			yielded = true
		}
	}
	return group
}

// Run runs the jobs of a group in order, in the transaction tx. Consecutive entries are appended together. update runs
// one Update. Run sets the outcomes and returns what was posted. An error means that the engine failed, see Tx.
func (l *Ledger) Run(
	tx Tx, group []Job, outcomes []relay.Outcome, update func(*Update) (relay.Outcome, []relay.Posted, error),
) (posted []relay.Posted, err error) {
	for len(group) > 0 {
		n := slices.IndexFunc(group, func(j Job) bool { return j.Update != nil })
		var some []relay.Posted
		switch n {
		case 0:
			n = 1
			outcomes[0], some, err = update(group[0].Update)
		case -1:
			n = len(group)
			fallthrough
		default:
			some, err = l.appendJobs(tx, group[:n], outcomes)
		}
		if err != nil {
			return nil, err
		}
		posted = append(posted, some...)
		group, outcomes = group[n:], outcomes[n:]
	}
	return posted, nil
}

func (l *Ledger) appendJobs(tx Tx, jobs []Job, outcomes []relay.Outcome) ([]relay.Posted, error) {
	entries := make([]relay.Entry, len(jobs))
	for i, j := range jobs {
		entries[i] = j.Entry
	}
	decided, posted, err := l.Append(tx, entries)
	copy(outcomes, decided)
	return posted, err
}

// Finish answers the jobs of a group after its transaction has ended with err. If a statement has rejected the data of
// one job, isData returns true for err. Then Finish passes each job to again by itself, so that the others succeed.
func Finish(group []Job, outcomes []relay.Outcome, err error, isData func(error) bool, again func(Job)) {
	for i, j := range group {
		switch {
		case err == nil:
			j.Done <- outcomes[i]
		case len(group) > 1 && isData(err):
			again(j)
		default:
			j.Done <- relay.Outcome{Err: err}
		}
	}
}
