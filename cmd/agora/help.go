package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/alecthomas/kong"
)

// helpCmd adds help to the list of commands. It never runs, because rewriteHelp replaces it before kong parses.
type helpCmd struct {
	Verb []string `arg:"" optional:"" name:"command" help:"The command; all: list all commands."`
}

func (helpCmd) Help() string {
	return "Examples:\n  agora help\n  agora help all\n  agora help send offer"
}

func (helpCmd) Run() error { return errors.New("help must be the first word: agora help COMMAND") }

// helpAll is the word after help that stands for all commands.
const helpAll = "all"

// rewriteHelp replaces "agora", "agora help" and "agora help COMMAND" by the flag --help, which kong understands. all
// says that the help must list all commands.
func rewriteHelp(args []string) (words []string, all bool) {
	switch {
	case len(args) == 0:
		return []string{"--help"}, false
	case len(args) == 2 && args[0] == "help" && args[1] == helpAll:
		return []string{"--help"}, true
	case args[0] == "help" && !slices.Contains(args, "--help"):
		return append(slices.Clone(args[1:]), "--help"), false
	}
	return args, false
}

// helpPrinter returns what prints the help of a command, or of agora itself. Without all, the latter has only the
// commands with the tag everyday: a person who looks for the first command would not find it among all of them.
func helpPrinter(all bool) kong.HelpPrinter {
	return func(options kong.HelpOptions, ctx *kong.Context) error {
		if all || ctx.Selected() != nil {
			return kong.DefaultHelpPrinter(options, ctx)
		}
		var rows [][]string
		for _, command := range ctx.Model.Children {
			if command.Tag.Has("everyday") {
				rows = append(rows, []string{"", command.Name, command.Help})
			}
		}
		var text bytes.Buffer
		text.WriteString("Usage: agora COMMAND [FLAG...]\n\n" + strings.Replace(ctx.Model.Help, ". ", ".\n", 1) +
			"\n\nCommands for every day:\n")
		text.Write(cli.AlignedTable(rows, nil))
		text.WriteString("\nagora help COMMAND explains a command, with examples.\nagora help all lists all commands.\n")
		_, err := ctx.Stdout.Write(text.Bytes())
		return err
	}
}
