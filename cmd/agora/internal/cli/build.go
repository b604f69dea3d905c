package cli

import (
	"cmp"
	"runtime/debug"

	"github.com/agora-relay/agora"
)

// version replaces the version of the source in tests of upgrades. go build sets it with
// -ldflags "-X github.com/agora-relay/agora/cmd/agora/internal/cli.version=1.2.3".
var version string

// Build names the program's version: that of the source. If the Go toolchain has recorded the commit, the version has
// its first eight digits behind a plus sign, such as 0.2.0+6a3f01bc, except at the commit of a release.
func Build() string {
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
