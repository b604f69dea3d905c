package main

import (
	"fmt"
	"os"
	"strings"
)

// fillIn writes texts into the page at path, each between its marks <!-- name --> and <!-- /name -->.
func fillIn(path string, texts map[string]string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page := string(data)
	for name, text := range texts {
		if text == "" {
			continue // not measured; what stands there stays
		}
		open, close := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		before, rest, opened := strings.Cut(page, open)
		_, after, closed := strings.Cut(rest, close)
		if !opened || !closed {
			return fmt.Errorf("%s has no place for %s: %s… %s", path, name, open, close)
		}
		page = before + open + text + close + after
	}
	return os.WriteFile(path, []byte(page), 0o666)
}

// table is the table of the goals.
func (r *results) table() string {
	if len(r.Rows) == 0 {
		return ""
	}
	var t strings.Builder
	fmt.Fprintf(&t, "%s. `std` is how many signatures `crypto/ed25519` verifies a second on all cores, in the same runs.\n\n", r.Machine)
	fmt.Fprintln(&t, "| | measured | must | aim | reached | std | date |\n|---|---|---|---|---|---|---|")
	for _, g := range goals {
		must, aim := g.bounds()
		m, measured := r.row(g.id)
		if !measured {
			fmt.Fprintf(&t, "| %s | – | %s | %s | | | |\n", g.title, must, aim)
			continue
		}
		reached := g.reached(m.Value)
		if g.none() {
			reached = "–"
		}
		fmt.Fprintf(&t, "| %s | "+g.format+"%s | %s | %s | %s | %.0f | %s |\n",
			g.title, m.Value, spread(m.Samples, g.format), must, aim, reached, m.Std, m.Date)
	}
	return t.String()
}

// bounds returns what the table says of must and aim.
func (g goal) bounds() (must, aim string) {
	sign := "≤"
	if g.least {
		sign = "≥"
	}
	if g.none() {
		return "–", "–"
	}
	return fmt.Sprintf("%s %g", sign, g.must), fmt.Sprintf("%s %g", sign, g.aim)
}

// spread says between which two values a row's runs were, if there were several.
func spread(samples []float64, format string) string {
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
	fmt.Fprintln(&t, "| stage | µs an event | share |\n|---|---|---|")
	total := 0.0
	for _, s := range r.Profile {
		total += s.Microseconds
	}
	for _, s := range r.Profile {
		fmt.Fprintf(&t, "| %s | %.1f | %.0f %% |\n", s.Stage, s.Microseconds, 100*s.Microseconds/total)
	}
	fmt.Fprintf(&t, "| all | %.1f | |\n", total)
	return t.String()
}

func (r *results) modelTable() string {
	if len(r.Model) == 0 {
		return ""
	}
	var t strings.Builder
	fmt.Fprintln(&t, "| | predicted | measured | error |\n|---|---|---|---|")
	for _, p := range r.Model {
		fmt.Fprintf(&t, "| %s | %.4g | %.4g | %+.0f %% |\n", p.What, p.Predicted, p.Measured, 100*p.Error)
	}
	return t.String()
}

// nodeTable says what the measured node holds.
func (r *results) nodeTable() string {
	m, ok := newModel(r)
	if !ok {
		return ""
	}
	many, _ := at(r.Connections, 256) // newModel has looked
	rate := many.Rate
	var t strings.Builder
	fmt.Fprintln(&t, "| | |\n|---|---|")
	line := func(what, format string, values ...any) {
		fmt.Fprintf(&t, "| %s | "+format+" |\n", append([]any{what}, values...)...)
	}
	line("posts, 256 connections, the load generator on the same cores", "%.0f/s, %.0f million a day", rate, rate*day/1e6)
	line("… if the relay had the cores to itself, by the model", "%.0f/s", m.alone(256))
	line("polls that wait, in 1 GiB of memory", "%.0f", m.polls(1<<30))
	line("disk an event of 730 bytes, indexes included; a thread's record", "%.0f; %.0f bytes", m.Row, m.Thread)
	line("posted a day at that rate", "%.0f GB of events", rate*day*730/1e9)
	for _, life := range lives {
		line("on disk at that rate, "+life.name, "%.0f GB", m.disk(rate, life.ttl)/1e9)
		line("the rate that 64 GiB (`--max-disk`) bear, "+life.name, "%.0f/s", m.bearable(64<<30, life.ttl))
	}
	return t.String()
}
