package main

import (
	"fmt"
	"math"
	"os"
	"strings"
)

// fillIn writes texts into the page at path. Each text replaces the lines between the comments <!-- name --> and
// <!-- /name -->. An empty text leaves those lines as they are.
func fillIn(path string, texts map[string]string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page := string(data)
	for name, text := range texts {
		if text == "" {
			continue // not measured, so keep the old text
		}
		open, close := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		before, rest, opened := strings.Cut(page, open)
		_, after, closed := strings.Cut(rest, close)
		if !opened || !closed {
			return fmt.Errorf("%s has no place for the text %s; add the lines\n%s%s", path, name, open, close)
		}
		page = before + open + text + close + after
	}
	return os.WriteFile(path, []byte(page), 0o666)
}

// plainTable returns the table of what one relay does, in plain numbers.
func (r *results) plainTable() string {
	few, okFew := pointAt(r.Connections, 32)
	many, okMany := pointAt(r.Connections, 256)
	if !okFew || !okMany || r.Figures.EventBytes == 0 || len(r.Rows) == 0 {
		return ""
	}
	var t strings.Builder
	first, last := r.Rows[0].Date, r.Rows[0].Date
	for _, m := range r.Rows {
		first, last = min(first, m.Date), max(last, m.Date)
	}
	fmt.Fprintf(&t, "Machine: %s, which also ran the load. Measured from %s to %s.\n\n| | |\n|---|---|\n", r.Machine, first, last)
	line := func(what, format string, values ...any) {
		fmt.Fprintf(&t, "| %s | "+format+" |\n", append([]any{what}, values...)...)
	}
	// measured adds a line with the value of a row, if the row was measured.
	measured := func(what, format, id string, unit func(row) any) {
		if m, ok := r.row(id); ok {
			line(what, format, unit(m))
		}
	}
	value := func(m row) any { return m.Value }
	rate := func(m row) any { return hundreds(m.Value * m.Std) }
	line("posts per second, each verified and on disk", "%s with 256 connections, %s with 32",
		hundreds(many.Rate), hundreds(few.Rate))
	measured("… in bulk requests of 5,000", "%s", "bulk", rate)
	line("time of a post, 32 connections", "half of them %.1f ms, 99 %% at most %.1f ms", few.P50, few.P99)
	measured("time from sending a post to its delivery, half of them", "%.1f ms", "deliver50", value)
	measured("… 99 % at most", "%.1f ms", "deliver99", value)
	measured("messages per second to a reader that is 100,000 behind", "%s", "catchup", rate)
	line("memory of a busy relay", "%.0f MB", r.Figures.Memory/1e6)
	measured("… for each client that waits", "%.0f KB", "rss", value)
	line("disk per message of 730 bytes, with indexes; per thread", "%.0f bytes; %.0f bytes",
		r.Figures.EventBytes, r.Figures.ThreadBytes)
	measured("start with 1,000,000 messages, also after a kill", "%.1f s", "start", value)
	return t.String()
}

// hundreds returns a number, rounded to hundreds, with a comma before the last three digits.
func hundreds(v float64) string {
	n := int(math.Round(v/100)) * 100
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// goalTable returns the table of the goals that are ratios, or of the others, with their results. A value that does not
// reach the required one is bold.
func (r *results) goalTable(ratios bool) string {
	if len(r.Rows) == 0 {
		return ""
	}
	var t strings.Builder
	fmt.Fprintln(&t, "| | measured | required | target |\n|---|---|---|---|")
	for _, g := range goals {
		if g.ratio != ratios {
			continue
		}
		must, aim := g.bounds()
		value := "–"
		if m, ok := r.row(g.id); ok {
			value = fmt.Sprintf(g.format, m.Value) + rangeOf(m.Samples, g.format)
			if g.misses(m.Value) {
				value = "**" + value + "**"
			}
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s |\n", g.title, value, must, aim)
	}
	return t.String()
}

// bounds returns the table cells for the required value and the target.
func (g goal) bounds() (must, aim string) {
	sign := "≤"
	if g.atLeast {
		sign = "≥"
	}
	if g.hasNoBounds() {
		return "–", "–"
	}
	return fmt.Sprintf("%s %g", sign, g.required), fmt.Sprintf("%s %g", sign, g.target)
}

// rangeOf returns the smallest and the largest sample as text, or "" if there are fewer than two samples.
func rangeOf(samples []float64, format string) string {
	if len(samples) < 2 {
		return ""
	}
	low, high := samples[0], samples[0]
	for _, v := range samples {
		low, high = min(low, v), max(high, v)
	}
	number, _, _ := strings.Cut(format, " ")
	return fmt.Sprintf(" ("+number+"–"+number+")", low, high)
}

func (r *results) profileTable() string {
	if len(r.Profile) == 0 {
		return ""
	}
	var t strings.Builder
	fmt.Fprintln(&t, "| stage | µs per event | share |\n|---|---|---|")
	total := 0.0
	for _, s := range r.Profile {
		total += s.Microseconds
	}
	for _, s := range r.Profile {
		fmt.Fprintf(&t, "| %s | %.1f | %.0f %% |\n", s.Stage, s.Microseconds, 100*s.Microseconds/total)
	}
	fmt.Fprintf(&t, "| total | %.1f | |\n", total)
	return t.String()
}

// nodeTable returns the table of what the measured node can do.
func (r *results) nodeTable() string {
	f := r.Figures
	many, measured := pointAt(r.Connections, 256)
	if !measured || f.EventBytes == 0 || f.BytesPerPoll == 0 || f.Memory == 0 {
		return ""
	}
	m := capacity{Base: f.Memory, Poll: f.BytesPerPoll, Row: f.EventBytes, Thread: f.ThreadBytes}
	rate := many.Rate
	var t strings.Builder
	fmt.Fprintln(&t, "| | |\n|---|---|")
	line := func(what, format string, values ...any) {
		fmt.Fprintf(&t, "| %s | "+format+" |\n", append([]any{what}, values...)...)
	}
	line("posts, 256 connections, with the load generator on the same cores", "%.0f/s, %.0f million per day",
		rate, rate*day/1e6)
	line("waiting polls in 1 GiB of memory", "%.0f", m.polls(1<<30))
	line("disk space per event of 730 bytes, with indexes; per thread record", "%.0f; %.0f bytes", m.Row, m.Thread)
	line("posted per day at that rate", "%.0f GB of events", rate*day*730/1e9)
	for _, lifetime := range ttls {
		line("on disk at that rate, "+lifetime.name, "%.0f GB", m.disk(rate, lifetime.ttl)/1e9)
		line("highest rate with 64 GiB of disk (`--max-disk`), "+lifetime.name, "%.0f/s",
			m.maxRate(64<<30, lifetime.ttl))
	}
	return t.String()
}
