package cli

import (
	"runtime/debug"
	"testing"
)

// TestBuild checks that a program has the version of its source, and the commit if the toolchain has recorded it.
func TestBuild(t *testing.T) {
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "6a3f01bc44f5"}
	changed := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for want, info := range map[string]*debug.BuildInfo{
		"1.2.3":                  {Main: debug.Module{Version: "(devel)"}},
		"1.2.3+6a3f01bc":         {Settings: []debug.BuildSetting{commit}},
		"1.2.3+6a3f01bc.changed": {Settings: []debug.BuildSetting{commit, changed}},
	} {
		if got := buildOf("1.2.3", info); got != want {
			t.Errorf("%+v: %q, want %q", info, got, want)
		}
	}
	released := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{commit}}
	if got := buildOf("1.2.3", released); got != "1.2.3" {
		t.Errorf("at the commit of a release: %q", got)
	}
	if got := buildOf("1.2.3", nil); got != "1.2.3" {
		t.Errorf("without build information: %q", got)
	}
}
