// Command tck is the agent that the TCK of the A2A project tests (github.com/a2aproject/a2a-tck, branch 1.0-dev). It is
// an ordinary agent of Agora: it takes its work from a relay with agora serve --a2a. Everybody may call it.
//
//	go run ./ci/tck RELAY
//
// It prints the URL for --sut-host. docs/A2A.md says how the TCK is run. What the agent does is what the TCK's
// scenarios say for the beginning of the messageId.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := errors.New("usage: tck RELAY")
	if len(os.Args) == 2 {
		err = run(ctx, os.Args[1])
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "tck:", err)
		os.Exit(1)
	}
}

// agent is the agent at a relay.
type agent struct {
	relay   *client.Client
	gateway string // the URL of the relay's A2A gateway
}

// run publishes the agent with a new key, and serves it until ctx ends.
func run(ctx context.Context, relay string) error {
	key, err := didkey.Generate()
	if err != nil {
		return err
	}
	a := agent{}
	if a.relay, err = client.New(relay, key, client.Options{}); err != nil {
		return err
	}
	if a.gateway, err = a.relay.A2AGateway(ctx); err != nil {
		return err
	}
	endpoint := a2a.NewEndpoint(a.gateway, key.DID())
	card := endpoint.FromManifest(envelope.Manifest{Name: "TCK", Version: "1.0.0",
		Description: "The agent that the TCK tests.",
		Intents:     []envelope.Intent{{ID: a2a.MessageIntent, Name: "What the TCK's scenarios say"}}}, a2a.Public)
	card.DefaultInputModes = []string{"*/*"} // CORE-SEND-003 sends a type that it has made up, and expects success
	signed, err := endpoint.Sign(card, a2a.Public, key)
	if err != nil {
		return err
	}
	settings := jsontext.Compact(map[string]any{"card": json.RawMessage(signed), "access": a2a.Public,
		"mode": a2a.ModeMessage, "listed": false})
	if err := a.relay.CallA2A(ctx, client.GatewayCall{Method: http.MethodPut,
		Path: "/" + key.DID().Multibase() + "/endpoint",
		Body: settings, Repeatable: true}); err != nil {
		return err
	}
	fmt.Println(endpoint.Base())
	return a.relay.Serve(ctx, client.ServeOptions{Intents: []string{a2a.MessageIntent}, Concurrency: 50},
		client.Handler{Work: a.work})
}

// work does what the scenario of a message says.
func (a agent) work(ctx context.Context, job client.Job) (envelope.Result, error) {
	params, err := envelope.Canonicalize(job.Request.Params)
	if err != nil {
		return envelope.Result{}, err
	}
	turn, err := a2a.ParseTurn(params)
	if err != nil {
		return envelope.Result{}, err
	}
	s := scenarioOf(turn.Message.MessageID)
	path := strings.TrimPrefix(turn.Work, a.gateway) + "/events"
	for _, progress := range s.progress {
		if err := a.relay.CallA2A(ctx, client.GatewayCall{Method: http.MethodPost, Path: path,
			Body: jsontext.Compact(map[string]any{"events": []a2a.Progress{progress}})}); err != nil {
			return envelope.Result{}, err
		}
	}
	if s.wait > 0 {
		if err := wait(ctx, s.wait); err != nil {
			return envelope.Result{}, err
		}
	}
	return envelope.Result{Status: s.status, Output: jsontext.Compact(map[string]any{"a2a": s.output})}, nil
}
