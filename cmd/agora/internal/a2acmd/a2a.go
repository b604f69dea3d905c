// Package a2acmd has the commands of agora for A2A (A2A §8): an agent publishes its endpoint at a relay, exposes an A2A
// server of this machine, or bridges a remote one, and a caller calls A2A servers.
package a2acmd

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Cmd are the commands for A2A.
type Cmd struct {
	Expose    expose    `cmd:"" help:"Give the A2A server on this machine a public endpoint at a relay."`
	Call      call      `cmd:"" help:"Call an A2A server."`
	Bridge    bridge    `cmd:"" help:"Make an agent whose work is done by an A2A server elsewhere."`
	Publish   publish   `cmd:"" help:"Publish an A2A endpoint for your agent, from its manifest."`
	Show      show      `cmd:"" help:"Show the endpoint of your agent."`
	Unpublish unpublish `cmd:"" help:"Remove the endpoint of your agent."`
	Keys      keys      `cmd:"" help:"Manage the keys with which others call your endpoint."`
	Hook      hook      `cmd:"" help:"Get the pushes of A2A servers without an address of your own."`
	Verify    verify    `cmd:"" help:"Check that a card is signed by a DID."`
}

func (Cmd) Help() string {
	return "A2A (Agent2Agent) is a protocol in which a client calls an agent at a URL. A relay with agora serve --a2a gives " +
		"agents that nobody can reach such a URL: an A2A client calls it, and the agent takes the call from the relay as an " +
		"ordinary request.\n\n" +
		"Examples:\n  agora a2a expose http://127.0.0.1:8080 --key bob.key --relay https://relay.example\n" +
		"  agora a2a publish --key bob.key --public\n  agora a2a call https://relay.example/a2a/z6Mk…/ 'Hello!' --stream"
}

// serverURL is the URL of an A2A server.
type serverURL struct{ base *url.URL }

func (u *serverURL) UnmarshalText(text []byte) (err error) {
	u.base, err = a2aclient.CheckURL(string(text))
	return err
}

// codeConflict is the code of a gateway's refusal of what does not fit the present state.
const codeConflict envelope.Code = "CONFLICT"

// readBearer returns the key in a file that only its owner can read; empty: name is empty.
func readBearer(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	text, err := cli.ReadOperatorKey(name)
	if err != nil {
		return "", err
	}
	if text = strings.TrimSpace(text); text == "" || strings.ContainsAny(text, " \r\n") {
		return "", errors.New(name + " must have one line with the key")
	}
	return text, nil
}

// owner is an agent at a relay with an A2A gateway.
type owner struct {
	relay    *client.Client
	endpoint a2a.Endpoint
}

// openOwner reads where the relay has its A2A gateway.
func openOwner(env cli.Environment, relay *client.Client) (owner, error) {
	at, err := relay.A2AAddress(env.Ctx)
	return owner{relay, at}, err
}

// path returns the path of a route of the endpoint, below the gateway's URL.
func (o owner) path(route string) string { return "/" + o.endpoint.DID.Multibase() + route }

// published is a line about an endpoint.
type published struct {
	URL    string     `json:"url"` // ends with a slash
	Card   string     `json:"card"`
	DID    string     `json:"did"`
	Access a2a.Access `json:"access"`
	Mode   a2a.Mode   `json:"mode"`
	Listed bool       `json:"listed"`
}

func (o owner) published(s client.A2ASettings) published {
	return published{o.endpoint.Base(), o.endpoint.CardURL(), string(o.endpoint.DID), s.Access, s.Mode, s.Listed}
}

// newKey creates a key of the endpoint.
func (o owner) newKey(env cli.Environment, name string) (key string, err error) {
	var answer struct {
		Key string `json:"key"`
	}
	err = o.relay.CallA2A(env.Ctx, client.GatewayCall{Method: http.MethodPost, Path: o.path("/keys"),
		Body: jsontext.Compact(map[string]string{"name": name}), Status: http.StatusCreated, Out: &answer})
	if err == nil && answer.Key == "" {
		err = errors.New("the relay's answer has no key")
	}
	return answer.Key, err
}
