//go:build unix

package recipes

import (
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "draw the picture of the README again, from this run")

// pictureFile is the picture of a trade at the top of the README.
const pictureFile = "../../docs/images/terminal.svg"

// TestPicture follows the trade in two commands of the README, and draws what both terminals have shown. The picture in
// the docs must show the same, except for what differs from run to run: identities, names of threads, and durations.
func TestPicture(t *testing.T) {
	t.Parallel()
	section, ok := parse(t, "README.md").Section("A trade in two commands")
	if !ok {
		t.Fatal("README.md has no such section")
	}
	for attempt := 1; ; attempt++ {
		svg := drawTerminals(t, newReader(t, inScripts, nil), section.Code("sh"))
		if *update {
			if err := os.WriteFile(pictureFile, []byte(svg), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(pictureFile)
		switch {
		case err == nil && constant(string(committed)) == constant(svg):
			return
		case attempt == maxPictures:
			t.Fatalf("%s does not show what a run shows (%v); run: go test ./ci/recipes -run Picture -update\n%s", pictureFile, err, svg)
		}
	}
}

// maxPictures is how often the test draws. On a machine that is busy, agora says more, because it waits longer.
const maxPictures = 3

// drawTerminals runs the commands for Bob's terminal, and then those for Alice's, and returns the picture.
func drawTerminals(t *testing.T, r *reader, commands []string) string {
	t.Helper()
	if len(commands) != 2 {
		t.Fatalf("%d blocks of commands, want one for each terminal", len(commands))
	}
	work := r.way.open(t, r.folder, r.environment, commands[0])
	work.await(t, "…working for text.upper as…")
	printed := r.shell.run(t, commands[1])
	work.await(t, "…: delivered after …")
	bob, alice := shown(r, commands[0], work.output.String()), shown(r, commands[1], printed)
	began := slices.IndexFunc(bob, func(l string) bool { return strings.Contains(l, ": started for") })
	p := &recording{}
	p.window("Bob’s terminal: it opens no port", bob[:began], bob[began:])
	p.window("Alice’s terminal: it opens no port", alice, nil)
	return p.svg()
}

// left out: a key that is made before, and what only helps after an interruption.
var leftOut = regexp.MustCompile(`keygen|^did:key:|^The private key|to continue after|^ +agora ask --thread`)

// shown returns the commands and what they have printed as lines of a narrow terminal.
func shown(r *reader, commands, printed string) (lines []string) {
	for line := range strings.Lines(strings.ReplaceAll(commands, "\\\n", "")) {
		if !leftOut.MatchString(line) {
			lines = append(lines, "$ "+strings.TrimSpace(line))
		}
	}
	for line := range strings.Lines(strings.ReplaceAll(printed, r.url, "http://127.0.0.1:8789")) {
		if !leftOut.MatchString(line) {
			lines = append(lines, strings.TrimPrefix(strings.TrimRight(line, "\n"), "agora: "))
		}
	}
	return lines
}

// Sizes of the picture, in pixels and characters.
const (
	pictureWidth = 520
	columns      = 56
	rowHeight    = 19
	titleHeight  = 34
	indent       = "    " // of the rest of a line that is too long
)

// shorter makes identities and names of threads short, as agora does in lists.
var shorter = regexp.MustCompile(`(z6Mk\w{4})\w+(\w{6})|(thread_\w{2})\w+`)

// recording is the picture that is being drawn.
type recording struct {
	shapes strings.Builder
	y      int
	at     float64 // when the line before appears, in seconds
	class  string  // of the line before
	later  []row
}

// row is a line that appears later than those below it.
type row struct {
	y    int
	text string
}

// window draws a terminal. The lines of later appear among those of the next window.
func (p *recording) window(title string, lines, later []string) {
	var rows []string
	for _, line := range slices.Concat(lines, later) {
		rows = append(rows, wrap(shorter.ReplaceAllString(line, "$1$3…$2"))...)
	}
	waiting := 0
	for _, line := range later {
		waiting += len(wrap(shorter.ReplaceAllString(line, "$1$3…$2")))
	}
	height := titleHeight + rowHeight*len(rows) + 14
	fmt.Fprintf(&p.shapes, `<rect class="window" x=".5" y="%d.5" width="%d" height="%d" rx="8"/>
<text class="title" x="16" y="%d">%s</text>
`, p.y, pictureWidth-1, height, p.y+22, html.EscapeString(title))
	for i, text := range rows {
		r := row{p.y + titleHeight + rowHeight*i + 16, text}
		if i >= len(rows)-waiting {
			p.later = append(p.later, r)
			continue
		}
		p.line(r)
		if strings.Contains(text, "is working") {
			for _, r := range p.later {
				p.line(r)
			}
		}
	}
	p.y += height + 12
}

// wrap breaks a line into rows of the picture, at spaces.
func wrap(line string) (rows []string) {
	for len([]rune(line)) > columns {
		cut := strings.LastIndex(string([]rune(line)[:columns-1]), " ")
		if cut <= 2 {
			cut = len(string([]rune(line)[:columns]))
		}
		rows, line = append(rows, line[:cut]), indent+strings.TrimSpace(line[cut:])
	}
	return append(rows, line)
}

// line draws a row. It appears a second after the one before it, or with it if it is the rest of the same line.
func (p *recording) line(r row) {
	switch rest := strings.HasPrefix(r.text, indent) && !strings.HasPrefix(r.text, indent+" "); {
	case strings.HasPrefix(r.text, "$ "):
		p.class, p.at = "command ", p.at+1.5
	case strings.HasPrefix(r.text, `"`):
		p.class, p.at = "result ", p.at+1
	case !rest:
		p.class, p.at = "", p.at+1
	}
	fmt.Fprintf(&p.shapes, `<text class="%srow" style="animation-delay:%.1fs" x="16" y="%d" xml:space="preserve">%s</text>
`, p.class, p.at, r.y, html.EscapeString(r.text))
}

const pictureTitle = "Bob’s terminal works for text.upper with the program tr, for 0.005 USD. Alice’s asks for it and " +
	"gets the result HELLO. Both connect to a relay; nobody connects to them."

func (p *recording) svg() string {
	const namespace = "http://www.w3.org/2000/svg"
	return fmt.Sprintf(`<svg xmlns="%[5]s" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img">
<title>%[3]s</title>
<style>
.window{fill:#0d1117;stroke:#3d444d}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9}
.title{font:600 13px ui-sans-serif,system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#9198a1}
.command{fill:#fff}.result{fill:#3fb950;font-weight:600}
@media (prefers-reduced-motion:no-preference){.row{animation:appear .2s both}}
@keyframes appear{from{opacity:.35}}
</style>
%[4]s</svg>
`, pictureWidth, p.y-11, html.EscapeString(pictureTitle), p.shapes.String(), namespace)
}

// differs matches what differs from run to run: short identities, short names of threads, and durations.
var differs = regexp.MustCompile(`z6Mk\w{4}…\w{6}|thread_\w{2}…|[\d.]+(µs|ms|s)\b`)

// constant returns a picture without what differs from run to run.
func constant(svg string) string {
	head, body, _ := strings.Cut(svg, "</style>")
	return head + differs.ReplaceAllString(regexp.MustCompile(`style="[^"]*"`).ReplaceAllString(body, ""), "*")
}
