package trade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
)

// RelaysCmd is agora relays.
type RelaysCmd struct {
	cli.Remotes
	Key     string      `needed:"" env:"AGORA_KEY" placeholder:"FILE" help:"Your key file."`
	State   string      `placeholder:"FILE" help:"The state file that says which relays were caught (default: that of agora work with several relays, beside the key file; ask, send and mcp use it, too)."`
	Forgive cli.DIDText `placeholder:"DID" help:"Use this relay again, although it was caught. The file must not be in use by agora work."`
	cli.Listing
}

func (RelaysCmd) Help() string {
	return "Shows each of your relays: who it is, whether it answers now, whether it can be the home of threads, " +
		"whether it keeps a " +
		"log, which witnesses have signed the log (as the relay says), and whether it was caught lying. A caught " +
		"relay is not used " +
		"any more, until you forgive it. See docs/RELAYS.md.\n\n" + cli.FormatHelp(relayRow{}) +
		"Examples:\n  agora relays --key bob.key --relay https://a.example --relay https://b.example\n" +
		"  agora relays --key bob.key --forgive did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX"
}

// relayRow is a relay.
type relayRow struct {
	URL       string     `json:"url"`
	DID       didkey.DID `json:"did,omitempty"` // empty: it does not answer
	Answers   bool       `json:"answers"`
	Home      bool       `json:"home"` // it can be the home of threads
	Log       bool       `json:"log"`  // it keeps a log
	Witnesses []string   `json:"witnesses,omitempty"`
	Caught    string     `json:"caught,omitempty"` // why it is not used any more
	Error     string     `json:"error,omitempty"`  // why it does not answer
}

// askRelaysTime is how long agora relays waits for answers.
const askRelaysTime = 10 * time.Second

func (c RelaysCmd) Run(env cli.Environment) error {
	key, err := didkey.Load(c.Key)
	if err != nil {
		return err
	}
	if c.State == "" {
		if c.State, err = cli.StateFile(c.Key); err != nil {
			return err
		}
	}
	if c.Forgive != "" {
		return c.forgive(env, key.DID())
	}
	caught, err := client.CaughtIn(c.State, key.DID())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(env.Ctx, askRelaysTime)
	defer cancel()
	n, err := c.Network(key, client.NetworkOptions{Options: client.Options{Logger: cli.NewLog(env), Attempts: 1}})
	if err != nil {
		return err
	}
	var rows []relayRow
	for _, s := range n.Relays(ctx) {
		row := relayRow{URL: s.URL, DID: s.DID, Answers: s.Err == nil, Home: s.Home, Log: s.Log, Witnesses: s.Witnesses,
			Caught: caught[s.DID]}
		if s.Err != nil {
			row.Error = s.Err.Error()
		}
		delete(caught, s.DID)
		rows = append(rows, row)
	}
	for did, reason := range caught {
		rows = append(rows, relayRow{DID: did, Caught: reason})
	}
	head := []string{"RELAY", "DID", "ANSWERS", "HOME", "LOG", "WITNESSES", "CAUGHT"}
	return cli.Show(env, c.Listing, head, rows, func(r relayRow) []string {
		did := string(r.DID)
		if env.StdoutIsTerminal && did != "" {
			did = cli.ShortDID(r.DID)
		}
		return []string{r.URL, did, yesNo(r.Answers), yesNo(r.Home), yesNo(r.Log), cmp.Or(strings.Join(r.Witnesses,
			" "), "-"),
			cmp.Or(r.Caught, "no")}
	}, 0, 6)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// forgive lets a caught relay be used again.
func (c RelaysCmd) forgive(env cli.Environment, me didkey.DID) (err error) {
	if _, err := os.Stat(c.State); err != nil {
		return fmt.Errorf("no relay was caught: %w; name the file with --state", err)
	}
	state, err := cli.OpenState(c.State, me)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	did := didkey.DID(c.Forgive)
	reason, caught := state.Caught()[did]
	if !caught {
		return fmt.Errorf("%s was not caught, so there is nothing to forgive; agora relays shows which were", did)
	}
	env.Say("%s is used again; it was caught: %s", did, reason)
	return state.Forgive(did)
}
