package conformance_test

import (
	"testing"

	"github.com/agora-relay/agora/conformance"
)

// passChannelChecks runs checks at the double that must pass, unless they need an option that is not given.
func passChannelChecks(t *testing.T, d *channelDouble, o conformance.ChannelOptions) conformance.Report {
	o.Progress = func(r conformance.Result) {
		if r.Status != conformance.Passed && r.Status != conformance.NotTested {
			t.Error(r.Finding())
		}
	}
	report, err := conformance.RunChannel(t.Context(), d.url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d checks in %v with %d requests", len(report.Results), report.Took, report.Requests)
	return report
}

// TestChannelDoublePasses runs all checks against a service without faults.
func TestChannelDoublePasses(t *testing.T) {
	t.Parallel()
	d := startChannelDouble(t)
	report := passChannelChecks(t, d, conformance.ChannelOptions{OperatorKey: d.operator, Listen: "127.0.0.1:0",
		Thorough: true})
	if n := report.Count(conformance.NotTested); n != 0 {
		t.Errorf("%d checks were not tested", n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.channels) != 0 {
		t.Errorf("the run left %d channels", len(d.channels))
	}
}
