package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/internal/racing"
)

// TestHubNames tests that the names of the checks of hubs are unique and well-formed, and that each check has a title,
// a theme and a citation.
func TestHubNames(t *testing.T) {
	form := regexp.MustCompile(`^hub(\.[a-z]+(-[a-z]+)*){1,2}$`)
	cites := regexp.MustCompile(`^(HUB|GATEWAYS) "`)
	seen := map[string]bool{}
	for _, c := range conformance.HubChecks() {
		if !form.MatchString(c.Number) || seen[c.Number] || c.Level() != conformance.Hub {
			t.Errorf("%q has the name %q and the level %s", c.Title, c.Number, c.Level())
		}
		seen[c.Number] = true
		if c.Title == "" || c.Theme == "" || !cites.MatchString(c.Cites) {
			t.Errorf("%s has the title %q, the theme %q and the citation %q", c.Number, c.Title, c.Theme, c.Cites)
		}
	}
}

// hiddenRequirements are the requirements of HUB.md that a check cannot test from outside within a run, or that are
// about another program than the hub.
var hiddenRequirements = map[string]string{
	"H-29": "a dead row of the outbox is 24 hours old",
	"H-36": "it is about the verbs", "H-37": "it is about the verbs", "H-38": "it is about the verbs",
	"H-39": "it is about the verbs", "H-40": "it is about the schema and the examples",
}

// TestHubRequirements tests that checks cite every requirement of HUB.md that can be seen from outside.
func TestHubRequirements(t *testing.T) {
	cited := map[string]bool{}
	for _, c := range conformance.HubChecks() {
		for _, number := range regexp.MustCompile(`H-\d+`).FindAllString(c.Cites, -1) {
			cited[number] = true
		}
	}
	for i := 1; i <= 40; i++ {
		number := fmt.Sprintf("H-%d", i)
		if _, hidden := hiddenRequirements[number]; cited[number] == hidden {
			t.Errorf("%s: cited %v, hidden %v", number, cited[number], hidden)
		}
	}
}

// stalled is the check that sends megabytes and waits for 30 seconds.
const stalled = "hub.stream.stalled"

// TestOwnHubPasses runs the checks against this project's hub. A hub allows 20 registrations an hour to other machines,
// so a run must not need more.
func TestOwnHubPasses(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	var registrations atomic.Int64
	served := startHub(t, editsAnswers(func(r *http.Request, a *exchange) {
		if isTo(r, http.MethodPost, "/register") && a.Code == http.StatusCreated {
			registrations.Add(1)
		}
	}))
	o := conformance.HubOptions{OperatorKey: served.operator, WebhookListen: "127.0.0.1:0", Agent: relayKey(t)}
	for _, c := range conformance.HubChecks() {
		if c.Number != stalled {
			o.Only = append(o.Only, c.Number)
		}
	}
	if n := passAll(t, served, o).Count(conformance.NotTested); n != 6 {
		t.Errorf("%d checks were not tested", n)
	}
	t.Logf("%d registrations", registrations.Load())
	if n := registrations.Load() + 2; n > 20 { // the check stalled needs two more
		t.Errorf("%d registrations", n)
	}
}

// TestHubWithLimits runs some checks against a hub that refuses every tenth request, because it limits their rate. The
// run must repeat these requests.
func TestHubWithLimits(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	served := startHub(t, limitsRate(refusal("ERR_RATE_LIMITED"), &requests))
	passAll(t, served, conformance.HubOptions{Only: []string{"hub.register.repeat", "hub.envelope.text",
		"hub.send.order", "hub.idempotency.race", "hub.session.stream", "hub.session.race", "hub.stream.order",
		"hub.replay.resume", "hub.limits.sender"}})
	if requests.Load() < 100 {
		t.Errorf("%d requests", requests.Load())
	}
}

// TestOwnHubPassesSlowly runs the check that TestOwnHubPasses leaves out. In CI it also runs two checks that take more
// than a minute.
func TestOwnHubPassesSlowly(t *testing.T) {
	t.Parallel()
	only := []string{stalled}
	if os.Getenv("CI") == "true" { // there, other packages use the machine while this one waits
		only = append(only, "hub.replay.minute", "hub.webhook.minute")
	}
	passAll(t, startHub(t, nil), conformance.HubOptions{Only: only, WebhookListen: "127.0.0.1:0", Thorough: true})
}

// largeLimits are the checks that fill queues. The hub counts agents apart only if they were registered on its machine.
var largeLimits = []string{"hub.limits.messages", "hub.limits.half", "hub.limits.bytes"}

// registrationLimit is the check that registers agents until the hub refuses one.
const registrationLimit = "hub.limits.registrations"

