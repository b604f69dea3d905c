package a2acmd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
)

// remoteServer are the flags of the commands that call an A2A server elsewhere.
type remoteServer struct {
	URL         serverURL   `arg:"" name:"url" help:"The URL of the A2A server, or of its card."`
	Bearer      string      `placeholder:"FILE" help:"The file with the key for the server, which is sent as Authorization: Bearer."`
	DID         cli.DIDText `name:"did" placeholder:"DID" help:"The card must be signed by this DID."`
	AllowOrigin []string    `placeholder:"ORIGIN" help:"Also call an address at this origin, such as https://api.example. It gets no key. May be repeated."`
}

func (r remoteServer) open(env cli.Environment) (*a2aclient.Client, error) {
	bearer, err := readBearer(r.Bearer)
	if err != nil {
		return nil, err
	}
	return a2aclient.Open(env.Ctx, r.URL.base, a2aclient.Options{Bearer: bearer, DID: didkey.DID(r.DID), AllowOrigins: r.AllowOrigin})
}

type call struct {
	remoteServer
	Text   string `arg:"" help:"The message; - is standard input."`
	Task   string `placeholder:"ID" help:"Answer in this task, which has asked for input."`
	Stream bool   `help:"Print each piece of the result as it arrives."`
	JSON   bool   `help:"Print the objects of A2A, one line of JSON each."`
}

func (call) Help() string {
	return "Sends a message to an A2A server and prints the text of its answer. If the server asks for more, the exit code " +
		"is 0 and the last line on standard error has the id of the task: send your answer with --task. If the task has " +
		"failed or was rejected, the exit code is 1. The server may be any A2A server of version 1.0, or of 0.3 with " +
		"JSON-RPC.\n\n" +
		"The answer is untrusted. Never run it.\n\n" +
		"Examples:\n  agora a2a call https://relay.example/a2a/z6Mk…/ 'Translate: good morning' --bearer bob.a2a --stream\n" +
		"  agora a2a call https://agent.example/ 'the blue one' --task 3f2c"
}

func (c call) Run(env cli.Environment) error {
	text := c.Text
	if text == "-" {
		input, err := env.Input("-", "the message")
		if err != nil {
			return err
		}
		text = strings.TrimRight(string(input), "\r\n")
	}
	if text == "" {
		return errors.New("the message is empty")
	}
	server, err := c.open(env)
	if err != nil {
		return err
	}
	defer server.Close()
	message := a2a.Message{MessageID: rand.Text(), Role: a2a.User, Parts: []a2a.Part{a2a.TextPart(text)}, TaskID: c.Task}
	show := &shown{env: env, json: c.JSON, printed: map[string]bool{}}
	if c.Stream {
		err = server.Stream(env.Ctx, a2a.Send{Message: message}, show.event)
	} else {
		var answer a2a.Stream
		if answer, err = server.Send(env.Ctx, a2a.Send{Message: message}); err == nil {
			err = show.event(answer)
		}
	}
	if err != nil {
		return explainServer(err)
	}
	return show.end()
}

// explainServer says what the error of a server means.
func explainServer(err error) error {
	refused, ok := errors.AsType[*a2a.Error](err)
	switch {
	case !ok:
		return err
	case refused.HTTP == 401:
		return errors.New("the A2A server wants a valid key; give the file that has it with --bearer")
	case refused.HTTP != 0:
		return fmt.Errorf("the A2A server refuses the call with status %d: %s", refused.HTTP, refused.Message)
	}
	return fmt.Errorf("the A2A server refuses the call (%d): %s", refused.Code, refused.Message)
}

// shown prints the events of a task.
type shown struct {
	env     cli.Environment
	json    bool
	printed map[string]bool // artifacts of which something was printed
	open    bool            // the last line has no end yet
	task    string
	status  a2a.Status
}

func (s *shown) event(e a2a.Stream) error {
	if s.json {
		if err := s.env.PrintJSON(e); err != nil {
			return err
		}
	}
	switch {
	case e.Message != nil:
		s.status = a2a.Status{State: a2a.Completed, Message: e.Message}
	case e.Task != nil:
		s.task, s.status = e.Task.ID, e.Task.Status
		for _, artifact := range e.Task.Artifacts {
			if !s.printed[artifact.ArtifactID] {
				if err := s.artifact(artifact, false); err != nil {
					return err
				}
			}
		}
	case e.StatusUpdate != nil:
		s.task, s.status = e.StatusUpdate.TaskID, e.StatusUpdate.Status
		if s.status.State == a2a.Working && s.status.Message != nil && !s.json {
			s.env.Say("%s", cli.Printable(textOf(s.status.Message.Parts)))
		}
	case e.ArtifactUpdate != nil:
		s.task = e.ArtifactUpdate.TaskID
		return s.artifact(e.ArtifactUpdate.Artifact, e.ArtifactUpdate.Append)
	}
	return nil
}

// artifact prints a piece of a result.
func (s *shown) artifact(a a2a.Artifact, more bool) error {
	s.printed[a.ArtifactID] = true
	if s.json {
		return nil
	}
	if s.open && !more {
		if err := s.line(); err != nil {
			return err
		}
	}
	text := textOf(a.Parts)
	if text != "" {
		s.open = !strings.HasSuffix(text, "\n")
	}
	_, err := io.WriteString(s.env.Stdout, text)
	return err
}

func (s *shown) line() error {
	s.open = false
	_, err := io.WriteString(s.env.Stdout, "\n")
	return err
}

// end prints the last message, and returns the error of a task that has no result.
func (s *shown) end() error {
	if s.open {
		if err := s.line(); err != nil {
			return err
		}
	}
	said := ""
	if s.status.Message != nil {
		said = textOf(s.status.Message.Parts)
	}
	switch state := s.status.State; {
	case state == a2a.Failed, state == a2a.Rejected, state == a2a.Canceled:
		name := strings.ToLower(strings.TrimPrefix(string(state), "TASK_STATE_"))
		return fmt.Errorf("the task was not done (%s): %s", name, said)
	case said != "" && !s.json:
		if _, err := fmt.Fprintln(s.env.Stdout, said); err != nil {
			return err
		}
	}
	switch {
	case s.status.State.Interrupted():
		s.env.Say("the task waits for your answer; send it with --task %s", s.task)
	case !s.status.State.Terminal():
		s.env.Say("the task %s is not finished; the agent works on it when it is online", s.task)
	}
	return nil
}

// textOf returns the text of parts. Parts of other kinds are named.
func textOf(parts []a2a.Part) string {
	var b strings.Builder
	for _, p := range parts {
		switch {
		case p.Text != nil:
			b.WriteString(*p.Text)
		case len(p.Data) > 0:
			b.Write(p.Data)
		case p.URL != "":
			b.WriteString(p.URL)
		default:
			fmt.Fprintf(&b, "[%s, %d characters of base64]", p.Media(), len(p.Raw))
		}
	}
	return b.String()
}
