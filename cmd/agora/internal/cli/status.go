package cli

import (
	"io"
	"os"
	"sync"
	"time"
)

// StatusLine is the last line of a terminal: it says what the command waits for, and since when. It is erased before
// anything else is printed. Without a terminal, it prints nothing.
type StatusLine struct {
	out io.Writer // the terminal; nil: print nothing

	mu    sync.Mutex
	text  string // empty: no line
	since time.Time
	drawn bool

	stop  chan struct{}
	ended sync.WaitGroup
}

const (
	eraseLine   = "\r\x1b[K"
	ScreenWidth = 80 // columns that are used
)

// NewStatusLine returns the status line of env's standard error, if that is a terminal. It replaces env.Stderr by a
// writer that erases the line first. The caller calls end.
func NewStatusLine(env *Environment, quiet bool) *StatusLine {
	s := &StatusLine{stop: make(chan struct{})}
	below, ok := env.Stderr.(EscapingWriter)
	if !ok || quiet || !env.StderrIsTerminal || os.Getenv("TERM") == "dumb" {
		return s
	}
	s.out = below.Writer
	env.Stderr = EscapingWriter{s}
	s.ended.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.mu.Lock()
				s.draw()
				s.mu.Unlock()
			case <-s.stop:
				return
			}
		}
	})
	return s
}

// end erases the line. It does not come back.
func (s *StatusLine) End() {
	s.Clear()
	close(s.stop)
	s.ended.Wait()
}

// Set changes the text.
func (s *StatusLine) Set(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text != s.text {
		s.text, s.since = text, time.Now()
	}
	s.draw()
}

// Change changes the text, but not the time since which the command waits.
func (s *StatusLine) Change(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = text
	s.draw()
}

// Clear removes the line from the terminal.
func (s *StatusLine) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = ""
	s.erase()
}

// draw writes the line. A terminal that fails also fails for the other output of the command, where it is noticed.
func (s *StatusLine) draw() {
	if s.out == nil || s.text == "" {
		return
	}
	line := Printable(s.text + "  " + time.Since(s.since).Truncate(time.Second).String())
	_, _ = io.WriteString(s.out, eraseLine+WithoutEnd(line, ScreenWidth-1))
	s.drawn = true
}

func (s *StatusLine) erase() {
	if s.drawn {
		_, _ = io.WriteString(s.out, eraseLine)
	}
	s.drawn = false
}

// Write erases the line and writes p, which is already escaped.
func (s *StatusLine) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	return s.out.Write(p)
}
