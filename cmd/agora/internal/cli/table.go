package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// Tables for people. Their cells may be texts of others: AlignedTable escapes them, and only then adds colours.

const (
	ColumnGap    = 2
	DefaultWidth = 80 // of a terminal whose width is not known
	shortestCell = 8
)

// Columns returns how many columns of a terminal a text takes. Characters of East Asia take two, accents none.
func Columns(text string) (n int) {
	for _, r := range text {
		switch kind := width.LookupRune(r).Kind(); {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case kind == width.EastAsianWide || kind == width.EastAsianFullwidth:
			n += 2
		default:
			n++
		}
	}
	return n
}

// WithoutEnd shortens a text that takes more than most columns, and puts … at its end.
func WithoutEnd(text string, most int) string {
	if Columns(text) <= most {
		return text
	}
	cut, used := 0, 1 // the … takes one column
	for i, r := range text {
		if used += Columns(string(r)); used > most {
			break
		}
		cut = i + len(string(r))
	}
	return text[:cut] + "…"
}

// WithoutMiddle cuts characters out of the middle of a text that takes more than most columns. The ends differ most:
// those of a did:key or a UUID, for example.
func WithoutMiddle(text string, most int) string {
	if Columns(text) <= most {
		return text
	}
	runes := []rune(text)
	front, back := 0, len(runes)
	for used := 1; front < back; {
		next := runes[front]
		fromFront := front <= len(runes)-back
		if !fromFront {
			next = runes[back-1]
		}
		if used += Columns(string(next)); used > most {
			break
		}
		if fromFront {
			front++
		} else {
			back--
		}
	}
	return string(runes[:front]) + "…" + string(runes[back:])
}

// Shortened returns a text that takes at most this many columns: a sentence without its end, and an id without its
// middle.
func Shortened(text string, most int) string {
	if strings.Contains(text, " ") {
		return WithoutEnd(text, most)
	}
	return WithoutMiddle(text, most)
}

// Narrow shortens the cells of the columns long until a table takes at most this many columns, the widest first.
func Narrow(rows [][]string, long []int, most int) {
	widths := columnWidths(rows)
	total := ColumnGap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > most && len(long) > 0; total-- {
		widest := slices.MaxFunc(long, func(a, b int) int { return cmp.Compare(widths[a], widths[b]) })
		if widths[widest] <= shortestCell {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for _, i := range long {
			row[i] = Shortened(row[i], widths[i])
		}
	}
}

// columnWidths returns the width of each column of a table.
func columnWidths(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Columns(Printable(cell)))
		}
	}
	return widths
}

// AlignedTable returns rows as lines with aligned columns. It escapes the cells. style adds colours to an escaped cell;
// nil: there are none.
func AlignedTable(rows [][]string, style func(string) string) []byte {
	var b bytes.Buffer
	widths := columnWidths(rows)
	for _, row := range rows {
		WriteLine(&b, row, widths, style)
	}
	return b.Bytes()
}

// WriteLine writes a row of a table whose columns have these widths. The last cell is not padded.
func WriteLine(b *bytes.Buffer, row []string, widths []int, style func(string) string) {
	for i, cell := range row {
		cell = Printable(cell)
		padding := widths[i] - Columns(cell) + ColumnGap
		if style != nil {
			cell = style(cell)
		}
		b.WriteString(cell)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", max(padding, 1)))
		}
	}
	b.WriteByte('\n')
}

// colours are the SGR codes (ECMA-48) of the words that have a colour: states of threads, types of messages, and
// whether an agent is online.
var colours = map[string]string{
	"PENDING": "33", "ACTIVE": "36", "COMPLETED": "32",
	"REQUEST": "34", "OFFER": "33", "ACCEPT": "36", "RESULT": "32", "MANIFEST": "35",
	"ERROR": "31", "CANCEL": "31", "TIMEOUT": "31", "REMOVED": "31",
	"online": "32",
}

// Style returns a function that adds a colour to a cell that is one of the words in colours. It is nil if stdout is not
// a terminal that shows colours, or if the user wants none (https://no-color.org).
func (env Environment) Style() func(string) string {
	unknown := runtime.GOOS == "windows" && os.Getenv("WT_SESSION") == "" && os.Getenv("TERM") == ""
	if !env.StdoutIsTerminal || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || unknown {
		return nil
	}
	return func(cell string) string {
		if code, ok := colours[cell]; ok {
			return fmt.Sprintf("\x1b[%sm%s\x1b[0m", code, cell)
		}
		return cell
	}
}

// Styled returns a word, escaped, with its colour.
func (env Environment) Styled(word string) string {
	word = Printable(word)
	if style := env.Style(); style != nil {
		return style(word)
	}
	return word
}

// Columns returns how many columns a line can have.
func (env Environment) Columns() int {
	if !env.StdoutIsTerminal {
		return math.MaxInt
	}
	if env.Width != nil {
		if n := env.Width(); n > 0 {
			return n
		}
	}
	return DefaultWidth
}

// printTable prints rows. On a terminal the cells of the columns long are shortened so that the lines fit, and words
// have colours.
func (env Environment) printTable(rows [][]string, long ...int) error {
	if env.StdoutIsTerminal {
		Narrow(rows, long, env.Columns())
	}
	return env.PrintStyled(AlignedTable(rows, env.Style()))
}

// PrintStyled prints what AlignedTable or WriteLine has returned with env.Style(). All else in text must be escaped.
func (env Environment) PrintStyled(text []byte) error {
	_, err := env.Raw.Write(text)
	return err
}

// PrintRows prints rows as a table. Its cells may be texts of others.
func (env Environment) PrintRows(rows [][]string) error {
	_, err := env.Stdout.Write(AlignedTable(rows, nil))
	return err
}
