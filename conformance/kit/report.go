package kit

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteText writes the report as text: one line for each check, then the full findings of the checks that failed or
// were skipped, then the reasons why checks were not tested, then a summary.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	theme := ""
	marks, numbers := 7, 6 // widths of the columns
	for _, result := range r.Results {
		marks, numbers = max(marks, len(mark(result.Status))), max(numbers, len(result.Number))
	}
	for _, result := range r.Results {
		if result.Theme != theme {
			theme = result.Theme
			fmt.Fprintf(&b, "\n%s\n", theme)
		}
		fmt.Fprintf(&b, "  %-*s %-*s %s\n", marks, mark(result.Status), numbers, result.Number, result.Title)
	}
	for _, result := range r.Results {
		if result.Status == Failed || result.Status == Skipped {
			fmt.Fprintf(&b, "\n%s\n", result.Finding())
		}
	}
	fmt.Fprintf(&b, "\n%s%s", r.notTested(), r.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

func mark(s Status) string {
	switch s {
	case Passed:
		return "pass"
	case Failed:
		return "FAIL"
	case NotTested:
		return "not tested"
	}
	return "skipped"
}

// notTested says why checks were not tested, and how many for each reason. It is empty if all checks were tested.
func (r Report) notTested() string {
	count := map[string]int{}
	var reasons []string
	for _, result := range r.Results {
		if result.Status == NotTested {
			if count[result.Got] == 0 {
				reasons = append(reasons, result.Got)
			}
			count[result.Got]++
		}
	}
	var b strings.Builder
	for _, reason := range reasons {
		fmt.Fprintf(&b, "%d not tested: %s\n", count[reason], reason)
	}
	return b.String()
}

// Finding describes the result of a check in full: the rule, what was sent, what was expected and what was received.
func (r Result) Finding() string {
	text := fmt.Sprintf("%s %s: %s\n  rule      %s\n", mark(r.Status), r.Number, r.Title, r.Cites)
	for _, part := range [][2]string{{"sent", r.Sent}, {"expected", r.Expected}, {"got", r.Got}} {
		if part[1] != "" {
			text += fmt.Sprintf("  %-9s %s\n", part[0], strings.ReplaceAll(part[1], "\n", "\n            "))
		}
	}
	return strings.TrimSuffix(text, "\n")
}

func (r Report) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d passed, %d failed, %d skipped", r.URL, r.Count(Passed), r.Count(Failed), r.Count(Skipped))
	if n := r.Count(NotTested); n > 0 {
		fmt.Fprintf(&b, ", %d not tested", n)
	}
	fmt.Fprintf(&b, "; %d requests in %v\n", r.Requests, r.Took.Round(time.Second/10))
	if r.Clock != 0 {
		fmt.Fprintf(&b,
			"The relay's clock is ahead of the local clock by %v. Messages were dated by the relay's clock.\n",
			r.Clock.Round(time.Second))
	}
	for _, level := range Levels() {
		passed, all := 0, 0
		for _, result := range r.Results {
			if result.Level == level {
				all++
				if result.Status == Passed {
					passed++
				}
			}
		}
		if all > 0 {
			fmt.Fprintf(&b, "  %-10s %d of %d\n", level, passed, all)
		}
	}
	verdict := "passes all selected checks"
	if !r.Holds() {
		verdict = "does not pass all selected checks"
	}
	switch r.Level {
	case Hub:
		fmt.Fprintf(&b, "The hub %s.\n", verdict)
	case ChannelService:
		fmt.Fprintf(&b, "The channel service %s.\n", verdict)
	case JobsRegistry:
		fmt.Fprintf(&b, "The registry of jobs %s.\n", verdict)
	case A2AServer:
		fmt.Fprintf(&b, "The A2A server %s.\n", verdict)
	default:
		fmt.Fprintf(&b, "The relay %s (level %s).\n", verdict, r.Level)
	}
	return b.String()
}

// WriteJUnit writes the report as JUnit XML, with one test suite for each theme.
func (r Report) WriteJUnit(w io.Writer) error {
	type text struct {
		Message string `xml:"message,attr"`
		Body    string `xml:",chardata"`
	}
	type testCase struct {
		Name    string `xml:"name,attr"`
		Class   string `xml:"classname,attr"`
		Time    string `xml:"time,attr"`
		Failure *text  `xml:"failure"`
		Skipped *text  `xml:"skipped"`
	}
	type suite struct {
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Cases    []testCase `xml:"testcase"`
	}
	report := struct {
		XMLName  xml.Name `xml:"testsuites"`
		Name     string   `xml:"name,attr"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Skipped  int      `xml:"skipped,attr"`
		Time     string   `xml:"time,attr"`
		Suites   []suite  `xml:"testsuite"`
	}{Name: "agora conformance " + r.URL, Tests: len(r.Results), Failures: r.Count(Failed), Skipped: r.Count(Skipped),
		Time: seconds(r.Took)}
	for _, result := range r.Results {
		if n := len(report.Suites); n == 0 || report.Suites[n-1].Name != result.Theme {
			report.Suites = append(report.Suites, suite{Name: result.Theme})
		}
		s := &report.Suites[len(report.Suites)-1]
		c := testCase{
			Name:  result.Number + " " + result.Title,
			Class: "agora." + string(result.Level),
			Time:  seconds(result.Took),
		}
		s.Tests++
		switch result.Status {
		case Failed:
			s.Failures++
			c.Failure = &text{result.Got, result.Finding()}
		case Skipped, NotTested:
			s.Skipped++
			c.Skipped = &text{result.Got, result.Finding()}
		}
		s.Cases = append(s.Cases, c)
	}
	out, err := xml.MarshalIndent(report, "", "  ") // it replaces characters that XML does not allow
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, out)
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
