package trade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/internal/program"
	"github.com/agora-relay/agora/thread"
)

// workAgent is the agent of agora work. It runs a program for each job.
type workAgent struct {
	cmd        WorkCmd
	env        cli.Environment
	argv       []string
	environ    []string                // what all programs get
	stop       context.CancelCauseFunc // ends the agent
	kill       chan struct{}           // closed when programs must end at once
	maxMessage int                     // the size of the largest message in bytes
	relay      cli.Relays

	mu      sync.Mutex // also for what is printed
	begun   int        // jobs, for --max-jobs
	ended   int        // jobs, for --max-jobs
	running map[thread.Key]time.Time
}

// errMaxJobs ends the agent when --max-jobs is reached.
var errMaxJobs = errors.New("--max-jobs is reached")

func newWorkAgent(
	c WorkCmd, env cli.Environment, argv []string, stop context.CancelCauseFunc,
) *workAgent {
	return &workAgent{cmd: c, env: env, argv: argv, environ: program.Environment(os.Environ()), stop: stop,
		kill: make(chan struct{}), running: map[thread.Key]time.Time{}}
}

// quote makes the offer for a job.
func (w *workAgent) quote(ctx context.Context, job client.Job) (envelope.Offer, error) {
	if _, err := w.input(ctx, job, newWorkJob(job)); err != nil {
		return envelope.Offer{}, err
	}
	offer := envelope.Offer{Plan: w.cmd.Plan, ETASeconds: w.cmd.ETA.Seconds(),
		Price: &envelope.Price{Amount: w.cmd.Price, Currency: w.cmd.Currency}}
	if w.cmd.bridged() {
		if o, err := w.relay.Origin(ctx, job.Envelope); err != nil {
			return envelope.Offer{}, err
		} else if o.Protocol != client.Direct {
			offer.Price = nil // gateways pay only the price of a skill, in credits
		}
	}
	return offer, nil
}

// ExecutionFailed is the code of the ERROR for a program that has failed. It is not retryable.
const ExecutionFailed envelope.AgentCode = "EXECUTION_FAILED"

// failed returns an error for the client.
func failed(code envelope.AgentCode, format string, args ...any) *client.AgentError {
	return &client.AgentError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// handler returns what answers REQUESTs.
func (w *workAgent) handler() client.Handler {
	h := client.Handler{Quote: w.quote, Work: w.work}
	if w.cmd.Output == outputLines {
		h = w.relay.HandleA2A(w.turn, h)
		h.Quote = w.quote
	}
	return h
}

// work runs the program for a job.
func (w *workAgent) work(ctx context.Context, job client.Job) (envelope.Result, error) {
	written, err := w.run(ctx, job, w.maxMessage, nil)
	if err != nil {
		return envelope.Result{}, err
	}
	return w.result(keyOf(job), job.Request.Intent, written, job.Envelope.Sealed())
}

// turn runs the program for a message of an A2A caller. Its lines are chunks of an artifact.
func (w *workAgent) turn(ctx context.Context, turn *client.A2AJob) (client.A2AEnd, error) {
	out := turn.Artifact(client.A2AArtifact{Name: "output"})
	_, err := w.run(ctx, turn.Job, a2a.MaxTask, func(line []byte) error {
		if !utf8.Valid(line) {
			return errNotUTF8
		}
		return out.Write(client.A2AText(string(line)))
	})
	return client.A2AEnd{}, err
}

// run runs the program for a job, and returns what it has written, at most maxOutput bytes. line gets the lines instead;
// nil: it does not.
func (w *workAgent) run(ctx context.Context, job client.Job, maxOutput int, line func([]byte) error) ([]byte, error) {
	key := keyOf(job)
	if !w.begin(key) {
		<-ctx.Done() // the agent ends soon, and the job waits for its next start
		return nil, context.Cause(ctx)
	}
	about := newWorkJob(job)
	input, err := w.input(ctx, job, about)
	if err != nil {
		return nil, err
	}
	again := ""
	if job.Attempt > 1 {
		again = fmt.Sprintf(", attempt %d", job.Attempt)
	}
	w.say(key.ID, "started for %s (%s%s)", w.asker(ctx, job), about.Intent, again)
	written, err := program.Run(ctx, program.Options{Argv: w.argv, Env: slices.Concat(w.environ, about.environment()),
		Input: input, MaxOutput: maxOutput, Timeout: w.cmd.Timeout, Grace: w.cmd.Grace, Kill: w.kill,
		Log: w.logger(key.ID), Line: line})
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return nil, context.Cause(ctx)
	}
	switch {
	case err == nil:
		return written.Output, nil
	case line != nil && errors.Is(err, program.ErrTooMuchOutput):
		return nil, tooLarge("a task", maxOutput)
	}
	return nil, w.failure(key, written, err)
}

