package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/settings"
	"github.com/agora-relay/agora/internal/clidoc"
)

// generateCmd writes the other files of packages: man pages, completion scripts and a configuration file. It makes them
// from the program's commands and settings.
type generateCmd struct {
	Folder string `arg:"" help:"The folder to write to. It is created if it does not exist."`
	Date   string `placeholder:"YYYY-MM-DD" help:"The date in the man pages."`
}

func (generateCmd) Help() string {
	return "Writes the man pages (man), the completion scripts of shells (completions) and a configuration file in which " +
		"every setting is a comment (agora.toml). Packages contain these files.\n\n" +
		cli.ExampleTitle + "agora generate --date 2026-01-02 dist/files"
}

func (c generateCmd) Validate() error {
	if _, err := time.Parse(time.DateOnly, c.Date); err != nil && c.Date != "" {
		return errors.New("--date must be a date such as 2026-01-02")
	}
	return nil
}

// exitMeaning says what the exit codes of all commands mean.
const exitMeaning = "0: the command did what it says. 1: it failed, and standard error says why. 2: the command line is wrong."

func (c generateCmd) Run() error {
	app, err := wholeCommandLine()
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	manual := clidoc.Manual{Version: cli.Build(), Date: c.Date, Exit: exitMeaning}
	for _, page := range manual.Pages(app) {
		files[filepath.Join("man", page.Name+".1")] = []byte(page.Text)
	}
	for _, shell := range clidoc.Shells {
		script, err := clidoc.Script(shell, app.Name)
		if err != nil {
			return err
		}
		files[filepath.Join("completions", completionFile(app.Name, shell))] = []byte(script)
	}
	var config bytes.Buffer
	if err := writeTemplate(&config); err != nil {
		return err
	}
	files["agora.toml"] = config.Bytes()
	for name, text := range files {
		path := filepath.Join(c.Folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// completionFile returns the name under which a shell looks for the completion of a program.
func completionFile(program, shell string) string {
	switch shell {
	case "zsh":
		return "_" + program
	case "fish":
		return program + ".fish"
	}
	return program
}

const templateHead = `# The settings of the relay. Each line below is a comment that shows the default. To change a setting, remove the # in
# front of its name. The variables and flags of agora serve come before this file: the unit of the package sets data.
#
#   agora serve --config /etc/agora/agora.toml --check-config    checks this file
#   systemctl reload agora                                       applies the settings that are marked with [reload]
#   systemctl restart agora                                      applies all settings
`

// writeTemplate writes a configuration file in which every setting is a comment.
func writeTemplate(w io.Writer) error {
	line := new(commandLine)
	parser, err := newParser(line)
	if err != nil {
		return err
	}
	parsed, err := parser.Parse([]string{"serve"})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString(templateHead)
	group := ""
	for _, s := range line.Serve.Sources.Of(parsed) {
		if s.Source != "default" {
			return errors.New("the file must have the defaults, but " + s.Flag.Name + " comes from the " + s.Source)
		}
		if s.Flag.Group != nil && s.Flag.Group.Title != group {
			group = s.Flag.Group.Title
			fmt.Fprintf(&b, "\n# ---- %s ----\n", group)
		}
		help := strings.Replace(s.Flag.Help, " (default: "+s.Flag.Default+")", "", 1)
		if s.Flag.Tag.Has("reload") {
			help += " [reload]"
		}
		b.WriteString("\n")
		for _, l := range wrap(help, 117) {
			fmt.Fprintf(&b, "# %s\n", l)
		}
		value := s.Value
		if value == "" {
			if value = settings.Quoted(strings.TrimSuffix(s.Flag.FormatPlaceHolder(), ",...")); s.Flag.IsSlice() {
				value = "[" + value + "]"
			}
		}
		fmt.Fprintf(&b, "#%s = %s\n", s.Flag.Name, value)
	}
	_, err = w.Write(b.Bytes())
	return err
}

// wrap breaks text into lines of at most width bytes, unless a word is longer.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
