// Package policycmd lets a program of the operator decide which messages a relay stores. It is a relay.Screen.
//
// The program is a child process that keeps running. For each message it gets one line of JSON on its standard input,
// see Question, and it answers with one line of JSON on its standard output, see Answer. It may answer in any order. It
// gets no further question before it has read the last one, but many questions may be open at a time. A program ends
// when its standard input ends.
//
// A program that does not keep to these rules is killed with its process group and started again, after a pause that
// grows. What happens to the messages that it has not decided about is a setting: they are refused, or stored.
package policycmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/program"
	"github.com/agora-relay/agora/internal/safetext"
	"github.com/agora-relay/agora/relay"
)

// Options configure a Command.
type Options struct {
	Argv     []string      // the program and its arguments; there is no shell
	Payload  bool          // questions have the payload of the message
	FailOpen bool          // messages that the program has not decided about are stored; otherwise they are refused
	Timeout  time.Duration // for one decision; 0: DefaultTimeout
	Log      *slog.Logger  // nil: slog.Default
}

// DefaultTimeout is the time for a decision if Options do not set one.
const DefaultTimeout = 2 * time.Second

// Limits on what a program may use.
const (
	maxQueued    = 256      // questions that were not written yet
	maxAnswer    = 16 << 10 // bytes of an answer
	maxMessage   = 300      // characters of Answer.Message that a sender gets
	maxUnclaimed = 1000     // questions whose time was over, and whose answers may still come
	minPause     = time.Second / 10
	maxPause     = 30 * time.Second
	soundAfter   = time.Minute // a program that has run this long is started again without a long pause
	stopTime     = time.Second // how long a program may take to end
)

// Question is what the program gets about a message, as one line of JSON.
type Question struct {
	ID      int64  `json:"id"`                // of the question; the answer repeats it
	Event   Event  `json:"event"`             // the message
	Address string `json:"address,omitempty"` // from which the message comes; absent if it is not known
	Local   bool   `json:"local,omitempty"`   // the message certainly comes from the relay's own machine
}

// Event describes a message. Its signature is verified.
type Event struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Sender    string          `json:"sender"`              // a DID
	Recipient string          `json:"recipient,omitempty"` // a DID; absent: a broadcast
	Thread    string          `json:"thread,omitempty"`
	Intent    string          `json:"intent,omitempty"` // of a REQUEST that is not sealed
	Bytes     int             `json:"bytes"`            // size of the message
	Payload   json.RawMessage `json:"payload,omitempty"`
}

// Answer is what the program answers, as one line of JSON. Other members are ignored.
type Answer struct {
	ID      int64  `json:"id"`      // of the question
	Accept  *bool  `json:"accept"`  // required
	Message string `json:"message"` // why the message is refused; its sender gets it
}

// Command is a relay.Screen that asks a program. Run must be running while it is used.
type Command struct {
	options Options
	log     *slog.Logger
	queue   chan *open
	nextID  atomic.Int64
	answers atomic.Int64          // how many answers came; shows whether the program is alive
	down    atomic.Pointer[error] // why no program runs; nil: one runs or is being started
	session atomic.Pointer[session]
}

// open is a question without an answer.
type open struct {
	id     int64
	line   []byte
	answer chan error  // has room for one: nil, a refusal, or errNoAnswer
	left   atomic.Bool // nobody waits for the answer
}

// New returns a Command. Options.Argv must not be empty.
func New(o Options) *Command {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Command{options: o, log: o.Log.With("policy", o.Argv[0]), queue: make(chan *open, maxQueued)}
}

var errNoAnswer = errors.New("the policy command has not answered")

// Screen implements relay.Screen. Refusals: CodeForbidden if the program refuses the message; CodeUnavailable if it does
// not answer, unless Options.FailOpen is set.
func (c *Command) Screen(ctx context.Context, p relay.Peer, e *envelope.Envelope) error {
	err := c.ask(ctx, p, e)
	if _, refused := errors.AsType[*envelope.Error](err); err == nil || refused {
		return err
	}
	if c.options.FailOpen {
		return nil
	}
	return envelope.NotStored("the policy of this relay cannot decide at the moment; try again in a moment", time.Second)
}

// Health returns why messages cannot be decided about; nil: they can. With Options.FailOpen it returns nil.
func (c *Command) Health() error {
	if down := c.down.Load(); down != nil && !c.options.FailOpen {
		return fmt.Errorf("the policy command does not run: %w", *down)
	}
	return nil
}

