package main

import (
	"fmt"
	"runtime"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
)

type versionCmd struct{}

func (versionCmd) Help() string { return cli.ExampleTitle + "agora version" }

func (versionCmd) Run(env cli.Environment) error {
	_, err := fmt.Fprintln(env.Stdout, versionLine())
	return err
}

// versionLine is the output of agora version.
func versionLine() string {
	return fmt.Sprintf("agora %s, protocol %s, %s %s/%s",
		cli.Build(), envelope.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
