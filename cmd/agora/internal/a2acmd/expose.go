package a2acmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/jsontext"
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

// start connects the agent, and locks its state, which is that of agora work for the same key.
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
func (a *agent) serve(o client.ServeOptions, h client.Handler) error {
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
		"or 0.3 with JSON-RPC. Nothing but the origin that you name is called.\n\n" +
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
	at, err := openOwner(env, a.relay, a.key)
	if err != nil {
		return err
	}
	s := settings{Access: accessOf(c.Public), Mode: a2a.ModeMessage, Listed: c.Listed}
	card := at.endpoint.Rewrite(server.Upstream, s.Access)
	card.Capabilities.Extensions = append(slices.DeleteFunc(slices.Clone(card.Capabilities.Extensions),
		func(e a2a.Extension) bool { return e.URI == a2a.ProofURI }), a2a.ProofExtension(a.key.DID()))
	if s.Card, err = at.endpoint.Sign(card, s.Access, a.key); err != nil {
		return err
	}
	if err := at.put(env, s); err != nil {
		return err
	}
	if err := c.announce(env, at, s); err != nil {
		return err
	}
	x := &exposed{agent: a, owner: at}
	return a.serve(client.ServeOptions{Intents: []string{a2a.MessageIntent}, Concurrency: c.Concurrency, Finished: x.finished},
		client.Handler{Quote: x.quote, Work: x.work})
}

// firstKey is the name of the key that expose makes.
const firstKey = "expose"

// announce makes the first key, and prints what a caller needs.
func (c expose) announce(env cli.Environment, at owner, s settings) error {
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
type exposed struct {
	*agent
	owner owner
}

// quote accepts only what comes from the relay's gateway and can be read.
func (x *exposed) quote(ctx context.Context, job client.Job) (envelope.Offer, error) {
	if _, err := x.relay.A2ATurn(ctx, job.Envelope); err != nil {
		return envelope.Offer{}, err
	}
	return envelope.Offer{Price: &envelope.Price{Currency: "USD"}}, nil
}

// work passes a turn to the server.
func (x *exposed) work(ctx context.Context, job client.Job) (envelope.Result, error) {
	t, err := x.relay.A2ATurn(ctx, job.Envelope)
	if err != nil {
		return envelope.Result{}, err
	}
	earlier, err := x.relay.A2AEarlier(ctx, t)
	if err != nil {
		return envelope.Result{}, err
	}
	run := &turn{id: job.Envelope.Thread, task: t.Task}
	local := ""
	if t.Turn > 1 {
		if local = x.runner.state.local(t.Task); local == "" {
			return envelope.Result{}, &client.AgentError{Code: trade.ExecutionFailed,
				Message: "the agent does not know this task any more; begin a new one"}
		}
	}
	run.send = a2a.Send{Message: t.Message.In(t.Context, local, nil), Metadata: t.Metadata,
		Configuration: a2a.Configuration{AcceptedOutputModes: t.AcceptedOutputModes}}
	progress := newSender(ctx, x.relay, t.WorkPath()+"/events")
	run.each = func(e a2a.Stream) error { return progress.add(e, run.artifacts) }
	started := time.Now()
	err = x.runner.run(ctx, run)
	if sent := progress.finish(); err == nil {
		err = sent
	}
	if err != nil {
		x.env.Say("turn %s: ended without a result: %v", run.id, err)
		return envelope.Result{}, err
	}
	result, err := x.resultOf(t, run, earlier)
	x.env.Say("turn %s: %s after %v", run.id, result.Status, time.Since(started).Round(time.Millisecond))
	return result, err
}

// maxResult is how many bytes of JSON a RESULT has at most. With the sealing it fits into a message.
const maxResult = 80 << 10

// resultOf returns the RESULT of a turn. The artifacts were sent before, those of earlier turns too.
func (x *exposed) resultOf(asked a2a.Turn, t *turn, earlier []a2a.Artifact) (envelope.Result, error) {
	output, state := a2a.Output{Message: t.status.Message}, t.status.State
	if t.message != nil {
		output, state = a2a.Output{Message: t.message, Direct: true}, a2a.Completed
	}
	status := statusOf(state)
	if state == a2a.Completed || state == a2a.Rejected || state.Interrupted() { // of a failure, the relay writes the message
		proof, err := a2a.Proven{Task: asked.Task, Turn: asked.Turn, State: state, Request: asked.Message,
			Artifacts: a2a.Merge(earlier, t.artifacts), Message: output.Message}.Sign(x.key)
		if err != nil {
			return envelope.Result{}, err
		}
		output.Proof = &proof
	}
	text := jsontext.Compact(map[string]any{"a2a": output})
	if len(text) > maxResult {
		return envelope.Result{}, &client.AgentError{Code: trade.ExecutionFailed,
			Message: fmt.Sprintf("the message of the A2A server has more than %d bytes; it should send an artifact", maxResult)}
	}
	return envelope.Result{Status: status, Output: text}, nil
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