// ask returns what the program answers. If the program has not answered, the error is not an *envelope.Error.
func (c *Command) ask(ctx context.Context, p relay.Peer, e *envelope.Envelope) error {
	if down := c.down.Load(); down != nil {
		return *down
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	q, err := c.question(p, e)
	if err != nil {
		return err
	}
	select {
	case c.queue <- q:
	default:
		return errors.New("the policy command is too slow")
	}
	before := c.answers.Load()
	select {
	case err := <-q.answer:
		return err
	case <-ctx.Done():
		q.left.Store(true)
		if s := c.session.Load(); s != nil {
			s.giveUp(q, c.answers.Load() == before)
		}
		return errNoAnswer
	}
}

// question returns the question about a message.
func (c *Command) question(p relay.Peer, e *envelope.Envelope) (*open, error) {
	q := Question{ID: c.nextID.Add(1), Local: p.Local, Event: Event{ID: e.ID, Type: string(e.Type),
		Sender: string(e.Sender.ID), Recipient: string(e.Recipient), Thread: e.Thread, Bytes: len(e.Canonical())}}
	if p.Addr.IsValid() {
		q.Address = p.Addr.Unmap().String()
	}
	var request struct {
		Intent string `json:"intent"`
	}
	if e.Type == envelope.TypeRequest && json.Unmarshal(e.Payload, &request) == nil {
		q.Event.Intent = request.Intent
	}
	if c.options.Payload {
		q.Event.Payload = e.Payload
	}
	line, err := json.Marshal(q)
	return &open{id: q.ID, line: append(line, '\n'), answer: make(chan error, 1)}, err
}

// Run starts the program, and starts it again whenever it ends, until ctx ends. When it returns, the program has ended.
func (c *Command) Run(ctx context.Context) {
	pause := minPause
	for ctx.Err() == nil {
		began := time.Now()
		err := c.runOnce(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > soundAfter {
			pause = minPause
		}
		c.down.Store(&err)
		c.failQueued()
		c.log.Error("the policy command has failed; it is started again", "err", err, "after", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxPause)
		c.down.Store(nil)
	}
	stopped := errors.New("the relay stops")
	c.down.Store(&stopped)
	c.failQueued()
}

// failQueued answers the questions that no program has got.
func (c *Command) failQueued() {
	for {
		select {
		case q := <-c.queue:
			q.answer <- errNoAnswer
		default:
			return
		}
	}
}

// session is one run of the program.
type session struct {
	cancel context.CancelCauseFunc // ends the run

	mu        sync.Mutex
	open      map[int64]*open
	unclaimed map[int64]struct{} // questions that were given up
}

// runOnce runs the program once. It returns why the program has ended.
func (c *Command) runOnce(ctx context.Context) error {
	p, err := startProcess(c.options.Argv)
	if err != nil {
		return err
	}
	c.log.Info("the policy command runs", "pid", p.cmd.Process.Pid)
	running, cancel := context.WithCancelCause(ctx)
	s := &session{cancel: cancel, open: map[int64]*open{}, unclaimed: map[int64]struct{}{}}
	c.session.Store(s)
	var tasks sync.WaitGroup
	ended := make(chan struct{})
	tasks.Go(func() {
		defer close(ended)
		cancel(c.readAnswers(s, p.out))
	})
	tasks.Go(func() { c.writeQuestions(running, s, p.in) })
	tasks.Go(func() { program.EachLine(p.errors, c.logLine) })
	<-running.Done()
	if ctx.Err() != nil {
		p.stop(ended, stopTime)
	}
	err = errors.Join(context.Cause(running), p.kill())
	tasks.Wait()
	c.session.Store(nil)
	s.failAll()
	return err
}

// writeQuestions writes questions until ctx ends.
func (c *Command) writeQuestions(ctx context.Context, s *session, in io.Writer) {
	for {
		select {
		case q := <-c.queue:
			if !s.add(q) {
				continue
			}
			if _, err := in.Write(q.line); err != nil {
				s.cancel(fmt.Errorf("it does not read: %w", err))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// readAnswers reads answers until the program ends or breaks a rule. It returns why it has stopped.
func (c *Command) readAnswers(s *session, out io.Reader) error {
	lines := bufio.NewReaderSize(out, maxAnswer)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("it has written a line of more than %d bytes", maxAnswer)
		case errors.Is(err, io.EOF) && len(line) == 0:
			return errors.New("it has ended")
		case err != nil:
			return fmt.Errorf("it has ended: %w", err)
		}
		var a Answer
		if err := json.Unmarshal(bytes.TrimSpace(line), &a); err != nil || a.Accept == nil {
			return errors.New(`it has written a line that is no answer; want {"id":…,"accept":true} or ` +
				`{"id":…,"accept":false,"message":"…"}`)
		}
		if !s.answer(a) {
			return fmt.Errorf("it has answered the question %d, which is not open", a.ID)
		}
		c.answers.Add(1)
	}
}

// add records that the program gets a question. It returns false if nobody waits for the answer any more.
func (s *session) add(q *open) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.left.Load() {
		return false
	}
	s.open[q.id] = q
	return true
}

// answer passes an answer on. It returns false if no question with its id is open.
func (s *session) answer(a Answer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.open[a.ID]; q != nil {
		delete(s.open, a.ID)
		q.answer <- a.refusal()
		return true
	}
	_, late := s.unclaimed[a.ID]
	delete(s.unclaimed, a.ID)
	return late
}

// refusal returns the error that the sender of the message gets; nil: the message is accepted.
func (a Answer) refusal() error {
	if *a.Accept {
		return nil
	}
	reason := []rune(a.Message)
	if len(reason) > maxMessage {
		reason = append(reason[:maxMessage], '…')
	}
	text := "the policy of this relay refuses this message"
	if len(reason) > 0 {
		text += ": " + string(safetext.Escape([]byte(string(reason)), ""))
	}
	return &envelope.Error{Code: envelope.CodeForbidden, Message: text,
		Details: map[string]any{envelope.DetailReason: envelope.ReasonPolicy}}
}

// giveUp ends the wait for an answer. If no answer at all came while q was open, the program hangs and is killed.
func (s *session) giveUp(q *open, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[q.id] == nil {
		return // it was answered just now, or it waits in the queue, and then the oldest question ends the session
	}
	delete(s.open, q.id)
	s.unclaimed[q.id] = struct{}{}
	switch {
	case silent:
		s.cancel(errors.New("it hangs: it has not answered any question in time"))
	case len(s.unclaimed) > maxUnclaimed:
		s.cancel(fmt.Errorf("it has left more than %d questions without an answer", maxUnclaimed))
	}
}

// failAll answers the questions that are open.
func (s *session) failAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, q := range s.open {
		delete(s.open, id)
		q.answer <- errNoAnswer
	}
}
