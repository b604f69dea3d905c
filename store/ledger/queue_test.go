package ledger

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/relay"
)

var errStuck, errLate = errors.New("stuck"), errors.New("late")

// newQueue returns a queue whose callers wait for a minute, and functions that say that the store is being closed and
// that the writer has ended.
func newQueue(o QueueOptions) (q *Queue, closing, stopped func()) {
	c, s := make(chan struct{}), make(chan struct{})
	o.Refusal, o.Closing, o.Stopped = func(Job) error { return nil }, c, s
	o.Patience, o.Stuck, o.Late = time.Minute, errStuck, errLate
	return NewQueue(o), func() { close(c) }, func() { close(s) }
}

// TestPatience checks what a caller gets when it gives up. It learns whether the writer has begun with its job.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _, _ := newQueue(QueueOptions{})
		began := time.Now()
		if _, err := q.Append(t.Context(), relay.Entry{}); err != errStuck || time.Since(began) != time.Minute {
			t.Errorf("a job that waits: %v after %v", err, time.Since(began))
		}
		if j := <-q.Appends; j.Take() {
			t.Error("the writer may do a job after its caller was told that it will not be done")
		}
		go func() { (<-q.Appends).Take() }()
		if _, err := q.Append(t.Context(), relay.Entry{}); err != errLate {
			t.Errorf("a job that the writer has begun: %v", err)
		}
		if err := q.Task(t.Context(), func() error { return nil }); err != errStuck {
			t.Errorf("a task that nobody receives: %v", err)
		}
	})
}

// TestQueueEnds checks that no caller waits for a writer that ends, and that an outcome still counts if the writer has
// decided it before it ended.
func TestQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, closing, stopped := newQueue(QueueOptions{})
		answered := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := q.Append(t.Context(), relay.Entry{})
				answered <- err
			}()
		}
		first := <-q.Appends
		<-q.Appends
		first.Done <- relay.Outcome{}
		if err := <-answered; err != nil {
			t.Errorf("the answered job: %v", err)
		}
		stopped()
		if err := <-answered; err != relay.ErrShuttingDown {
			t.Errorf("the other job: %v", err)
		}
		closing()
		if err := q.Task(t.Context(), nil); err != relay.ErrShuttingDown {
			t.Errorf("a task after the end: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(nil)
		q, _, _ = newQueue(QueueOptions{})
		if _, err := q.Append(ctx, relay.Entry{}); err != context.Canceled {
			t.Errorf("a caller that has left: %v", err)
		}
	})
}

// TestAppendAllInBatches checks that entries are handed over in batches, one after the other, and that nothing follows
// a batch that failed.
func TestAppendAllInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _, _ := newQueue(QueueOptions{Batch: func(jobs []Job) int { return min(len(jobs), 2) }})
		failure := errors.New("the disk")
		var sizes []int
		go func() {
			for j := range q.Appends {
				group := q.Group(j, func(Job) int { return 1 }, 100)
				sizes = append(sizes, len(group))
				var err error
				if len(sizes) == 2 {
					err = failure
				}
				Finish(group, make([]relay.Outcome, len(group)), err, func(error) bool { return false }, nil)
			}
		}()
		outcomes := q.AppendAll(t.Context(), make([]relay.Entry, 5))
		synctest.Wait()
		close(q.Appends)
		var got []error
		for _, o := range outcomes {
			got = append(got, o.Err)
		}
		if want := []error{nil, nil, failure, failure, failure}; !slices.Equal(got, want) || !slices.Equal(sizes, []int{2, 2}) {
			t.Errorf("%v in groups of %v, want %v in two groups of 2", got, sizes, want)
		}
	})
}

// TestGroup checks that a group takes what waits, and ends when it is full. A job whose caller has given up is left out.
func TestGroup(t *testing.T) {
	q, _, _ := newQueue(QueueOptions{})
	for range 4 {
		q.Appends <- Job{}
	}
	gone := Job{}
	q.patience(&gone)
	gone.Take()
	q.Appends <- gone
	size := func(Job) int { return 10 }
	if n := len(q.Group(Job{More: []Job{{}, {}}}, size, 45)); n != 5 {
		t.Errorf("the first group has %d jobs, want 5: three, and two that make it full", n)
	}
	if n := len(q.Group(Job{}, size, 45)); n != 3 || len(q.Appends) != 0 {
		t.Errorf("the second group has %d jobs, want 3", n)
	}
}

// TestFinishAgain checks that each job is run by itself if the data of one was rejected, and that no caller waits.
func TestFinishAgain(t *testing.T) {
	group := []Job{{Done: make(chan relay.Outcome, 1)}, {Done: make(chan relay.Outcome, 1)}}
	rejected, isData := errors.New("rejected"), func(error) bool { return true }
	var again int
	Finish(group, make([]relay.Outcome, 2), rejected, isData, func(j Job) {
		again++
		Finish([]Job{j}, make([]relay.Outcome, 1), rejected, isData, nil)
	})
	for _, j := range group {
		if o := <-j.Done; o.Err != rejected {
			t.Errorf("a rejected job: %v", o.Err)
		}
	}
	if again != 2 {
		t.Errorf("%d jobs were run again, want 2", again)
	}
}

// TestUpdatePanics checks that a panic of the function reaches the caller of Update, and nobody else.
func TestUpdatePanics(t *testing.T) {
	q, _, _ := newQueue(QueueOptions{})
	go func() {
		j := <-q.Appends
		j.Done <- relay.Outcome{Err: j.Update.Run(nil, slog.New(slog.DiscardHandler))}
	}()
	defer func() {
		if p := recover(); p != "at the disco" {
			t.Errorf("Update panics with %v", p)
		}
	}()
	_, err := q.Update(t.Context(), func(relay.StoreTx) error { panic("at the disco") })
	t.Errorf("Update returned %v", err)
}
