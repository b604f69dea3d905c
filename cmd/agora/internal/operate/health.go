package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

type HealthCmd struct {
	cli.Remote
	Timeout time.Duration `default:"5s" placeholder:"DURATION" help:"How long to wait for the answer (default: ${default})."`
}

func (HealthCmd) Help() string {
	return "Asks the relay once and exits with 0 if it accepts messages, and otherwise with 1. Service managers and containers " +
		"use it to check a relay.\n\n" + cli.ExampleTitle + "agora health --relay https://relay.example"
}

func (c HealthCmd) Run(env cli.Environment) error {
	ctx, cancel := context.WithTimeout(env.Ctx, c.Timeout)
	defer cancel()
	relay, err := c.Connect(env, nil)
	if err != nil {
		return err
	}
	version, err := relay.Health(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "%s accepts messages (protocol %s)\n", cli.Printable(c.Relay), cli.Printable(version))
	return err
}
