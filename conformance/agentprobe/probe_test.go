package agentprobe

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runDouble probes a double with a fault.
func runDouble(t *testing.T, fault string, o Options) (report Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		defer startDouble(t, n, fault)()
		o.listen, o.transport, o.Listen, o.URL, o.OldURL = n.listen, n.transport(), "probe.test:80", "http://probe.test/", oldURL
		var err error
		if report, err = Run(t.Context(), doubleURL, o); err != nil {
			t.Fatal(err)
		}
	})
	return report
}

// outcome returns the status and the reason of a check in a report.
func outcome(t *testing.T, r Report, name string) Result {
	t.Helper()
	for _, result := range r.Results {
		if result.Name == name {
			return result
		}
	}
	t.Fatalf("there is no check %q", name)
	return Result{}
}

// TestGoodAgents checks that agents without a fault pass all checks, in all forms of mcp.
func TestGoodAgents(t *testing.T) {
	for _, test := range []struct {
		agent, mcp string
		not        string // checks that are not tested
	}{
		{"", "object", ""}, {"", "array", ""}, {"", "none", "mcp-object mcp-array mcp-empty mcp-authorization"},
		{"no lifecycle", "object", "lifecycle-refused"}, {"no tools", "object", "mcp-authorization"}, {"drops", "", ""}, {"says by tool", "object", ""},
	} {
		report := runDouble(t, test.agent, Options{MCP: test.mcp})
		for _, result := range report.Results {
			want := Pass
			if strings.Contains(" "+test.not+" ", " "+result.Name+" ") {
				want = NotTested
			}
			if result.Status != want {
				t.Errorf("%q with mcp %s: %s", test.agent, test.mcp, result)
			}
		}
		if !report.Holds() || len(report.Results) != len(checks) || report.Took <= 0 {
			t.Errorf("%q: %+v", test.agent, report)
		}
	}
}

// faults has for each check faulty agents that it finds, and the words of its reason.
var faults = []struct {
	check  string
	fault  string
	mcp    string
	status Status
	why    string
}{
	{"delivery", "too slow", "", Fail, "no answer within 10s"},
	{"answers-first", "works first", "", Fail, "only after it had posted an event"},
	{"answers-first", "slow", "", Warn, "it took 4s"},
	{"answers", "says nothing", "", Fail, "no event of the type message came within 30s"},
	{"answers", "reports an error", "", Fail, "no model"},
	{"answers", "floods", "", Fail, "no event of the type message"},
	{"own-callback", "one callback", "", Fail, "went to the callback of the first"},
	{"unknown-members", "strict", "", Fail, "400, want 2xx: the double does not want this"},
	{"no-mcp", "needs mcp", "", Fail, "400"},
	{"no-names", "needs name", "", Fail, "400"},
	{"no-names", "ignores nameless", "", Fail, "said nothing within 30s"},
	{"mcp-object", "needs list", "array", Warn, "400"},
	{"mcp-object", "needs list", "", Fail, "400"},
	{"mcp-array", "needs object", "", Warn, "--mcp object"},
	{"mcp-array", "needs object", "array", Fail, "400"},
	{"mcp-empty", "needs server", "", Warn, "400"},
	{"mcp-empty", "needs server", "array", Fail, "400"},
	{"repeat", "answers repeats", "", Fail, "1 more messages"},
	{"repeat", "refuses repeats", "", Fail, "409"},
	{"lifecycle-refused", "needs lifecycle", "", Fail, "said nothing"},
	{"callback-fails", "dies of 503", "", Fail, "after that, the delivery was answered with 503"},
	{"two-channels", "one channel", "", Fail, "channel 2 of 2|channel 1 of 2"},
	{"wrong-secret", "any secret", "", Fail, "everybody can talk to this agent"},
	{"wrong-secret", "wrong secret crashes", "", Fail, "500"},
	{"not-json", "JSON crashes", "", Fail, "500"},
	{"no-content", "content optional", "", Fail, "200"},
	{"list-body", "list crashes", "", Fail, "500"},
	{"old-url", "old secret valid", "", Fail, "took the delivery"},
	{"no-redirect", "redirects", "", Fail, "307"},
	{"still-works", "locks itself", "", Fail, "403"},
	{"single-objects", "list", "", Fail, "not an object"},
	{"single-objects", "two objects", "", Fail, "more than one JSON value"},
	{"known-types", "unknown type", "", Fail, `"typing"`},
	{"known-types", "no type", "", Fail, "null"},
	{"members", "bad members", "", Fail, "status needs status"},
	{"order", "result first", "", Fail, "before its tool_call"},
	{"order", "all at once", "none", Fail, "before the one before is answered"},
	{"order", "message after idle", "", Fail, "after lifecycle idle"},
	{"content-type", "no Content-Type", "", Warn, `Content-Type ""`},
	{"no-strays", "strays", "", Warn, "POST /channels/ch_probe/log/"},
	{"mcp-authorization", "no Authorization", "", Fail, "no header Authorization"},
	{"mcp-authorization", "own Authorization", "", Fail, "another Authorization"},
	{"mcp-authorization", "other channel", "", Fail, "of another channel"},
}

