package conformance_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/conformance"
)

// TestNumbers tests that the numbers of the checks are unique and without gaps, and that each check has a title, a
// citation and a theme.
func TestNumbers(t *testing.T) {
	seen, next := map[string]bool{}, map[conformance.Level]int{}
	letters := map[conformance.Level]string{conformance.Core: "C", conformance.Strict: "S", conformance.Extensions: "X"}
	for _, c := range conformance.Checks() {
		next[c.Level()]++
		if want := fmt.Sprintf("%s-%d", letters[c.Level()], next[c.Level()]); c.Number != want || seen[c.Number] {
			t.Errorf("%q is numbered %s, want %s", c.Title, c.Number, want)
		}
		seen[c.Number] = true
		if c.Title == "" || c.Cites == "" || c.Theme == "" {
			t.Errorf("%s has no title, no citation or no theme", c.Number)
		}
		if strings.HasPrefix(c.Cites, "spec") != (c.Level() == conformance.Core) {
			t.Errorf("%s of level %s cites %q", c.Number, c.Level(), c.Cites)
		}
	}
}

// TestCitations checks that the sections and the rules that the checks of gateways and of proofs cite are in the
// documentation.
func TestCitations(t *testing.T) {
	docs := map[string]string{}
	for _, name := range []string{"HUB", "CHANNEL", "JOBS", "GATEWAYS", "PROOFS"} {
		text, err := os.ReadFile("../docs/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		docs[name] = string(text)
	}
	section, rule := regexp.MustCompile(`^(HUB|CHANNEL|JOBS|GATEWAYS|PROOFS) "(.+)"$`), regexp.MustCompile(`^[BHCJG]-[0-9]+$`)
	proofs := slices.DeleteFunc(conformance.Checks(), func(c conformance.Check) bool { return c.Theme != "Proofs" })
	for _, c := range slices.Concat(proofs, conformance.HubChecks(), conformance.ChannelChecks(), conformance.JobsChecks()) {
		for part := range strings.SplitSeq(strings.ReplaceAll(c.Cites, ", ", "; "), "; ") {
			known := false
			if m := section.FindStringSubmatch(part); m != nil {
				known = strings.Contains(docs[m[1]], "# "+m[2]+"\n")
			} else if rule.MatchString(part) {
				known = regexp.MustCompile(`\b` + part + `\b`).MatchString(docs["HUB"] + docs["CHANNEL"] +
					docs["JOBS"] + docs["GATEWAYS"])
			}
			if !known {
				t.Errorf("%s cites %q, which is in none of the documents", c.Number, part)
			}
		}
	}
}

// TestNumbersAreUnique tests that no two checks of any kit have the same number.
func TestNumbersAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range slices.Concat(conformance.Checks(), conformance.HubChecks(), conformance.ChannelChecks(),
		conformance.JobsChecks()) {
		if seen[c.Number] {
			t.Errorf("%s is the number of two checks", c.Number)
		}
		seen[c.Number] = true
	}
}

// TestVectorFiles tests that the vector files that the checks name exist.
func TestVectorFiles(t *testing.T) {
	for _, c := range conformance.Checks() {
		if c.Vectors == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join("../testvectors", c.Vectors)); err != nil {
			t.Errorf("%s names a file of vectors that does not exist: %v", c.Number, err)
		}
	}
}

