package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/alecthomas/kong"
)

// TestSecretsFromFiles checks that settings that are secrets come from files that variables name, and from the credentials
// of systemd, and that others do not.
func TestSecretsFromFiles(t *testing.T) {
	const store, other = "postgres://agora:hidden@db/agora", "postgres://agora:other@db/agora"
	for name, c := range map[string]struct {
		files       map[string]string // in the folder of the credentials
		variables   map[string]string // $ stands for that folder
		want        string            // a part of the value of the setting store
		source      string
		wantProblem string
	}{
		"a file": {map[string]string{"s": store + "\n"}, map[string]string{"AGORA_STORE_FILE": "$/s"},
			"postgres://agora:", "file of AGORA_STORE_FILE", ""},
		"a credential": {map[string]string{"agora.store": store}, map[string]string{"CREDENTIALS_DIRECTORY": "$"},
			"postgres://agora:", "credential agora.store", ""},
		"no credential": {nil, map[string]string{"CREDENTIALS_DIRECTORY": "$"}, "", "default", ""},
		"a file and a credential": {map[string]string{"s": store, "agora.store": "wrong"},
			map[string]string{"CREDENTIALS_DIRECTORY": "$", "AGORA_STORE_FILE": "$/s"}, "postgres://agora:", "file of AGORA_STORE_FILE", ""},
		"two ways": {map[string]string{"s": store}, map[string]string{"AGORA_STORE_FILE": "$/s", "AGORA_STORE": other},
			"", "", "AGORA_STORE is set, and so is file of AGORA_STORE_FILE"},
		"no such file":  {nil, map[string]string{"AGORA_STORE_FILE": "$/s"}, "", "", "no such file"},
		"an empty file": {map[string]string{"s": "\n"}, map[string]string{"AGORA_STORE_FILE": "$/s"}, "", "", "it is empty"},
		"a wrong value": {map[string]string{"s": "mysql://hidden"}, map[string]string{"AGORA_STORE_FILE": "$/s"}, "", "", "AGORA_STORE:"},
	} {
		t.Run(name, func(t *testing.T) {
			clearSettings(t)
			t.Setenv("CREDENTIALS_DIRECTORY", "")
			folder := t.TempDir()
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for variable, text := range c.variables {
				t.Setenv(variable, strings.ReplaceAll(text, "$", folder))
			}
			settings, err := settingsByName(t)
			if c.wantProblem != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantProblem) || strings.Contains(err.Error(), "hidden") {
					t.Errorf("%v, want %q", err, c.wantProblem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := settings["store"]; !strings.Contains(s.Value, c.want) || s.Source != c.source {
				t.Errorf("store is %s from the %s", s.Value, s.Source)
			}
		})
	}
}

// TestSecretVariablesAreKnown checks that the variable of a secret's file does not count as a misspelled setting.
func TestSecretVariablesAreKnown(t *testing.T) {
	clearSettings(t)
	file := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(file, []byte("postgres://agora@db/agora"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AGORA_STORE_FILE", file)
	var stdout, stderr strings.Builder
	code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}, []string{"serve", "--check-config"})
	if code != cli.ExitOK || strings.Contains(stderr.String(), "did you mean") {
		t.Errorf("%d: %s", code, stderr.String())
	}
}

// TestSecretsOfCommands checks that each command with --store also takes the address from a file.
func TestSecretsOfCommands(t *testing.T) {
	clearSettings(t)
	file := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(file, []byte("mysql://hidden"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AGORA_STORE_FILE", file)
	var line commandLine
	parser, err := newParser(&line)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, leaf := range parser.Model.Leaves(false) {
		if !slices.ContainsFunc(leaf.Flags, func(f *kong.Flag) bool { return f.Name == "store" }) {
			continue
		}
		found++
		args := strings.Fields(leaf.Path())
		if leaf.Name == "fetch" {
			args = append(args, "--key-secret", "x")
		}
		var stdout, stderr strings.Builder
		code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}, args)
		if code == cli.ExitOK || !strings.Contains(stderr.String(), "AGORA_STORE: ") || strings.Contains(stderr.String(), "hidden") {
			t.Errorf("%s: %d: %s", leaf.Path(), code, stderr.String())
		}
	}
	if found < 3 {
		t.Errorf("%d commands have --store, want at least 3", found)
	}
}
