package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// formatting matches what formats a time for people. envelope.FormatTime, which is for programs, always has the date.
var formatting = regexp.MustCompile(`\.Format\(|\b(?:time\.(?:TimeOnly|Kitchen|DateTime|Stamp\w*)|15:04)`)

// TestTimesHaveDates checks that only times.go formats times.
func TestTimesHaveDates(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil || len(names) < 50 {
		t.Fatalf("%q, %v", names, err)
	}
	for _, name := range names {
		// restore.go gives a folder a name.
		if name == "times.go" || name == "restore.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range formatting.FindAllString(string(text), -1) {
			t.Errorf("%s has %q; times.go has functions for times", name, found)
		}
	}
}

func TestShownTimes(t *testing.T) {
	atHome(t) // the time zone is CET
	now := time.Date(2026, 11, 26, 22, 52, 48, 0, time.UTC)
	for after, want := range map[time.Duration]string{
		-90 * time.Second:          "2026-11-26 23:51:18 CET (1m ago)",
		5*time.Minute - 1:          "2026-11-26 23:57:47 CET (in 4m59s)",
		24*time.Hour - 1:           "2026-11-27 23:52:47 CET (in 23h59m)",
		72*time.Hour + time.Minute: "2026-11-29 23:53:48 CET (in 3d)",
	} {
		if got := cli.ShownDeadline(now.Add(after), now); got != want {
			t.Errorf("%v: %q, want %q", after, got, want)
		}
	}
}
