package clidoc

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// Page is a man page of section 1.
type Page struct {
	Name string // of the page, such as agora-send
	Text string // with macros of man(7), in UTF-8
}

// Manual says what the pages contain besides the command line.
type Manual struct {
	Version string // of the program, such as 1.2.0
	Date    string // of the version, such as 2006-01-02
	Exit    string // what the exit codes mean
}

// Pages returns the man pages of a program: one that lists its commands, and one for each of these commands, which also
// describes the commands below it.
func (m Manual) Pages(app *kong.Application) []Page {
	pages := []Page{m.overview(app.Node)}
	for _, child := range app.Children {
		if !child.Hidden {
			pages = append(pages, m.command(child))
		}
	}
	return pages
}

// overview returns the page of the program.
func (m Manual) overview(app *kong.Node) Page {
	var r roff
	r.begin(m, app.Name, app.Help)
	r.macro("SH", "SYNOPSIS")
	r.synopsis(app.Name, "COMMAND [ARGUMENT|FLAG]...")
	r.macro("SH", "DESCRIPTION")
	r.prose(description(app))
	r.macro("SH", "COMMANDS")
	var pages []string
	for _, child := range app.Children {
		if child.Hidden {
			continue
		}
		page := app.Name + "-" + child.Name
		r.macro("TP", "")
		r.line(`\fB` + escape(page) + `\fR(1)`)
		r.prose(child.Help)
		pages = append(pages, page)
	}
	r.flags("SH", "FLAGS", app.Flags)
	r.end(m, pages)
	return Page{app.Name, r.String()}
}

// command returns the page of a command.
func (m Manual) command(node *kong.Node) Page {
	root := node.Parent.Name
	name := root + "-" + node.Name
	leaves := []*kong.Node{node}
	if len(node.Children) > 0 {
		leaves = node.Leaves(true)
	}
	var r roff
	r.begin(m, name, node.Help)
	r.macro("SH", "SYNOPSIS")
	for _, leaf := range leaves {
		r.synopsis(leaf.FullPath(), arguments(leaf))
	}
	r.macro("SH", "DESCRIPTION")
	r.prose(description(node))
	r.flags("SH", "FLAGS", node.Flags)
	if leaves[0] != node {
		r.macro("SH", "COMMANDS")
		for _, leaf := range leaves {
			r.macro("SS", leaf.FullPath())
			r.prose(description(leaf))
			r.flags("PP", "Flags:", leaf.Flags)
		}
	}
	r.end(m, []string{root})
	return Page{name, r.String()}
}

// description returns the help of a command in paragraphs.
func description(node *kong.Node) string {
	return strings.TrimSuffix(node.Help+"\n\n"+node.Detail, "\n\n")
}

// arguments returns what follows a command on its line, such as "--key=FILE [flags] <thread>".
func arguments(node *kong.Node) string {
	var parts []string
	optional := false
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			if flag.Required {
				parts = append(parts, flag.Summary())
			} else {
				optional = true
			}
		}
	}
	if optional {
		parts = append(parts, "[flags]")
	}
	for _, argument := range node.Positional {
		parts = append(parts, argument.Summary())
	}
	return strings.Join(parts, " ")
}

// roff is the text of a man page.
type roff struct{ strings.Builder }

func (r *roff) begin(m Manual, name, help string) {
	r.line(fmt.Sprintf(`.TH "%s" "1" "%s" "%s" "User Commands"`, escape(strings.ToUpper(name)), m.Date,
		escape(strings.TrimSpace(strings.SplitN(name, "-", 2)[0]+" "+m.Version))))
	r.macro("SH", "NAME")
	r.line(escape(name) + ` \- ` + escape(strings.TrimSuffix(firstSentence(help), ".")))
}

func (r *roff) end(m Manual, seeAlso []string) {
	r.macro("SH", "EXIT STATUS")
	r.prose(m.Exit)
	r.macro("SH", "SEE ALSO")
	for i, page := range seeAlso {
		after := ","
		if i == len(seeAlso)-1 {
			after = ""
		}
		r.line(fmt.Sprintf(`.BR %s (1)%s`, escape(page), after))
	}
}

// synopsis writes one form of a command, and lets its second line begin below the arguments of the first.
func (r *roff) synopsis(command, arguments string) {
	r.line(".TP " + fmt.Sprint(len(command)+1))
	r.line(`\fB` + escape(command) + `\fR`)
	r.line(escape(arguments))
}

// flags writes the flags that are not hidden, with the titles of their groups, below a heading that macro makes.
func (r *roff) flags(macro, heading string, all []*kong.Flag) {
	group, first := "", true
	for _, flag := range all {
		if flag.Hidden {
			continue
		}
		if first {
			if first = false; macro == "PP" {
				r.macro("PP", "")
				r.line(escape(heading))
			} else {
				r.macro(macro, heading)
			}
		}
		if flag.Group != nil && flag.Group.Title != group {
			group = flag.Group.Title
			r.macro("SS", group)
		}
		r.macro("TP", "")
		r.line(flagTerm(flag))
		r.prose(flagHelp(flag))
	}
}

// flagTerm returns a flag as "-h, --help" or "--key=FILE".
func flagTerm(flag *kong.Flag) string {
	term := `\fB` + escape("--"+flag.Name) + `\fR`
	if flag.Short != 0 {
		term = `\fB` + escape("-"+string(flag.Short)) + `\fR, ` + term
	}
	if flag.Tag.Negatable != "" {
		term += `, \fB` + escape("--no-"+flag.Name) + `\fR`
	}
	if !flag.IsBool() && !flag.IsCounter() {
		term += `=\fI` + escape(flag.FormatPlaceHolder()) + `\fR`
	}
	return term
}

// flagHelp returns the help of a flag, with its environment variables.
func flagHelp(flag *kong.Flag) string {
	help := flag.Help
	if len(flag.Envs) > 0 {
		help += " The variable " + strings.Join(flag.Envs, " or ") + " sets it too."
	}
	return help
}

// prose writes paragraphs. Lines that are indented keep their breaks, as examples do.
func (r *roff) prose(text string) {
	literal := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		example := strings.HasPrefix(line, "  ") || line == "" && literal
		switch {
		case example && !literal:
			r.line(".PP\n.in +4n\n.EX")
		case !example && literal:
			r.line(".EE\n.in")
		}
		switch literal = example; {
		case example:
			r.line(escape(strings.TrimPrefix(line, "  ")))
		case line == "":
			r.macro("PP", "")
		default:
			r.line(escape(line))
		}
	}
	if literal {
		r.line(".EE\n.in")
	}
}

// macro writes a macro with one argument; "" is none.
func (r *roff) macro(name, argument string) {
	if argument == "" {
		r.line("." + name)
		return
	}
	r.line("." + name + ` "` + escape(argument) + `"`)
}

func (r *roff) line(text string) { r.WriteString(text + "\n") }

// special are the characters that roff would change: it takes some for its own syntax and replaces others by
// typographic ones, which nobody can paste into a terminal.
var special = strings.NewReplacer(`\`, `\(rs`, "-", `\-`, "'", `\(aq`, `"`, `\(dq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// escape returns text in a form that roff prints as it is.
func escape(text string) string {
	if text = special.Replace(text); strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

// firstSentence returns text up to its first full stop.
func firstSentence(text string) string {
	sentence, _, _ := strings.Cut(oneLine(text), ". ")
	return sentence
}
