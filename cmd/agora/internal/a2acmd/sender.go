package a2acmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/exchange"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Limits of what is sent at once (A2A §4).
const (
	sendEvery    = 100 * time.Millisecond
	maxEventText = 240 << 10 // bytes of the events of one request
	sendAttempts = 5
)

// errEnded says that the relay takes no more events of a turn.
var errEnded = errors.New("the relay takes no more events of this turn")

// sender sends the progress of one turn to the relay. Its goroutine owns nothing but the requests; mu protects the
// fields. What was sent may be lost or sent twice if the relay does not answer. So the sender keeps the artifacts, and
// then begins each of them again, which replaces what the relay has.
type sender struct {
	relay *client.Client
	path  string // of the events, below the gateway's URL

	mu        sync.Mutex
	waiting   []a2a.Progress
	artifacts []a2a.Artifact // whole
	woken     chan struct{}  // has an element if something waits
	closed    bool
	done      chan struct{} // is closed when the goroutine has ended
	err       error         // why it has ended; read after done
}

// newSender starts a sender. Its owner calls finish.
func newSender(ctx context.Context, relay *client.Client, path string) *sender {
	s := &sender{relay: relay, path: path, woken: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = s.run(ctx)
	}()
	return s
}

// add takes an event of the server. artifacts are all of the task, whole. It returns the error with which the sender has
// ended.
func (s *sender) add(e a2a.Stream, artifacts []a2a.Artifact) error {
	select {
	case <-s.done:
		return s.err
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.artifacts = append([]a2a.Artifact(nil), artifacts...)
	switch {
	case e.Task != nil:
		s.addStatus(e.Task.Status)
		s.waiting = append(s.waiting, whole(e.Task.Artifacts)...)
	case e.StatusUpdate != nil:
		s.addStatus(e.StatusUpdate.Status)
	case e.ArtifactUpdate != nil:
		s.waiting = append(s.waiting, a2a.Progress{Artifact: &a2a.ArtifactUpdate{Artifact: e.ArtifactUpdate.Artifact,
			Append: e.ArtifactUpdate.Append, LastChunk: e.ArtifactUpdate.LastChunk}})
	}
	s.wake()
	return nil
}

// addStatus adds a state that the relay does not know by itself.
func (s *sender) addStatus(status a2a.Status) {
	if status.State == a2a.Working && status.Message != nil {
		s.waiting = append(s.waiting, a2a.Progress{Status: &a2a.ProgressStatus{State: status.State, Message: status.Message}})
	}
}

func (s *sender) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// whole returns the events that replace artifacts. A large one is sent in chunks.
func whole(artifacts []a2a.Artifact) (events []a2a.Progress) {
	for _, a := range artifacts {
		var chunk []a2a.Part
		size, first := 0, true
		flush := func() {
			piece := a
			if !first || len(chunk) < len(a.Parts) {
				piece = a2a.Artifact{ArtifactID: a.ArtifactID, Name: a.Name, Description: a.Description, Metadata: a.Metadata,
					Extensions: a.Extensions, Parts: chunk}
			}
			events = append(events, a2a.Progress{Artifact: &a2a.ArtifactUpdate{Artifact: piece, Append: !first}})
			chunk, size, first = nil, 0, false
		}
		for _, part := range a.Parts {
			n := len(jsontext.Compact(part))
			if size+n > maxEventText/2 && len(chunk) > 0 {
				flush()
			}
			chunk, size = append(chunk, part), size+n
		}
		flush()
	}
	return events
}

// finish sends what still waits, and ends the sender.
func (s *sender) finish() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wake()
	<-s.done
	return s.err
}

func (s *sender) run(ctx context.Context) error {
	for {
		select {
		case <-s.woken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		closed, err := s.sendAll(ctx)
		if closed || err != nil {
			return err
		}
	}
}

// sendAll sends what waits. closed says that no more will come.
func (s *sender) sendAll(ctx context.Context) (closed bool, err error) {
	var pause exchange.Backoff
	failures := 0
	for {
		batch, closed := s.next()
		if len(batch) == 0 {
			return closed, nil
		}
		var wait error
		switch err := s.post(ctx, batch); {
		case ctx.Err() != nil:
			return closed, context.Cause(ctx)
		case envelope.CodeOf(err) == codeConflict:
			return closed, errEnded
		case err != nil:
			code := envelope.CodeOf(err)
			if failures++; failures == sendAttempts || code != "" && !code.Retryable() {
				return closed, fmt.Errorf("the relay does not take the progress: %w", err)
			}
			s.again()
			wait = pause.Wait(ctx, 0)
		case !closed:
			failures = 0
			wait = exchange.Sleep(ctx, sendEvery)
		}
		if wait != nil {
			return closed, wait
		}
	}
}

// codeConflict is the code of a gateway's refusal of what does not fit the present state.
const codeConflict envelope.Code = "CONFLICT"

// next takes the events of the next request.
func (s *sender) next() (batch []a2a.Progress, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := 0
	for len(batch) < a2a.MaxEvents && len(batch) < len(s.waiting) {
		size += len(jsontext.Compact(s.waiting[len(batch)])) + 1
		if size > maxEventText && len(batch) > 0 {
			break
		}
		batch = append(batch, s.waiting[len(batch)])
	}
	s.waiting = s.waiting[len(batch):]
	return batch, s.closed
}

// again makes the sender begin all artifacts again.
func (s *sender) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = whole(s.artifacts)
}

func (s *sender) post(ctx context.Context, batch []a2a.Progress) error {
	return s.relay.CallA2A(ctx, client.GatewayCall{Method: http.MethodPost, Path: s.path,
		Body: jsontext.Compact(map[string]any{"events": batch})})
}
