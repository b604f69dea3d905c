package main

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/internal/promised"
)

// removedFlags are flags of 0.1.0 that there are no more: the relay sends no traces.
var removedFlags = []string{"agora serve --otlp-url", "agora serve --otlp-header", "agora serve --trace-ratio"}

// TestFixtureCommands checks that this version has each command and each flag that earlier versions had.
func TestFixtureCommands(t *testing.T) {
	parser, err := newParser(new(commandLine))
	if err != nil {
		t.Fatal(err)
	}
	promised.Keep(t, "../..", "commands", commandsAndFlags(parser.Model.Node, "agora"), removedFlags)
}

// commandsAndFlags lists what is below a command: "agora ask", "agora ask --max-cost" and so on.
func commandsAndFlags(node *kong.Node, path string) (names []string) {
	for _, f := range node.Flags {
		names = append(names, path+" --"+f.Name)
	}
	for _, child := range node.Children {
		below := strings.TrimSpace(path + " " + child.Name)
		names = append(append(names, below), commandsAndFlags(child, below)...)
	}
	return names
}
