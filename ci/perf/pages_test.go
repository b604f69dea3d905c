package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// docs copies the two pages of this project to a temporary folder and returns its path.
func docs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"PERFORMANCE.md", "SCALING.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSave saves results over the pages of this project, twice, and checks the saved results and pages.
func TestSave(t *testing.T) {
	dir := docs(t)
	r := sampleResults()
	r.Profile = []share{{"store: fsync", 30}, {"signature", 10}}
	r.add("floor32", 50_000, []float64{.51, .49, .53})
	r.add("floor32", 50_000, []float64{.51, .49, .47})
	r.add("post32", 50_000, []float64{.30, .28, .26})
	r.add("tail", 50_000, []float64{5})
	r.add("start", 50_000, []float64{2.5})
	for range 2 {
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
		var err error
		if r, err = load(dir); err != nil {
			t.Fatal(err)
		}
	}
	page := read(t, dir, "PERFORMANCE.md")
	for _, want := range []string{
		"256 senders | 0.490 (0.470–0.510) | ≥ 0.48 | ≥ 0.58 |\n",
		"256 senders | 0.280 (0.260–0.300) | – | – |\n", "| 5.0 | ≤ 8 | ≤ 4 |\n",
		"| **2.50 s** | ≤ 2 | ≤ 0.3 |\n", "| store: fsync | 30.0 | 75 % |",
		"10,000 senders | – | ≥ 0.42 | ≥ 0.52 |\n", "## Measure it again", "Measured from 2",
		"| 20,000 with 256 connections, 10,000 with 32 |", "| half of them 1.0 ms, 99 % at most 2.0 ms |", "| 50 MB |", "| 2.5 s |",
	} {
		if strings.Count(page, want) < 1 {
			t.Errorf("%q is not in\n%s", want, page)
		}
	}
	if strings.Count(page, "256 senders | 0.4") != 1 {
		t.Error("the table contains a row twice")
	}
	scaling := read(t, dir, "SCALING.md")
	for _, want := range []string{"| 20000/s, 1728 million per day |", "## Beyond one node"} {
		if !strings.Contains(scaling, want) {
			t.Errorf("%q is not in\n%s", want, scaling)
		}
	}
}

// TestUnmeasuredStays checks that fillIn does not change a page if the text is empty, or if the page has no place for
// the text.
func TestUnmeasuredStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	const page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n"
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fillIn(path, map[string]string{"x": ""}); err != nil || read(t, path) != page {
		t.Errorf("%v\n%s", err, read(t, path))
	}
	if err := fillIn(path, map[string]string{"y": "new\n"}); err == nil || read(t, path) != page {
		t.Errorf("%v\n%s", err, read(t, path))
	}
	if err := fillIn(path, map[string]string{"x": "new\n"}); err != nil ||
		read(t, path) != strings.Replace(page, "old", "new", 1) {
		t.Errorf("%v\n%s", err, read(t, path))
	}
}

// TestGraphs checks that the graphs are valid XML, and that each line has a dot for each measured point. It also checks
// the labels of the axes.
func TestGraphs(t *testing.T) {
	r := sampleResults()
	for name, svg := range map[string]string{"connections": r.connectionsGraph(), "stored": r.storedGraph()} {
		decoder := xml.NewDecoder(strings.NewReader(svg))
		dots := 0
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, svg)
			}
			if element, ok := token.(xml.StartElement); ok && element.Name.Local == "circle" {
				dots++
			}
		}
		if want := map[string]int{"connections": 3 * 5, "stored": 4 * 2}[name]; dots != want {
			t.Errorf("%s: %d dots, want %d", name, dots, want)
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("%s: %s", name, svg)
		}
	}
	for highest, want := range map[float64]float64{.31: .05, 1.5: .2, 8: 1, 9.5: 2, 17: 5, 40: 5, 41: 10, 0: 1} {
		if got := tick(highest); !near(got, want) {
			t.Errorf("the distance of the ticks up to %g is %g, want %g", highest, got, want)
		}
	}
	for n, want := range map[int]string{512: "512", 10_000: "10k", 1_000_000: "1M", 1234: "1234", 300_000: "300k"} {
		if got := short(n); got != want {
			t.Errorf("the short form of %d is %s, want %s", n, got, want)
		}
	}
}

// TestPagesAreFilled checks that the generated parts of the two pages, the graphs and the results are not empty.
func TestPagesAreFilled(t *testing.T) {
	for page, marks := range map[string][]string{
		"PERFORMANCE.md": {"plain", "table", "ratios", "profile"},
		"SCALING.md":     {"node"},
	} {
		text := read(t, "../../docs", page)
		for _, mark := range marks {
			_, rest, _ := strings.Cut(text, "<!-- "+mark+" -->")
			filled, _, ended := strings.Cut(rest, "<!-- /"+mark+" -->")
			if !ended || strings.TrimSpace(filled) == "" {
				t.Errorf("%s has no text between the comments %q; make perf and make profile write it", page, mark)
			}
		}
	}
	for _, file := range []string{"results.json", "connections.svg", "stored.svg"} {
		if read(t, "../../docs/perf", file) == "" {
			t.Errorf("%s is empty", file)
		}
	}
}
