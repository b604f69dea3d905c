package a2acmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
)

// worker are the flags of the commands that serve with an A2A server.
type worker struct {
	cli.Poster
	Concurrency int    `default:"8" placeholder:"N" help:"How many messages the server gets at the same time (default: ${default})."`
	State       string `placeholder:"FILE" help:"The file that says how far the agent has come; FILE.a2a has its tasks (default: one for each relay, in a folder beside the key file with .work after its name)."`
}

func (w worker) Validate() error {
	if w.Concurrency < 1 || w.Concurrency > 1000 {
		return errors.New("--concurrency must be from 1 to 1000")
	}
	return nil
}

// agent is an agent at a relay whose work an A2A server does.
type agent struct {
	env    cli.Environment
	relay  *client.Client
	key    didkey.Key
	state  *cli.LockedState
	runner *runner
}

// start connects the agent, and locks its state. agora work uses the same state for the same key.
func (w worker) start(env cli.Environment, server *a2aclient.Client) (*agent, error) {
	key, err := didkey.Load(w.Key)
	if err != nil {
		return nil, err
	}
	relay, err := w.ConnectPatiently(env, key)
	if err != nil {
		return nil, err
	}
	file := w.State
	if file == "" {
		if file, err = w.PlaceFile(".json"); err != nil {
			return nil, err
		}
	}
	state, err := cli.OpenState(file, key.DID())
	if err != nil {
		return nil, err
	}
	turns, err := openTurns(file+".a2a", server.URL())
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	return &agent{env, relay, key, state, &runner{env, server, turns}}, nil
}

// serve runs the agent until the command is interrupted.
func (a *agent) serve(h client.Handler, o client.ServeOptions) error {
	o.State, o.Attempts = a.state.State, math.MaxInt32 // the state of the runner says how to continue a turn
	err := a.relay.Serve(a.env.Ctx, o, h)
	if a.env.Ctx.Err() != nil && errors.Is(err, context.Cause(a.env.Ctx)) {
		return nil
	}
	return err
}

type expose struct {
	worker
	Server serverURL `arg:"" help:"The A2A server, such as http://127.0.0.1:8080."`
	Public bool      `help:"Everybody may call the endpoint. Without it, callers need a key, or sign with their own DID."`
	Listed bool      `help:"Show the endpoint in the relay's public list of A2A agents."`
	Bearer string    `placeholder:"FILE" help:"The file with the key for the server, which is sent as Authorization: Bearer."`
}

func (expose) Help() string {
	return "Gives an unmodified A2A server, for example one on a laptop behind NAT, a public endpoint at a relay with agora " +
		"serve --a2a. Its card is published with the endpoint's URL, signed with your key. Messages of callers come to " +
		"the server, and its answers go back; both wait at the relay while you are offline. The server may speak A2A 1.0, " +
		"or 0.3 with JSON-RPC. The command calls only the origin that you name.\n\n" +
		"At the first start a key for callers is made and printed, unless --public is given. Runs until it is interrupted. " +
		"After a crash it continues with the tasks that the server has begun, so that no message is lost or sent twice.\n\n" +
		"What callers send is untrusted. The relay can read it.\n\n" +
		"Examples:\n  agora a2a expose http://127.0.0.1:8080 --key bob.key --relay https://relay.example\n" +
		"  agora a2a expose http://127.0.0.1:8080 --key bob.key --public"
}

func (c expose) Run(env cli.Environment) (err error) {
	bearer, err := readBearer(c.Bearer)
	if err != nil {
		return err
	}
	server, err := a2aclient.Open(env.Ctx, c.Server.base, a2aclient.Options{Bearer: bearer, Here: true})
	if err != nil {
		return err
	}
	defer server.Close()
	a, err := c.start(env, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.state.Close()) }()
	at, settings, err := a.relay.PublishA2A(env.Ctx, client.A2AEndpoint{Public: c.Public, Listed: c.Listed, Proofs: true,
		Card: func(at a2a.Endpoint, access a2a.Access) a2a.Card { return at.Rewrite(server.Upstream, access) }})
	if err != nil {
		return err
	}
	if err := c.announce(env, owner{a.relay, at}, settings); err != nil {
		return err
	}
	x := &exposed{a}
	return a.serve(a.relay.HandleA2A(x.turn, client.Handler{}), client.ServeOptions{Intents: []string{a2a.MessageIntent},
		Concurrency: c.Concurrency, Finished: x.finished})
}

// firstKey is the name of the key that expose makes.
const firstKey = "expose"

