package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// polls are the open polls of a run. They wait while other connections post.
type polls struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (p *polls) stop() {
	p.cancel()
	p.running.Wait()
}

const (
	maxHold    = 60 * time.Second // the longest time that a relay lets a poll wait
	maxOpening = 64               // connections opened at the same time; more would overflow the relay's backlog
	pageSize   = 1000             // events per answer, the most that a relay returns
)

// openPolls opens all polls, the idle ones first, and returns when they are waiting at the relay.
func (r *run) openPolls(ctx, uninterrupted context.Context, b *measurements) *polls {
	uninterrupted, cancel := context.WithCancel(uninterrupted)
	p := &polls{cancel: cancel}
	r.now.Store(newStats())
	opened := new(atomic.Int64)
	r.begin("opening polls", opened)
	slots := make(chan struct{}, maxOpening)
	open := func(inbox didkey.Key, buffer int, deliver func([][]byte, time.Time)) {
		slots <- struct{}{}
		p.running.Go(func() {
			firstSent := sync.OnceFunc(func() {
				opened.Add(1)
				<-slots
			})
			defer firstSent()
			r.pollInbox(uninterrupted, inbox, buffer, firstSent, deliver)
		})
	}
	if r.Idle > 0 {
		keys := newKeys(ctx, r.Idle)
		before := r.process.rss()
		for _, key := range keys {
			if ctx.Err() == nil {
				open(key, 512, func(events [][]byte, _ time.Time) {
					r.mismatches.add("delivered to an idle poll, whose inbox gets no events", nil)
				})
			}
		}
		r.awaitStableMemory(ctx)
		b.idleGrowth = r.process.rss() - before
	}
	for inbox, key := range r.stock.readers {
		if r.delivers() && ctx.Err() == nil {
			open(key, 4096, func(events [][]byte, now time.Time) { r.deliver(inbox, events, now) })
		}
	}
	for range maxOpening { // taking all slots waits until every poll has sent its first request
		slots <- struct{}{}
	}
	r.awaitStableMemory(ctx)
	return p
}

// awaitStableMemory waits until the relay's memory has stopped growing, at most 5 seconds. By then the relay has
// received the polls. If the relay's memory is not known, awaitStableMemory waits for 0.3 seconds.
func (r *run) awaitStableMemory(ctx context.Context) {
	const step, stableSteps, maxSteps = 50 * time.Millisecond, 6, 100
	last, same := int64(0), 0
	for i := 0; i < maxSteps && same < stableSteps && ctx.Err() == nil; i++ {
		pause(ctx, step, time.Now().Add(step))
		if rss := r.process.rss(); rss > last+last/500 {
			last, same = rss, 0
		} else {
			same++
		}
	}
}

// pollInbox polls one inbox until ctx ends. It calls firstSent each time it has sent a poll or failed to
// send one.
func (r *run) pollInbox(ctx context.Context, inbox didkey.Key, buffer int, firstSent func(),
	deliver func([][]byte, time.Time)) {
	c := r.connect(ctx, buffer)
	defer c.close()
	cursor := r.start
	var p page
	for ctx.Err() == nil && !r.unreachable.Load() {
		hold := maxHold - rand.N(maxHold/4) // random, so that the polls do not all end at the same time
		var a answer
		request, err := r.to.readRequest(fmt.Sprintf("/events?recipient=%s&cursor=%s&limit=%d&timeout=%.3f",
			inbox.DID(), cursor, pageSize, hold.Seconds()), inbox)
		if err == nil {
			err = c.send(request, hold, time.Now())
		}
		firstSent()
		if err == nil {
			a, err = c.receive()
		}
		now := time.Now()
		rest := brokenPause
		if err == nil && a.status == 200 {
			p, err = parsePage(a.body, p)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errPage):
			r.mismatches.add("the answer to a poll was not a page of events", nil)
		case err != nil:
			r.noteBroken(err)
		case a.status == 429 || a.status == 503:
			r.refused.Add(1)
			rest = max(a.retryAfter, refusedPause)
		case a.status != 200:
			r.mismatches.add(fmt.Sprintf("a poll was answered with status %d", a.status), nil)
			rest = refusedPause
		default:
			if cursor = p.cursor; len(p.events) > 0 {
				deliver(p.events, now)
			}
			continue
		}
		pause(ctx, rest, now.Add(maxHold))
	}
}

