package trade

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/thread"
)

// What a program reads about a job, and what the agent sends for the program's output.

// workJob is what the program reads about a job.
type workJob struct {
	Thread      string          `json:"thread"`
	RequestID   string          `json:"request_id"`
	Intent      string          `json:"intent"`
	Client      didkey.DID      `json:"client"`
	Params      json.RawMessage `json:"params"` // null: there are none
	Attempt     int             `json:"attempt"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	MaxCostUSD  *float64        `json:"max_cost_usd,omitempty"`
	// Deadline is when the thread ends, or the client's deadline if that is earlier, in RFC 3339.
	Deadline string `json:"deadline,omitempty"`
}

func newWorkJob(job client.Job) workJob {
	w := workJob{Thread: job.Envelope.Thread, RequestID: job.Request.RequestID, Intent: job.Request.Intent,
		Client: job.Envelope.Sender.ID, Params: job.Request.Params, Attempt: job.Attempt, Title: job.Request.Title,
		Description: job.Request.Description}
	deadline := job.Deadline
	if limits := job.Request.Constraints; limits != nil {
		w.MaxCostUSD = limits.MaxCostUSD
		if limits.Deadline != nil && (deadline.IsZero() || limits.Deadline.Before(deadline)) {
			deadline = *limits.Deadline
		}
	}
	if !deadline.IsZero() {
		w.Deadline = envelope.FormatTime(deadline)
	}
	return w
}

// environment returns what the program finds in its environment.
func (j workJob) environment() []string {
	return []string{"AGORA_THREAD=" + j.Thread, "AGORA_REQUEST_ID=" + j.RequestID, "AGORA_INTENT=" + j.Intent,
		"AGORA_CLIENT=" + string(j.Client), "AGORA_ATTEMPT=" + strconv.Itoa(j.Attempt)}
}

// Input returns what the program reads about a job, by --input. Errors are for the client. What looks like a message from
// a gateway must come from the gateway: anybody can post such a REQUEST.
func (w *workAgent) input(ctx context.Context, job client.Job, about workJob) ([]byte, error) {
	text := ""
	switch about.Intent {
	default:
		return about.input(w.cmd.Input)
	case client.ChannelIntent:
		delivery, err := w.relay.ChannelDelivery(ctx, job.Envelope)
		if err != nil {
			return nil, err
		}
		text = delivery.Message.Content
	case client.HubIntent:
		message, err := w.relay.HubMessage(ctx, job.Envelope)
		if err != nil {
			return nil, err
		}
		text = message.Envelope.Text
	case client.A2AIntent:
		turn, err := w.relay.A2ATurn(ctx, job.Envelope)
		if err != nil {
			return nil, err
		}
		if text = turn.Message.Text(); text == "" && w.cmd.Input == inputText {
			return nil, failed(envelope.AgentInvalidRequest, "the message must have a text")
		}
	}
	if w.cmd.Input == inputText {
		return asLine(text), nil
	}
	return about.input(w.cmd.Input)
}

// Input returns what the program reads about a job that is no message from a gateway, or has another --input than text.
func (j workJob) input(kind string) ([]byte, error) {
	switch kind {
	case "params":
		if len(j.Params) == 0 {
			return []byte("null\n"), nil
		}
		return append(slices.Clone(j.Params), '\n'), nil
	case inputText:
		text, err := TextOf(j.Params)
		return asLine(text), err
	}
	return append(jsontext.Compact(j), '\n'), nil
}

// asLine returns a text that ends with a line break, as the lines of a file do. Some programs ignore a last line without
// one.
func asLine(text string) []byte {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return []byte(text)
}

// TextOf returns the text in the params of a REQUEST: they are a string, or an object with a string "text". The error is
// for the client.
func TextOf(params json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(params, &text) == nil && len(params) > 0 && params[0] == '"' {
		return text, nil
	}
	var object struct {
		Text *string `json:"text"`
	}
	if json.Unmarshal(params, &object) == nil && object.Text != nil {
		return *object.Text, nil
	}
	return "", &client.AgentError{Code: envelope.AgentInvalidRequest,
		Message: `the params must be a string, or an object with a string "text"`}
}

// agentCode returns the code of the ERROR for an exit code. 65 and 75 are EX_DATAERR and EX_TEMPFAIL of sysexits.h.
func agentCode(code int) envelope.AgentCode {
	switch code {
	case 65:
		return envelope.AgentInvalidRequest
	case 75:
		return envelope.AgentUnavailable
	}
	return ExecutionFailed
}

func tooLarge(into string, most int) *client.AgentError {
	return failed(ExecutionFailed, "the program's output does not fit into %s of at most %s", into, cli.FormatBytes(int64(most)))
}

var errNotUTF8 = failed(ExecutionFailed,
	"the program's output is not UTF-8; it must encode other bytes, for example in base64")

// messageOverhead is the size in bytes that a message has besides the output: keys, ids, a signature, a name.
const messageOverhead = 2 << 10

// Result returns the RESULT for what the program has written.
func (w *workAgent) result(key thread.Key, intent string, written []byte, sealed bool) (envelope.Result, error) {
	kind := w.cmd.Output
	if kind == outputAuto && w.cmd.Input == inputText && isGatewayIntent(intent) {
		kind = outputText // a text is the answer to a text
	}
	output, err := outputOf(written, kind)
	if intent == client.HubIntent && err == nil {
		output = hubOutput(output)
	}
	if err != nil {
		w.say(key.ID, "%v", err)
		return envelope.Result{}, err
	}
	canonical, err := envelope.Canonicalize(output)
	if err != nil {
		w.say(key.ID, "the program's output is JSON that no message may have: %v", err)
		return envelope.Result{}, failed(ExecutionFailed, "the program's output is JSON that no message may have")
	}
	size := len(canonical) + messageOverhead
	if sealed {
		size = size*4/3 + messageOverhead // base64
	}
	if size > w.maxMessage {
		return envelope.Result{}, tooLarge("a message", w.maxMessage)
	}
	return envelope.Result{Output: output}, nil
}

// The values of --input and --output that this code asks for. The lines of outputLines are sent at once.
const (
	inputText   = "text"
	outputAuto  = "auto"
	outputText  = "text"
	outputLines = "lines"
)

// outputOf returns the output of a RESULT, by --output. Errors are for the client.
func outputOf(written []byte, kind string) (json.RawMessage, error) {
	text := bytes.TrimRight(written, "\r\n")
	valid := json.Valid(text)
	switch {
	case kind != outputText && kind != outputLines && valid:
		return text, nil
	case kind == "json":
		return nil, failed(ExecutionFailed, "the program's output is not JSON")
	case !utf8.Valid(text):
		return nil, errNotUTF8
	}
	return jsontext.Compact(string(text)), nil
}
