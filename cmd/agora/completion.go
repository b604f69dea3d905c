package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/internal/clidoc"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return "With the script, the shell completes commands, flags and their values when you press Tab. The packages install " +
		"it. Otherwise let the shell read it when it starts.\n\n" +
		"Examples:\n  echo 'source <(agora completion bash)' >> ~/.bashrc\n" +
		"  echo 'source <(agora completion zsh)' >> ~/.zshrc   (after compinit)\n" +
		"  agora completion fish > ~/.config/fish/completions/agora.fish"
}

func (c completionCmd) Run(env cli.Environment, parsed *kong.Context) error {
	script, err := clidoc.Script(c.Shell, parsed.Model.Name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(env.Exact, script)
	return err
}

// completeCmd is what the scripts of completionCmd run.
type completeCmd struct {
	Words []string `arg:"" optional:"" name:"word" help:"The words after agora. The last is the one to complete."`
}

func (completeCmd) Help() string {
	return "The completion scripts of the shells run this. It prints the words that can stand in place of the last one, " +
		"each with a tab and its help.\n\n" + cli.ExampleTitle + "agora complete -- send re"
}

func (c completeCmd) Run(env cli.Environment) error {
	app, err := wholeCommandLine()
	if err != nil {
		return err
	}
	words := c.Words
	if len(words) > 1 && words[0] == "help" {
		words = words[1:]
		if len(words) == 1 && strings.HasPrefix(helpAll, words[0]) {
			fmt.Fprintf(env.Stdout, "%s\tList all commands.\n", helpAll)
		}
	}
	known := suggestions{env: env, words: words}
	for _, candidate := range clidoc.Complete(app, words, known.of) {
		if _, err := fmt.Fprintf(env.Stdout, "%s\t%s\n", candidate.Word, candidate.Help); err != nil {
			return err
		}
	}
	return nil
}
