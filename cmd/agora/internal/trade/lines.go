package trade

import (
	"bytes"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Lines of messages that arrive one by one, in columns of fixed width.

const (
	typeWidth   = 8  // REQUEST, MANIFEST
	threadWidth = 8  // the end of the thread's id
	partyWidth  = 15 // a short DID
	tightWidth  = 11 // the same, if the terminal is narrow
	wideColumns = 100
	fewest      = 16 // columns of the summary
)

// liner prints a line for each message.
type liner struct {
	env    cli.Environment
	people cli.People
	to     int // the width of the recipient's column
	thread bool
	party  int
	day    string // of the last line, with the zone of its time
}

// NewLiner returns a liner. to is the width of the recipient's column. thread says that there is a column with the
// thread.
func NewLiner(env cli.Environment, p cli.People, to int, thread bool) *liner {
	p.Short = env.StdoutIsTerminal
	l := &liner{env: env, people: p, thread: thread, party: partyWidth, to: to}
	if env.Columns() < wideColumns {
		l.party, l.to = tightWidth, min(to, tightWidth)
	}
	return l
}

// line is one line. Its texts may be those of others.
type line struct {
	at       time.Time
	kind     string // such as the type of the message
	thread   string
	from, to didkey.DID // to may be empty: everybody
	fromName string     // replaces from if it is empty
	toName   string     // replaces to, if it is not empty
	summary  string
}

// Message returns the line of a message.
func (l *liner) Message(e *envelope.Envelope) line {
	return line{at: e.TS, kind: string(e.Type), thread: e.Thread, from: e.Sender.ID, to: e.Recipient, summary: summary(e)}
}

// Print prints a line. If the day or the time zone has changed, it first prints a line with both. A summary that does
// not fit into the line stands below, where it has more room.
func (l *liner) Print(one line) error {
	row, widths := []string{cli.ShownClock(one.at), one.kind}, []int{cli.ClockWidth, typeWidth}
	if l.thread {
		row, widths = append(row, shortThread(one.thread)), append(widths, threadWidth)
	}
	from, to := one.fromName, one.toName
	if one.from != "" {
		from = l.people.Who(one.from)
	}
	if to == "" {
		if to = "everybody"; one.to != "" {
			to = l.people.Who(one.to)
		}
	}
	if l.people.Short {
		from, to = cli.WithoutMiddle(from, l.party), cli.WithoutMiddle(to, l.to)
	}
	parties := pad(from, l.party) + " → " + to
	row, widths = append(row, parties), append(widths, l.party+cli.Columns(" → ")+l.to)
	text := cli.Printable(one.summary)
	left := l.env.Columns()
	for _, w := range widths {
		left -= w + cli.ColumnGap
	}
	below := ""
	if indent := cli.ClockWidth + cli.ColumnGap; cli.Columns(text) > left {
		below = strings.Repeat(" ", indent) + cli.WithoutEnd(text, max(l.env.Columns()-indent, fewest)) + "\n"
	} else if text != "" {
		row = append(row, text)
	}
	var b bytes.Buffer
	if day := cli.ShownDay(one.at); day != l.day {
		b.WriteString(day + "\n")
		l.day = day
	}
	cli.WriteLine(&b, row, append(widths, 0), l.env.Style())
	b.WriteString(below)
	return l.env.PrintStyled(b.Bytes())
}

// pad adds spaces to a text until it takes width columns.
func pad(text string, width int) string {
	for cli.Columns(text) < width {
		text += " "
	}
	return text
}

// shortThread returns the end of the id of a thread. The beginning is a time, which many threads share.
func shortThread(id string) string {
	runes := []rune(cli.Printable(id))
	if len(runes) <= threadWidth {
		return string(runes)
	}
	return "…" + string(runes[len(runes)-threadWidth+1:])
}
