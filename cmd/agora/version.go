package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

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
		build(), envelope.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// version is the version of a release. The linker sets it: go build -ldflags "-X main.version=1.2.3".
var version string

// build names the program's version: that of the release, or else what the Go toolchain recorded.
func build() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
