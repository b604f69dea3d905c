package conformance

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// loop is how a client of the specification's kind reads: since = the ts of the last event it got.
type loop struct {
	timeout string        // of each poll, seconds
	limit   string        // empty: none asked for
	pause   time.Duration // between polls
	since   string        // to begin with; empty: an hour ago
	cursor  bool          // follow the cursor instead, from 0
}

// follower reads in the background. It reads no faster than the relay lets it, up to maxPolls.
type follower struct {
	loop
	of     actor
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	times map[string]int // how often each id came; guarded by mu, like all below
	polls int
	trip  string // why it stopped reading
	fresh chan struct{}
}

// maxPolls bounds what a hot loop costs the relay.
const maxPolls = 200

// follow starts to read the inbox of somebody, until the check's end or stop.
func (p *probe) follow(of actor, l loop) *follower {
	ctx, cancel := context.WithCancel(p.ctx)
	f := &follower{loop: l, of: of, cancel: cancel, done: make(chan struct{}), times: map[string]int{}, fresh: make(chan struct{}, 1)}
	if f.since == "" {
		f.since = p.hour()
	}
	p.tasks.Go(func() {
		defer close(f.done)
		f.read(ctx, p.relay)
	})
	return f
}

func (f *follower) read(ctx context.Context, relay *wire) {
	position := f.since
	if f.cursor {
		position = "0"
	}
	for ctx.Err() == nil {
		f.mu.Lock()
		f.polls++
		stop := f.polls > maxPolls
		f.mu.Unlock()
		if stop {
			f.trips(ctx, fmt.Sprintf("the loop ran hot: %d polls were answered within seconds", maxPolls))
			return
		}
		events, next, trip := f.poll(ctx, relay, position)
		if trip != "" {
			f.trips(ctx, trip)
			return
		}
		position = next
		f.take(events)
		select {
		case <-ctx.Done():
		case <-time.After(f.pause):
		}
	}
}

// poll asks once and returns where to go on.
func (f *follower) poll(ctx context.Context, relay *wire, position string) (events []event, next, trip string) {
	name := "since"
	if f.cursor {
		name = "cursor"
	}
	pairs := []string{name, position, "recipient", f.of.did(), "timeout", f.timeout}
	if f.limit != "" {
		pairs = append(pairs, "limit", f.limit)
	}
	a := relay.ask(ctx, request{method: http.MethodGet, target: "/events" + query(pairs...), hold: 30 * time.Second}, isLimit)
	events, isList := eventsOf(a)
	if ok, _ := a.ok(); !ok || !isList {
		return nil, "", "a poll was answered with " + a.String()
	}
	next = position
	if f.cursor {
		next = a.text("cursor")
	} else if len(events) > 0 {
		next = events[len(events)-1].text("ts")
	}
	if next == "" {
		return nil, "", "an answer says not where to go on: " + a.String()
	}
	return events, next, ""
}

func (f *follower) trips(ctx context.Context, why string) {
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	f.trip = why
	f.mu.Unlock()
	f.nudge()
}

func (f *follower) take(events []event) {
	f.mu.Lock()
	for _, e := range events {
		f.times[e.id()]++
	}
	f.mu.Unlock()
	if len(events) > 0 {
		f.nudge()
	}
}

func (f *follower) nudge() {
	select {
	case f.fresh <- struct{}{}:
	default:
	}
}

// stop ends the reading and waits for it to have ended.
func (f *follower) stop() {
	f.cancel()
	<-f.done
}

// state says which letters have not come, how many polls there were, and what stopped it.
func (f *follower) state(letters []letter) (missing []letter, polls int, trip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range letters {
		if f.times[l.id] == 0 {
			missing = append(missing, l)
		}
	}
	return missing, f.polls, f.trip
}

// receives waits until f has all letters, and ends the check if for some seconds nothing more has come.
func (p *probe) receives(f *follower, letters []letter) {
	defer f.stop()
	for {
		missing, polls, trip := f.state(letters)
		if len(missing) == 0 {
			p.note("all %d events in %d polls", len(letters), polls)
			return
		}
		p.expect("every one of %d accepted events reaches the reader", len(letters))
		if trip != "" {
			p.failf("%s; %d of %d events had not come", trip, len(missing), len(letters))
		}
		quiet := time.NewTimer(6*time.Second + f.pause)
		select {
		case <-f.fresh:
			quiet.Stop()
		case <-quiet.C:
			p.failf("%d of %d events never reached the reader, the first of them %s with the ts %s (%d polls)", len(missing), len(letters),
				missing[0].id, missing[0].ts, polls)
		case <-p.ctx.Done():
			p.stopped()
		}
	}
}
