package a2acmd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
)

type verify struct {
	URL    serverURL   `arg:"" name:"url" help:"The URL of the A2A server, or of its card."`
	DID    cli.DIDText `name:"did" placeholder:"DID" help:"The DID that must have signed the card (default: the one in the URL)."`
	Task   string      `placeholder:"ID" help:"Also check the agent's proof of the last turn of this task."`
	Bearer string      `placeholder:"FILE" help:"With --task: the file with your key for the server."`
}

func (verify) Help() string {
	return "Reads the card of an A2A server and checks that it is signed by a DID. The URL of an endpoint at a relay ends " +
		"with the DID of its agent, without did:key:. A relay can read and change what it passes on, but it cannot sign " +
		"a card for an agent. Prints the DID and what the card says about itself as one line of JSON.\n\n" +
		"With --task it also checks that the agent has signed the answer, and the request that it got. The line then has the " +
		"request: compare it with what you have sent. Agents behind agora a2a expose sign each turn.\n\n" +
		"Examples:\n  agora a2a verify https://relay.example/a2a/z6Mk…/\n" +
		"  agora a2a verify https://relay.example/a2a/z6Mk…/ --task tsk_… --bearer bob.a2a\n" +
		"  agora a2a verify https://agent.example/ --did did:key:z6Mk…"
}

// verified is the line that verify prints.
type verified struct {
	OK      bool       `json:"ok"`
	DID     didkey.DID `json:"did"`
	Name    string     `json:"name"`
	Version string     `json:"version"`
	Task    string     `json:"task,omitempty"`
	Turn    int        `json:"turn,omitempty"`
	State   a2a.State  `json:"state,omitempty"`
	Request string     `json:"request,omitempty"` // the text of the message that the agent got
}

func (c verify) Run(env cli.Environment) error {
	did := didkey.DID(c.DID)
	if did == "" {
		path := strings.TrimSuffix(c.URL.base.Path, "/")
		var err error
		if did, err = didkey.Parse("did:key:" + path[strings.LastIndex(path, "/")+1:]); err != nil {
			return errors.New("the URL does not end with the DID of an agent; give the DID with --did")
		}
	}
	text, card, err := a2aclient.Card(env.Ctx, c.URL.base)
	if err != nil {
		return err
	}
	if err := a2a.VerifyCard(text, did); errors.Is(err, a2a.ErrUnsigned) {
		return fmt.Errorf("%s: %w; somebody else has made or changed the card", did, err)
	} else if err != nil {
		return err
	}
	line := verified{OK: true, DID: did, Name: card.Card.Name, Version: card.Card.Version}
	if c.Task != "" {
		p, err := c.proven(env, did)
		if err != nil {
			return err
		}
		line.Task, line.Turn, line.State, line.Request = p.Task, p.Turn, p.State, textOf(p.Request.Parts)
	}
	return env.PrintJSON(line)
}

// proven reads the task, and checks its proof.
func (c verify) proven(env cli.Environment, did didkey.DID) (p a2a.Proven, err error) {
	bearer, err := readBearer(c.Bearer)
	if err != nil {
		return p, err
	}
	server, err := a2aclient.Open(env.Ctx, c.URL.base, a2aclient.Options{Bearer: bearer, DID: did})
	if err != nil {
		return p, err
	}
	defer server.Close()
	task, err := server.Get(env.Ctx, c.Task)
	if err != nil {
		return p, explainServer(err)
	}
	return checkProof(task, did)
}

// checkProof checks the proof of the last turn of a task.
func checkProof(task a2a.Task, did didkey.DID) (p a2a.Proven, err error) {
	if !task.Status.State.Terminal() && !task.Status.State.Interrupted() {
		return p, errors.New("the task is not finished, so its last turn has no proof yet")
	}
	object, found := task.Metadata[a2a.ProofURI]
	if !found {
		return p, errors.New("the task has no proof: the agent makes none, or the relay has removed it")
	}
	proof, err := a2a.ParseProof("proof", object)
	if err != nil {
		return p, err
	}
	p = a2a.Proven{Task: task.ID, State: task.Status.State, Artifacts: task.Artifacts, Message: task.Status.Message}
	turns := 0
	for _, m := range task.History {
		if m.Role == a2a.User {
			p.Request = m
			turns++
		}
	}
	if p.Turn, err = strconv.Atoi(proof.Turn); err != nil || p.Turn < turns {
		return p, fmt.Errorf("the task has %d messages of yours, but its proof is about turn %s", turns, cli.Printable(proof.Turn))
	}
	return p, p.Verify(proof, did)
}
