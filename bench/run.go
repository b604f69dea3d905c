package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// run is one run. What is not said to be safe for all belongs to the goroutine of do.
type run struct {
	Options
	to    target
	began time.Time

	stock   *stock
	start   string   // the cursor behind which everything of the run is
	process *process // the relay's; nil: not known
	floor   *floor   // nil: none is asked for

	now     atomic.Pointer[stats] // what is measured at the moment; for all
	faults  faults                // for all
	broken  atomic.Int64          // connections that broke off; for all
	refused atomic.Int64          // polls that were refused; for all
	lost    atomic.Bool           // nobody listens any more; for all

	mu    sync.Mutex
	doing string        // guarded by mu
	count *atomic.Int64 // of what is being done; guarded by mu
}

// verifyTime bounds the reading back, and hurriedTime what is left of it after an interrupt.
const (
	verifyTime  = 2 * time.Minute
	hurriedTime = 10 * time.Second
)

func (r *run) do(ctx context.Context) (Report, error) {
	linger, release := context.WithCancel(context.WithoutCancel(ctx)) // an interrupt does not cut off what is under way
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer release()
	if r.Progress != nil {
		reporting.Go(func() { r.report(linger) })
	}
	var b books
	b.std.Before, b.verifyCPU[0] = r.calibrate(ctx)
	if err := r.prepare(ctx, linger); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted before anything was measured")
		}
		return Report{}, err
	}
	polls := r.openPolls(ctx, linger, &b)
	b.warm, b.measured = newStats(), newStats()
	guess := b.std.Before / 2 // posts a second; no relay that verifies was ever faster
	if r.WarmUp > 0 {
		guess = r.phase(ctx, linger, "warming up", b.warm, guess, r.WarmUp, most)
	}
	b.rssBefore = r.process.rss()
	r.phase(ctx, linger, "posting", b.measured, guess, r.Duration, r.Count)
	b.rssAfter = r.process.rss()
	polls.stop()
	if err := r.floor.stop(); err != nil {
		r.faults.add("the floor ended badly: "+err.Error(), nil)
	}

	reading, cancel := context.WithTimeout(linger, verifyTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(hurriedTime, cancel) })()
	b.reading = newStats()
	b.complete = r.readBack(reading, b.reading)
	r.settleAccounts(&b)
	b.std.After, b.verifyCPU[1] = r.calibrate(linger)
	b.interrupted = ctx.Err() != nil
	return r.newReport(b), nil
}

// prepare signs and posts a first envelope. It shows that there is a relay that takes what this run posts, and its
// receipt has the cursor from which everything is read back. Then prepare starts the floor, if one is asked for.
func (r *run) prepare(ctx, linger context.Context) (err error) {
	r.begin("making keys", new(atomic.Int64))
	if r.stock, err = newStock(ctx, r.to, r.Options); err != nil {
		return err
	}
	r.process = findProcess(r.PID, r.to)
	first := r.stock.posts[0].fill(nil, r.stock.values(0, new(values)))
	r.stock.next.Store(1)
	c := r.connect(linger, 4096)
	defer c.close()
	if err = c.send(first, 0, time.Now()); err != nil {
		return fmt.Errorf("no relay answers at %s: %w", r.to.url, err)
	}
	a, err := c.receive()
	if err != nil {
		return fmt.Errorf("no relay answers at %s: %w", r.to.url, err)
	}
	receipt, err := decodeReceipt(a.body)
	if err != nil || a.status != 200 || receipt.Cursor == "" {
		return fmt.Errorf("%s does not take a post as an Agora relay with cursors does: status %d %.300q", r.to.url, a.status, a.body)
	}
	r.start = receipt.Cursor
	if err := r.lookForRules(c); err != nil || len(r.Floor) == 0 {
		return err
	}
	r.floor, err = r.startFloor(ctx, linger)
	return err
}

// lookForRules asks the relay whether reads are to be signed. One that does not describe itself asks for nothing.
func (r *run) lookForRules(c *conn) error {
	err := c.send(r.to.request("GET", "/.well-known/agora.json", nil), 0, time.Now())
	if err != nil {
		return err
	}
	a, err := c.receive()
	if err != nil || a.status != 200 {
		return err
	}
	var rules struct{ Reads, URL string }
	if json.Unmarshal(a.body, &rules) == nil && rules.Reads == "parties" {
		r.to.origin = rules.URL
	}
	return nil
}

