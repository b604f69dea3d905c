package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var (
	// mention matches a command with the words after it, in code, where a command can begin.
	mention   = regexp.MustCompile("(?:^|[`(;|]) *(?:sudo (?:-u \\w+ )?)?agora ((?:'[^']*'|\"[^\"]*\"|[^`|>;&)\n'\"])+)")
	lower     = regexp.MustCompile(`^[a-z]+$`)
	word      = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	flagAlone = regexp.MustCompile("^`--([a-z0-9-]+)")
	// inCode matches what is code in a document: a block, or a part of a line.
	inCode = regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")
)

// foreignFlags are flags of other programs that the documents mention alone: docker
var foreignFlags = []string{"env"}

// TestDocumentsNameRealCommands checks that each command that a document mentions exists, and has each flag that stands
// beside it.
func TestDocumentsNameRealCommands(t *testing.T) {
	parser, err := newParser(new(commandLine))
	if err != nil {
		t.Fatal(err)
	}
	mentions := 0
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, code := range inCode.FindAllString(string(text), -1) {
			m := flagAlone.FindStringSubmatch(code)
			if m != nil && !slices.Contains(foreignFlags, m[1]) && !hasFlag(parser.Model.Node, m[1]) {
				t.Errorf("%s: no command has the flag %s", path, code)
			}
			for line := range strings.Lines(code) {
				for _, m := range mention.FindAllStringSubmatch(line, -1) {
					mentions++
					if problem := unknown(parser.Model.Node, word.FindAllString(m[1], -1)); problem != "" {
						t.Errorf("%s: %q: %s", path, strings.TrimSpace(m[0]), problem)
					}
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if mentions < 200 {
		t.Errorf("found only %d commands", mentions)
	}
}

// unknown returns a text about the first of the words after agora that is no command and no flag; empty: all are known.
func unknown(node *kong.Node, words []string) string {
	for i, w := range words {
		if w == "--" || w == "#" || strings.HasPrefix(w, "…") {
			break
		}
		name, isFlag := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(strings.TrimRight(name, ".,:"), "=")
		if !isFlag {
			if child := childOf(node, name); child != nil {
				node = child
			} else if i == 0 && lower.MatchString(name) && name != "at" { // "agora at rest v1" is a text in GATEWAYS
				return "there is no command " + name
			}
			continue
		}
		known := hasFlag(node, name)
		for above := node.Parent; above != nil; above = above.Parent { // flags of agora itself may stand anywhere
			known = known || ownFlag(above, name)
		}
		if !known {
			return node.Path() + " has no --" + name
		}
	}
	return ""
}

// hasFlag reports whether a command or one of its subcommands has a flag. So a page may say "agora send --seal", which
// is about all kinds of messages.
func hasFlag(node *kong.Node, name string) bool {
	return ownFlag(node, name) ||
		slices.ContainsFunc(node.Children, func(child *kong.Node) bool { return hasFlag(child, name) })
}

func ownFlag(node *kong.Node, name string) bool {
	return slices.ContainsFunc(node.Flags, func(flag *kong.Flag) bool { return flag.Name == name })
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}
