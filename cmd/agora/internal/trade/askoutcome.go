package trade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Outcome is a way in which agora ask ends.
type Outcome struct {
	Code int
	Name string // in the output of --json
	help string
}

// The outcomes of agora ask, in the order of the help. Scripts rely on the codes and the names.
var (
	OutcomeResult = Outcome{cli.ExitOK, "result", "the result is on standard output"}
	OutcomeError  = Outcome{cli.ExitFailed, "error", "something on this machine failed, such as reading a file"}
	OutcomeUsage  = Outcome{cli.ExitUsage, "usage", "the command line is wrong, or does not fit the request " +
		"of --thread"}
	OutcomeNoOffer     = Outcome{3, "no_offer", "there was no offer in time"}
	OutcomeNoneGood    = Outcome{4, "no_acceptable_offer", "no offer was acceptable, for example all were too expensive"}
	OutcomeRefused     = Outcome{5, "refused", "the relay refused a message, or has no such thread of yours"}
	OutcomeFailed      = Outcome{6, "failed", "the agent reported an error, or its answer is unusable"}
	outcomeCancelled   = Outcome{7, "cancelled", "you have cancelled the request"}
	OutcomeTimedOut    = Outcome{8, "timed_out", "no result in time: the agent is late, or --timeout is over"}
	OutcomeUnreachable = Outcome{9, "unreachable", "the relay does not answer"}
	OutcomeInterrupted = Outcome{130, "interrupted", "interrupted, for example by Ctrl-C"}
)

var outcomes = []Outcome{OutcomeResult, OutcomeError, OutcomeUsage, OutcomeNoOffer, OutcomeNoneGood, OutcomeRefused,
	OutcomeFailed, outcomeCancelled, OutcomeTimedOut, OutcomeUnreachable, OutcomeInterrupted}

// askError is the error of a run that ends without a result, with the way in which it ends.
type askError struct {
	how Outcome
	error
}

func (e askError) Unwrap() error { return e.error }

// outcomeOf returns the outcome of a run that has ended with err.
func outcomeOf(err error) Outcome {
	if err == nil {
		return OutcomeResult
	}
	if e, ok := errors.AsType[askError](err); ok {
		return e.how
	}
	return OutcomeError
}

// fromRelay adds the outcome to an error of a message to the relay, or of a read.
func (a *asking) fromRelay(err error) error {
	if err == nil {
		return nil
	}
	switch code := envelope.CodeOf(err); { // CodeInternal: also if it is no answer of the relay
	case errors.Is(err, client.ErrUnknownOutcome), code == envelope.CodeUnavailable, code == envelope.CodeInternal:
		return askError{OutcomeUnreachable, err}
	}
	return askError{OutcomeRefused, err}
}

// fromThread adds the outcome to an error of Offers or Result.
func (a *asking) fromThread(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed, isFailure := errors.AsType[*client.AgentError](err)
	switch {
	case errors.Is(err, client.ErrCancelled):
		return askError{outcomeCancelled, errors.New("you have cancelled the request")}
	case isFailure && a.endedByClock(ctx, failed):
		return a.timedOut()
	case isFailure && failed.Code == envelope.AgentInsufficientBudget:
		return askError{OutcomeNoneGood, fmt.Errorf("%s wants more than you would pay: %w", failed.From, err)}
	case isFailure:
		return askError{OutcomeFailed, fmt.Errorf("%s has reported an error: %w", failed.From, err)}
	case envelope.CodeOf(err) != envelope.CodeInternal:
		return a.fromRelay(err)
	}
	return askError{OutcomeFailed, err}
}

// endedByClock reports whether an error says that the relay has ended the thread at its deadline. An agent may report
// an error with the code TIMEOUT, too.
func (a *asking) endedByClock(ctx context.Context, failed *client.AgentError) bool {
	if failed.Code != envelope.AgentTimeout {
		return false
	}
	record, err := a.look(ctx)
	return err == nil && record.TimedOut()
}

// timedOut returns the error for a thread that the relay has ended at its deadline.
func (a *asking) timedOut() error {
	switch state, err := a.call.State(context.WithoutCancel(a.env.Ctx)); {
	case err == nil && state.Agent != "":
		return askError{OutcomeTimedOut, fmt.Errorf("%s has delivered nothing before the deadline of the relay",
			state.Agent)}
	case len(a.offers) > 0:
		return askError{OutcomeNoneGood, errors.New("no offer was accepted before the deadline of the relay; ask again")}
	}
	return askError{OutcomeNoOffer, errors.New("there was no offer before the deadline of the relay" + a.hint())}
}

// describe says in which state the thread is. open is false if the request has ended.
func (a *asking) describe(ctx context.Context) (text string, open bool) {
	record, err := a.market.Thread(ctx, a.threadID(), a.me)
	until := func(t time.Time) string { return cli.ShownDeadline(t, time.Now()) }
	switch {
	case envelope.CodeOf(err) == envelope.CodeThreadNotFound:
		return "the relay does not have the request; to ask, run the same command again with --thread " +
			a.thread, false
	case err != nil:
		return "the relay does not answer, so it is not known how far the request is", true
	case record.State == thread.Pending:
		return fmt.Sprintf("the request is open until %s; offers so far: %d", until(record.Deadline),
			len(record.Offers)), true
	case record.State == thread.Active:
		return fmt.Sprintf("%s has the job, and must deliver before %s", cmp.Or(record.Agent, "an agent"),
			until(record.Deadline)), true
	case record.State == thread.Completed:
		return "the result is there", true
	}
	return "the request has ended without a result", false
}

// DescribePatience is how long describe waits for the relay. A person waits for its answer after Ctrl-C.
const DescribePatience = 3 * time.Second

// adviseAfter says which state the thread has, and how to continue, unless the request has ended.
func (a *asking) adviseAfter(how Outcome, err error) {
	switch how {
	case OutcomeNoOffer, OutcomeNoneGood, OutcomeTimedOut, OutcomeUnreachable, OutcomeInterrupted, OutcomeFailed:
	default:
		return
	}
	if !a.began {
		if how == OutcomeInterrupted {
			a.env.Say("this run has asked nothing")
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.env.Ctx), DescribePatience)
	defer cancel()
	state, open := a.describe(ctx)
	if open || how != OutcomeFailed { // if the agent has failed, the state is clear
		a.env.Say("%s", state)
	}
	if !open {
		return
	}
	a.adviseNext(err)
}

// adviseNext prints the commands that may follow while the request is open. Going on helps little if nobody is likely to
// offer, so taking it back comes first then.
func (a *asking) adviseNext(err error) {
	takeBack := func() {
		a.env.Say("to take it back:")
		a.command(strings.Join(append([]string{"agora send cancel --thread", a.threadID()}, a.connectionFlags()...), " "))
	}
	if len(a.offers) == 0 && a.doubt() != "" {
		takeBack()
		if a.outlook.TooDear() {
			a.env.Say("then ask again with --max-cost %s: the agents see the limit in the request, so it cannot be raised",
				formatAmount(*a.outlook.Price))
		}
		a.env.Say("to keep waiting:")
		a.command(a.resumeCommand())
		return
	}
	var more []string
	if e, ok := errors.AsType[*tooExpensive](err); ok {
		a.env.Say("to accept the offer for %s USD:", formatAmount(e.price))
		more = []string{"--max-cost", formatAmount(e.price)}
	} else {
		a.env.Say("to continue:")
	}
	a.command(a.resumeCommand(more...))
	takeBack()
}
