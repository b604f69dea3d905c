package main

import (
	"fmt"
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

// table returns the table of all goals with their results.
func (r *results) table() string {
	if len(r.Rows) == 0 {
		return ""
	}
	var t strings.Builder
	fmt.Fprintf(&t, "Machine: %s. `std` is the number of signatures that `crypto/ed25519` verifies per second on all "+
		"cores, measured in the same runs.\n\n", r.Machine)
	fmt.Fprintln(&t, "| | measured | required | target | result | std | date |\n|---|---|---|---|---|---|---|")
	for _, g := range goals {
		must, aim := g.bounds()
		m, measured := r.row(g.id)
		if !measured {
			fmt.Fprintf(&t, "| %s | – | %s | %s | | | |\n", g.title, must, aim)
			continue
		}
		reached := g.reached(m.Value)
		if g.hasNoBounds() {
			reached = "–"
		}
		fmt.Fprintf(&t, "| %s | "+g.format+"%s | %s | %s | %s | %.0f | %s |\n",
			g.title, m.Value, rangeOf(m.Samples, g.format), must, aim, reached, m.Std, m.Date)
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
