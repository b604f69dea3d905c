package relay

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Limits of one call of PostAll (PROTOCOL §5, "Posting many messages").
const (
	MaxBulkLines = 10_000
	MaxBulkBytes = 16 << 20 // with the ends of the lines
	MaxBulkTime  = time.Minute
)

// A batch is what PostAll checks and stores at a time. At most four are in memory, and one line more: one batch is read,
// one is checked, one waits for the store, and one is stored. Together they have at most 1,024 lines and 4 MiB (RELAYS
//
const (
	bulkBatchLines = 240
	bulkBatchBytes = 960 << 10
)

// Lines are the lines of a bulk request.
type Lines interface {
	// Next returns the next line, without its end. It waits for a line, but not forever. At the end it returns io.EOF.
	// The caller may keep the line.
	Next() ([]byte, error)
	// Stop ends a Next that waits, and all later ones. It is called while Next may be running.
	Stop()
}

// PostAll posts lines, each as Post does (PROTOCOL §5, "Posting many messages"). It checks several lines at a time, and
// stores them in order. It calls answer with the outcome of each line, one after the other, in order. The
// transport must have admitted the request, see Gate. That admits the first line.
//
// stopped says why further lines were not posted; nil: all lines were posted. To continue, post the line after the last
// one that was answered. If that line is stored already, it is a duplicate. PostAll stops at an error of lines, at an
// empty line, at the limits of one call, when the address has used up its allowance, when the relay shuts down, and
// when the store accepts nothing. begun is false if the request as a whole is refused, with CodeUnavailable or
// CodeRateLimited.
func (r *Relay) PostAll(ctx context.Context, from Peer, lines Lines, answer func(Outcome)) (begun bool, stopped error) {
	if err := r.draining(); err != nil {
		return false, err
	}
	leave, err := r.gate.Bulk(from)
	if err != nil {
		return false, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, MaxBulkTime)
	defer cancel()
	b := &bulk{relay: r, from: from, lines: lines, answer: answer, failed: cancel, read: newBulkQueue(),
		checked: make(chan []*bulkLine, 1)}
	var stages sync.WaitGroup
	stages.Go(b.check)
	stages.Go(func() { b.store(context.WithoutCancel(ctx)) })
	read := make(chan struct{})
	stages.Go(func() { b.watch(ctx, read) })
	stopped = b.readAll(ctx)
	close(read)
	stages.Wait()
	return true, cmp.Or(b.storeError, stopped)
}

// watch stops the reading of lines when the relay shuts down, the store has failed or the time is over.
func (b *bulk) watch(ctx context.Context, read <-chan struct{}) {
	select {
	case <-read:
		return
	case <-b.relay.drained:
	case <-ctx.Done():
	}
	b.lines.Stop()
}

// bulk is one call of PostAll. Its goroutines pass on batches: one reads them, one checks them, one stores them.
type bulk struct {
	relay      *Relay
	from       Peer
	lines      Lines
	answer     func(Outcome)
	read       *bulkQueue
	checked    chan []*bulkLine
	failed     func() // ends the reading, because nothing more can be stored
	storeError error  // why nothing more is stored; set before checked is empty
}

// bulkLine is a line on its way through the stages.
type bulkLine struct {
	body   []byte // until it is checked
	entry  Entry
	report PostReport
	Outcome
}

// bulkQueue is the batch that grows while the stage behind it is busy.
type bulkQueue struct {
	mu      sync.Mutex
	changed *sync.Cond
	batch   []*bulkLine
	size    int // of the bodies, in bytes
	ended   bool
}

func newBulkQueue() *bulkQueue {
	q := &bulkQueue{}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// add waits until the batch has room for l.
func (q *bulkQueue) add(l *bulkLine) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.batch) == bulkBatchLines || len(q.batch) > 0 && q.size+len(l.body) > bulkBatchBytes {
		q.changed.Wait()
	}
	q.batch, q.size = append(q.batch, l), q.size+len(l.body)
	q.changed.Broadcast()
}

// end says that no more lines come.
func (q *bulkQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.changed.Broadcast()
}

// take waits for lines and returns all that are there. It returns none after the last one.
func (q *bulkQueue) take() (batch []*bulkLine) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.batch) == 0 && !q.ended {
		q.changed.Wait()
	}
	batch, q.batch, q.size = q.batch, nil, 0
	q.changed.Broadcast()
	return batch
}

// readAll reads lines until one of the reasons to stop, and returns that reason; nil: the end.
func (b *bulk) readAll(ctx context.Context) error {
	defer b.read.end()
	size := 0
	for n := 0; ; n++ {
		line, err := b.next(ctx, n, size)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		size += len(line) + 1
		b.read.add(&bulkLine{body: line, report: PostReport{Bytes: len(line)}})
	}
}

