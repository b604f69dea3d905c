package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// A worked example: a channel at a relay, with a person at a terminal and two agents that no service can reach. One repeats
// what it hears. The other works with the tools of the channel, as an agent with a language model does.

// worker is what an agent does with a delivery. It returns the output of its RESULT.
type worker func(ctx context.Context, d client.ChannelDelivery) (output json.RawMessage, err error)

// startAgent runs an agent with an inbox at the relay, and without its own address. The result is the connection
// string of its inbox.
func startAgent(t *testing.T, relayURL string, key didkey.Key, work worker) (connection string) {
	t.Helper()
	agent, err := client.New(relayURL, key, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, connection, err = agent.NewInbox(t.Context(), "example")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- agent.Serve(ctx, client.ServeOptions{Intents: []string{client.ChannelIntent}}, client.Handler{
			Work: func(ctx context.Context, job client.Job) (envelope.Result, error) {
				d, err := agent.ChannelDelivery(ctx, job.Envelope)
				if err != nil {
					return envelope.Result{}, err
				}
				output, err := work(ctx, d)
				return envelope.Result{Output: output}, err
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return connection
}

// echo repeats what people say. It says nothing to the other agent.
func echo(_ context.Context, d client.ChannelDelivery) (json.RawMessage, error) {
	if d.Message.Sender == "tools" {
		return client.ChannelOutput()
	}
	return json.Marshal("You said: " + d.Message.Content)
}

// useTools reads the channel with its tools, and says how the messages begin. It does not answer the other agent.
func useTools(ctx context.Context, d client.ChannelDelivery) (json.RawMessage, error) {
	if d.Message.Sender == "echo" {
		return client.ChannelOutput()
	}
	if err := callTools(ctx, d.MCP[0]); err != nil {
		return nil, err
	}
	return client.ChannelOutput() // it has said everything with a tool
}

// bearer adds the headers of a delivery to the requests of the SDK's client.
type bearer map[string]string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range b {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// callTools calls three of the channel's tools.
func callTools(ctx context.Context, server client.MCPServer) (err error) {
	session, err := mcp.NewClient(&mcp.Implementation{Name: "example", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: server.URL, HTTPClient: &http.Client{Transport: bearer(server.Headers)}, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	call := func(tool string, args map[string]any, out any) error {
		result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			return err
		}
		text, err := json.Marshal(result.StructuredContent)
		if result.IsError || err != nil {
			return fmt.Errorf("%s: %s, %w", tool, text, err)
		}
		return json.Unmarshal(text, out)
	}
	var read struct {
		Messages []struct{ Sender, Content string }
	}
	if err := call("get_messages", map[string]any{"limit": 10}, &read); err != nil {
		return err
	}
	if err := call("set_status", map[string]any{"status": "counting"}, new(struct{})); err != nil {
		return err
	}
	first := read.Messages[0]
	said := fmt.Sprintf("The first of the messages is %q, by %s.", first.Content, first.Sender)
	return call("send_message", map[string]any{"content": said}, new(struct{}))
}

// room is a channel with a member, alice.
type room struct {
	t     *testing.T
	relay string
}

// agora runs a command that must succeed, and returns its output. Its words are separated by |.
func (r room) agora(stdin, args string) string {
	r.t.Helper()
	stdout, stderr, code := runChannel(r.t, stdin, args)
	if code != cli.ExitOK {
		r.t.Fatalf("agora channel %s ended with %d: %s", args, code, stderr)
	}
	return stdout
}

// openRoom starts a relay and creates a channel there, with the commands of a person at a terminal.
func openRoom(t *testing.T) room {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "data")
	s := startServe(t, "--data", folder, "--channel", "--outbound-allow", "127.0.0.1")
	t.Cleanup(s.stop)
	r := room{t, s.relay}
	owner, alice := folder+"/ops.key", folder+"/alice.key"
	var made struct{ URL string }
	if err := json.Unmarshal([]byte(r.agora("", "new|ops|--url|"+s.relay+"/channel|--operator-key|"+folder+"/operator.key|--save|"+owner)), &made); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AGORA_CHANNEL_URL", made.URL)
	t.Setenv("AGORA_CHANNEL_KEY", owner)
	r.agora("", "member|alice|--save|"+alice)
	t.Setenv("ALICE", alice)
	return r
}

// TestChannelRoom runs the example: alice says something, and both agents answer.
func TestChannelRoom(t *testing.T) {
	r := openRoom(t)
	r.agora(startAgent(t, r.relay, newKey(t), echo)+"\n", "connect|echo|-")
	r.agora(startAgent(t, r.relay, newKey(t), useTools)+"\n", "connect|tools|-|--mcp|object")
	roster := r.agora("", "roster")
	for _, line := range []string{"alice                 member\n", "echo                  agent   active, at 127.0.0.1:", "tools                 agent   active, at 127.0.0.1:"} {
		if !strings.Contains(roster, line) {
			t.Errorf("the roster is\n%s", roster)
		}
	}
	alice := "--channel-key|$ALICE"
	said := r.agora("", expand(t, "say|Good morning!|"+alice))
	if !strings.Contains(said, `"seq":1,`) || !strings.Contains(said, `"deliveries":2}`) {
		t.Errorf("say prints %s", said)
	}
	// Alice's message; from each agent its answer and what the relay reports of its work; and such reports of the work on
	// the other agent's message.
	text := r.agora("", expand(t, "read|--follow|--limit|12|--timeout|20s|"+alice))
	if strings.Contains(text, "error") {
		t.Errorf("there is an error in\n%s", text)
	}
	for _, want := range []string{"alice: Good morning!\n", "echo (agent) is processing\n", "echo (agent): You said: Good morning!\n", "echo (agent) is idle\n",
		"tools (agent) is counting\n", `tools (agent): The first of the messages is "Good morning!", by alice.` + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if _, stderr, code := runChannel(t, "", "say|hi"); code != cli.ExitFailed || !strings.Contains(stderr, "this needs a member's key") {
		t.Errorf("the owner says something: %d, %s", code, stderr)
	}
	r.agora("", "remove|tools")
	if _, stderr, code := runChannel(t, "", "say|hi|--channel|"+r.relay+"/channel/channels/ch_x"); code != cli.ExitFailed || stderr == "" {
		t.Errorf("an unknown channel: %d, %s", code, stderr)
	}
}

// expand replaces $ALICE by the name of alice's key file.
func expand(t *testing.T, args string) string {
	t.Helper()
	return strings.ReplaceAll(args, "$ALICE", os.Getenv("ALICE"))
}

// TestProbeOfAnInbox probes the echo agent through its inbox at the relay. All checks pass, except that of the tools,
// which it does not use.
func TestProbeOfAnInbox(t *testing.T) {
	r, key := openRoom(t), newKey(t)
	old := startAgent(t, r.relay, key, echo)
	owner, err := client.New(r.relay, key, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	inboxes, err := owner.Inboxes(t.Context())
	if err != nil || len(inboxes) != 1 {
		t.Fatalf("%+v, %v", inboxes, err)
	}
	connection, err := owner.RotateInbox(t.Context(), inboxes[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := runChannel(t, connection, "probe|-|--wait|10s|--quiet|300ms|--old-url|"+old)
	if code != cli.ExitOK || !strings.Contains(stdout, " 0 failed, 0 warnings, 1 not tested, ") {
		t.Errorf("the probe ends with %d\n%s%s", code, stdout, stderr)
	}
}
