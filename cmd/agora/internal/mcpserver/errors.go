package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver/spending"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/untrusted"
)

// Sizes of texts of others in bytes, before they are escaped.
const (
	longText  = 16 << 10 // the one text that an answer is about
	shortText = 2 << 10  // each text of a list
)

// payloadOf returns the payload of a message as a marked text, from the byte offset on.
func (s *Server) payloadOf(e *envelope.Envelope, offset, limit int) untrusted.Text {
	what := "payload of " + string(e.Type)
	if e.Sealed() && !e.Opened {
		what = "sealed payload of " + string(e.Type) + ", which only its recipient can read,"
	}
	text := e.Payload[offset:]
	where := "thread " + s.threads.name(e.Thread)
	if e.Thread == "" {
		where = "agent " + string(e.Sender.ID)
	}
	rest := fmt.Sprintf("read_message with %s, message %s and offset %d", where, handle(e), offset+len(untrusted.Cut(text, limit)))
	return untrusted.New(string(e.Sender.ID), what, text, limit, rest)
}

// handle identifies a message by its content. Its id does not: a sender can use an id for two messages.
func handle(e *envelope.Envelope) string {
	hash := e.Hash()
	return fmt.Sprintf("%x", hash[:16])
}

// userError is an error in the server's own words, for the LLM.
type userError struct{ text string }

func (e userError) Error() string { return e.text }

func mistake(format string, args ...any) error { return userError{fmt.Sprintf(format, args...)} }

// localError is an error of this machine: a file that cannot be used.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

// local marks an error as one of this machine. Errors of the limits stay as they are.
func local(err error) error {
	if err == nil || errors.Is(err, spending.ErrLimit) {
		return err
	}
	return localError{err}
}

// noted is an error with a note for the LLM, in the server's own words.
type noted struct {
	error
	note string
}

func (n noted) Unwrap() error { return n.error }

// fail returns the text of a tool's error. Only errors of this package, of the spending limits and of this machine are
// shown as they are. All others may contain text of the relay or of an agent, and are marked. ctx is the context of the
// call.
func (s *Server) fail(ctx context.Context, tool string, err error) string {
	p := &page{Page: untrusted.NewPage()}
	s.explain(ctx, p, tool, err)
	for rest := err; rest != nil; rest = errors.Unwrap(rest) {
		if n, ok := rest.(noted); ok {
			p.Say("%s", n.note)
		}
	}
	return p.String()
}

func (s *Server) explain(ctx context.Context, p *page, tool string, err error) {
	if own, ok := errors.AsType[userError](err); ok {
		p.Say("%s", own.text)
		return
	}
	agent, isAgent := errors.AsType[*client.AgentError](err)
	refusal, isRefusal := errors.AsType[*envelope.Error](err)
	dial, isDial := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, spending.ErrLimit):
		p.Say("%v.", err)
		p.Say("%s", s.tellPerson(ctx))
	case errors.Is(err, client.ErrUnproven):
		p.Say("The relay no longer shows the request of this thread, so nothing about it can be proved. Ask again.")
	case errors.Is(err, client.ErrUnacceptable):
		p.Say("%s", whyNot(err))
	case isAgent:
		p.Quote(agentError(agent))
	case isRefusal:
		s.Log.Warn("the relay has refused what a tool asked for", "tool", tool, "error", err)
		p.Say("The relay %s did not do this%s.", s.Relay, retry(refusal))
		p.Quote(untrusted.New(s.Relay, "error of the relay", []byte(err.Error()), shortText, ""))
	case ctx.Err() != nil: // by the client, or because the server ends; the error may be the cause, such as io.EOF
		p.Say("The call was cancelled.")
	case isLocal(err):
		s.Log.Warn("a tool failed on this machine", "tool", tool, "error", err)
		p.Say("This failed on this machine, not at the relay: %s.", strings.ReplaceAll(err.Error(), "\n", "; "))
		p.Say("Tell the person, who can repair it.")
	case isDial && dial.Op == "dial":
		s.Log.Warn("no relay answers", "tool", tool, "error", err)
		p.Say("No relay answers at %s (%v). Try again later. Or tell the person to start a relay with agora serve, or to name "+
			"another one with --relay.", s.Relay, dial.Err)
	default:
		s.Log.Warn("a tool failed", "tool", tool, "error", err)
		p.Say("This failed. The relay %s may be unreachable; try again later.", s.Relay)
		p.Quote(untrusted.New(s.Relay, "error", []byte(err.Error()), shortText, ""))
	}
}

// isLocal reports whether an error comes from this machine. The client's files give a *fs.PathError.
func isLocal(err error) bool {
	_, marked := errors.AsType[localError](err)
	_, ofFile := errors.AsType[*fs.PathError](err)
	return marked || ofFile
}

func retry(refusal *envelope.Error) string {
	switch {
	case refusal.RetryAfter > 0:
		return fmt.Sprintf("; try again in %v", refusal.RetryAfter)
	case refusal.Code.Retryable():
		return "; try again later"
	}
	return ""
}

// tellPerson says what the LLM can do about a limit: tell the person. The command never proposes less than what is
// allowed now.
func (s *Server) tellPerson(ctx context.Context) string {
	var perJob, perDay credits.Amount
	if status, err := s.Book.Status(ctx); err == nil {
		perJob, perDay = status.Limits.PerJob, status.Limits.PerDay
	}
	return fmt.Sprintf("Only the person who owns this key may change the limits. Do not run the command yourself. Tell the person, who "+
		"chooses the amounts: %s --per-job %v --per-day %v", s.RaiseLimits, raised(perJob, credits.One/20), raised(perDay, credits.One/2))
}

// raised returns a limit above the present one.
func raised(present, least credits.Amount) credits.Amount {
	if twice := 2 * present; twice < credits.Limit {
		return max(twice, least)
	}
	return present
}

func agentError(e *client.AgentError) untrusted.Text {
	text, err := json.Marshal(map[string]any{"code": e.Code, "message": e.Message, "details": e.Details})
	if err != nil { // the details are not JSON
		text = []byte(e.Error())
	}
	return untrusted.New(string(e.From), "error", text, longText, "")
}

// did reads an argument that must be a DID.
func did(name, text string) (didkey.DID, error) {
	d, err := didkey.Parse(text)
	if err != nil {
		return "", mistake("%s must be a DID, such as did:key:z6Mk…, as another tool shows it", name)
	}
	return d, nil
}
