package relay

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// readLoop describes a client that reads like the specification's example: since is the ts of the last received event.
type readLoop struct {
	timeout string        // of each poll, in seconds
	limit   string        // of each poll; empty: the parameter is not sent
	pause   time.Duration // between polls
	since   string        // of the first poll; empty: an hour ago
	cursor  bool          // use cursor instead of since, beginning with 0
}

// follower reads an inbox in the background. It polls again as soon as it is answered and its pause is over. It stops
// after maxPolls polls.
type follower struct {
	readLoop
	reader kit.Actor
	cancel context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	counts     map[string]int // how often each id was received; guarded by mu, like all fields below
	polls      int
	stopReason string // why it has stopped reading; empty while it reads
	changed    chan struct{}
}

// maxPolls limits the load on the relay if polls are answered at once, again and again.
const maxPolls = 200

// follow starts to read the inbox of reader. The reading ends with the check, or when stop is called.
func (p *relayProbe) follow(reader kit.Actor, loop readLoop) *follower {
	ctx, cancel := context.WithCancel(p.Ctx)
	f := &follower{
		readLoop: loop,
		reader:   reader,
		cancel:   cancel,
		done:     make(chan struct{}),
		counts:   map[string]int{},
		changed:  make(chan struct{}, 1),
	}
	if f.since == "" {
		f.since = p.HourAgo()
	}
	p.Tasks.Go(func() {
		defer close(f.done)
		f.read(ctx, p.Relay)
	})
	return f
}

func (f *follower) read(ctx context.Context, relay *kit.RelayClient) {
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
			f.stopWith(ctx,
				fmt.Sprintf("the reader polled in a hot loop: %d polls were answered within seconds", maxPolls))
			return
		}
		events, next, problem := f.poll(ctx, relay, position)
		if problem != "" {
			f.stopWith(ctx, problem)
			return
		}
		position = next
		f.add(events)
		select {
		case <-ctx.Done():
		case <-time.After(f.pause):
		}
	}
}

// poll sends one poll. It returns the events and the value of since or cursor for the next poll. If the answer is
// wrong, problem describes it.
func (f *follower) poll(
	ctx context.Context, relay *kit.RelayClient, position string,
) (events []kit.Event, next, problem string) {
	name := "since"
	if f.cursor {
		name = "cursor"
	}
	pairs := []string{name, position, "recipient", f.reader.DID(), "timeout", f.timeout}
	if f.limit != "" {
		pairs = append(pairs, "limit", f.limit)
	}
	a := relay.DoWithRetries(ctx,
		kit.RetryableRequest{Method: http.MethodGet, Target: "/events" + kit.Query(pairs...), Hold: 30 * time.Second},
		kit.IsRateLimit)
	events, isList := kit.EventsOf(a)
	if ok, _ := a.OK(); !ok || !isList {
		return nil, "", "a poll was answered with " + a.String()
	}
	next = position
	if f.cursor {
		next = a.Text("cursor")
	} else if len(events) > 0 {
		next = events[len(events)-1].Text("ts")
	}
	if next == "" {
		return nil, "", "an answer has no cursor or ts for the next poll: " + a.String()
	}
	return events, next, ""
}

func (f *follower) stopWith(ctx context.Context, why string) {
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	f.stopReason = why
	f.mu.Unlock()
	f.notify()
}

func (f *follower) add(events []kit.Event) {
	f.mu.Lock()
	for _, e := range events {
		f.counts[e.ID()]++
	}
	f.mu.Unlock()
	if len(events) > 0 {
		f.notify()
	}
}

func (f *follower) notify() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// stop ends the reading and waits until it has ended.
func (f *follower) stop() {
	f.cancel()
	<-f.done
}

// state returns the messages that were not received yet, the number of polls, and why the follower has stopped reading.
func (f *follower) state(messages []kit.SignedMessage) (missing []kit.SignedMessage, polls int, stopReason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, signed := range messages {
		if f.counts[signed.ID] == 0 {
			missing = append(missing, signed)
		}
	}
	return missing, f.polls, f.stopReason
}

// checkReceived waits until f has received all messages. It ends the check if f stops reading, or if no event is
// received for 6 seconds and the pause between polls.
func (p *relayProbe) checkReceived(f *follower, messages []kit.SignedMessage) {
	defer f.stop()
	for {
		missing, polls, stopReason := f.state(messages)
		if len(missing) == 0 {
			p.Note("all %d events received in %d polls", len(messages), polls)
			return
		}
		p.Expect("the reader receives each of the %d accepted events", len(messages))
		if stopReason != "" {
			p.Failf("%s; %d of %d events were not received", stopReason, len(missing), len(messages))
		}
		quiet := time.NewTimer(6*time.Second + f.pause)
		select {
		case <-f.changed:
			quiet.Stop()
		case <-quiet.C:
			p.Failf("the reader did not receive %d of %d events; the first missing one is %s with the ts %s (%d polls)",
				len(missing), len(messages), missing[0].ID, missing[0].TS, polls)
		case <-p.Ctx.Done():
			p.Stopped()
		}
	}
}
