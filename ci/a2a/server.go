package main

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/http"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// serve serves the sample agent until the process is killed.
func serve() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	base := "http://" + l.Addr().String()
	modes := []string{"text/plain"}
	card := &a2a.AgentCard{
		Name: "Sample in Go", Description: "Does what the first word says. „Ja?“", Version: "1.0.0",
		SupportedInterfaces: []*a2a.AgentInterface{a2a.NewAgentInterface(base+"/rpc", a2a.TransportProtocolJSONRPC),
			a2a.NewAgentInterface(base, a2a.TransportProtocolHTTPJSON)},
		DefaultInputModes: modes, DefaultOutputModes: modes, Capabilities: a2a.AgentCapabilities{Streaming: true},
		Skills: []a2a.AgentSkill{{ID: "sample", Name: "Sample", Description: "Does what the first word says.", Tags: modes}},
	}
	handler := a2asrv.NewHandler(sample{})
	mux := http.NewServeMux()
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(handler))
	mux.Handle("/", a2asrv.NewRESTHandler(handler))
	fmt.Println(base)
	return http.Serve(l, mux)
}

// sample is the agent.
type sample struct{}

func (sample) Execute(ctx context.Context, e *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		words := strings.Fields(e.Message.Parts[0].Text())
		if e.StoredTask != nil { // the answer to ask
			words = append([]string{"echo"}, words...)
		} else if !yield(a2a.NewSubmittedTask(e, e.Message), nil) {
			return
		}
		send := func(event a2a.Event) bool { return yield(event, nil) }
		status := func(state a2a.TaskState, message *a2a.Message) bool {
			return send(a2a.NewStatusUpdateEvent(e, state, message))
		}
		if !status(a2a.TaskStateWorking, nil) {
			return
		}
		switch words[0] {
		case "hold":
			<-ctx.Done()
			return
		case "ask":
			status(a2a.TaskStateInputRequired, a2a.NewMessageForTask(a2a.MessageRoleAgent, e, a2a.NewTextPart("what?")))
			return
		case "chunks":
			first := a2a.NewArtifactEvent(e, a2a.NewTextPart(words[1]))
			if !send(first) {
				return
			}
			for _, word := range words[2:] {
				if !send(a2a.NewArtifactUpdateEvent(e, first.Artifact.ID, a2a.NewTextPart(word))) {
					return
				}
			}
		default:
			if !send(a2a.NewArtifactEvent(e, a2a.NewTextPart(strings.Join(words[1:], " ")))) {
				return
			}
		}
		status(a2a.TaskStateCompleted, nil)
	}
}

func (sample) Cancel(_ context.Context, e *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(e, a2a.TaskStateCanceled, nil), nil)
	}
}
