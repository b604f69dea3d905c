package conformance_test

import (
	cryptorand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/internal/racing"
)

// TestJobsNames tests that the names of the checks of registries are unique and well-formed, and that each check has a
// title, a theme and a citation.
func TestJobsNames(t *testing.T) {
	form := regexp.MustCompile(`^jobs(\.[a-z]+(-[a-z]+)*){1,2}$`)
	cites := regexp.MustCompile(`^(JOBS|GATEWAYS) "`)
	seen := map[string]bool{}
	for _, c := range conformance.JobsChecks() {
		if !form.MatchString(c.Number) || seen[c.Number] || c.Level() != conformance.JobsRegistry {
			t.Errorf("%q has the name %q and the level %s", c.Title, c.Number, c.Level())
		}
		seen[c.Number] = true
		if c.Title == "" || c.Theme == "" || !cites.MatchString(c.Cites) {
			t.Errorf("%s has the title %q, the theme %q and the citation %q", c.Number, c.Title, c.Theme, c.Cites)
		}
	}
}

// TestJobsRequirements tests that checks cite every requirement of JOBS.md that can be seen from outside. J-25 and J-26
// are about an endpoint that is silent for 300 seconds.
func TestJobsRequirements(t *testing.T) {
	cited := map[string]bool{}
	for _, c := range conformance.JobsChecks() {
		for _, number := range regexp.MustCompile(`\bJ-\d+`).FindAllString(c.Cites, -1) {
			cited[number] = true
		}
	}
	for i := 1; i <= 31; i++ {
		if number := fmt.Sprint("J-", i); cited[number] != (i != 25 && i != 26) {
			t.Errorf("%s: cited %v", number, cited[number])
		}
	}
}

// passJobsChecks runs checks at a registry that must pass, unless they need an option that is not given.
func passJobsChecks(t *testing.T, url string, o conformance.JobsOptions) conformance.Report {
	t.Helper()
	return passChecks(t, untested, o.Only, func(only []string) (conformance.Report, error) {
		o.Only = only
		return conformance.RunJobs(t.Context(), url, o)
	})
}

// TestOwnJobsPass runs the checks against this project's registry, but for two: one waits for a minute and a half, and
// one needs a registry that limits requests.
func TestOwnJobsPass(t *testing.T) {
	skipWithRaceDetector(t)
	t.Parallel()
	takeTurn(t)
	o := conformance.JobsOptions{OperatorKey: operatorKey, Listen: "127.0.0.1:0", Agent: relayKey(t), Thorough: true}
	for _, c := range conformance.JobsChecks() {
		if c.Number != heartbeatExpiry && c.Number != "jobs.limits.principals" {
			o.Only = append(o.Only, c.Number)
		}
	}
	report := passJobsChecks(t, startJobs(t, nil), o)
	if n := report.Count(conformance.NotTested); n != 0 {
		t.Errorf("%d checks were not tested", n)
	}
}

// heartbeatExpiry is the check that waits until a heartbeat is 90 seconds old.
const heartbeatExpiry = "jobs.heartbeat.expiry"

// TestOwnJobsLimit runs some checks against this project's registry that limits requests, because they come from another
// machine. It allows 10 new principals a day to one address.
func TestOwnJobsLimit(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	only := []string{"jobs.account.new", "jobs.account.initial", "jobs.register.principal", "jobs.hire.race",
		"jobs.reputation.cap", "jobs.limits.principals"}
	report := passChecks(t, untested, only, func(only []string) (conformance.Report, error) {
		return conformance.RunJobs(t.Context(), startJobs(t, fromRemoteAddress),
			conformance.JobsOptions{OperatorKey: operatorKey, Thorough: true, Only: only})
	})
	if n := report.Count(conformance.Passed); n != len(report.Results) {
		t.Errorf("%d checks passed", n)
	}
}

// TestJobsWithLimits runs quick checks against a registry that refuses every tenth request, because it limits their rate.
// The run must repeat these requests.
func TestJobsWithLimits(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	var requests atomic.Int64
	o := conformance.JobsOptions{OperatorKey: operatorKey, Listen: "127.0.0.1:0", Only: registries().ofTheme("Payment")}
	if !racing.Detector {
		o.Only = slices.Concat(o.Only, registries().ofTheme("Hiring"), registries().ofTheme("Transfers"))
	}
	passJobsChecks(t, startJobs(t, limitsRate(encode(object{"detail": "too fast", "limit": "requests"}), &requests)), o)
	if requests.Load() < 100 {
		t.Errorf("%d requests", requests.Load())
	}
}