// deliver checks and counts the events that arrived at the poll of an inbox.
func (r *run) deliver(inbox int, events [][]byte, now time.Time) {
	var v values
	var text []byte
	s := r.now.Load()
	at := now.Sub(r.began)
	for _, event := range events {
		n, ok := r.stock.find(event)
		if !ok || r.stock.record(n).sent.Load() == 0 {
			r.mismatches.add("delivered, but this run did not post it", idOf(event))
			continue
		}
		text = r.stock.canonical.fill(text, r.stock.values(n, &v))
		record := r.stock.record(n)
		switch {
		case r.stock.inbox(n) != inbox:
			r.mismatches.add("delivered to the wrong inbox", v[partID])
		case string(event) != string(text):
			r.mismatches.add("delivered with bytes that differ from its canonical form", v[partID])
			record.delivered |= 1 // it did arrive, so it is not reported as missing too
		case record.delivered > 0:
			r.mismatches.add("delivered twice", v[partID])
		default:
			record.delivered = 1
			if n >= s.from {
				s.lastDelivery.Store(int64(at))
				s.delivery.add(at - time.Duration(record.due))
				s.deliverySent.add(at - time.Duration(record.sent.Load()))
				s.delivered.Add(1)
			}
		}
	}
}

// idOf returns the first bytes of an event, which contain its id.
func idOf(event []byte) []byte { return event[:min(len(event), 60)] }

// readBack reads all events since the start of the run and records which envelopes are there. It follows one cursor. If
// the relay shows an inbox only to its owner, it follows one cursor per inbox. It returns false if it could not read
// everything.
func (r *run) readBack(ctx context.Context, s *stats) (complete bool) {
	r.begin("reading back", &s.accepted)
	c := r.connect(ctx, 64<<10)
	defer c.close()
	own, relay, began := OwnCPU(), r.process.cpu(), time.Now()
	defer func() {
		s.posting, s.ownCPU, s.relayCPU = time.Since(began), OwnCPU()-own, r.process.cpu()-relay
	}()
	if r.to.origin == "" {
		return r.readAll(ctx, s, c, "/events?", didkey.Key{})
	}
	for _, reader := range r.stock.readers {
		if !r.readAll(ctx, s, c, "/events?recipient="+string(reader.DID())+"&", reader) {
			return false
		}
	}
	return true
}

// readAll follows one cursor to its end.
func (r *run) readAll(ctx context.Context, s *stats, c *conn, path string, reader didkey.Key) (complete bool) {
	var p page
	for cursor, failures := r.start, 0; ctx.Err() == nil && failures < 5; {
		asked := time.Now()
		var a answer
		request, err := r.to.readRequest(fmt.Sprintf("%scursor=%s&limit=%d&timeout=0", path, cursor, pageSize), reader)
		if err == nil {
			err = c.send(request, 0, asked)
		}
		if err == nil {
			a, err = c.receive()
		}
		if err == nil && a.status == 200 {
			p, err = parsePage(a.body, p)
		}
		if err != nil || a.status != 200 || p.more && p.cursor == cursor {
			failures++
			pause(ctx, max(a.retryAfter, brokenPause), asked.Add(time.Minute))
			continue
		}
		s.ack.add(time.Since(asked))
		r.recordRead(p.events, s)
		if cursor = p.cursor; !p.more {
			return true
		}
	}
	return false
}

// recordRead checks the events that were read back and counts how often each envelope was there.
func (r *run) recordRead(events [][]byte, s *stats) {
	var v values
	var text []byte
	for _, event := range events {
		s.accepted.Add(1)
		n, ok := r.stock.find(event)
		if !ok {
			continue // not from this run; if it was, its envelope will be missing
		}
		text = r.stock.canonical.fill(text, r.stock.values(n, &v))
		if string(event) != string(text) {
			r.mismatches.add("stored with bytes that differ from its canonical form", v[partID])
		}
		if record := r.stock.record(n); record.stored < 3 {
			record.stored++
		}
	}
}

// checkRecords compares the relay's answers with the events that were delivered and read back. No other goroutine of
// the run may be active.
func (r *run) checkRecords(b *measurements) {
	for n := 1; n < int(r.stock.next.Load()); n++ {
		record := r.stock.record(n)
		id := r.stock.ids.append(nil, n, record.ms)
		switch {
		case record.stored > 1:
			r.mismatches.add("returned twice when read back", id)
		case record.stored == 1 && record.outcome == refused:
			r.mismatches.add("refused, but stored", id)
		case record.stored == 0 && record.outcome == accepted && b.complete:
			r.mismatches.add("accepted, but missing when read back", id)
		case record.stored == 1 && record.outcome == accepted:
			b.stored++
		}
		if record.outcome != accepted || !r.delivers() {
			continue
		}
		if record.delivered == 0 {
			r.mismatches.add("accepted, but not delivered to its poll", id)
		} else {
			b.delivered++
		}
	}
}

// isDial reports whether err means that a connection could not be opened.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
