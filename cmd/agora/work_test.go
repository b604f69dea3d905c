package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/internal/program"
)

// TestSplitWords checks how --exec is read.
func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                         nil,
		"  ":                       nil,
		"cat":                      {"cat"},
		" a  b\tc ":                {"a", "b", "c"},
		`a 'b c' "d e"`:            {"a", "b c", "d e"},
		`a''b "" ''`:               {"ab", "", ""},
		`a\ b \'c`:                 {"a b", "'c"},
		`"a\"b\\c\d\$" 'a\b'`:      {`a"b\c\d$`, `a\b`},
		`sh -c 'x | y > z; $(w)'`:  {"sh", "-c", "x | y > z; $(w)"},
		`curl http://h/?a=b#c --x`: {"curl", "http://h/?a=b#c", "--x"},
		`é '日本'`:                   {"é", "日本"},
	} {
		got, err := cli.SplitWords(text, true)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"a | b": "'|' needs a shell", "a; b": "';'", "a && b": "'&'", "a > b": "'>'", "a $B": "'$'", `"$B"`: "'$'", "a `b`": "'`'",
		"a *.txt": "'*'", "~/a": "'~'", "a # b": "'#'", "a\nb": `'\n'`, "(a)": "'('", "'a": "the quote ' has no end", `"a`: "no end", `a\`: "backslash",
	} {
		if got, err := cli.SplitWords(text, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", text, got, err, want)
		}
	}
	if got, err := cli.SplitWords(`C:\a\b.exe "C:\c d" x`, false); err != nil || !slices.Equal(got, []string{`C:\a\b.exe`, `C:\c d`, "x"}) {
		t.Errorf("without escapes: %q, %v", got, err)
	}
}

// TestProgramEnvironment checks that no variable of agora reaches a program.
func TestProgramEnvironment(t *testing.T) {
	got := program.Environment([]string{"A=1", "AGORA_KEY=bob.key", "agora_key=x", "AGORA_MCP_TOKEN=secret", "XAGORA_=2", "AGORA=3"})
	if !slices.Equal(got, []string{"A=1", "XAGORA_=2", "AGORA=3"}) {
		t.Errorf("%q", got)
	}
}
