package a2acmd

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

type bridge struct {
	worker
	remoteServer
	Intent string `required:"" placeholder:"INTENT" help:"The service that the agent announces, such as translation.en_zh."`
}

func (bridge) Help() string {
	return "Makes an agent whose work is done by an A2A server elsewhere. For each request with the intent it sends the text " +
		"in the params to the server, and returns what the server makes of it. The params are " +
		`{"text":"…"}, or {"message":{…}} with a message of A2A. The output is {"text":"…","artifacts":[…],"task":"…","context":"…"}. ` +
		"If the server asks for more, the status of the result is input-required; to continue, send a new request " +
		"with the same task and context in its params. Runs until it is interrupted. After a crash it continues " +
		"with the tasks that the " +
		"server has begun.\n\n" +
		"Example:\n  agora a2a bridge https://agent.example/ --key bob.key --intent translation.en_zh --bearer agent.a2a"
}

func (c bridge) Run(env cli.Environment) (err error) {
	server, err := c.open(env)
	if err != nil {
		return err
	}
	defer server.Close()
	a, err := c.start(env, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.state.Close()) }()
	card := server.Upstream.Card
	manifest := envelope.Manifest{ID: "cap_a2a", Name: card.Name, Description: card.Description,
		Intents: []envelope.Intent{{ID: c.Intent}}, Pricing: &envelope.Pricing{Model: "free"}}
	env.Say("working for %s as %s at %s, with %s", c.Intent, a.key.DID(), c.Relay, server.URL())
	b := &bridged{a}
	return a.serve(client.Handler{Quote: b.quote, Work: b.work}, client.ServeOptions{Intents: []string{c.Intent},
		Concurrency: c.Concurrency, Manifest: manifest, MaxAccepted: c.Concurrency, Finished: b.finished})
}

// bridged is the agent of agora a2a bridge.
type bridged struct{ *agent }

// bridgeParams are the params of a REQUEST.
type bridgeParams struct {
	Text    string          `json:"text"`
	Message json.RawMessage `json:"message"`
	Task    string          `json:"task"`
	Context string          `json:"context"`
}

// read returns the message for the server.
func (b *bridged) read(job client.Job) (m a2a.Message, err error) {
	refuse := func(message string) (a2a.Message, error) {
		return m, &client.AgentError{Code: envelope.AgentInvalidRequest, Message: message}
	}
	var p bridgeParams
	if json.Unmarshal(job.Request.Params, &p) != nil || (p.Text == "") == (len(p.Message) == 0) {
		return refuse(`the params must be an object with either a string "text" or a "message" of A2A`)
	}
	if p.Text != "" {
		m = a2a.Message{MessageID: job.Envelope.Thread, Role: a2a.User, Parts: []a2a.Part{a2a.TextPart(p.Text)}}
		return m.In(p.Context, p.Task, nil), nil
	}
	text, err := envelope.Canonicalize(p.Message)
	if err == nil {
		m, err = a2a.ParseMessage("message", text)
	}
	if err != nil {
		return refuse(err.Error())
	}
	return m.In(p.Context, p.Task, nil), nil
}

func (b *bridged) quote(_ context.Context, job client.Job) (envelope.Offer, error) {
	_, err := b.read(job)
	return envelope.Offer{Price: &envelope.Price{Currency: "USD"}}, err
}

// bridgeOutput is the output of a RESULT.
type bridgeOutput struct {
	Text      string         `json:"text"` // all texts of the artifacts and of the last message
	Artifacts []a2a.Artifact `json:"artifacts,omitempty"`
	Task      string         `json:"task,omitempty"`
	Context   string         `json:"context,omitempty"`
}

func (b *bridged) work(ctx context.Context, job client.Job) (envelope.Result, error) {
	message, err := b.read(job)
	if err != nil {
		return envelope.Result{}, err
	}
	// Threads of several clients may have the same id.
	t := &turn{id: string(job.Envelope.Sender.ID) + " " + job.Envelope.Thread, send: a2a.Send{Message: message}}
	contextID := ""
	t.each = func(e a2a.Stream) error {
		if e.Task != nil {
			contextID = e.Task.ContextID
		}
		return nil
	}
	started := time.Now()
	if err := b.runner.run(ctx, t); err != nil {
		b.env.Say("job %s: ended without a result: %v", job.Envelope.Thread, err)
		return envelope.Result{}, err
	}
	status := t.status.State.Result()
	last := t.status.Message
	if t.message != nil {
		status, last = a2a.Completed.Result(), t.message
	}
	out := bridgeOutput{Artifacts: t.artifacts, Task: t.local, Context: contextID}
	var texts []string
	for _, artifact := range t.artifacts {
		texts = append(texts, textOf(artifact.Parts))
	}
	if last != nil {
		texts = append(texts, textOf(last.Parts))
	}
	out.Text = strings.Join(texts, "\n")
	text := jsontext.Compact(out)
	if len(text) > a2a.MaxSealed {
		return envelope.Result{}, &client.AgentError{Code: trade.ExecutionFailed,
			Message: "the answer of the A2A server does not fit into a message"}
	}
	b.env.Say("job %s: %s after %v", job.Envelope.Thread, status, time.Since(started).Round(time.Millisecond))
	return envelope.Result{Status: status, Output: text}, nil
}

// finished forgets a job that has ended.
func (b *bridged) finished(job client.Job, _ envelope.Payload, _ error) {
	if err := b.runner.state.end(string(job.Envelope.Sender.ID)+" "+job.Envelope.Thread, ""); err != nil {
		b.env.Say("the state cannot be saved: %v", err)
	}
}
