package metrics_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// dashboard is what the tests read of dashboard.json, see "JSON model" in the manual of Grafana.
type dashboard struct {
	UID           string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type string }
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ Type, UID string }
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		Datasource                struct{ UID string }
		RefID, Expr, LegendFormat string
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rule is an alert of alerts.yml.
type rule struct{ name, expr, text string }

// readRules splits alerts.yml into its alerts. Each expression is on one line.
func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	expr := regexp.MustCompile(`(?m)^        expr: (.+)$`)
	for _, text := range strings.Split(readFile(t, "alerts.yml"), "\n      - alert: ")[1:] {
		name, _, _ := strings.Cut(text, "\n")
		found := expr.FindAllStringSubmatch(text, -1)
		if len(found) != 1 {
			t.Fatalf("%s has %d expressions", name, len(found))
		}
		rules = append(rules, rule{name, found[0][1], text})
	}
	if len(rules) < 13 {
		t.Fatalf("found only %d alerts", len(rules))
	}
	return rules
}

// use is a metric in an expression of PromQL.
type use struct {
	metric string
	labels []string // in its selector, and of the aggregations around it
	kept   []string // the labels that the aggregations keep; nil: there is no aggregation, so all are kept
}

var (
	token      = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]|[a-zA-Z_:][\w:]*|[0-9.]+|\S`)
	identifier = regexp.MustCompile(`^[a-zA-Z_:]`)

	aggregations = []string{"sum", "min", "max"}
	matchings    = []string{"on", "ignoring", "group_left"}
	operators    = []string{"and", "or", "unless"}
)

// parse finds the metrics in an expression. An aggregation has the form "sum by (labels) (…)" or "sum(…)". matching are
// the labels of on, ignoring and group_left.
func parse(t *testing.T, expr string) (uses []use, matching []string) {
	t.Helper()
	words := append(token.FindAllString(expr, -1), "", "") // at the end, so that a word has a next one
	// names returns the identifiers in the brackets that words[i] opens, and where the brackets end.
	names := func(i int) (list []string, end int) {
		list = []string{}
		for end = i; words[end] != "" && words[end] != ")" && words[end] != "}"; end++ {
			if identifier.MatchString(words[end]) {
				list = append(list, words[end])
			}
		}
		return list, end
	}
	var around [][]string // for each open bracket: the labels that it keeps; nil: it is no aggregation
	var keep []string     // of the next bracket
	for i := 0; words[i] != ""; i++ {
		switch w := words[i]; {
		case w == "(":
			around, keep = append(around, keep), nil
		case w == ")":
			if len(around) == 0 {
				t.Fatalf("a bracket too many: %s", expr)
			}
			around = around[:len(around)-1]
		case slices.Contains(aggregations, w):
			if keep = []string{}; words[i+1] == "by" {
				keep, i = names(i + 2)
			}
		case slices.Contains(matchings, w):
			var list []string
			list, i = names(i + 1)
			matching = append(matching, list...)
		case identifier.MatchString(w) && words[i+1] != "(" && !slices.Contains(operators, w):
			u := use{metric: w, labels: slices.Concat(around...)}
			if outermost := slices.IndexFunc(around, func(kept []string) bool { return kept != nil }); outermost >= 0 {
				u.kept = around[outermost]
			}
			if words[i+1] == "{" {
				var list []string
				list, i = names(i + 1)
				u.labels = append(u.labels, list...)
			}
			uses = append(uses, u)
		}
	}
	if len(around) > 0 || len(uses) == 0 {
		t.Fatalf("cannot parse %s", expr)
	}
	return uses, matching
}

// ofScrape are the labels that Prometheus adds to every series.
var ofScrape = []string{"job", "instance"}

// labelsOf returns the labels of a metric.
func (p page) labelsOf(metric string) (names []string, exists bool) {
	labels, exists := p.labels[metric]
	if metric == "up" || strings.HasPrefix(metric, "process_") && runtime.GOOS != "linux" {
		exists = true
	}
	names = slices.Clone(ofScrape)
	for name := range labels {
		names = append(names, name)
	}
	return names, exists
}

// check checks that an expression uses only metrics and labels that exist. It returns the labels of the result.
func (p page) check(t *testing.T, where, expr string) (results []string) {
	t.Helper()
	uses, matching := parse(t, expr)
	var all []string
	for _, u := range uses {
		labels, exists := p.labelsOf(u.metric)
		if !exists {
			t.Errorf("%s: there is no metric %s", where, u.metric)
			continue
		}
		for _, l := range u.labels {
			if !slices.Contains(labels, l) {
				t.Errorf("%s: %s has no label %s, only %v", where, u.metric, l, labels)
			}
		}
		if u.kept != nil {
			labels = u.kept
		}
		all = append(all, labels...)
	}
	for _, l := range matching {
		if !slices.Contains(all, l) {
			t.Errorf("%s: nothing has the label %s", where, l)
		}
	}
	return all
}

// TestParse checks that the tests below see every metric and every label.
func TestParse(t *testing.T) {
	for expr, want := range map[string]string{
		`a`:                            "[{a [] []}] []",
		`a{x="1",y!~"b{}(c"}[5m] > 7`:  "[{a [x y] []}] []",
		`a{x="1"} == 0 or absent(b{})`: "[{a [x] []} {b [] []}] []",
		`sum by (i, le) (rate(a_bucket{x=~"$x"}[$__rate_interval]))`: "[{a_bucket [i le x] [i le]}] []",
		`sum(a) / (sum(b) > 0)`:                                "[{a [] []} {b [] []}] []",
		`max by (x) (sum by (x, y) (a)) - time() > 2 ^ 30`:     "[{a [x x y] [x]}] []",
		`a * on (i) group_left (v) b or ignoring (k) c{z!=""}`: "[{a [] []} {b [] []} {c [z] []}] [i v k]",
	} {
		uses, matching := parse(t, expr)
		if got := fmt.Sprint(uses, " ", matching); got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
}

// TestAlertsUseWhatExists checks the metrics and the labels of all alerts, also the labels in their texts.
func TestAlertsUseWhatExists(t *testing.T) {
	p, label := scrape(t, full(t)), regexp.MustCompile(`\$labels\.(\w+)`)
	for _, r := range readRules(t) {
		results := p.check(t, r.name, r.expr)
		for _, l := range label.FindAllStringSubmatch(r.text, -1) {
			if !slices.Contains(results, l[1]) {
				t.Errorf("%s: the text names the label %s, but the expression has only %v", r.name, l[1], results)
			}
		}
		uses, _ := parse(t, r.expr)
		if n := strings.Count(r.expr, `job="agora"`); n != len(uses) {
			t.Errorf("%s: %d of %d selectors name the job: %s", r.name, n, len(uses), r.expr)
		}
	}
}

// TestAlertsAreComplete checks that each alert has a severity and texts, and that alerts_test.yml has a case in which it
// fires. In the first case there, none fires.
func TestAlertsAreComplete(t *testing.T) {
	tests := readFile(t, "alerts_test.yml")
	severity := regexp.MustCompile(`\n        labels: \{severity: (warning|critical)\}\n`)
	for _, r := range readRules(t) {
		level := severity.FindStringSubmatch(r.text)
		if level == nil {
			t.Errorf("%s has no severity", r.name)
			continue
		}
		for _, part := range []string{"\n        annotations:\n", "\n          summary: ", "\n          description: "} {
			if !strings.Contains(r.text, part) {
				t.Errorf("%s has no%s", r.name, strings.TrimSpace(part))
			}
		}
		fires := regexp.MustCompile(`alertname="` + r.name + `",[^}]*severity="` + level[1] + `"`)
		if !fires.MatchString(tests) {
			t.Errorf("alerts_test.yml has no case in which %s fires as %s", r.name, level[1])
		}
	}
}

// TestDashboardUsesWhatExists checks the metrics and the labels of all panels, also the labels in their legends.
func TestDashboardUsesWhatExists(t *testing.T) {
	p, label := scrape(t, full(t)), regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			where := panel.Title + ", " + target.RefID
			results := p.check(t, where, target.Expr)
			for _, l := range label.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(results, l[1]) {
					t.Errorf("%s: the legend names the label %s, but the expression has only %v", where, l[1], results)
				}
			}
			uses, _ := parse(t, target.Expr)
			if n := strings.Count(target.Expr, `{job=~"$job",instance=~"$instance"`); n != len(uses) {
				t.Errorf("%s: %d of %d selectors have $job and $instance: %s", where, n, len(uses), target.Expr)
			}
		}
	}
}

// TestDashboardShowsEverything checks that no metric of the relay was forgotten.
func TestDashboardShowsEverything(t *testing.T) {
	shown := map[string]bool{}
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			uses, _ := parse(t, target.Expr)
			for _, u := range uses {
				shown[u.metric] = true
			}
		}
	}
	own := 0
	for family, kind := range scrape(t, full(t)).types {
		if !strings.HasPrefix(family, "agora_") {
			continue
		}
		own++
		if !shown[family] && (kind != "histogram" || !shown[family+"_bucket"] && !shown[family+"_sum"]) {
			t.Errorf("no panel shows %s", family)
		}
	}
	if own < 20 {
		t.Errorf("only %d metrics", own)
	}
}

// TestDashboardIsComplete checks what Grafana and its users need of each panel.
func TestDashboardIsComplete(t *testing.T) {
	d := readDashboard(t)
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
	}
	if want := "map[datasource:datasource instance:query job:query]"; fmt.Sprint(variables) != want || d.UID != "agora" ||
		d.SchemaVersion < 39 {
		t.Errorf("uid %s, schema %d, variables %v", d.UID, d.SchemaVersion, variables)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	rows := 0
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q: the id is not unique, or the title is missing", p.ID, p.Title)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.X < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > 24 {
			t.Errorf("%s is outside of the grid: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("%s and %s overlap", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows++
			continue
		}
		if p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" ||
			!strings.HasSuffix(p.Description, ".") {
			t.Errorf("%s lacks a unit, a target, the datasource or a description", p.Title)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.RefID == "" || refs[target.RefID] || target.LegendFormat == "" ||
				target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: target %q has no id of its own, no legend or no datasource", p.Title, target.RefID)
			}
			refs[target.RefID] = true
		}
	}
	if rows < 3 || len(ids)-rows < 12 {
		t.Errorf("%d rows and %d panels", rows, len(ids)-rows)
	}
}
