package a2acmd

import (
	"net/http"
	"net/url"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/internal/jsontext"
)

// hook are the commands for hooks.
type hook struct {
	New    hookNew    `cmd:"" help:"Create a hook, and print its URL."`
	List   hookList   `cmd:"" help:"List your hooks."`
	Delete hookDelete `cmd:"" help:"Delete a hook. Its URL stops working at once."`
}

func (hook) Help() string {
	return "A hook is a URL at the relay to which A2A servers push the events of your tasks. Give it to a server as the url of a " +
		"push configuration. The relay hands each event to you as a sealed request with the intent a2a.notification. So you " +
		"get pushes without an address of your own.\n\n" +
		"Examples:\n  agora a2a hook new --key alice.key\n  agora a2a hook delete hk_… --key alice.key"
}

type hookNew struct {
	owned
	Label string `arg:"" optional:"" help:"What the hook is for, for you to read (at most 80 characters)."`
}

func (hookNew) Help() string {
	return "Creates a hook and prints it as one line of JSON. The URL is shown only once. Anybody who has it can " +
		"send you events.\n\n" +
		"Examples:\n  agora a2a hook new --key alice.key\n  agora a2a hook new 'house painter' --key alice.key"
}

func (c hookNew) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	var made struct {
		ID  string `json:"id"`
		URL string `json:"url"`
	}
	if err := at.relay.CallA2A(env.Ctx, client.GatewayCall{Method: http.MethodPost, Path: "/hooks",
		Body: jsontext.Compact(map[string]string{"label": c.Label}), Status: http.StatusCreated, Out: &made}); err != nil {
		return err
	}
	return env.PrintJSON(made)
}

// shownHook is a hook without its URL.
type shownHook struct {
	ID        string `json:"id"`
	Label     string `json:"label"`
	CreatedAt string `json:"createdAt"`
}

type hookList struct {
	owned
	cli.Listing
}

func (hookList) Help() string {
	return "Lists your hooks at the relay, without their URLs.\n\n" +
		cli.FormatHelp(shownHook{}) +
		"Example:\n  agora a2a hook list --key alice.key"
}

func (c hookList) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	var answer struct {
		Hooks []shownHook `json:"hooks"`
	}
	call := client.GatewayCall{Method: http.MethodGet, Path: "/hooks", Repeatable: true, Out: &answer}
	if err := at.relay.CallA2A(env.Ctx, call); err != nil {
		return err
	}
	if len(answer.Hooks) == 0 {
		env.Say("you have no hooks at this relay; agora a2a hook new creates one")
	}
	return cli.Show(env, c.Listing, []string{"ID", "LABEL", "CREATED"}, answer.Hooks,
		func(h shownHook) []string { return []string{h.ID, h.Label, h.CreatedAt} })
}

type hookDelete struct {
	owned
	ID string `arg:"" name:"id" help:"The id of the hook (hk_…)."`
}

func (hookDelete) Help() string {
	return "Deletes a hook. Pushes to its URL are refused at once.\n\nExample:\n  agora a2a hook delete hk_… --key alice.key"
}

func (c hookDelete) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	call := client.GatewayCall{Method: http.MethodDelete, Path: "/hooks/" + url.PathEscape(c.ID)}
	if err := at.relay.CallA2A(env.Ctx, call); err != nil {
		return err
	}
	env.Say("deleted the hook %s", c.ID)
	return nil
}
