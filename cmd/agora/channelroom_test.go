package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// A worked example: a channel at a relay, with a person at a terminal, an agent that no service can reach, and an agent
// that works with the tools of the channel.

// startEcho runs an agent that repeats what people say. It has an inbox at the relay, and no address of its own. The
// result is the connection string of its inbox.
func startEcho(t *testing.T, relayURL string, key didkey.Key) (connection string) {
	t.Helper()
	agent, err := client.New(relayURL, key, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, connection, err = agent.NewInbox(t.Context(), "echo")
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
				if d.Message.Sender == "tools" { // it says nothing to other agents
					output, err := client.ChannelOutput()
					return envelope.Result{Output: output}, err
				}
				output, err := json.Marshal("You said: " + d.Message.Content)
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

// toolAgent is an agent with an address of its own. It does not use the callback: it reads and writes with the channel's
// tools, as an agent with a language model does.
type toolAgent struct {
	t     *testing.T
	ctx   context.Context
	tasks sync.WaitGroup
}

// startToolAgent runs a toolAgent, and returns its connection string.
func startToolAgent(t *testing.T) (connection string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &toolAgent{t: t, ctx: ctx}
	server := httptest.NewServer(a)
	t.Cleanup(func() {
		server.Close()
		cancel()
		a.tasks.Wait()
	})
	return server.URL + "/inbox/sk_tools"
}

func (a *toolAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var delivery struct {
		Message struct{ Sender, Content string }
		MCP     client.MCPServer
	}
	if err := json.NewDecoder(r.Body).Decode(&delivery); err != nil || r.URL.Path != "/inbox/sk_tools" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if delivery.Message.Sender == "alice" { // it does not answer other agents
		a.tasks.Go(func() {
			if err := a.work(delivery.MCP); err != nil && a.ctx.Err() == nil {
				a.t.Error(err)
			}
		})
	}
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

// work reads the channel, and says how much there is to read.
func (a *toolAgent) work(server client.MCPServer) (err error) {
	ctx, cancel := context.WithTimeout(a.ctx, 20*time.Second)
	defer cancel()
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
	if code != exitOK {
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
	t.Setenv("AGORA_CHANNEL", made.URL)
	t.Setenv("AGORA_CHANNEL_KEY", owner)
	r.agora("", "member|alice|--save|"+alice)
	t.Setenv("ALICE", alice)
	return r
}

// TestChannelRoom runs the example: alice says something, and both agents answer.
func TestChannelRoom(t *testing.T) {
	r := openRoom(t)
	r.agora(startEcho(t, r.relay, newKey(t))+"\n", "connect|echo|-")
	r.agora(startToolAgent(t)+"\n", "connect|tools|-|--mcp|object")
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
	// Alice's message; from tools a status and a message; from echo two events and a message about the former, and two
	// events about the latter.
	text := r.agora("", expand(t, "read|--follow|--limit|8|--timeout|20s|"+alice))
	if strings.Contains(text, "error") {
		t.Errorf("there is an error in\n%s", text)
	}
	for _, want := range []string{"alice: Good morning!\n", "echo (agent) is processing\n", "echo (agent): You said: Good morning!\n", "echo (agent) is idle\n",
		"tools (agent) is counting\n", `tools (agent): The first of the messages is "Good morning!", by alice.` + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if _, stderr, code := runChannel(t, "", "say|hi"); code != exitFailed || !strings.Contains(stderr, "this needs a member's key") {
		t.Errorf("the owner says something: %d, %s", code, stderr)
	}
	r.agora("", "remove|tools")
	if _, stderr, code := runChannel(t, "", "say|hi|--channel|"+r.relay+"/channel/channels/ch_x"); code != exitFailed || stderr == "" {
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
	old := startEcho(t, r.relay, key)
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
	if code != exitOK || !strings.Contains(stdout, " 0 failed, 0 warnings, 1 not tested, ") {
		t.Errorf("the probe ends with %d\n%s%s", code, stdout, stderr)
	}
}
