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

// polls are those that wait while others post.
type polls struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (p *polls) stop() {
	p.cancel()
	p.running.Wait()
}

const (
	longestPoll = 60 * time.Second // what a relay holds
	opening     = 64               // connections that are made at a time, or the relay's backlog overflows
	pageSize    = 1000             // events of an answer, the most a relay gives
)

// openPolls lets all polls wait, the idle ones first, and returns when they do.
func (r *run) openPolls(ctx, linger context.Context, b *books) *polls {
	linger, cancel := context.WithCancel(linger)
	p := &polls{cancel: cancel}
	r.now.Store(newStats())
	opened := new(atomic.Int64)
	r.begin("opening polls", opened)
	places := make(chan struct{}, opening)
	open := func(inbox didkey.Key, buffer int, deliver func([][]byte, time.Time)) {
		places <- struct{}{}
		p.running.Go(func() {
			first := sync.OnceFunc(func() {
				opened.Add(1)
				<-places
			})
			defer first()
			r.wait(linger, inbox, buffer, first, deliver)
		})
	}
	if r.Idle > 0 {
		keys := newKeys(ctx, r.Idle)
		before := r.process.rss()
		for _, key := range keys {
			if ctx.Err() == nil {
				open(key, 512, func(events [][]byte, _ time.Time) { r.faults.add("delivered to a poll that matches nothing", nil) })
			}
		}
		r.settle(ctx)
		b.idleGrowth = r.process.rss() - before
	}
	for inbox, key := range r.stock.readers {
		if r.delivers() && ctx.Err() == nil {
			open(key, 4096, func(events [][]byte, now time.Time) { r.deliver(inbox, events, now) })
		}
	}
	for range opening { // all that opened have sent their first request
		places <- struct{}{}
	}
	r.settle(ctx)
	return p
}

// settle waits until the relay has let in what was sent to it: until its memory has stopped growing, if that is known.
func (r *run) settle(ctx context.Context) {
	const step, calm, patience = 50 * time.Millisecond, 6, 100
	last, same := int64(0), 0
	for i := 0; i < patience && same < calm && ctx.Err() == nil; i++ {
		pause(ctx, step, time.Now().Add(step))
		if rss := r.process.rss(); rss > last+last/500 {
			last, same = rss, 0
		} else {
			same++
		}
	}
}

// wait polls one inbox until ctx ends; first is called when the first poll has been sent.
func (r *run) wait(ctx context.Context, inbox didkey.Key, buffer int, first func(), deliver func([][]byte, time.Time)) {
	c := r.connect(ctx, buffer)
	defer c.close()
	cursor := r.start
	var p page
	for ctx.Err() == nil && !r.lost.Load() {
		hold := longestPoll - rand.N(longestPoll/4) // or all would come back at once
		var a answer
		request, err := r.to.read(fmt.Sprintf("/events?recipient=%s&cursor=%s&limit=%d&timeout=%.3f",
			inbox.DID(), cursor, pageSize, hold.Seconds()), inbox)
		if err == nil {
			err = c.send(request, hold, time.Now())
		}
		first()
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
			r.faults.add("a poll was answered with something else than a page", nil)
		case err != nil:
			r.breaks(err)
		case a.status == 429 || a.status == 503:
			r.refused.Add(1)
			rest = max(a.retryAfter, refusedPause)
		case a.status != 200:
			r.faults.add(fmt.Sprintf("a poll was answered with status %d", a.status), nil)
			rest = refusedPause
		default:
			if cursor = p.cursor; len(p.events) > 0 {
				deliver(p.events, now)
			}
			continue
		}
		pause(ctx, rest, now.Add(longestPoll))
	}
}

// deliver takes what arrived at the poll of an inbox.
func (r *run) deliver(inbox int, events [][]byte, now time.Time) {
	var v values
	var text []byte
	s := r.now.Load()
	at := now.Sub(r.began)
	for _, event := range events {
		n, ok := r.stock.find(event)
		if !ok || r.stock.at(n).sent.Load() == 0 {
			r.faults.add("delivered though nobody posted it", idOf(event))
			continue
		}
		text = r.stock.canonical.fill(text, r.stock.values(n, &v))
		record := r.stock.at(n)
		switch {
		case r.stock.inbox(n) != inbox:
			r.faults.add("delivered to another inbox than its own", v[partID])
		case string(event) != string(text):
			r.faults.add("delivered with other bytes than its canonical form", v[partID])
			record.delivered |= 1 // it has arrived, though not well
		case record.delivered > 0:
			r.faults.add("delivered twice", v[partID])
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

// idOf returns as much of an event as shows which it is.
func idOf(event []byte) []byte { return event[:min(len(event), 60)] }

// readBack reads everything since the start, as a reader does who was away, and marks what is there: with one cursor, or
// with one for each inbox if the relay shows it to its owner only. It reports whether it came to the end.
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

// readAll reads with one cursor.
func (r *run) readAll(ctx context.Context, s *stats, c *conn, path string, reader didkey.Key) (complete bool) {
	var p page
	for cursor, failures := r.start, 0; ctx.Err() == nil && failures < 5; {
		asked := time.Now()
		var a answer
		request, err := r.to.read(fmt.Sprintf("%scursor=%s&limit=%d&timeout=0", path, cursor, pageSize), reader)
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
		r.found(p.events, s)
		if cursor = p.cursor; !p.more {
			return true
		}
	}
	return false
}

// found marks what was read back.
func (r *run) found(events [][]byte, s *stats) {
	var v values
	var text []byte
	for _, event := range events {
		s.accepted.Add(1)
		n, ok := r.stock.find(event)
		if !ok {
			continue // other traffic; if it was ours it will be missed
		}
		text = r.stock.canonical.fill(text, r.stock.values(n, &v))
		if string(event) != string(text) {
			r.faults.add("stored with other bytes than its canonical form", v[partID])
		}
		if record := r.stock.at(n); record.stored < 3 {
			record.stored++
		}
	}
}

// settleAccounts compares what was answered with what came back. It runs when nobody else does.
func (r *run) settleAccounts(b *books) {
	for n := 1; n < int(r.stock.next.Load()); n++ {
		record := r.stock.at(n)
		id := r.stock.names.append(nil, n, record.ms)
		switch {
		case record.stored > 1:
			r.faults.add("handed out twice by cursor", id)
		case record.stored == 1 && record.outcome == refused:
			r.faults.add("refused, and stored all the same", id)
		case record.stored == 0 && record.outcome == accepted && b.complete:
			r.faults.add("accepted, but not there afterwards", id)
		case record.stored == 1 && record.outcome == accepted:
			b.stored++
		}
		if record.outcome != accepted || !r.delivers() {
			continue
		}
		if record.delivered == 0 {
			r.faults.add("accepted, but not delivered to its poll", id)
		} else {
			b.delivered++
		}
	}
}

// isDial reports whether err says that nobody listens.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
