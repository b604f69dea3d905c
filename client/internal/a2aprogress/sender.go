// Package a2aprogress sends what an agent does in one turn of an A2A task (A2A §4). It joins and divides events so that
// they fit into few requests. It bounds what waits and what it keeps. After a request that may have been lost, it begins
// all artifacts again. The caller posts the requests.
package a2aprogress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Limits of what is sent at once (A2A §4).
const (
	every        = 100 * time.Millisecond
	maxBytes     = a2a.MaxProgress - 16<<10 // bytes of the events of one request, and of those that wait
	attempts     = 5
	codeConflict = envelope.Code("CONFLICT") // of a gateway's refusal of what does not fit the present state
	halfBytes    = maxBytes / 2
)

// Sender sends the progress of one turn to the relay. Its goroutine owns nothing but the requests; mu protects the
// fields. What was sent may be lost or sent twice if the relay does not answer. So the sender keeps the artifacts, and
// then begins each of them again, which replaces what the relay has.
type Sender struct {
	post func(ctx context.Context, events []a2a.Progress) error
	done chan struct{} // is closed when the goroutine has ended
	err  error         // why it has ended; read after done
	news chan struct{} // has an element if something waits, or if the sender is closed

	mu      sync.Mutex
	waiting []sizedEvent
	size    int           // of the waiting events in bytes
	room    chan struct{} // is closed when events have been taken
	kept    []keptArtifact
	closed  bool
}

// keptArtifact is a whole artifact that was sent. size is in bytes.
type keptArtifact struct {
	a2a.Artifact
	size int
}

// sizedEvent is an event that waits. size is in bytes.
type sizedEvent struct {
	a2a.Progress
	size int
}

// ErrEnded is the error of what is sent after the end of a turn.
var ErrEnded = errors.New("client: this turn has ended, so its agent can send nothing more")

// NewSender starts a Sender that works until ctx ends. Its owner calls Finish. post sends one request with events. An
// *envelope.Error of it that a retry would get again ends the sender.
func NewSender(ctx context.Context, post func(ctx context.Context, events []a2a.Progress) error) *Sender {
	s := &Sender{post: post, done: make(chan struct{}), news: make(chan struct{}, 1), room: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = s.run(ctx)
	}()
	return s
}

