package program

import (
	"bufio"
	"bytes"
	"io"
	"time"
)

// Limits on what EachLine passes on.
const (
	maxLine     = 1 << 10 // bytes of a line; the rest is left out
	LogLines    = 100     // lines in LogInterval
	LogInterval = 10 * time.Second
)

// LogFunc gets a line, which is not escaped and valid only during the call. If line is nil, leftOut lines before were
// left out.
type LogFunc func(line []byte, leftOut int)

// EachLine reads lines until the end of from. It passes on at most LogLines in LogInterval, and how many it has left
// out. It always reads on, so it never makes a program wait that writes the lines. It returns the last line that is not
// empty, whether it was passed on or not. log may be nil.
func EachLine(from io.Reader, log LogFunc) (last []byte) {
	if log == nil {
		log = func([]byte, int) {}
	}
	lines := bufio.NewReaderSize(from, maxLine)
	var since time.Time // of the interval
	passed, leftOut := 0, 0
	for {
		line, prefix, err := lines.ReadLine()
		if err != nil { // the end, or the pipe was closed
			break
		}
		if len(bytes.TrimSpace(line)) > 0 {
			last = append(last[:0], line...)
		}
		if now := time.Now(); now.Sub(since) >= LogInterval {
			reportLeftOut(log, leftOut)
			since, passed, leftOut = now, 0, 0
		}
		if passed++; passed > LogLines {
			leftOut++
		} else {
			log(line, 0)
		}
		for prefix && err == nil {
			_, prefix, err = lines.ReadLine()
		}
	}
	reportLeftOut(log, leftOut)
	return last
}

func reportLeftOut(log LogFunc, lines int) {
	if lines > 0 {
		log(nil, lines)
	}
}
