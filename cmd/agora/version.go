package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCmd struct{}

func (versionCmd) Help() string { return example + "agora version" }

func (versionCmd) Run(env environment) error {
	_, err := fmt.Fprintf(env.stdout, "agora %s, protocol 1.0, %s %s/%s\n", build(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// build names the program's version as the Go toolchain recorded it.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