// next reads line n, which comes after size bytes. Errors: why the reading stops there, io.EOF at the end of the lines.
func (b *bulk) next(ctx context.Context, n, size int) ([]byte, error) {
	line, err := b.lines.Next()
	switch stopped := b.relay.draining(); {
	case err == io.EOF:
		return nil, err
	case stopped != nil:
		return nil, stopped
	case n == MaxBulkLines, size+len(line) > MaxBulkBytes, ctx.Err() == context.DeadlineExceeded:
		return nil, errBulkFull
	case ctx.Err() != nil:
		return nil, ctx.Err() // the store has failed
	case err == nil && len(line) == 0:
		return nil, errEmptyLine
	case err != nil:
		return nil, err
	}
	return line, b.relay.gate.AdmitLine(b.from, len(line), n == 0)
}

var (
	errBulkFull = envelope.Errorf(envelope.CodePayloadTooLarge,
		"a bulk request ends after %d lines, %d bytes or %v; send the rest in another request",
		MaxBulkLines, MaxBulkBytes, MaxBulkTime)
	errEmptyLine = envelope.Errorf(envelope.CodeInvalidRequest,
		"a line of a bulk request is empty; send one message on each line, and nothing else")
)

// check checks batches. It uses all cores, as far as the address may.
func (b *bulk) check() {
	defer close(b.checked)
	for batch := b.read.take(); len(batch) > 0; batch = b.read.take() {
		inParallel(runtime.GOMAXPROCS(0), batch, func(l *bulkLine) {
			began := time.Now()
			l.entry, l.Err = b.relay.checkInTurn(b.from, l.body)
			l.report.Check = time.Since(began)
			l.body = nil
		})
		b.checked <- batch
	}
}

// inParallel calls f for each line of a batch that is not refused, in several goroutines, and waits for them.
func inParallel(goroutines int, batch []*bulkLine, f func(*bulkLine)) {
	var next atomic.Int64
	var working sync.WaitGroup
	for range min(goroutines, len(batch)) {
		working.Go(func() {
			for i := next.Add(1); i <= int64(len(batch)); i = next.Add(1) {
				if l := batch[i-1]; l.Err == nil {
					func() {
						defer catch(&l.Err)
						f(l)
					}()
				}
			}
		})
	}
	working.Wait()
}

// catch turns a panic into an error. The goroutines of PostAll use it, because the transport cannot recover from their
// panics. So a line that makes the relay panic does not end the process.
func catch(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

// store stores batches and answers their lines. Of a remote address, only a few messages are stored at a time, see
// Limits.WritesPerAddress. After an error it drops the lines.
func (b *bulk) store(ctx context.Context) {
	for batch := range b.checked {
		for part := range slices.Chunk(batch, b.relay.gate.WriteBatch(b.from, len(batch))) {
			if b.storeError == nil {
				b.storeError = b.storeBatch(ctx, part)
			}
			if b.storeError != nil {
				b.failed()
			}
		}
	}
}

// storeBatch stores a batch and answers its lines, up to one that the store has not decided about. Errors: why it has
// not.
func (b *bulk) storeBatch(ctx context.Context, batch []*bulkLine) (err error) {
	defer catch(&err)
	for _, l := range batch {
		if l.Err == nil {
			l.Err = b.relay.admitEntry(b.from, &l.entry)
		}
	}
	if b.relay.screening != nil {
		defer b.screen(ctx, batch)()
	}
	if err := b.append(ctx, batch); err != nil {
		return err
	}
	for _, l := range batch {
		if !l.Decided() {
			return l.Err
		}
		b.relay.reportPost(l.report, l.Receipt, l.Err)
		b.answer(l.Outcome)
	}
	return nil
}

// screen asks the Screen about the lines of a batch. The caller must call settled when they are stored or refused.
func (b *bulk) screen(ctx context.Context, batch []*bulkLine) (settled func()) {
	all := make(chan func(), len(batch))
	inParallel(maxScreensPerSource, batch, func(l *bulkLine) {
		began := time.Now()
		one, err := b.relay.screen(ctx, b.from, l.entry.Envelope)
		l.report.Screen, l.Err = time.Since(began), err
		all <- one
	})
	close(all)
	return func() {
		for one := range all {
			one()
		}
	}
}

// append stores the lines of a batch that are not refused. Errors: why the store was not asked.
func (b *bulk) append(ctx context.Context, batch []*bulkLine) error {
	r := b.relay
	_, err := r.beginWrite(ctx, b.from)
	if err == nil {
		defer r.endWrite(b.from)
	}
	var sent []*bulkLine
	var entries []Entry
	for _, l := range batch {
		if l.Err != nil {
			continue
		}
		if err != nil {
			r.gate.RefundMessage(b.from, l.entry.Envelope)
		} else if l.Err = r.gate.CheckSender(b.from, l.entry.Envelope.Sender.ID); l.Err == nil {
			sent, entries = append(sent, l), append(entries, l.entry)
		}
	}
	if len(entries) == 0 {
		return err
	}
	began := time.Now()
	outcomes := r.store.AppendAll(ctx, entries)
	took := time.Since(began)
	for i, l := range sent {
		l.Outcome, l.report.Store = outcomes[i], took
		r.gate.ChargeWork(b.from, l.Receipt.Took)
		if l.Decided() {
			l.Receipt, l.Err = r.settle(ctx, b.from, l.entry, l.Receipt, l.Err)
		}
	}
	return nil
}
