package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/agora-relay/agora/internal/a2a"
)

// scenario is what the agent does with a message.
type scenario struct {
	progress []a2a.Progress // is sent first
	wait     time.Duration
	status   string // of the RESULT; empty: success
	output   a2a.Output
}

// scenarios are the scenarios of the TCK, by the beginning of the messageId. If several fit, the longest one counts.
var scenarios = map[string]scenario{
	"tck-complete-task": {output: a2a.Output{Message: said("Hello from TCK")}},
	"tck-artifact-text": made(a2a.TextPart("Generated text content")),
	"tck-artifact-file": made(file),
	"tck-artifact-file-url": made(a2a.Part{URL: "https://example.com/output.txt", Filename: "output.txt",
		MediaType: "text/plain"}),
	"tck-artifact-data":    made(a2a.DataPart(json.RawMessage(`{"key":"value","count":42}`))),
	"tck-message-response": {output: a2a.Output{Message: said("Direct message response"), Direct: true}},
	"tck-input-required":   {status: "input-required", output: a2a.Output{Message: said("Say more.")}},
	"tck-reject-task":      {status: "rejected", output: a2a.Output{Message: said("rejected")}},

	"tck-stream-001":           streamed(false, a2a.TextPart("Stream hello from TCK")),
	"tck-stream-002":           {},
	"tck-stream-003":           streamed(false, a2a.TextPart("Stream task lifecycle")),
	"tck-stream-ordering-001":  streamed(false, a2a.TextPart("Ordered output")),
	"tck-stream-artifact-text": streamed(false, a2a.TextPart("Streamed text content")),
	"tck-stream-artifact-file": streamed(false, file),
	"tck-stream-artifact-chunked": streamed(true, a2a.TextPart("chunk-1 "),
		a2a.TextPart("chunk-2")),
	"test-resubscribe-message-id": {wait: 5 * time.Second},
}

// file is a part with the bytes of a file.
var file = a2a.Part{Raw: base64.StdEncoding.EncodeToString([]byte("file content")), Filename: "output.txt",
	MediaType: "text/plain"}

// said returns a message of the agent.
func said(text string) *a2a.Message {
	return &a2a.Message{MessageID: "tck", Role: a2a.Agent, Parts: []a2a.Part{a2a.TextPart(text)}}
}

// made is a scenario with an artifact in the RESULT.
func made(part a2a.Part) scenario {
	return scenario{output: a2a.Output{Artifacts: []a2a.Artifact{{ArtifactID: "tck", Parts: []a2a.Part{part}}}}}
}

// streamed is a scenario with an artifact whose parts are sent as progress. chunks says that each part is a chunk, and
// that the last one is named as such.
func streamed(chunks bool, parts ...a2a.Part) (s scenario) {
	for i, part := range parts {
		s.progress = append(s.progress, a2a.Progress{Artifact: &a2a.ArtifactUpdate{Append: i > 0,
			LastChunk: chunks && i == len(parts)-1, Artifact: a2a.Artifact{ArtifactID: "tck", Parts: []a2a.Part{part}}}})
	}
	return s
}

// scenarioOf returns the scenario of a message. Without one, the agent completes the task.
func scenarioOf(messageID string) scenario {
	found := "tck-complete-task"
	longest := 0
	for name := range scenarios {
		if len(name) > longest && strings.HasPrefix(messageID, name) {
			found, longest = name, len(name)
		}
	}
	return scenarios[found]
}

// wait waits for d.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