func keyOf(job client.Job) thread.Key {
	return thread.Key{Client: job.Envelope.Sender.ID, ID: job.Envelope.Thread}
}

// begin records that a job begins. It returns false if --max-jobs allows no further job.
func (w *workAgent) begin(key thread.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd.MaxJobs > 0 && w.begun >= w.cmd.MaxJobs {
		return false
	}
	w.begun++
	w.running[key] = time.Now()
	return true
}

// failure returns the error that the client gets when the program has failed. The log gets more.
func (w *workAgent) failure(key thread.Key, written program.Result, err error) error {
	exit, exited := errors.AsType[*program.ExitError](err)
	start, notStarted := errors.AsType[*program.StartError](err)
	var answer *client.AgentError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return failed(envelope.AgentTimeout, "the thread has ended")
	case errors.Is(err, program.ErrTimeout):
		answer = failed(envelope.AgentTimeout, "the program did not end within %v", w.cmd.Timeout)
	case errors.Is(err, program.ErrTooMuchOutput):
		answer = tooLarge("a message", w.maxMessage)
	case errors.Is(err, errNotUTF8):
		answer = errNotUTF8
	case notStarted:
		w.say(key.ID, "the program cannot be started: %v%s", start, startAdvice(start))
		return failed(envelope.AgentUnavailable, "the agent's program cannot be started")
	case !exited:
		w.say(key.ID, "the program failed: %v", err)
		return failed(envelope.AgentInternal, "the agent failed; its operator can find the reason in its log")
	case exit.Signal != "":
		answer = failed(ExecutionFailed, "%v", exit)
	default:
		answer = failed(agentCode(exit.Code), "%v", exit)
		answer.Details = jsontext.Compact(map[string]int{"exit_code": exit.Code})
	}
	if w.cmd.ErrorDetail && len(written.LastLine) > 0 {
		line := []rune(cli.Printable(bytes.TrimSpace(written.LastLine)))
		if len(line) > maxDetail {
			line = append(line[:maxDetail], '…')
		}
		answer.Message += ": " + string(line)
	}
	return answer
}

// startAdvice says how to correct a program that cannot be started, if that is known.
func startAdvice(err error) string {
	if errors.Is(err, syscall.ENOEXEC) {
		return "; a script must begin with a line such as #!/bin/sh"
	}
	return ""
}

// maxDetail is how many characters of standard error a client gets.
const maxDetail = 300

// finished is called when a job has ended.
func (w *workAgent) finished(job client.Job, outcome envelope.Payload, err error) {
	key := keyOf(job)
	w.mu.Lock()
	began, ran := w.running[key]
	delete(w.running, key)
	w.mu.Unlock()
	if !ran {
		return // it waited for the next start of the agent, and has ended meanwhile
	}
	took := time.Since(began).Round(time.Millisecond)
	switch answer := outcome.(type) {
	case envelope.Failure:
		if err == nil {
			w.say(key.ID, "failed after %v: %s: %s", took, answer.Code, answer.Message)
		}
	case envelope.Result:
		if err == nil {
			w.say(key.ID, "delivered after %v", took)
		}
	}
	if err != nil {
		w.say(key.ID, "ended after %v without an answer: %v", took, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended++; w.cmd.MaxJobs > 0 && w.ended >= w.cmd.MaxJobs {
		w.stop(errMaxJobs)
	}
}

// say prints a line about a job.
func (w *workAgent) say(id, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.env.Say("job %s: %s", id, fmt.Sprintf(format, args...))
}

// logger returns what prints the standard error of a job's program.
func (w *workAgent) logger(id string) program.LogFunc {
	return func(line []byte, leftOut int) {
		if leftOut > 0 {
			w.say(id, "the program says too much; %d lines are not shown", leftOut)
			return
		}
		w.say(id, "| %s", line)
	}
}

// sayStopping says that the agent ends, and what it waits for.
func (w *workAgent) sayStopping() {
	w.mu.Lock()
	defer w.mu.Unlock()
	jobs := "1 running job, which begins"
	switch n := len(w.running); n {
	case 0:
		return
	case 1:
	default:
		jobs = fmt.Sprintf("%d running jobs, which begin", n)
	}
	w.env.Say("stopping; waiting up to %v for %s again at the next start. Interrupt again to end at once", w.cmd.Grace, jobs)
}
