package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/agora-relay/agora"
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

// version replaces the version of the source in tests of upgrades: go build -ldflags "-X main.version=1.2.3".
var version string

// build names the program's version: that of the source. If the Go toolchain has recorded the commit, the version has
// its first eight digits behind a plus sign, such as 0.2.0+6a3f01bc, except at the commit of a release.
func build() string {
	info, _ := debug.ReadBuildInfo()
	return buildOf(cmp.Or(version, agora.Version()), info)
}

// buildOf names the version of a program with this build information, which may be nil.
func buildOf(version string, info *debug.BuildInfo) string {
	if info == nil || info.Main.Version == "v"+version {
		return version
	}
	var commit, changed string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = "+" + s.Value[:min(len(s.Value), 8)]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = ".changed"
		}
	}
	if commit == "" {
		return version
	}
	return version + commit + changed
}