// Send takes an event for the relay. It waits while much is waiting. join allows to join a chunk with the one before.
// Errors: a part or a message is too large; the artifacts are larger than a task keeps; the cause of ctx; why the Sender
// has ended, which is ErrEnded or the error of a request.
func (s *Sender) Send(ctx context.Context, event a2a.Progress, join bool) error {
	if event.Artifact != nil { // what is appended to it later must not change the caller's parts
		u := *event.Artifact
		u.Artifact.Parts = slices.Clip(u.Artifact.Parts)
		event.Artifact = &u
	}
	pieces, size := piecesOf(event)
	for _, p := range pieces {
		if p.size > maxBytes {
			return fmt.Errorf("client: a part or a message has more than %d bytes of JSON; send a text in several parts, and "+
				"other content as a URL", maxBytes)
		}
	}
	for {
		s.mu.Lock()
		room := s.room
		taken := s.closed || s.size == 0 || s.size+size <= maxBytes
		var err error
		if taken {
			err = s.add(event, pieces, size, join)
		}
		s.mu.Unlock()
		select {
		case <-s.done:
			return s.failed()
		default:
		}
		if taken {
			return err
		}
		select {
		case <-room:
		case <-s.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// failed returns why the sender has ended.
func (s *Sender) failed() error {
	if s.err != nil {
		return s.err
	}
	return ErrEnded
}

// add adds an event in pieces. The caller holds s.mu.
func (s *Sender) add(event a2a.Progress, pieces []sizedEvent, size int, join bool) error {
	if s.closed {
		return ErrEnded
	}
	if u := event.Artifact; u != nil {
		if err := s.keep(*u, size); err != nil {
			return err
		}
		if n := len(s.waiting); join && n > 0 && len(pieces) == 1 && s.waiting[n-1].takes(*u) {
			before := s.waiting[n-1].Artifact
			before.Artifact = before.Artifact.With(append(before.Artifact.Parts, u.Artifact.Parts...))
			before.LastChunk = u.LastChunk
			s.waiting[n-1].size += size
			s.size += size
			return nil
		}
	}
	s.waiting = append(s.waiting, pieces...)
	s.size += size
	s.wake()
	return nil
}

// takes reports whether a further chunk can be joined.
func (e sizedEvent) takes(u a2a.ArtifactUpdate) bool {
	return u.Append && e.Artifact != nil && e.Artifact.Artifact.ArtifactID == u.Artifact.ArtifactID && !e.Artifact.LastChunk &&
		e.size < halfBytes
}

// keep adds a chunk to the whole artifacts. The caller holds s.mu.
func (s *Sender) keep(u a2a.ArtifactUpdate, size int) error {
	i := slices.IndexFunc(s.kept, func(k keptArtifact) bool { return k.ArtifactID == u.Artifact.ArtifactID })
	if i < 0 {
		i = len(s.kept)
		s.kept = append(s.kept, keptArtifact{})
	}
	k := &s.kept[i]
	if !u.Append || k.ArtifactID == "" {
		*k = keptArtifact{u.Artifact, size}
	} else {
		*k = keptArtifact{k.With(append(k.Parts, u.Artifact.Parts...)), k.size + size}
	}
	all := 0
	for _, k := range s.kept {
		all += k.size
	}
	if all > a2a.MaxTask {
		return fmt.Errorf("client: the agent has sent more than the %d MiB that a task keeps", a2a.MaxTask>>20)
	}
	return nil
}

// Sent returns the whole artifacts. They do not change any more after Finish.
func (s *Sender) Sent() (all []a2a.Artifact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		all = append(all, k.Artifact)
	}
	return all
}

func (s *Sender) wake() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// piecesOf returns an event in pieces that fit into a request, and their size together. Only an artifact with several
// parts can be divided.
func piecesOf(event a2a.Progress) (pieces []sizedEvent, size int) {
	one := sizedEvent{event, len(jsontext.Compact(event)) + 1}
	u := event.Artifact
	if u == nil || one.size <= halfBytes || len(u.Artifact.Parts) < 2 {
		return []sizedEvent{one}, one.size
	}
	half := len(u.Artifact.Parts) / 2
	first, rest := *u, *u
	first.Artifact, first.LastChunk = u.Artifact.With(u.Artifact.Parts[:half]), false
	rest.Artifact, rest.Append = a2a.Artifact{ArtifactID: u.Artifact.ArtifactID, Parts: u.Artifact.Parts[half:]}, true
	pieces, size = piecesOf(a2a.Progress{Artifact: &first})
	more, moreSize := piecesOf(a2a.Progress{Artifact: &rest})
	return append(pieces, more...), size + moreSize
}

// Finish sends what still waits, and ends the sender.
func (s *Sender) Finish() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wake()
	<-s.done
	return s.err
}

// run sends what waits, until the sender is closed or ctx ends.
func (s *Sender) run(ctx context.Context) error {
	var pause pacing.Backoff
	var next time.Time // when the next request may be sent
	failures := 0
	for {
		if waits, closed := s.state(); !waits {
			if closed {
				return nil
			}
			select {
			case <-s.news:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		if err := pacing.Sleep(ctx, time.Until(next)); err != nil {
			return context.Cause(ctx)
		}
		next = time.Now().Add(every)
		batch := s.next()
		err := s.post(ctx, eventsOf(batch))
		switch code := envelope.CodeOf(err); {
		case err == nil:
			failures = 0
			pause.Reset()
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case code == codeConflict:
			return ErrEnded
		case code != "" && !code.Retryable(), failures == attempts-1:
			return fmt.Errorf("client: the relay does not take the progress: %w", err)
		}
		failures++
		s.again(batch)
		if pause.Wait(ctx, 0, pacing.MaxPause) != nil {
			return context.Cause(ctx)
		}
	}
}

func (s *Sender) state() (waits, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) > 0, s.closed
}

// next takes the events of the next request.
func (s *Sender) next() (batch []sizedEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := 0
	for len(batch) < min(a2a.MaxEvents, len(s.waiting)) {
		e := s.waiting[len(batch)]
		if size += e.size; size > maxBytes && len(batch) > 0 {
			break
		}
		s.size -= e.size
		batch = append(batch, e)
	}
	s.waiting = slices.Clone(s.waiting[len(batch):])
	close(s.room)
	s.room = make(chan struct{})
	return batch
}

// again makes the sender begin all artifacts again, after a request that may have been lost. Status messages that wait or
// were in the request follow.
func (s *Sender) again(batch []sizedEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := append(batch, s.waiting...)
	s.waiting, s.size = nil, 0
	for _, k := range s.kept {
		k.Parts = slices.Clip(k.Parts)
		pieces, size := piecesOf(a2a.Progress{Artifact: &a2a.ArtifactUpdate{Artifact: k.Artifact}})
		s.waiting, s.size = append(s.waiting, pieces...), s.size+size
	}
	for _, e := range old {
		if e.Status != nil {
			s.waiting, s.size = append(s.waiting, e), s.size+e.size
		}
	}
}

// eventsOf returns the events without their sizes.
func eventsOf(batch []sizedEvent) []a2a.Progress {
	events := make([]a2a.Progress, len(batch))
	for i, e := range batch {
		events[i] = e.Progress
	}
	return events
}
