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

// run is the state of one run. The goroutine of do owns all fields except those marked as shared.
type run struct {
	Options
	to    target
	began time.Time

	stock   *stock
	start   string   // cursor of the run's first event; all other events of the run come after it
	process *process // the relay's process; nil: not known
	floor   *floor   // nil: the run has no floor

	now         atomic.Pointer[stats] // measurements of the current phase; shared
	mismatches  mismatchList          // shared
	broken      atomic.Int64          // connections that broke off; shared
	refused     atomic.Int64          // polls that were refused; shared
	unreachable atomic.Bool           // a connection could not be opened, so posts and polls stop; shared

	mu    sync.Mutex
	doing string        // name of the current phase; guarded by mu
	count *atomic.Int64 // counter of the current phase; guarded by mu
}

// verifyTime limits how long reading back may take. After an interrupt, reading back takes at most
// interruptedVerifyTime more.
const (
	verifyTime            = 2 * time.Minute
	interruptedVerifyTime = 10 * time.Second
)

func (r *run) do(ctx context.Context) (Report, error) {
	// An interrupt must not cut off requests that have been sent, so they use a context that outlives ctx.
	uninterrupted, release := context.WithCancel(context.WithoutCancel(ctx))
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer release()
	if r.Progress != nil {
		reporting.Go(func() { r.report(uninterrupted) })
	}
	var b measurements
	b.std.Before, b.verifyCPU[0] = r.calibrate(ctx)
	if err := r.prepare(ctx, uninterrupted); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted before anything was measured")
		}
		return Report{}, err
	}
	polls := r.openPolls(ctx, uninterrupted, &b)
	b.warm, b.measured = newStats(), newStats()
	guess := b.std.Before / 2 // posts per second; no relay that verifies signatures has been faster than this
	if r.WarmUp > 0 {
		guess = r.phase(ctx, uninterrupted, "warming up", b.warm, guess, r.WarmUp, maxPosts)
	}
	b.rssBefore = r.process.rss()
	r.phase(ctx, uninterrupted, "posting", b.measured, guess, r.Duration, r.Count)
	b.rssAfter = r.process.rss()
	polls.stop()
	if err := r.floor.stop(); err != nil {
		r.mismatches.add("the floor ended with an error: "+err.Error(), nil)
	}

	reading, cancel := context.WithTimeout(uninterrupted, verifyTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(interruptedVerifyTime, cancel) })()
	b.reading = newStats()
	b.complete = r.readBack(reading, b.reading)
	r.checkRecords(&b)
	b.std.After, b.verifyCPU[1] = r.calibrate(uninterrupted)
	b.interrupted = ctx.Err() != nil
	return r.newReport(b), nil
}

// prepare signs and posts a first envelope. This checks that a relay answers and accepts the posts of this run. The
// receipt contains the cursor from which all later events are read back. Then prepare starts the floor, if the run has
// one.
func (r *run) prepare(ctx, uninterrupted context.Context) (err error) {
	r.begin("making keys", new(atomic.Int64))
	if r.stock, err = newStock(ctx, r.to, r.Options); err != nil {
		return err
	}
	r.process = findProcess(r.PID, r.to)
	first := r.stock.posts[0].fill(nil, r.stock.values(0, new(values)))
	r.stock.next.Store(1)
	c := r.connect(uninterrupted, 4096)
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
		return fmt.Errorf("%s does not answer a post like an Agora relay, which sends a receipt with a cursor: "+
			"status %d %.300q", r.to.url, a.status, a.body)
	}
	r.start = receipt.Cursor
	if err := r.detectSignedReads(c); err != nil || len(r.Floor) == 0 {
		return err
	}
	r.floor, err = r.startFloor(ctx, uninterrupted)
	return err
}

