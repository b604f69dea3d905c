package conformance_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
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
	registry := startJobs(t, nil)
	noRelay := startJobs(t, refuses(http.StatusNotFound, []byte("{}"), func(r *http.Request, _ object) bool {
		return r.URL.Path == "/.well-known/agora.json"
	}))
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
		"a registry without a relay":      {key: relayKey(t), need: true, jobs: noRelay, want: conformance.NotTested, found: "agora.json"},
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

// withoutSignedCalls makes the gateways of a relay ignore the signatures of calls.
func withoutSignedCalls(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isGateway := strings.HasPrefix(r.URL.Path, "/hub/") || strings.HasPrefix(r.URL.Path, "/jobs/")
		if isGateway && strings.HasPrefix(r.Header.Get("Authorization"), "Agora ") {
			r.Header.Del("Authorization")
		}
		next.ServeHTTP(w, r)
	})
}

// withoutRequests makes a relay hand out no REQUEST.
func withoutRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/events" {
			next.ServeHTTP(w, r)
			return
		}
		recorded := httptest.NewRecorder()
		next.ServeHTTP(recorded, r)
		var page map[string]json.RawMessage
		if json.Unmarshal(recorded.Body.Bytes(), &page) == nil && page["events"] != nil {
			var events []json.RawMessage
			_ = json.Unmarshal(page["events"], &events) // it is a list
			events = slices.DeleteFunc(events, func(e json.RawMessage) bool { return strings.Contains(string(e), `"type":"REQUEST"`) })
			page["events"], _ = json.Marshal(append([]json.RawMessage{}, events...)) // raw JSON can be encoded
			recorded.Body.Reset()
			_ = json.NewEncoder(recorded.Body).Encode(page)
			recorded.Header().Del("Content-Length")
		}
		for name, values := range recorded.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(recorded.Code)
		_, _ = recorded.Body.WriteTo(w) // the kit may be gone
	})
}

// TestAgoraFaults tests that each check of the theme Agora can fail. The faults of single rules are in ci/mutants.
func TestAgoraFaults(t *testing.T) {
	for name, middleware := range map[string]middleware{
		"knows no signed calls": withoutSignedCalls, "hands out no REQUEST": withoutRequests,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takeTurn(t)
			hub, jobs := agoraChecks(conformance.HubChecks()), agoraChecks(conformance.JobsChecks())
			if name == "hands out no REQUEST" {
				hub, jobs = hub[1:], jobs[1:] // a registration needs none
			}
			served := startHub(t, middleware)
			registry := startJobs(t, middleware)
			atHub, err := conformance.RunHub(t.Context(), served.url, conformance.HubOptions{Only: hub, Agent: relayKey(t)})
			if err != nil {
				t.Fatal(err)
			}
			atJobs, err := conformance.RunJobs(t.Context(), registry, conformance.JobsOptions{Only: jobs, Agent: relayKey(t)})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range slices.Concat(atHub.Results, atJobs.Results) {
				if r.Status != conformance.Failed {
					t.Errorf("want %s to fail:\n%s", r.Number, r.Finding())
				}
			}
		})
	}
}
