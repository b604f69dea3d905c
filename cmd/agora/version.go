package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/agora-relay/agora/envelope"
)

type versionCmd struct{}

func (versionCmd) Help() string { return exampleTitle + "agora version" }

func (versionCmd) Run(env environment) error {
	_, err := fmt.Fprintln(env.stdout, versionLine())
	return err
}

// versionLine is the output of agora version.
func versionLine() string {
	return fmt.Sprintf("agora %s, protocol %s, %s %s/%s",
		build(), envelope.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// build names the program's version as the Go toolchain recorded it.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