func (r *run) connect(ctx context.Context, buffer int) *conn {
	return &conn{to: r.to, ctx: ctx, buffer: buffer}
}

// maxStock is how many envelopes are signed at a time, some seconds' work.
const maxStock = 1 << 18

// phase posts until duration or count is reached, in rounds. What a round needs is signed before it. What is left over
// serves the next round. With a floor, each round is a turn, and the floor's turn follows it. guess is how many posts a
// second to expect at first. phase returns a guess for the next phase.
func (r *run) phase(ctx, linger context.Context, name string, s *stats, guess float64, duration time.Duration, count int) float64 {
	s.from = int(r.stock.next.Load())
	r.now.Store(s)
	posters, disconnect := r.posters(linger)
	defer disconnect()
	disconnectFloor := r.floor.begin(linger, duration, count)
	defer disconnectFloor()
	for duration > 0 && count > 0 && ctx.Err() == nil && !r.lost.Load() {
		p := round{next: &r.stock.next, posts: r.stock.posts, rate: r.Rate, delivers: r.delivers()}
		var most int
		p.duration, most = r.floor.turnOf(min(duration, fresh/2), min(count, maxStock))
		if r.Rate > 0 {
			guess = r.Rate
		}
		want := min(most, int(guess*p.duration.Seconds())+1)
		signed := new(atomic.Int64)
		r.begin("signing", signed)
		if r.stock.sign(ctx, want, signed) != nil || r.stock.next.Load() == int64(r.stock.signed) {
			break // interrupted, or all numbers are used up
		}
		p.first = int(r.stock.next.Load())
		p.limit = min(p.first+want, r.stock.signed)
		r.begin(name, &s.accepted)
		before := s.accepted.Load()
		took := r.round(ctx, posters, &p, s)
		posted := min(int(r.stock.next.Load()), p.limit) - p.first
		r.stock.next.Store(int64(p.first + posted))
		count -= posted
		duration -= took
		if r.Rate == 0 {
			guess = max(1.2*float64(posted)/took.Seconds(), 100)
		}
		if r.floor != nil && ctx.Err() == nil {
			r.begin("floor", &r.floor.stats.accepted)
			r.floor.turn(ctx, &p, posted, took, s.accepted.Load()-before)
		}
	}
	return guess
}

// posters returns the connections of a phase, and what closes them.
func (r *run) posters(ctx context.Context) (conns []*conn, disconnect func()) {
	for range r.Connections {
		conns = append(conns, r.connect(ctx, 4096))
	}
	return conns, func() {
		for _, c := range conns {
			c.close()
		}
	}
}

// round is a stretch of posting without signing: the numbers from first to limit.
type round struct {
	first, limit int
	next         *atomic.Int64 // the number to post next
	again        bool          // after limit comes first again, and no record is changed: for the floor
	posts        []text        // whole requests, to take turns
	start, end   time.Time
	duration     time.Duration
	rate         float64
	delivers     bool
}

// take returns the number to post next. It returns false if the round has no more.
func (p *round) take() (n int, ok bool) {
	n = int(p.next.Add(1) - 1)
	if p.again {
		n = p.first + (n-p.first)%(p.limit-p.first)
	}
	return n, n < p.limit
}

// round lets all connections post, waits for the answers and the deliveries, and returns how long the posts took.
func (r *run) round(ctx context.Context, posters []*conn, p *round, s *stats) time.Duration {
	own, relay, delivered := OwnCPU(), r.process.cpu(), s.delivered.Load()
	accepted := s.accepted.Load()
	p.start = time.Now()
	p.end = p.start.Add(p.duration)
	var posting sync.WaitGroup
	for _, c := range posters {
		posting.Go(func() { r.post(ctx, c, p, s) })
	}
	posting.Wait()
	took := time.Since(p.start)
	s.posting += took
	if p.delivers {
		missing := s.accepted.Load() - accepted + delivered
		s.delivering += r.drain(s, missing, p.start)
	}
	s.ownCPU += OwnCPU() - own
	s.relayCPU += r.process.cpu() - relay
	return took
}

// grace is how long a delivery may take after the last post.
const grace = 5 * time.Second