func TestMisuse(t *testing.T) {
	for _, o := range []conformance.Options{{Level: "all"}, {Only: []string{"C-0"}}} {
		if _, err := conformance.Run(t.Context(), "http://127.0.0.1:1", o); err == nil ||
			o.Check("http://127.0.0.1:1") == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	for _, url := range []string{"", "127.0.0.1:8789", "ftp://relay.example", "http://", "http://relay.example?x=1"} {
		if (conformance.Options{}).Check(url) == nil {
			t.Errorf("the address %q is accepted", url)
		}
	}
}

// TestNoRelay tests that Run soon returns an error if no relay answers at the address.
func TestNoRelay(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	mute := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer mute.Close()
	for url, want := range map[string]string{site.URL: "is not an Agora relay", gone.URL: "no relay answers",
		mute.URL: "no answer within"} {
		started := time.Now()
		_, err := conformance.Run(t.Context(), url, conformance.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || time.Since(started) > 30*time.Second {
			t.Errorf("after %v: %v, want %q", time.Since(started), err, want)
		}
	}
}

// TestGarbage runs all checks against a server that returns random garbage, except for a good health check. The checks
// must fail with a description, must not panic, and must end soon.
func TestGarbage(t *testing.T) {
	t.Parallel()
	nonsense := []string{
		"",
		"null",
		"[]",
		"{}",
		`{"ok":1}`,
		`{"ok":true}`,
		`{"ok":true,"events":{}}`,
		`{"ok":true,"events":null,"hasMore":false}`,
		`{"ok":true,"id":7,"events":[null,1,"x",[],{}],"hasMore":false,"cursor":"x",` +
			`"agents":[null],"thread":[],"details":3}`,
		`{"ok":false,"error":{"code":1}}`,
		"\xff\xfe",
		strings.Repeat("[", 1_000_000),
		`{"ok":true,"events":[{"id":"a","ts":"` + strings.Repeat("z", 100) + `"}],"hasMore":true}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			_, _ = w.Write([]byte(`{"ok":true}`))
			return
		}
		if rand.IntN(10) == 0 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Retry-After", "0")
		w.WriteHeader([]int{200, 200, 200, 204, 301, 400, 429, 500}[rand.IntN(8)])
		_, _ = w.Write([]byte(nonsense[rand.IntN(len(nonsense))]))
	}))
	defer server.Close()
	for range 3 {
		report, err := conformance.Run(t.Context(), server.URL, conformance.Options{})
		if err != nil {
			t.Fatal(err)
		}
		// A few checks may pass, because the garbage may be the answer that they expect.
		tested := len(report.Results) - report.Count(conformance.NotTested)
		if failed := report.Count(conformance.Failed); failed < tested*9/10 ||
			report.Took > 30*time.Second {
			t.Errorf("%d of %d checks failed, in %v", failed, tested, report.Took)
		}
		for _, r := range report.Results {
			if r.Status == conformance.Failed && (r.Sent == "" || r.Expected == "" || r.Got == "") {
				t.Errorf("%s failed without saying why: %+v", r.Number, r)
			}
		}
	}
}

// TestRunEndsEarly tests that a run ends soon after its context or its time limit, and reports the other checks as
// skipped.
func TestRunEndsEarly(t *testing.T) {
	t.Parallel()
	url := start(t, nil, nil)
	only := []string{"C-2", "C-42", "C-43", "S-116"}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var pressed time.Time
	report, err := conformance.Run(ctx, url, conformance.Options{Only: only, Progress: func(r conformance.Result) {
		if r.Status == conformance.Passed {
			pressed = time.Now()
			cancel(errors.New("the user stopped the run"))
		}
	}})
	if err != nil || time.Since(pressed) > 30*time.Second || report.Count(conformance.Passed) != 1 ||
		report.Count(conformance.Skipped) != 3 ||
		report.Holds() {
		t.Errorf("%+v, %v", report, err)
	}
	if got := report.Results[1].Got; !strings.Contains(got, "user stopped") {
		t.Errorf("a skipped check has the reason %q", got)
	}
	// S-116 takes about five seconds. The time limit must end before.
	report, err = conformance.Run(t.Context(), url, conformance.Options{Only: only, Timeout: 2 * time.Second})
	if err != nil || report.Took > 30*time.Second || report.Count(conformance.Skipped) < 3 { // on a slow machine all four
		t.Errorf("%+v, %v", report, err)
	}
}

// TestReportForms tests the text and the JUnit XML of a report with passed, failed and skipped checks. The texts from
// the relay may contain any bytes.
func TestReportForms(t *testing.T) {
	report := conformance.Report{URL: "http://relay.example", Level: conformance.Core, Results: []conformance.Result{
		{Number: "C-1", Level: conformance.Core, Theme: "One", Title: "first", Status: conformance.Passed},
		{
			Number:   "C-2",
			Level:    conformance.Core,
			Theme:    "One",
			Title:    "second",
			Status:   conformance.Failed,
			Sent:     "a\nb",
			Expected: "<x>",
			Got:      "\x00]]>\xff",
		},
		{
			Number: "C-3",
			Level:  conformance.Core,
			Theme:  "Two",
			Title:  "third",
			Status: conformance.Skipped,
			Got:    "no time",
		},
	}}
	var text, junit bytes.Buffer
	if err := errors.Join(report.WriteText(&text), report.WriteJUnit(&junit)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 passed, 1 failed, 1 skipped", "FAIL    C-2", "expected  <x>", "does not pass"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, text.String())
		}
	}
	var suites struct {
		Tests  int `xml:"tests,attr"`
		Suites []struct {
			Cases []struct {
				Name    string    `xml:"name,attr"`
				Failure *struct{} `xml:"failure"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(junit.Bytes(), &suites); err != nil {
		t.Fatal(err)
	}
	if suites.Tests != 3 || len(suites.Suites) != 2 || suites.Suites[0].Cases[1].Failure == nil ||
		suites.Suites[1].Cases[0].Skipped == nil {
		t.Errorf("%s", junit.String())
	}
}
