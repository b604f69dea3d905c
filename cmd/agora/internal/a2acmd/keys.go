package a2acmd

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// keys are the commands for the keys of an endpoint.
type keys struct {
	New    keysNew    `cmd:"" help:"Create a key, with which somebody may call your endpoint."`
	List   keysList   `cmd:"" help:"List the keys of your endpoint."`
	Revoke keysRevoke `cmd:"" help:"Revoke a key. It stops working at once."`
}

func (keys) Help() string {
	return "A key of an endpoint (aa_…) is what an A2A client sends as Authorization: Bearer.\n\n" +
		"Examples:\n  agora a2a keys new alice --key bob.key --save alice.a2a\n  agora a2a keys revoke alice --key bob.key"
}

type keysNew struct {
	owned
	cli.SavedKey
	Name string `arg:"" help:"Whose key this is, for you to read: letters, digits and ._- (at most 64)."`
}

func (keysNew) Help() string {
	return "Creates a key and prints it as one line of JSON. The key is shown only once. Anybody who has it can " +
		"call your agent, but sees only the tasks that were made with this key.\n\n" +
		"Examples:\n  agora a2a keys new alice --key bob.key\n  agora a2a keys new alice --key bob.key --save alice.a2a"
}

func (c keysNew) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return err
	}
	key, err := at.newKey(env, c.Name)
	if err != nil {
		return explainEndpoint(err, c.Key)
	}
	kept, err := c.Keep(key)
	return errors.Join(err, env.PrintJSON(struct {
		Name string `json:"name"`
		URL  string `json:"url"`
		cli.KeyLine
	}{c.Name, at.endpoint.Base(), kept}))
}

// endpointKey is a key of an endpoint, without the key itself.
type endpointKey struct {
	Name      string `json:"name"`
	CreatedAt string `json:"createdAt"`
}

type keysList struct {
	owned
	cli.Listing
}

func (keysList) Help() string {
	return "Lists the names of the keys of your endpoint. The keys themselves are not stored anywhere.\n\n" +
		cli.FormatHelp(endpointKey{}) +
		"Example:\n  agora a2a keys list --key bob.key"
}

func (c keysList) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	var answer struct {
		Keys []endpointKey `json:"keys"`
	}
	call := client.GatewayCall{Method: http.MethodGet, Path: at.path("/keys"), Repeatable: true, Out: &answer}
	if err := at.relay.CallA2A(env.Ctx, call); err != nil {
		return explainEndpoint(err, c.Key)
	}
	if len(answer.Keys) == 0 {
		env.Say("your endpoint has no keys; agora a2a keys new NAME creates one")
	}
	return cli.Show(env, c.Listing, []string{"NAME", "CREATED"}, answer.Keys,
		func(k endpointKey) []string { return []string{k.Name, k.CreatedAt} })
}

type keysRevoke struct {
	owned
	Name string `arg:"" help:"The name of the key."`
}

func (keysRevoke) Help() string {
	return "Revokes a key of your endpoint. Calls with it are refused at once, and its tasks that are not finished fail.\n\n" +
		"Example:\n  agora a2a keys revoke alice --key bob.key"
}

func (c keysRevoke) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	call := client.GatewayCall{Method: http.MethodDelete, Path: at.path("/keys/" + url.PathEscape(c.Name))}
	if err := at.relay.CallA2A(env.Ctx, call); err != nil {
		return err
	}
	env.Say("revoked the key %s", c.Name)
	return nil
}