// announce makes the first key, and prints what a caller needs.
func (c expose) announce(env cli.Environment, at owner, s client.A2ASettings) error {
	callers, key, header := "everybody", "", ""
	if s.Access == a2a.Keys {
		callers = "who has a key, and every DID with a signed call"
		var err error
		key, err = at.newKey(env, firstKey)
		switch {
		case envelope.CodeOf(err) == codeConflict:
			key = "made at an earlier start; agora a2a keys new NAME makes another"
			header = " -H 'Authorization: Bearer KEY'"
		case err != nil:
			return err
		default:
			header = fmt.Sprintf(" -H 'Authorization: Bearer %s'", key)
			key += " (shown only now)"
		}
	}
	lines := [][2]string{{"Base URL", at.endpoint.Base()}, {"Card", at.endpoint.CardURL()}, {"DID", string(at.endpoint.DID)},
		{"Callers", callers}}
	if key != "" {
		lines = append(lines, [2]string{"Key", key})
	}
	message := `{"message":{"messageId":"1","role":"ROLE_USER","parts":[{"text":"Hello"}]}}`
	lines = append(lines,
		[2]string{"Try", fmt.Sprintf("curl %s/message:send%s -H 'Content-Type: application/json' -d '%s'", at.endpoint.URL, header, message)},
		[2]string{"Stop", "Ctrl-C: callers wait, and get their answers after the next start"},
		[2]string{"Leave", fmt.Sprintf("agora a2a unpublish --key %s --relay %s", cli.ShellQuoted(c.Key), c.Relay)})
	for _, line := range lines {
		if _, err := fmt.Fprintf(env.Stdout, "%-9s %s\n", line[0]+":", line[1]); err != nil {
			return err
		}
	}
	return nil
}

// exposed is the agent of agora a2a expose.
type exposed struct{ *agent }

// turn passes a turn to the server.
func (x *exposed) turn(ctx context.Context, asked *client.A2AJob) (end client.A2AEnd, err error) {
	run := &turn{id: asked.Job.Envelope.Thread, task: asked.Task}
	local := ""
	if asked.Turn > 1 {
		if local = x.runner.state.local(asked.Task); local == "" {
			return end, &client.AgentError{Code: trade.ExecutionFailed,
				Message: "the agent does not know this task any more; begin a new one"}
		}
	}
	run.send = a2a.Send{Message: asked.Message.In(asked.Context, local, nil), Metadata: asked.Metadata,
		Configuration: a2a.Configuration{AcceptedOutputModes: asked.AcceptedOutputModes}}
	run.each = func(e a2a.Stream) error { return pass(asked, e) }
	started := time.Now()
	if err := x.runner.run(ctx, run); err != nil {
		x.env.Say("turn %s: ended without a result: %v", run.id, err)
		return end, err
	}
	end = client.A2AEnd{State: run.status.State, Message: run.status.Message}
	if run.message != nil {
		end = client.A2AEnd{Message: run.message, Direct: true}
	}
	x.env.Say("turn %s: %s after %v", run.id, cmp.Or(end.State, a2a.Completed).Result(), time.Since(started).Round(time.Millisecond))
	return end, nil
}

// pass sends an event of the server to the relay. Of its states, the relay knows all but the messages of the first one.
func pass(to *client.A2AJob, e a2a.Stream) (err error) {
	say := func(s a2a.Status) {
		if s.State == a2a.Working && s.Message != nil {
			err = to.Send(a2a.Progress{Status: &a2a.ProgressStatus{State: s.State, Message: s.Message}})
		}
	}
	switch {
	case e.Task != nil:
		say(e.Task.Status)
		for _, a := range e.Task.Artifacts {
			if err == nil {
				err = to.Send(a2a.Progress{Artifact: &a2a.ArtifactUpdate{Artifact: a}})
			}
		}
	case e.StatusUpdate != nil:
		say(e.StatusUpdate.Status)
	case e.ArtifactUpdate != nil:
		u := *e.ArtifactUpdate
		u.TaskID, u.ContextID, u.Metadata = "", "", nil
		err = to.Send(a2a.Progress{Artifact: &u})
	}
	return err
}

// finished forgets a turn that has ended, and its task if it gets no other turn.
func (x *exposed) finished(job client.Job, outcome envelope.Payload, err error) {
	task := ""
	result, ok := outcome.(envelope.Result)
	if t, bad := a2a.ParseTurn(job.Request.Params); bad == nil && (err != nil || !ok || !strings.HasSuffix(result.Status, "-required")) {
		task = t.Task
	}
	if err := x.runner.state.end(job.Envelope.Thread, task); err != nil {
		x.env.Say("the state cannot be saved: %v", err)
	}
}