// drain waits until so many events have been delivered, and returns when the last one was, counted from start.
func (r *run) drain(s *stats, until int64, start time.Time) time.Duration {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(grace); s.delivered.Load() < until && time.Now().Before(limit); {
		<-tick.C
	}
	return max(time.Duration(s.lastDelivery.Load())-start.Sub(r.began), 0)
}

// due says when envelope n of the round is to be posted, if it has a rate.
func (p *round) due(n int) time.Time {
	return p.start.Add(time.Duration(float64(n-p.first) / p.rate * float64(time.Second)))
}

// post posts on one connection until the round is over.
func (r *run) post(ctx context.Context, c *conn, p *round, s *stats) {
	var v values
	var request []byte
	var spare record
	for ctx.Err() == nil && !r.lost.Load() {
		if p.rate == 0 && !time.Now().Before(p.end) {
			return // before it takes a number, which would be lost for the count
		}
		n, ok := p.take()
		if !ok {
			return
		}
		form := p.posts[n%len(p.posts)]
		request = form.fill(request, r.stock.values(n, &v))
		now := time.Now()
		due := now
		if p.rate > 0 {
			if due = p.due(n); !due.Before(p.end) || !sleepUntil(ctx, due) {
				return
			}
			now = time.Now()
		}
		record := &spare
		if !p.again {
			record = r.stock.at(n)
		}
		record.outcome, record.due = unknown, int64(due.Sub(r.began))
		record.sent.Store(int64(now.Sub(r.began)))
		a, err := answer{}, c.send(request, 0, now)
		if err == nil {
			a, err = c.receive()
		}
		if err != nil {
			s.failed.Add(1)
			r.breaks(err)
			pause(ctx, brokenPause, p.end)
			continue
		}
		done := time.Now()
		if record.outcome = r.judge(a, v[partID], s); record.outcome == accepted {
			s.accepted.Add(1)
			s.ack.add(done.Sub(due))
			s.ackSent.add(done.Sub(now))
		} else if a.status == 429 || a.status == 503 {
			pause(ctx, max(a.retryAfter, refusedPause), p.end)
		}
	}
}

// After trouble a connection rests, or the trouble would be all that is measured.
const (
	brokenPause  = 100 * time.Millisecond
	refusedPause = time.Second
)

// judge says what an answer to a post means, and notes what is wrong with it.
func (r *run) judge(a answer, id []byte, s *stats) outcome {
	switch a.status {
	case 200:
		if why := isReceipt(a.body, id); why != "" {
			s.failed.Add(1)
			r.faults.add(why, id)
			return unknown
		}
		return accepted
	case 429:
		s.refused.Add(1)
		return refused
	case 503:
		s.refused.Add(1)
		return unknown // a proxy's 503 does not say what the relay did
	}
	s.failed.Add(1)
	r.faults.add(fmt.Sprintf("answered with status %d", a.status), id)
	return unknown
}

// pause waits for d, or until the run is interrupted or end.
func pause(ctx context.Context, d time.Duration, end time.Time) {
	timer := time.NewTimer(min(d, time.Until(end)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sleepUntil waits for a time to come; false: ctx has ended.
func sleepUntil(ctx context.Context, t time.Time) bool {
	// Timers may be late by a millisecond and more, which is a delivery's whole time; the rest is slept precisely.
	const coarse = 3 * time.Millisecond
	if time.Until(t) > coarse {
		pause(ctx, time.Until(t)-coarse, t)
	}
	if rest := time.Until(t); rest > 0 && ctx.Err() == nil {
		sleepPrecisely(rest)
	}
	return ctx.Err() == nil
}

// breaks notes a connection that broke off.
func (r *run) breaks(err error) {
	r.broken.Add(1)
	if isDial(err) {
		r.lost.Store(true)
	}
}

// begin says what is being done from now on, and what counts it.
func (r *run) begin(doing string, count *atomic.Int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doing, r.count = doing, count
}

// report tells the progress once a second until ctx ends.
func (r *run) report(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var counted *atomic.Int64
	var last int64
	for then := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		doing, count := r.doing, r.count
		r.mu.Unlock()
		if count == nil {
			continue
		}
		if count != counted {
			counted, last = count, 0
		}
		now, n := time.Now(), count.Load()
		r.Progress(Progress{Doing: doing, Events: n, Rate: float64(n-last) / now.Sub(then).Seconds()})
		then, last = now, n
	}
}