// TestJobsOptions tests that checks which need an option are not tested without it, and that invalid options are
// refused.
func TestJobsOptions(t *testing.T) {
	t.Parallel()
	url := startJobs(t, nil)
	for _, c := range []struct {
		o      conformance.JobsOptions
		passed int
		reason string
	}{
		{conformance.JobsOptions{}, 1, "1 not tested: this needs the operator's key"},
		{conformance.JobsOptions{OperatorKey: operatorKey}, 2, "1 not tested: this needs a server for jobs"},
		{conformance.JobsOptions{OperatorKey: operatorKey, Listen: "127.0.0.1:0"}, 3, "1 not tested: this takes long"},
	} {
		c.o.Only = []string{"jobs.pay.escrow", "jobs.operator.grant", "jobs.endpoint.failure", heartbeatExpiry}
		report := passJobsChecks(t, url, c.o)
		var text strings.Builder
		if err := report.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if !report.Holds() || report.Count(conformance.Passed) != c.passed || !strings.Contains(text.String(), c.reason) ||
			!strings.Contains(text.String(), "The registry of jobs passes all selected checks.") {
			t.Errorf("want %d passed and %q:\n%s", c.passed, c.reason, text.String())
		}
	}
	for _, o := range []conformance.JobsOptions{{Only: []string{"jobs.nothing"}}, {ListenURL: "https://kit.example"},
		{Listen: "127.0.0.1:0", ListenURL: "kit.example"}} {
		if _, err := conformance.RunJobs(t.Context(), url, o); err == nil || o.Check(url) == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if (conformance.JobsOptions{}).Check("127.0.0.1:8789/jobs") == nil {
		t.Error("an address that is no URL is accepted")
	}
}

// TestNoRegistry tests that RunJobs soon returns an error if no registry answers at the address.
func TestNoRegistry(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	for url, want := range map[string]string{site.URL: "is not a registry of jobs",
		"http://127.0.0.1:1": "no registry of jobs answers"} {
		if _, err := conformance.RunJobs(t.Context(), url, conformance.JobsOptions{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestJobsGarbage runs all checks against a server that returns random garbage, except for its health and some of the new
// principals. The checks must fail with a description, must not panic, and must end soon.
func TestJobsGarbage(t *testing.T) {
	t.Parallel()
	const id = "00000000-0000-4000-8000-000000000001"
	nonsense := []string{"", "null", "[]", "{}", `{"detail":1}`, `{"detail":[{"loc":1}]}`, `{"balance":"x"}`,
		`{"balance":1e999999999}`, `{"balance":100,"owner_id":1}`, `{"jobs":[null,1,"x",[],{}]}`,
		`{"agents":[{"agent_id":1}],"total":1}`, `{"status":"PENDING","job_id":"` + id + `"}`,
		`{"status":"SUCCESS","job_id":"` + id + `"}`, `{"jobs":[{"job_id":"` + id + `"}]}`,
		`{"transactions":[{"amount":[]}],"total":"x"}`, `{"score":1e9,"stats":[]}`, "\xff\xfe",
		strings.Repeat("[", 1_000_000)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch sent := decode(readBody(r)); {
		case r.URL.Path == "/jobs/health":
			_, _ = w.Write([]byte(`{"service":"chorus-registry"}`)) // the client may be gone
			return
		case r.URL.Path == "/jobs/accounts" && rand.IntN(2) == 0:
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(encode(object{"owner_id": sent["owner_id"], "balance": 100,
				"api_key": "cj_" + strings.Repeat("A", 17) + cryptorand.Text()}))
			return
		case rand.IntN(10) == 0:
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Retry-After", "0")
		w.WriteHeader([]int{200, 200, 201, 201, 202, 204, 301, 400, 422, 429, 500}[rand.IntN(11)])
		_, _ = w.Write([]byte(nonsense[rand.IntN(len(nonsense))])) // the client may be gone
	}))
	defer server.Close()
	for range 3 {
		report, err := conformance.RunJobs(t.Context(), server.URL+"/jobs", conformance.JobsOptions{OperatorKey: "x",
			Listen: "127.0.0.1:0", Thorough: true})
		if err != nil {
			t.Fatal(err)
		}
		// A few checks may pass, because the garbage may be the answer that they expect.
		if failed := report.Count(conformance.Failed) + report.Count(conformance.NotTested); failed <
			len(report.Results)*8/10 || report.Took > 40*time.Second {
			t.Errorf("%d of %d checks failed, in %v", failed, len(report.Results), report.Took)
		}
		for _, r := range report.Results {
			if r.Status == conformance.Failed && (r.Sent == "" || r.Expected == "" || r.Got == "") {
				t.Errorf("%s failed without saying why: %+v", r.Number, r)
			}
		}
	}
}
