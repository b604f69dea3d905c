package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/a2aprogress"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// The objects of A2A (A2A §5).
type (
	// A2AMessage is a message of a caller or of the agent.
	A2AMessage = a2a.Message
	// A2APart is a piece of content. A2AText and A2AData make one.
	A2APart = a2a.Part
	// A2AArtifact is a result of a task.
	A2AArtifact = a2a.Artifact
	// A2AProgress is an event that an agent sends while it works.
	A2AProgress = a2a.Progress
	// A2AState is the state of a task.
	A2AState = a2a.State
)

// The states in which a turn can end.
const (
	A2ACompleted     = a2a.Completed
	A2AInputRequired = a2a.InputRequired
	A2AAuthRequired  = a2a.AuthRequired
	A2ARejected      = a2a.Rejected
	A2AFailed        = a2a.Failed
)

// A2AText returns a part with a text.
func A2AText(text string) A2APart { return a2a.TextPart(text) }

// A2AData returns a part with a JSON value.
func A2AData(value json.RawMessage) A2APart { return a2a.DataPart(value) }

// A2AHandler works on a turn and says how it ends. For errors and the end of ctx, see Handler.Work. ctx ends too when the
// caller cancels the task. The handler may run again for the same turn after a crash. Its new output then replaces the
// output of the earlier run, if it begins the artifacts in the same order.
type A2AHandler func(ctx context.Context, turn *A2AJob) (A2AEnd, error)

// A2AEnd says how a turn ends. The zero value completes the task without a message. Ask and Done of A2AJob make others.
type A2AEnd struct {
	State   A2AState    // empty: A2ACompleted
	Message *A2AMessage // becomes the status message of the task; nil: none. The JSON has at most about 80 KiB
	Direct  bool        // a call that still waits may get Message in place of a task, if the first turn sent nothing else
}

// A2AJob is a turn that an A2AHandler works on. Its message and history are whole. Its methods are safe for concurrent
// use. What they send arrives in their order, at most one request every 100 ms, and before the end of the turn. If much
// waits to be sent, they block. They return ctx's error, or the relay's refusal of something that was sent: then the
// turn has ended, or the task has no room for more.
type A2AJob struct {
	A2ATurn
	Job Job // of the REQUEST

	client *Client
	ctx    context.Context
	stop   context.CancelFunc
	again  bool // an earlier run may have sent artifacts

	mu        sync.Mutex
	messages  int
	artifacts int
	sender    *a2aprogress.Sender // nil: nothing was sent
	ended     bool
}

// Text returns all texts of the caller's message, joined by line breaks.
func (j *A2AJob) Text() string { return j.Message.Text() }

// Reply returns a message of the agent with these parts. Without parts it returns nil.
func (j *A2AJob) Reply(parts ...A2APart) *A2AMessage {
	if len(parts) == 0 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.messages++
	return &A2AMessage{MessageID: fmt.Sprintf("%s.%d", j.Job.Envelope.Thread, j.messages), Role: a2a.Agent, Parts: parts}
}

// Ask returns the end of a turn with a question for the caller: INPUT_REQUIRED. The caller's next message to the task is
// another turn.
func (j *A2AJob) Ask(question ...A2APart) A2AEnd {
	return A2AEnd{State: A2AInputRequired, Message: j.Reply(question...)}
}

// Done returns the end of a task with a message of the agent.
func (j *A2AJob) Done(parts ...A2APart) A2AEnd { return A2AEnd{Message: j.Reply(parts...)} }

// Update sends a status message: what the agent does now.
func (j *A2AJob) Update(parts ...A2APart) error {
	return j.send(A2AProgress{Status: &a2a.ProgressStatus{State: a2a.Working, Message: j.Reply(parts...)}}, false)
}

// Send sends an event as it is. The first event of an artifact, and each one without Append, replaces what the task has
// of this artifact.
func (j *A2AJob) Send(event A2AProgress) error { return j.send(event, false) }

// Artifact begins an artifact. about has its members except for the parts. If its ArtifactID is empty, the artifact is
// numbered by turn and order, such as 2.1. Nothing is sent before the first parts.
func (j *A2AJob) Artifact(about A2AArtifact) *A2AOutput {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.artifacts++
	about.ArtifactID = cmp.Or(about.ArtifactID, fmt.Sprintf("%d.%d", j.Turn, j.artifacts))
	o := &A2AOutput{job: j, about: about}
	o.about.Parts = nil
	return o
}

