package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "30d": 720 * time.Hour, "1.5d": 36 * time.Hour, "2w": 336 * time.Hour,
		"1d12h": 36 * time.Hour, "1w1d1h1s": 193*time.Hour + time.Second, "300ms": 300 * time.Millisecond, "-1s": -time.Second, "0d": 0,
	} {
		if got, err := cli.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30", "d", "1y", "1e300d", "NaNd", "-1d", "1d-1h", "1h1d", "300000000h", "1d 1h", "Infd", "1d1d"} {
		if got, err := cli.ParseDuration(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "131072": 131072, "128KiB": 131072, "128kib": 131072, "1GB": 1e9, "1.5 TB": 15e11, "64MiB": 64 << 20, "64M": 64 << 20, "7b": 7,
	} {
		if got, err := cli.ParseBytes(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GB", "-1", "1XB", "0.5", "1e30", "NaN", "Inf", "9999999TiB", "1 G B", "0x10"} {
		if got, err := cli.ParseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// TestEveryFlagTakesUnits sets each flag for a duration or a size to a value with a unit.
func TestEveryFlagTakesUnits(t *testing.T) {
	parser, err := newParser(new(commandLine))
	if err != nil {
		t.Fatal(err)
	}
	durations, sizes := 0, 0
	for _, leaf := range parser.Model.Leaves(false) {
		for _, flag := range leaf.Flags {
			value := ""
			switch flag.Target.Type() {
			case reflect.TypeFor[time.Duration](), reflect.TypeFor[cli.Lifetime](), reflect.TypeFor[*cli.Lifetime]():
				durations++
				value = "2d"
			case reflect.TypeFor[int64]():
				sizes++
				value = "2MiB"
			}
			if strings.Contains(flag.PlaceHolder, "BYTES") || flag.PlaceHolder == "SIZE" {
				value = "2MiB"
			}
			if value == "" {
				continue
			}
			args := append(strings.Fields(strings.TrimPrefix(leaf.FullPath(), "agora ")), "--"+flag.Name, value)
			if leaf.FullPath() == "agora channel read" {
				args = append(args, "--follow") // which its --timeout needs
			}
			switch flag.Name {
			case "a2a-wait": // it is at most an hour
				args[len(args)-1] = "0.5h"
			case "policy-timeout": // it is at most 8s
				args[len(args)-1] = "0.1m"
			case "older-than": // it is at least 30 days in agora fold
				args[len(args)-1] = "60d"
			case "backup-every":
				args = append(args, "--backup-dir", "backups")
			}
			_, err := parser.Parse(args)
			if err != nil && strings.Contains(err.Error(), "--"+flag.Name) {
				t.Errorf("%q: %v", args, err)
			}
		}
	}
	if durations < 10 || sizes < 2 {
		t.Errorf("found only %d durations and %d sizes", durations, sizes)
	}
}
