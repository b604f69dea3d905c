package clidoc_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/internal/clidoc"
)

// grammar has everything that completion and pages treat in its own way.
type grammar struct {
	Send struct {
		Key  string `required:"" env:"TOOL_KEY" short:"k" placeholder:"FILE" help:"Your key file."`
		Mode string `enum:"fast,safe" default:"safe" help:"How. It has two sentences."`
		Ask  struct {
			To    []string `help:"Whom."`
			Words []string `arg:"" enum:"yes,no" help:"What."`
		} `cmd:"" help:"Ask. Politely."`
		Tell struct {
			File string `arg:"" help:"What."`
			Kind string `arg:"" optional:"" enum:"one,two" default:"one" help:"Which."`
		} `cmd:"" aliases:"say" help:"Tell."`
	} `cmd:"" help:"Send a 'thing'."`
	Serve  serve    `cmd:"" help:"Serve."`
	Secret struct{} `cmd:"" hidden:"" help:"Nobody sees this."`
}

type serve struct {
	Page   bool `negatable:"" default:"true" group:"Web" help:"Serve a page."`
	Secret bool `hidden:"" help:"Nobody sees this."`
}

func (serve) Help() string {
	return "Serves.\n\nExamples:\n  tool serve --page\n\n  .dot '\\'\nMore.\n\n  end"
}

func model(t *testing.T) *kong.Application {
	t.Helper()
	parser, err := kong.New(new(grammar), kong.Name("tool"), kong.Description("A tool."))
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model
}

func TestComplete(t *testing.T) {
	app := model(t)
	for line, want := range map[string]string{
		"":                             "send serve",
		"se":                           "send serve",
		"sen":                          "send",
		"x":                            "",
		"send ":                        "ask tell",
		"send t":                       "tell",
		"sec":                          "", // hidden
		"serve -":                      "--help --page --no-page",
		"send --":                      "--help --key --mode",
		"send tell --":                 "--help --key --mode",
		"send say --":                  "--help --key --mode", // an alias
		"send ask --t":                 "--to",
		"send --mode ":                 "fast safe",
		"send --mode s":                "safe",
		"send --mode=":                 "--mode=fast --mode=safe",
		"send ask --mode=s":            "--mode=safe",
		"serve --page=":                "--page=true --page=false",
		"serve --page ":                "", // no argument follows
		"serve --nothing=":             "",
		"send --key ":                  "", // a file
		"send --key ask ":              "ask tell",
		"send -k ask ":                 "ask tell",
		"send --key=ask ":              "ask tell",
		"send tell ":                   "", // a file
		"send tell file ":              "one two",
		"send tell --mode fast file t": "two",
		"send tell file one ":          "",
		"send ask ":                    "yes no",
		"send ask yes no y":            "yes",
		"send ask -- ":                 "yes no",
		"send ask -- --":               "",
		"send ask - ":                  "yes no",
		"--he":                         "--help",
		"nothing ":                     "send serve",
	} {
		var got []string
		for _, c := range clidoc.Complete(app, strings.Split(line, " "), nil) {
			got = append(got, c.Word)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	if got := clidoc.Complete(app, nil, nil); got != nil {
		t.Errorf("no words: %v", got)
	}
	want := clidoc.Candidate{Word: "ask", Help: "Ask. Politely."}
	if got := clidoc.Complete(app, []string{"send", "a"}, nil); !slices.Equal(got, []clidoc.Candidate{want}) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestCompleteKnown checks that Complete asks for the values that the program knows, but not for those that the command
// line lists.
func TestCompleteKnown(t *testing.T) {
	known := func(v *kong.Value) []clidoc.Candidate {
		return []clidoc.Candidate{{Word: v.Name + ".1", Help: "two\nlines"}, {Word: "other"}}
	}
	for line, want := range map[string]string{
		"send --key ":    "key.1=two lines other=",
		"send --key=k":   "--key=key.1=two lines",
		"send tell f":    "file.1=two lines",
		"send --mode ":   "fast= safe=",
		"serve --page=t": "--page=true=",
		"serve ":         "",
	} {
		var got []string
		for _, c := range clidoc.Complete(model(t), strings.Split(line, " "), known) {
			got = append(got, c.Word+"="+c.Help)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestScript(t *testing.T) {
	for _, shell := range clidoc.Shells {
		text, err := clidoc.Script(shell, "tool")
		if err != nil || !strings.Contains(text, " complete -- ") || strings.Contains(text, "PROGRAM") {
			t.Errorf("%s: %v\n%s", shell, err, text)
		}
	}
	if _, err := clidoc.Script("csh", "tool"); err == nil || !strings.Contains(err.Error(), "bash, zsh, fish") {
		t.Errorf("csh: %v", err)
	}
}

// TestPages checks what is in the pages. ci/release checks that man shows them without a warning.
func TestPages(t *testing.T) {
	pages := clidoc.Manual{Version: "1.2.0", Date: "2026-01-02", Exit: "0: good. 1: bad."}.Pages(model(t))
	text := map[string]string{}
	var names []string
	for _, p := range pages {
		text[p.Name], names = p.Text, append(names, p.Name)
		if strings.Contains(p.Text, "Nobody sees this") {
			t.Errorf("%s has something hidden:\n%s", p.Name, p.Text)
		}
	}
	if want := []string{"tool", "tool-send", "tool-serve"}; !slices.Equal(names, want) {
		t.Fatalf("pages %q, want %q", names, want)
	}
	for name, parts := range map[string][]string{
		"tool": {".TH \"TOOL\" \"1\" \"2026-01-02\" \"tool 1.2.0\" \"User Commands\"\n.SH \"NAME\"\ntool \\- A tool\n",
			"\\fBtool\\-send\\fR(1)\nSend a \\(aqthing\\(aq.\n", ".BR tool\\-send (1),\n.BR tool\\-serve (1)\n", "0: good. 1: bad."},
		"tool-send": {"tool\\-send \\- Send a \\(aqthing\\(aq\n",
			"\\fBtool send ask\\fR\n\\-\\-key=FILE [flags] <words> ...\n", "\\fBtool send tell (say)\\fR\n",
			"\\fB\\-k\\fR, \\fB\\-\\-key\\fR=\\fIFILE\\fR\nYour key file. The variable TOOL_KEY sets it too.\n",
			".SS \"tool send ask\"\nAsk. Politely.\n.PP\nFlags:\n.TP\n\\fB\\-\\-to\\fR=", ".BR tool (1)\n"},
		"tool-serve": {"Serve.\n.PP\nServes.\n.PP\nExamples:\n.PP\n.in +4n\n.EX\ntool serve \\-\\-page\n\n" +
			"\\&.dot \\(aq\\(rs\\(aq\n.EE\n.in\nMore.\n.PP\n.PP\n.in +4n\n.EX\nend\n.EE\n.in\n",
			".SS \"Web\"\n.TP\n\\fB\\-\\-page\\fR, \\fB\\-\\-no\\-page\\fR\nServe a page.\n"},
	} {
		for _, part := range parts {
			if !strings.Contains(text[name], part) {
				t.Errorf("%s does not contain %q:\n%s", name, part, text[name])
			}
		}
	}
}