// A2AOutput writes an artifact in chunks. It is not safe for concurrent use.
type A2AOutput struct {
	job   *A2AJob
	about A2AArtifact
	begun bool
}

// Write sends parts of the artifact. Chunks that have to wait are joined. A part has at most about 240 KiB of JSON.
func (o *A2AOutput) Write(parts ...A2APart) error { return o.write(parts, false) }

// Close sends the last parts of the artifact, and says that they are the last. Without parts it sends an empty text. An
// artifact that is not closed ends with its turn.
func (o *A2AOutput) Close(parts ...A2APart) error {
	if len(parts) == 0 {
		parts = []A2APart{A2AText("")}
	}
	return o.write(parts, true)
}

func (o *A2AOutput) write(parts []A2APart, last bool) error {
	if len(parts) == 0 {
		return nil
	}
	chunk := A2AArtifact{ArtifactID: o.about.ArtifactID, Parts: slices.Clone(parts)}
	if !o.begun {
		chunk = o.about.With(chunk.Parts)
	}
	more := o.begun
	o.begun = true
	return o.job.send(A2AProgress{Artifact: &a2a.ArtifactUpdate{Artifact: chunk, Append: more, LastChunk: last}}, more)
}

func (j *A2AJob) send(event A2AProgress, join bool) error {
	j.mu.Lock()
	if j.sender == nil && !j.ended {
		path := j.WorkPath() + "/events"
		j.sender = a2aprogress.NewSender(j.ctx, func(ctx context.Context, events []a2a.Progress) error {
			return j.client.CallA2A(ctx, GatewayCall{Method: http.MethodPost, Path: path,
				Body: jsontext.Compact(map[string]any{"events": events})})
		})
	}
	s := j.sender
	j.mu.Unlock()
	switch {
	case s == nil:
		return a2aprogress.ErrEnded
	case j.ctx.Err() != nil:
		return context.Cause(j.ctx)
	}
	return s.Send(j.ctx, event, join)
}

// finish sends what still waits. Nothing can be sent after it.
func (j *A2AJob) finish() error {
	j.mu.Lock()
	j.ended = true
	s := j.sender
	j.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Finish()
}

// result returns the RESULT of the turn. Its proof is over all artifacts of the task (A2A §7).
func (j *A2AJob) result(end A2AEnd) (r envelope.Result, err error) {
	end.State = cmp.Or(end.State, A2ACompleted)
	output := a2a.Output{Message: end.Message, Direct: end.Direct}
	if r.Status = end.State.Result(); a2a.StateOf(r.Status) == end.State && end.State != A2AFailed { // the relay writes that message
		if output.Proof, err = j.prove(end); err != nil {
			return r, err
		}
	}
	if r.Output = jsontext.Compact(map[string]any{"a2a": output}); len(r.Output) > a2a.MaxSealed {
		return r, &AgentError{Code: envelope.AgentInternal, Message: fmt.Sprintf(
			"the agent's last message has more than %d bytes; it should send an artifact", a2a.MaxSealed)}
	}
	return r, nil
}

// prove returns the agent's signature over the turn; nil: it is larger than a relay keeps.
func (j *A2AJob) prove(end A2AEnd) (*a2a.Proof, error) {
	p := a2a.Proven{Task: j.Task, Turn: j.Turn, State: end.State, Request: j.Message, Message: end.Message}
	if j.A2ATurn.Turn > 1 || j.again {
		earlier, err := j.client.taskArtifacts(j.ctx, j.A2ATurn)
		if err != nil {
			return nil, err
		}
		p.Artifacts = earlier
	}
	if j.sender != nil {
		p.Artifacts = a2a.Merge(p.Artifacts, j.sender.Sent())
	}
	proof, err := p.Sign(j.client.conn.Signer)
	if err != nil || len(jsontext.Compact(proof)) > a2a.MaxProof {
		return nil, err
	}
	return &proof, nil
}

// a2aServer gives turns to an A2AHandler.
type a2aServer struct {
	// turn reads a turn with the client of its relay.
	turn    func(ctx context.Context, request *envelope.Envelope, whole bool) (A2ATurn, *Client, error)
	handler A2AHandler
	other   Handler
	started time.Time
}