// TestHubLimits runs the checks of large limits against this project's hub, and against one that does not say which
// limit it is. Only requests of other machines have limits on registrations.
func TestHubLimits(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	wrappers := map[string]middleware{}
	for _, number := range largeLimits {
		if !racing.Detector { // they send too much
			wrappers[number] = func(h http.Handler) http.Handler { return h }
		}
	}
	wrappers[registrationLimit] = fromRemoteAddress
	unnamed := editsAnswers(func(_ *http.Request, a *exchange) {
		if e, ok := a.body["error"].(object); ok {
			delete(e, "limit")
		}
	})
	for number, wrap := range wrappers {
		o := conformance.HubOptions{Only: []string{number}, Thorough: true}
		if report := passAll(t, startHub(t, wrap), o); report.Count(conformance.Passed) != 1 {
			t.Errorf("%s: %v", number, report.Results)
		}
		report, err := conformance.RunHub(t.Context(), startHub(t, func(h http.Handler) http.Handler {
			return unnamed(wrap(h))
		}).url, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range report.Results {
			if r.Status != conformance.Failed || !strings.Contains(r.Got, "429") {
				t.Error(r.Finding())
			}
		}
	}
}

// TestOneNetwork: a kit whose agents were all registered from one network says what it cannot test.
func TestOneNetwork(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	o := conformance.HubOptions{Only: append([]string{"hub.limits.sender"}, largeLimits...), Thorough: true}
	remote := func(h http.Handler) http.Handler {
		afar := fromRemoteAddress(h)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isTo(r, http.MethodPost, "/register") {
				afar.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	for _, r := range passAll(t, startHub(t, remote), o).Results {
		if (r.Status == conformance.Passed) != (r.Number == "hub.limits.sender") {
			t.Error(r.Finding())
		}
	}
}

// passAll runs checks that must pass, unless they need an option that is not given.
func passAll(t *testing.T, served runningHub, o conformance.HubOptions) conformance.Report {
	t.Helper()
	return passChecks(t, untested, o.Only, func(only []string) (conformance.Report, error) {
		o.Only = only
		return conformance.RunHub(t.Context(), served.url, o)
	})
}

// TestHubOptions tests that checks which need an option are not tested without it, and that invalid options are
// refused.
func TestHubOptions(t *testing.T) {
	t.Parallel()
	report, err := conformance.RunHub(t.Context(), startHub(t, nil).url, conformance.HubOptions{
		Only: []string{"hub.register.new", "hub.operator.send", "hub.webhook.ok", "hub.replay.minute"}})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Holds() || report.Count(conformance.Passed) != 1 || report.Count(conformance.NotTested) != 3 {
		t.Errorf("%+v", report.Results)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"not tested hub.operator.send", "1 not tested: this needs the operator's key",
		"1 passed, 0 failed, 0 skipped, 3 not tested", "The hub passes all selected checks"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, text.String())
		}
	}
	only, err := conformance.RunHub(t.Context(), startHub(t, nil).url, conformance.HubOptions{
		Only: []string{"hub.operator.send"}})
	if err != nil || only.Holds() {
		t.Errorf("a run that tested nothing holds: %v", err)
	}
	for _, o := range []conformance.HubOptions{{Only: []string{"hub.nothing"}}, {WebhookURL: "https://kit.example"},
		{WebhookListen: "127.0.0.1:0", WebhookURL: "kit.example"}} {
		if _, err := conformance.RunHub(t.Context(), "http://127.0.0.1:1", o); err == nil ||
			o.Check("http://127.0.0.1:1") == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if (conformance.HubOptions{}).Check("127.0.0.1:8789/hub") == nil {
		t.Error("an address that is no URL is accepted")
	}
}

// TestNoHub tests that RunHub soon returns an error if no hub answers at the address.
func TestNoHub(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	for url, want := range map[string]string{site.URL: "is not a Chorus hub", "http://127.0.0.1:1": "no hub answers"} {
		if _, err := conformance.RunHub(t.Context(), url, conformance.HubOptions{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestHubGarbage runs all checks against a server that returns random garbage, except for a good document. The checks
// must fail with a description, must not panic, and must end soon.
func TestHubGarbage(t *testing.T) {
	t.Parallel()
	nonsense := []string{"", "null", "[]", "{}", `{"success":1}`, `{"success":true}`, `{"success":true,"data":{}}`,
		`{"success":true,"data":[null,1,"x",[],{}],"metadata":{"timestamp":7}}`, "[{}]",
		`[{"agent_id":1,"online":"x"}]`,
		`{"success":true,"data":{"api_key":"ca_00000000000000000000000000000000","agent_id":"a@b","trace_id":"x"}}`,
		`{"success":false,"error":{"code":1}}`, "\xff\xfe", strings.Repeat("[", 1_000_000), ":\n\n\n\n",
		"event: connected\ndata: {}\n\nevent: message\nid: x\ndata: {\n\nevent: closed\n\n",
		"retry: 3000\nevent: message\n\n"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hub/.well-known/chorus.json" && r.Host != "" {
			_, _ = w.Write([]byte(`{"chorus_version":"0.4","server_name":"hub.example"}`)) // the client may be gone
			return
		}
		if rand.IntN(10) == 0 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Retry-After", "0")
		w.WriteHeader([]int{200, 200, 201, 202, 204, 301, 400, 429, 500}[rand.IntN(9)])
		_, _ = w.Write([]byte(nonsense[rand.IntN(len(nonsense))])) // the client may be gone
	}))
	defer server.Close()
	for range 3 {
		report, err := conformance.RunHub(t.Context(), server.URL+"/hub", conformance.HubOptions{OperatorKey: "x",
			WebhookListen: "127.0.0.1:0", Thorough: true})
		if err != nil {
			t.Fatal(err)
		}
		// A few checks may pass, because the garbage may be the answer that they expect.
		if failed := report.Count(conformance.Failed); failed < len(report.Results)*8/10 ||
			report.Took > 40*time.Second {
			t.Errorf("%d of %d checks failed, in %v", failed, len(report.Results), report.Took)
		}
		for _, r := range report.Results {
			if r.Status == conformance.Failed && (r.Sent == "" || r.Expected == "" || r.Got == "") {
				t.Errorf("%s failed without saying why: %+v", r.Number, r)
			}
		}
	}
}