// detectSignedReads reads the relay's description of itself to learn whether reads must be signed. If the relay has no
// such description, reads are not signed.
func (r *run) detectSignedReads(c *conn) error {
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

// maxStock is the largest number of envelopes that are signed at a time. Signing so many takes some seconds.
const maxStock = 1 << 18

// phase posts in rounds until duration or count is reached. The envelopes of a round are signed before the round.
// Envelopes that a round does not use are left for the next one. With a floor, each round is one turn of the relay, and
// the floor's turn follows it. guess is the expected number of posts per second. phase returns a guess for the next
// phase.
func (r *run) phase(ctx, uninterrupted context.Context, name string, s *stats,
	guess float64, duration time.Duration, count int) float64 {
	s.from = int(r.stock.next.Load())
	r.now.Store(s)
	posters, disconnect := r.posters(uninterrupted)
	defer disconnect()
	disconnectFloor := r.floor.begin(uninterrupted, duration, count)
	defer disconnectFloor()
	for duration > 0 && count > 0 && ctx.Err() == nil && !r.unreachable.Load() {
		p := round{next: &r.stock.next, posts: r.stock.posts, rate: r.Rate, delivers: r.delivers()}
		var limit int
		p.duration, limit = r.floor.nextTurn(min(duration, maxAge/2), min(count, maxStock))
		if r.Rate > 0 {
			guess = r.Rate
		}
		want := min(limit, int(guess*p.duration.Seconds())+1)
		signed := new(atomic.Int64)
		r.begin("signing", signed)
		if r.stock.sign(ctx, want, signed) != nil || r.stock.next.Load() == int64(r.stock.signed) {
			break // interrupted, or no numbers are left
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

// posters returns the connections of a phase, and a function that closes them.
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

// round is a period of posting without signing. It posts the envelopes with the numbers from first to limit-1.
type round struct {
	first, limit int
	next         *atomic.Int64 // the number to post next
	again        bool          // for the floor: start again at first after the last number, and change no record
	posts        []template    // complete requests in different forms, used in turns
	start, end   time.Time
	duration     time.Duration
	rate         float64 // posts per second; 0: full speed
	delivers     bool    // polls wait for the events
}

// take returns the number to post next. It returns false if the round has no more numbers.
func (p *round) take() (n int, ok bool) {
	n = int(p.next.Add(1) - 1)
	if p.again {
		n = p.first + (n-p.first)%(p.limit-p.first)
	}
	return n, n < p.limit
}

// round posts on all connections and waits for the answers and the deliveries. It returns how long the posts took.
func (r *run) round(ctx context.Context, posters []*conn, p *round, s *stats) time.Duration {
	own, relay, written, delivered := OwnCPU(), r.process.cpu(), r.process.written(), s.delivered.Load()
	accepted := s.accepted.Load()
	p.start = time.Now()
	p.end = p.start.Add(p.duration)
	var posting sync.WaitGroup
	post := r.post
	if r.Bulk > 0 {
		post = r.postBulk
	}
	for _, c := range posters {
		posting.Go(func() { post(ctx, c, p, s) })
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
	s.relayWritten += r.process.written() - written
	return took
}

// grace is how long to wait for deliveries after the last post.
const grace = 5 * time.Second

// drain waits until the count of delivered events has reached until, at most for grace. It returns the time from start
// to the last delivery.
func (r *run) drain(s *stats, until int64, start time.Time) time.Duration {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(grace); s.delivered.Load() < until && time.Now().Before(limit); {
		<-tick.C
	}
	return max(time.Duration(s.lastDelivery.Load())-start.Sub(r.began), 0)
}

// due returns when envelope n is to be posted in a round that has a rate.
func (p *round) due(n int) time.Time {
	return p.start.Add(time.Duration(float64(n-p.first) / p.rate * float64(time.Second)))
}

// post posts on one connection until the round is over.
func (r *run) post(ctx context.Context, c *conn, p *round, s *stats) {
	var v values
	var request []byte
	var scratch record
	for ctx.Err() == nil && !r.unreachable.Load() {
		if p.rate == 0 && !time.Now().Before(p.end) {
			return // check the time before taking a number, because a number that is not posted is lost for the count
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
		record := &scratch
		if !p.again {
			record = r.stock.record(n)
		}
		record.send(due.Sub(r.began), now.Sub(r.began))
		a, err := answer{}, c.send(request, 0, now)
		if err == nil {
			a, err = c.receive()
		}
		if err != nil {
			s.failed.Add(1)
			r.noteBroken(err)
			pause(ctx, brokenPause, p.end)
			continue
		}
		done := time.Now()
		if record.outcome = r.judge(a, v[partID], s); record.outcome == accepted {
			s.accepted.Add(1)
			s.ack.add(done.Sub(due))
			s.ackSent.add(done.Sub(now))
			if a.queued > 0 {
				s.queued.Add(1)
				s.queuedTime.Add(int64(a.queued))
			}
		} else if a.status == 429 || a.status == 503 {
			pause(ctx, max(a.retryAfter, refusedPause), p.end)
		}
	}
}

// A connection pauses after a failure. Without a pause, a run would count little else than failures.
const (
	brokenPause  = 100 * time.Millisecond // after a connection broke off
	refusedPause = time.Second            // after a refusal, at least
)

// judge returns the outcome of a post from its answer. It counts refusals and failures and records wrong answers.
func (r *run) judge(a answer, id []byte, s *stats) outcome {
	switch a.status {
	case 200:
		if why := isReceipt(a.body, id); why != "" {
			s.failed.Add(1)
			r.mismatches.add(why, id)
			return unknown
		}
		return accepted
	case 429:
		s.refused.Add(1)
		return refused
	case 503:
		s.refused.Add(1)
		return unknown // the 503 may come from a proxy, and the relay may still have stored the event
	}
	s.failed.Add(1)
	r.mismatches.add(fmt.Sprintf("answered with status %d", a.status), id)
	return unknown
}

// pause waits for d, but only until end, and only until ctx ends.
func pause(ctx context.Context, d time.Duration, end time.Time) {
	timer := time.NewTimer(min(d, time.Until(end)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sleepUntil waits until t. It returns false if ctx has ended.
func sleepUntil(ctx context.Context, t time.Time) bool {
	// A timer may be late by a millisecond or more, which is as long as a whole delivery. So a timer waits for most of
	// the time, and sleepPrecisely for the rest.
	const coarse = 3 * time.Millisecond
	if time.Until(t) > coarse {
		pause(ctx, time.Until(t)-coarse, t)
	}
	if rest := time.Until(t); rest > 0 && ctx.Err() == nil {
		sleepPrecisely(rest)
	}
	return ctx.Err() == nil
}

// noteBroken counts a connection that broke off. If the connection could not be opened, it stops the run.
func (r *run) noteBroken(err error) {
	r.broken.Add(1)
	if isDial(err) {
		r.unreachable.Store(true)
	}
}

// begin sets the name and the counter of the current phase, which report passes on.
func (r *run) begin(doing string, count *atomic.Int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doing, r.count = doing, count
}

// report calls Options.Progress once a second until ctx ends.
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