// TestFaultyAgents checks that each check finds an agent that has the fault which it looks for.
func TestFaultyAgents(t *testing.T) {
	found := map[string]bool{}
	for _, f := range faults {
		t.Run(f.check+"/"+f.fault+f.mcp, func(t *testing.T) {
			report := runDouble(t, f.fault, Options{MCP: f.mcp})
			result := outcome(t, report, f.check)
			why := false
			for part := range strings.SplitSeq(f.why, "|") {
				why = why || strings.Contains(result.Why, part)
			}
			if result.Status != f.status || !why || report.Holds() == (report.Count(Fail) > 0) {
				t.Errorf("%s; want %s, %s", result, f.status, f.why)
			}
			found[f.check] = true
		})
	}
	for _, c := range checks {
		if !found[c.name] {
			t.Errorf("no faulty agent is found by %s", c.name)
		}
	}
}

// TestEventMembers checks what is said about the members of events.
func TestEventMembers(t *testing.T) {
	for body, want := range map[string]string{
		`{"type":"message","content":"x"}`: "", `{"type":"message"}`: "content", `{"type":"message","content":""}`: "content",
		`{"type":"message","content":7}`: "content", `{"type":"tool_call","name":"n","id":"1","args":{}}`: "",
		`{"type":"tool_call","name":"n","args":{}}`: "id", `{"type":"tool_call","id":"1","args":{}}`: "name",
		`{"type":"tool_call","name":"n","id":"1","args":[]}`: "args", `{"type":"tool_call","name":"n","id":"1"}`: "args",
		`{"type":"tool_result","id":"1","content":""}`: "", `{"type":"tool_result","content":""}`: "id", `{"type":"tool_result","id":"1"}`: "content",
		`{"type":"status","status":"s"}`: "", `{"type":"status"}`: "status", `{"type":"lifecycle","status":"` + strings.Repeat("x", 65) + `"}`: "status",
		`{"type":"error","message":"m"}`: "", `{"type":"error"}`: "message", `{"type":"error","message":"m","code":7}`: "code",
		`{"type":"error","message":"m","code":"c","more":[]}`: "", `{"type":"dance"}`: "",
	} {
		if got := readEvent([]byte(body)).problem(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

func TestWrongSecret(t *testing.T) {
	for connection, want := range map[string]string{
		"https://a.example/inbox/sk_x": "https://a.example/inbox/sk_a", "https://a.example/inbox/sk_a": "https://a.example/inbox/sk_b",
		"https://a.example/inbox/sk_x/": "https://a.example/inbox/sk_a/", "https://a.example/?key=x": "https://a.example/?key=a", "https://a.example": "https://a.example/wrong",
	} {
		if got := wrongSecret(connection); got != want {
			t.Errorf("%s: %s, want %s", connection, got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for connection, o := range map[string]Options{"": {}, "x": {}, "ftp://a.example/x": {}, doubleURL + "a": {MCP: "list"}, doubleURL: {URL: "probe"}, doubleURL + "b": {OldURL: "old"}} {
		if _, err := Run(t.Context(), connection, o); err == nil {
			t.Errorf("%q with %+v was accepted", connection, o)
		}
	}
	// A run with real sockets, against nobody.
	report, err := Run(t.Context(), "http://127.0.0.1:1/inbox/sk_secret", Options{Wait: time.Millisecond, Quiet: time.Millisecond})
	if err != nil || report.Holds() || !strings.Contains(report.Results[0].String(), "connection refused") || !strings.Contains(report.Summary(), " failed, ") {
		t.Errorf("%+v, %v", report, err)
	}
	for _, result := range report.Results {
		if strings.Contains(result.String(), "sk_secret") {
			t.Errorf("the secret is shown: %s", result)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, doubleURL, Options{}); err == nil {
		t.Error("a run without time succeeded")
	}
	for _, bad := range []Options{{Listen: "nowhere:x"}} {
		if _, err := Run(t.Context(), doubleURL, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}
