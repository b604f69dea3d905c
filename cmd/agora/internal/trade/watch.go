package trade

import (
	"context"
	"fmt"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// stepRow is a step of a thread, for --format and for --watch --json.
type stepRow struct {
	Time    time.Time      `json:"at"` // by the relay's clock
	Type    string         `json:"type"`
	State   thread.State   `json:"state"` // after the step
	ID      string         `json:"id,omitempty"`
	Thread  string         `json:"thread"`
	By      didkey.DID     `json:"by,omitempty"` // empty: the relay
	ByName  string         `json:"-"`            // "me", or the name in the address book
	Intent  string         `json:"intent,omitempty"`
	Price   string         `json:"price,omitempty"`
	Summary string         `json:"-"`
	Payload map[string]any `json:"payload,omitempty"` // empty: the message has expired, was removed, or is sealed
}

// newStepRow returns the step i of a thread.
func newStepRow(p cli.People, t *client.Thread, i int) stepRow {
	step := t.Transitions[i]
	row := stepRow{Time: step.At, Type: string(step.Type), State: step.To, ID: step.ID, Thread: t.ID, By: step.By,
		ByName: p.Name(step.By), Payload: map[string]any{}}
	if e := messageOf(t, step); e != nil {
		message := newMessageRow(p, e)
		row.Intent, row.Price, row.Summary, row.Payload = message.Intent, message.Price, message.Summary, message.Payload
	}
	return row
}

// messageOf returns the message of a step; nil: the relay does not show it.
func messageOf(t *client.Thread, step thread.Transition) *envelope.Envelope {
	for _, e := range t.Events {
		if step.ID != "" && e.ID == step.ID && e.Sender.ID == step.By {
			return e
		}
	}
	return nil
}

// watchInterval is how often --watch reads the thread if no message arrives. The end of a thread at its deadline, or by
// the operator, may come without a message.
const watchInterval = 10 * time.Second

// Watch shows the steps of the thread as they happen, until it ends.
func (c ThreadCmd) watch(env cli.Environment, relay *client.Client, me didkey.DID) error {
	t, err := relay.Thread(env.Ctx, string(c.ID), didkey.DID(c.Client))
	if err != nil {
		return c.explain(env, relay, err)
	}
	ctx, cancel := context.WithCancel(env.Ctx)
	arrived, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() { // ends with ctx, and watch waits for it
		ended <- relay.Follow(ctx, client.FollowOptions{Filter: client.Filter{Thread: t.ID}, FromOldest: true},
			func(context.Context, *envelope.Envelope) error {
				select {
				case arrived <- struct{}{}:
				default:
				}
				return nil
			})
	}()
	defer func() {
		cancel()
		<-ended
	}()
	print := c.stepPrinter(env, env.People(me))
	for shown := 0; ; {
		for ; shown < len(t.Transitions); shown++ {
			if err := print(t, shown); err != nil {
				return err
			}
		}
		if t.State == thread.Completed || t.State == thread.Failed {
			return c.finish(env, t)
		}
		select {
		case <-arrived:
		case <-time.After(untilNextLook(t, time.Now())):
		case err := <-ended:
			ended <- err
			if env.Ctx.Err() != nil {
				return fmt.Errorf("interrupted; the thread is %s", cli.Printable(t.State))
			}
			return err
		}
		next, err := relay.Thread(ctx, t.ID, t.Client)
		switch {
		case err == nil:
			t = next
		case envelope.CodeOf(err) == envelope.CodeThreadNotFound:
			return err
		}
		// Follow reports all other failures, and they end by themselves.
	}
}

// untilNextLook returns how long to wait for a message before the thread is read again.
func untilNextLook(t *client.Thread, now time.Time) time.Duration {
	if left := t.Deadline.Sub(now); !t.Deadline.IsZero() && left > 0 && left < watchInterval {
		return left + 100*time.Millisecond // the relay ends the thread a little later
	}
	return watchInterval
}

// stepPrinter returns a function that prints a step in the form that the flags choose.
func (c ThreadCmd) stepPrinter(env cli.Environment, p cli.People) func(t *client.Thread, step int) error {
	if c.Format != nil || c.JSON || !c.Text && !env.StdoutIsTerminal {
		return func(t *client.Thread, step int) error { return env.PrintRow(c.Format, newStepRow(p, t, step)) }
	}
	l := NewLiner(env, p, len("everybody"), false)
	return func(t *client.Thread, i int) error {
		step := t.Transitions[i]
		one := line{at: step.At, kind: string(step.Type), from: step.By, summary: "→ " + string(step.To)}
		if step.By == "" {
			one.fromName, one.toName, one.summary = "relay", "all", stepBy(p, step)
		}
		if e := messageOf(t, step); e != nil {
			one.to, one.summary = e.Recipient, summary(e)
		}
		return l.Print(one)
	}
}

// finish prints the state of a thread that has ended, for people. It returns cli.ErrReported if the state is ERROR.
func (c ThreadCmd) finish(env cli.Environment, t *client.Thread) error {
	if c.Format == nil && (c.Text || !c.JSON && env.StdoutIsTerminal) {
		if err := env.PrintStyled([]byte(env.Styled(string(t.State)) + "\n")); err != nil {
			return err
		}
	}
	if t.State == thread.Failed {
		return cli.ErrReported
	}
	return nil
}
