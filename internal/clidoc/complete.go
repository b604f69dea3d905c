package clidoc

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Candidate is a word that can be the last word of a command line.
type Candidate struct {
	Word string
	Help string // one line; may be empty
}

// Shells are the shells for which Script has a script.
var Shells = []string{"bash", "zsh", "fish"}

//go:embed scripts
var scripts embed.FS

// Script returns the completion script of a shell in Shells, for the program app. The script asks the program itself
// for the candidates: it runs app complete -- WORD... with the words after the name of the program. The last word is the
// one to complete, and may be empty. The program answers with the candidates of Complete, one a line: the word, a tab
// and its help. If there are none, the shell completes the names of files.
func Script(shell, app string) (string, error) {
	text, err := scripts.ReadFile("scripts/" + shell)
	if err != nil {
		return "", fmt.Errorf("there is no completion for %q; there is one for %s", shell, strings.Join(Shells, ", "))
	}
	return strings.ReplaceAll(string(text), "PROGRAM", app), nil
}

// Complete returns the words that can complete the last of words: commands, flags, and values of flags and arguments
// that allow only some values. words are the words after the name of the program. Complete returns nil if any text,
// such as a file name, can stand there.
//
// known returns values of a flag or an argument that the command line does not list, such as names of files of the
// program. It returns nil if it knows none. known may be nil.
func Complete(app *kong.Application, words []string, known func(*kong.Value) []Candidate) []Candidate {
	if len(words) == 0 {
		return nil
	}
	at := walk(app.Node, words[:len(words)-1])
	word := words[len(words)-1]
	name, _, hasValue := strings.Cut(word, "=")
	var all []Candidate
	switch {
	case at.flag != nil: // the value of the flag before it
		all = values(at.flag.Value, "", known)
	case !at.onlyArguments && hasValue && strings.HasPrefix(word, "-"):
		if flag := flagNamed(at.node, name); flag != nil {
			all = values(flag.Value, name+"=", known)
		}
	case !at.onlyArguments && strings.HasPrefix(word, "-"):
		all = flags(at.node)
	case len(at.node.Children) > 0:
		all = commands(at.node)
	case at.argument() != nil:
		all = values(at.argument(), "", known)
	}
	return slices.DeleteFunc(all, func(c Candidate) bool { return !strings.HasPrefix(c.Word, word) })
}

// place is a place on a command line, where the next word follows.
type place struct {
	node          *kong.Node
	flag          *kong.Flag // not nil: its value follows
	arguments     int        // how many arguments of node came before
	onlyArguments bool       // "--" came before
}

// walk returns the place after the words.
func walk(root *kong.Node, words []string) place {
	at := place{node: root}
	for _, word := range words {
		switch {
		case at.flag != nil:
			at.flag = nil
		case at.onlyArguments:
			at.arguments++
		case word == "--":
			at.onlyArguments = true
		case strings.HasPrefix(word, "-") && word != "-":
			if flag := flagNamed(at.node, word); flag != nil && !flag.IsBool() && !flag.IsCounter() {
				at.flag = flag
			}
		default:
			if child := childNamed(at.node, word); child != nil {
				at = place{node: child}
			} else {
				at.arguments++
			}
		}
	}
	return at
}

// argument returns the argument that follows; nil if there is none. The last one of a command may be repeated.
func (p place) argument() *kong.Positional {
	switch all := p.node.Positional; {
	case p.arguments < len(all):
		return all[p.arguments]
	case len(all) > 0 && all[len(all)-1].IsCumulative():
		return all[len(all)-1]
	}
	return nil
}

func childNamed(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name || slices.Contains(child.Aliases, name) {
			return child
		}
	}
	return nil
}

// flagNamed returns the flag of a command or of the commands above it with a name such as --key or -h.
func flagNamed(node *kong.Node, name string) *kong.Flag {
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			if name == "--"+flag.Name || flag.Short != 0 && name == "-"+string(flag.Short) {
				return flag
			}
		}
	}
	return nil
}

func flags(node *kong.Node) (all []Candidate) {
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			all = append(all, Candidate{"--" + flag.Name, oneLine(flag.Help)})
			if flag.Tag.Negatable != "" {
				all = append(all, Candidate{"--no-" + flag.Name, oneLine(flag.Help)})
			}
		}
	}
	return all
}

func commands(node *kong.Node) (all []Candidate) {
	for _, child := range node.Children {
		if !child.Hidden {
			all = append(all, Candidate{child.Name, oneLine(child.Help)})
		}
	}
	return all
}

// values returns the values that a flag or an argument can have, or those of known, each with a text in front of it; nil
// if it can have any.
func values(v *kong.Value, before string, known func(*kong.Value) []Candidate) (all []Candidate) {
	switch {
	case v.Enum != "":
		for _, value := range v.EnumSlice() {
			all = append(all, Candidate{Word: before + value})
		}
	case v.IsBool() && before != "": // a flag without a value is true
		return []Candidate{{Word: before + "true"}, {Word: before + "false"}}
	case known != nil && !v.IsBool():
		for _, value := range known(v) {
			all = append(all, Candidate{before + value.Word, oneLine(value.Help)})
		}
	}
	return all
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
