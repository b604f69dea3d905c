package conformance_test

import (
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/didkey"
)

// agoraChecks are the checks of the theme Agora of a kit.
func agoraChecks(all []conformance.Check) (list []string) {
	for _, c := range all {
		if c.Theme == "Agora" {
			list = append(list, c.Number)
		}
	}
	return list
}

// TestAgoraPart tests B-18: the part Agora runs with a key. Without one it is not tested, and in CI it fails. At a server
// that is no relay it is not tested.
func TestAgoraPart(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	served := startHub(t, nil)
	registry, _ := startJobs(t, nil)
	double := startJobsDouble(t)
	hubParts, jobsParts := agoraChecks(conformance.HubChecks()), agoraChecks(conformance.JobsChecks())
	if len(hubParts) < 8 || len(jobsParts) < 6 {
		t.Fatalf("the parts are %v and %v", hubParts, jobsParts)
	}
	for name, c := range map[string]struct {
		key   didkey.Key
		need  bool
		jobs  string // the registry; empty: the hub
		want  conformance.Status
		found string
	}{
		"a hub with a key":                {key: relayKey(t), need: true, want: conformance.Passed},
		"a hub without a key":             {want: conformance.NotTested, found: "(--key)"},
		"a hub without a key, in CI":      {need: true, want: conformance.Failed, found: "(--key)"},
		"a registry with a key":           {key: relayKey(t), need: true, jobs: registry, want: conformance.Passed},
		"a registry without a key":        {jobs: registry, want: conformance.NotTested, found: "(--key)"},
		"a registry without a key, in CI": {need: true, jobs: registry, want: conformance.Failed, found: "(--key)"},
		"a registry without a relay":      {key: relayKey(t), need: true, jobs: double.url, want: conformance.NotTested, found: "agora.json"},
	} {
		var report conformance.Report
		var err error
		if c.jobs == "" {
			report, err = conformance.RunHub(t.Context(), served.url, conformance.HubOptions{Only: hubParts, Agent: c.key,
				NeedAgent: c.need})
		} else {
			report, err = conformance.RunJobs(t.Context(), c.jobs, conformance.JobsOptions{Only: jobsParts, Agent: c.key,
				NeedAgent: c.need})
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range report.Results {
			if r.Status != c.want || !strings.Contains(r.Got, c.found) {
				t.Errorf("%s: want %s with %q:\n%s", name, c.want, c.found, r.Finding())
			}
		}
		if report.Holds() != (c.want == conformance.Passed) {
			t.Errorf("%s: Holds returns %v", name, report.Holds())
		}
		t.Logf("%s: %v", name, report.Took)
	}
}
