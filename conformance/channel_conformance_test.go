package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/internal/racing"
)

// TestChannelNumbers tests that the checks of channel services have the numbers N-1, N-2, …, each once, and that each
// check has a title and a theme.
func TestChannelNumbers(t *testing.T) {
	all := conformance.ChannelChecks()
	seen := map[string]bool{}
	for _, c := range all {
		seen[c.Number] = true
		if c.Title == "" || c.Theme == "" || c.Level() != conformance.ChannelService {
			t.Errorf("%s has the title %q, the theme %q and the level %s", c.Number, c.Title, c.Theme, c.Level())
		}
	}
	for i := range all {
		if number := fmt.Sprint("N-", i+1); !seen[number] {
			t.Errorf("there is no check %s", number)
		}
	}
}

// TestChannelRequirements tests that checks cite every requirement of CHANNEL.md that is about services. Those from
// C-17 on are about the agent inbox.
func TestChannelRequirements(t *testing.T) {
	cited := map[string]bool{}
	for _, c := range conformance.ChannelChecks() {
		for _, number := range regexp.MustCompile(`\bC-\d+`).FindAllString(c.Cites, -1) {
			cited[number] = true
		}
	}
	for i := 1; i <= 31; i++ {
		if number := fmt.Sprint("C-", i); cited[number] != (i <= 16) {
			t.Errorf("%s: cited %v", number, cited[number])
		}
	}
}

// passChannelChecks runs checks at a channel service that must pass, unless they need an option that is not given.
func passChannelChecks(t *testing.T, url string, o conformance.ChannelOptions) conformance.Report {
	t.Helper()
	return passChecks(t, untested, o.Only, func(only []string) (conformance.Report, error) {
		o.Only = only
		return conformance.RunChannel(t.Context(), url, o)
	})
}

// skipWithRaceDetector skips a test that runs many checks of times: beside other packages with race detection, they take
// too long.
func skipWithRaceDetector(t *testing.T) {
	t.Helper()
	if racing.Detector {
		t.Skip("the race detector makes these checks too slow")
	}
}

// TestOwnChannelPasses runs the checks against this project's channel service. Requests come from another machine, so
// that its limits apply. The run must delete all channels that it creates.
func TestOwnChannelPasses(t *testing.T) {
	skipWithRaceDetector(t)
	t.Parallel()
	takeTurn(t)
	var left atomic.Int64
	url := startChannel(t, func(h http.Handler) http.Handler {
		return fromRemoteAddress(takesAnyHost(editsAnswers(func(r *http.Request, a *exchange) {
			switch {
			case a.Code == http.StatusCreated && strings.HasSuffix(r.URL.Path, "/channels"):
				left.Add(1)
			case a.Code == http.StatusOK && isChannel(r, http.MethodDelete):
				left.Add(-1)
			}
		})(h)))
	})
	report := passChannelChecks(t, url, conformance.ChannelOptions{OperatorKey: operatorKey, Listen: "127.0.0.1:0"})
	if n := report.Count(conformance.NotTested); n != 3 { // they need Thorough
		t.Errorf("%d checks were not tested", n)
	}
	if n := left.Load(); n != 0 {
		t.Errorf("the run left %d channels", n)
	}
}

// TestOwnChannelLimits runs the checks of the limits against this project's channel service. Requests come from its own
// machine, so that their rate has no limit.
func TestOwnChannelLimits(t *testing.T) {
	skipWithRaceDetector(t)
	t.Parallel()
	takeTurn(t)
	report := passChannelChecks(t, startChannel(t, nil), conformance.ChannelOptions{OperatorKey: operatorKey,
		Listen: "127.0.0.1:0", Thorough: true, Only: channelLimits})
	if n := report.Count(conformance.Passed); n != len(channelLimits) {
		t.Errorf("%d checks passed", n)
	}
}

// TestChannelWithLimits runs quick checks against a service that refuses every tenth request, because it limits their
// rate. The run must repeat these requests.
func TestChannelWithLimits(t *testing.T) {
	skipWithRaceDetector(t)
	t.Parallel()
	takeTurn(t)
	var requests atomic.Int64
	o := conformance.ChannelOptions{OperatorKey: operatorKey, Listen: "127.0.0.1:0"}
	for _, theme := range []string{"Members", "Connections", "Keys", "Messages", "Events", "Callback", "MCP"} {
		o.Only = append(o.Only, channels().ofTheme(theme)...)
	}
	passChannelChecks(t, startChannel(t, limitsRate(encode(object{"ok": false, "error": "RATE_LIMITED",
		"message": "too fast", "retryable": true, "details": object{"limit": "requests"}}), &requests)), o)
	if requests.Load() < 1000 {
		t.Errorf("%d requests", requests.Load())
	}
}

