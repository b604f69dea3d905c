package a2acmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/exchange"
)

// runner runs turns at one A2A server. Each turn is run by one goroutine.
type runner struct {
	env    cli.Environment
	server *a2aclient.Client
	state  *turnState
}

// turn is one message for the A2A server, and what the server has said about it so far.
type turn struct {
	id   string // the thread of the REQUEST
	task string // the relay's task; empty: there is none, so no other turn follows
	send a2a.Send
	each func(a2a.Stream) error // gets each event; nil: nobody does

	local     string         // the server's task
	status    a2a.Status     // the last one
	message   *a2a.Message   // the server has answered with a message in place of a task
	artifacts []a2a.Artifact // whole, in order
}

// patience is how long a turn waits for a server that does not answer.
const patience = time.Minute

// run runs a turn until it has a result, a question or an error. If an earlier run was interrupted, it follows the task
// that the server has then made. It sends the message again only if it knows of no task. Errors: those of ctx;
// *client.AgentError.
func (r *runner) run(ctx context.Context, t *turn) error {
	local, again, err := r.state.begin(t.id, time.Now())
	if err != nil {
		return fmt.Errorf("the state cannot be saved: %w", err)
	}
	if again {
		r.env.Say("turn %s: continued", t.id)
	}
	t.local = local
	started := time.Now()
	var pause exchange.Backoff
	for {
		if t.local == "" {
			err = r.server.Stream(ctx, t.send, func(e a2a.Stream) error { return r.event(t, e) })
		} else {
			err = r.follow(ctx, t)
		}
		switch {
		case ctx.Err() != nil:
			return r.stopped(ctx, t)
		case err == nil:
			return nil
		case !a2aclient.Unanswered(err), time.Since(started) > patience && t.local == "":
			return agentError(err)
		}
		r.env.Say("turn %s: %v; trying again", t.id, err)
		if pause.Wait(ctx, 0) != nil {
			return r.stopped(ctx, t)
		}
	}
}

// stopped cancels the server's task if the client has given up. If the command ends, the task continues, and the next
// start follows it.
func (r *runner) stopped(ctx context.Context, t *turn) error {
	if r.env.Ctx.Err() != nil || t.local == "" {
		return context.Cause(ctx)
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, err := r.server.Cancel(limited, t.local); err != nil {
		r.env.Say("turn %s: the server did not cancel its task: %v", t.id, err)
	}
	return context.Cause(ctx)
}

// follow reads the state of a task, and follows it until it has ended. A server that has no stream for the task is
// asked again and again.
func (r *runner) follow(ctx context.Context, t *turn) error {
	task, err := r.server.Get(ctx, t.local)
	if err != nil {
		return err
	}
	event := a2a.Stream{Task: &task}
	if err := r.event(t, event); err != nil || a2aclient.Ends(event) {
		return err
	}
	err = r.server.Subscribe(ctx, t.local, func(e a2a.Stream) error { return r.event(t, e) })
	if refused, ok := errors.AsType[*a2a.Error](err); ok {
		return &exchange.Lost{Text: refused.Message} // it is asked again after a pause
	}
	return err
}

// event takes an event of the server.
func (r *runner) event(t *turn, e a2a.Stream) error {
	id := ""
	switch {
	case e.Task != nil:
		id, t.status = e.Task.ID, e.Task.Status
		t.artifacts = e.Task.Artifacts
	case e.StatusUpdate != nil:
		id, t.status = e.StatusUpdate.TaskID, e.StatusUpdate.Status
	case e.ArtifactUpdate != nil:
		id = e.ArtifactUpdate.TaskID
		e.ArtifactUpdate.Append = t.take(*e.ArtifactUpdate)
	case e.Message != nil:
		t.message = e.Message
	}
	if id != "" && t.local == "" {
		t.local = id
		if err := r.state.name(t.id, t.task, id, time.Now()); err != nil {
			return fmt.Errorf("the state cannot be saved: %w", err)
		}
	}
	if t.each == nil {
		return nil
	}
	return t.each(e)
}

// take adds a chunk to the artifacts. It returns false if the chunk begins a new artifact.
func (t *turn) take(u a2a.ArtifactUpdate) (more bool) {
	for i, a := range t.artifacts {
		if a.ArtifactID == u.Artifact.ArtifactID {
			if u.Append {
				t.artifacts[i] = a.Append(u.Artifact)
			} else {
				t.artifacts[i] = u.Artifact
			}
			return u.Append
		}
	}
	t.artifacts = append(t.artifacts, u.Artifact)
	return false
}

// agentError returns the error for the client. What a server says in a refusal is for its caller.
func agentError(err error) error {
	refused, ok := errors.AsType[*a2a.Error](err)
	switch {
	case ok && refused.HTTP == 0 && refused.Status() < 500:
		return &client.AgentError{Code: envelope.AgentInvalidRequest, Message: exchange.Shorten(refused.Message)}
	case ok:
		return &client.AgentError{Code: trade.ExecutionFailed, Message: "the A2A server behind this agent has failed"}
	case a2aclient.Unanswered(err):
		return &client.AgentError{Code: envelope.AgentUnavailable, Message: "the A2A server behind this agent does not answer"}
	}
	return err
}
