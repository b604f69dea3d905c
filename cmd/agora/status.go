package main

import (
	"io"
	"os"
	"sync"
	"time"
)

// statusLine is the last line of a terminal: it says what the command waits for, and since when. It is erased before
// anything else is printed. Without a terminal, it prints nothing.
type statusLine struct {
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
	screenWidth = 80 // columns that are used
)

// newStatusLine returns the status line of env's standard error, if that is a terminal. It replaces env.stderr by a
// writer that erases the line first. The caller calls end.
func newStatusLine(env *environment, quiet bool) *statusLine {
	s := &statusLine{stop: make(chan struct{})}
	below, ok := env.stderr.(escapingWriter)
	if !ok || quiet || !env.stderrIsTerminal || os.Getenv("TERM") == "dumb" {
		return s
	}
	s.out = below.Writer
	env.stderr = escapingWriter{s}
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
func (s *statusLine) end() {
	s.clear()
	close(s.stop)
	s.ended.Wait()
}

// set changes the text.
func (s *statusLine) set(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text != s.text {
		s.text, s.since = text, time.Now()
	}
	s.draw()
}

// change changes the text, but not the time since which the command waits.
func (s *statusLine) change(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = text
	s.draw()
}

func (s *statusLine) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = ""
	s.erase()
}

// draw writes the line. A terminal that fails also fails for the other output of the command, where it is noticed.
func (s *statusLine) draw() {
	if s.out == nil || s.text == "" {
		return
	}
	line := printable(s.text + "  " + time.Since(s.since).Truncate(time.Second).String())
	_, _ = io.WriteString(s.out, eraseLine+withoutEnd(line, screenWidth-1))
	s.drawn = true
}

func (s *statusLine) erase() {
	if s.drawn {
		_, _ = io.WriteString(s.out, eraseLine)
	}
	s.drawn = false
}

// Write erases the line and writes p, which is already escaped.
func (s *statusLine) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	return s.out.Write(p)
}