// TestChannelOptions tests that checks which need an option are not tested without it, and that invalid options are
// refused.
func TestChannelOptions(t *testing.T) {
	t.Parallel()
	url := startChannel(t, nil)
	for _, c := range []struct {
		o      conformance.ChannelOptions
		passed int
		reason string
	}{
		{conformance.ChannelOptions{}, 1, "2 not tested: this needs the operator's key"},
		{conformance.ChannelOptions{OperatorKey: operatorKey}, 2, "1 not tested: this needs a server for deliveries"},
		{conformance.ChannelOptions{OperatorKey: operatorKey, Listen: "127.0.0.1:0"}, 3, "3 passed, 0 failed, 0 skipped;"},
	} {
		c.o.Only = []string{"N-1", "N-2", "N-7"}
		report := passChannelChecks(t, url, c.o)
		var text strings.Builder
		if err := report.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if !report.Holds() || report.Count(conformance.Passed) != c.passed || !strings.Contains(text.String(), c.reason) ||
			!strings.Contains(text.String(), "The channel service passes all selected checks.") {
			t.Errorf("want %d passed and %q:\n%s", c.passed, c.reason, text.String())
		}
	}
	for _, o := range []conformance.ChannelOptions{{Only: []string{"N-0"}}, {ListenURL: "https://kit.example"},
		{Listen: "127.0.0.1:0", ListenURL: "kit.example"}} {
		if _, err := conformance.RunChannel(t.Context(), url, o); err == nil || o.Check(url) == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if (conformance.ChannelOptions{}).Check("127.0.0.1:8789/channel") == nil {
		t.Error("an address that is no URL is accepted")
	}
}

// TestNoChannelService tests that RunChannel soon returns an error if no channel service answers at the address.
func TestNoChannelService(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	channel := startChannel(t, nil)
	for url, want := range map[string]string{site.URL: "is not a channel service",
		channel + "/x": "is not a channel service", "http://127.0.0.1:1": "no channel service answers"} {
		if _, err := conformance.RunChannel(t.Context(), url, conformance.ChannelOptions{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestChannelGarbage runs all checks against a server that returns random garbage, except to a request without a key.
// The checks must fail with a description, must not panic, and must end soon.
func TestChannelGarbage(t *testing.T) {
	t.Parallel()
	const id = "ch_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	key := strings.Repeat("A", 43)
	nonsense := []string{"", "null", "[]", "{}", `{"ok":1}`, `{"ok":true}`, `{"ok":true,"events":{}}`,
		`{"ok":true,"channel":{"id":"` + id + `"},"key":"ck_` + key + `"}`,
		`{"ok":true,"channel":{"id":"` + id + `"},"key":"ck_` + key + `"}`,
		`{"ok":true,"member":{"name":"alice"},"key":"cm_` + key + `"}`,
		`{"ok":true,"connection":{"name":"bot","status":"active"}}`,
		`{"ok":true,"event":{"id":"msg_x","seq":1},"deliveries":1}`, `{"ok":true,"events":[null,1,"x",[],{}],"cursor":1}`,
		`{"ok":true,"events":[{"seq":1}],"cursor":[]}`, `{"ok":false,"error":1}`, "\xff\xfe", strings.Repeat("[", 1_000_000)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" && r.URL.Path == "/channel/channels" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"ok":false,"error":"UNAUTHORIZED"}`)) // the client may be gone
			return
		}
		if rand.IntN(10) == 0 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Retry-After", "0")
		w.WriteHeader([]int{200, 200, 201, 201, 202, 204, 301, 400, 429, 500}[rand.IntN(10)])
		_, _ = w.Write([]byte(nonsense[rand.IntN(len(nonsense))])) // the client may be gone
	}))
	defer server.Close()
	for range 3 {
		report, err := conformance.RunChannel(t.Context(), server.URL+"/channel", conformance.ChannelOptions{
			OperatorKey: "x", Listen: "127.0.0.1:0", Thorough: true})
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