func (s *a2aServer) quote(ctx context.Context, job Job) (envelope.Offer, error) {
	if job.Request.Intent != A2AIntent {
		return s.other.Quote(ctx, job)
	}
	if _, _, err := s.turn(ctx, job.Envelope, false); err != nil {
		return envelope.Offer{}, err
	}
	return free(ctx, job)
}

func (s *a2aServer) work(ctx context.Context, job Job) (envelope.Result, error) {
	if job.Request.Intent != A2AIntent {
		return s.other.Work(ctx, job)
	}
	t, c, err := s.turn(ctx, job.Envelope, true)
	if err != nil {
		return envelope.Result{}, err
	}
	j := &A2AJob{A2ATurn: t, Job: job, client: c,
		again: job.Attempt > 1 || job.Envelope.TS.Before(s.started.Add(clockSkew))}
	j.ctx, j.stop = context.WithCancel(ctx)
	defer j.end()
	end, err := s.handler(j.ctx, j)
	if sent := j.finish(); err == nil {
		err = sent
	}
	if err != nil {
		return envelope.Result{}, err
	}
	return j.result(end)
}

// end ends the goroutine of the turn, also after a panic of the handler.
func (j *A2AJob) end() {
	j.stop()
	_ = j.finish() // its error was reported, or the handler has failed
}

// handlerOf returns the Handler of a server.
func handlerOf(s *a2aServer) Handler {
	if s.handler == nil {
		return Handler{}
	}
	if s.other.Quote == nil {
		s.other.Quote = free
	}
	if s.other.Work == nil {
		s.other.Work = func(context.Context, Job) (envelope.Result, error) {
			return envelope.Result{}, &AgentError{Code: envelope.AgentIntentNotSupported, Message: "this agent only serves " + A2AIntent}
		}
	}
	return Handler{Quote: s.quote, Work: s.work}
}

// HandleA2A returns a Handler that gives the REQUESTs with A2AIntent to turn, and all others to other. It is for Serve;
// ServeA2A calls it. It refuses turns that do not come from the relay's gateway. All turns are free, because the gateway
// pays nothing. Each RESULT has the agent's proof (A2A §7).
func (c *Client) HandleA2A(turn A2AHandler, other Handler) Handler {
	return handlerOf(&a2aServer{handler: turn, other: other, started: c.conn.Now(), turn: c.turnHere})
}

// turnHere is the turn of an a2aServer at one relay.
func (c *Client) turnHere(ctx context.Context, request *envelope.Envelope, whole bool) (t A2ATurn, at *Client, err error) {
	if whole {
		t, err = c.A2ATurn(ctx, request)
	} else {
		t, err = c.readTurn(ctx, request)
	}
	return t, c, err
}

// ServeA2A runs an agent that answers A2A callers, until ctx ends: Serve for A2AIntent. PublishA2A tells the relay about
// the agent. opts.Intents may have further intents, which are refused; use HandleA2A to serve them too.
func (c *Client) ServeA2A(ctx context.Context, opts ServeOptions, handler A2AHandler) error {
	return c.Serve(ctx, servingA2A(opts), c.HandleA2A(handler, Handler{}))
}

// servingA2A adds A2AIntent to the intents.
func servingA2A(opts ServeOptions) ServeOptions {
	if !slices.Contains(opts.Intents, A2AIntent) {
		opts.Intents = append(slices.Clone(opts.Intents), A2AIntent)
	}
	return opts
}

// HandleA2A does the same as Client.HandleA2A, for the gateways of all given relays.
func (n *Network) HandleA2A(turn A2AHandler, other Handler) Handler {
	type found struct {
		turn A2ATurn
		at   *Client
	}
	return handlerOf(&a2aServer{handler: turn, other: other, started: time.Now(),
		turn: func(ctx context.Context, request *envelope.Envelope, whole bool) (A2ATurn, *Client, error) {
			f, err := ofAny(n, func(c *Client) (f found, err error) {
				f.turn, f.at, err = c.turnHere(ctx, request, whole)
				return f, err
			})
			return f.turn, f.at, err
		}})
}

// ServeA2A does the same as Client.ServeA2A, at all given relays.
func (n *Network) ServeA2A(ctx context.Context, opts ServeOptions, handler A2AHandler) error {
	return n.Serve(ctx, servingA2A(opts), n.HandleA2A(handler, Handler{}))
}
