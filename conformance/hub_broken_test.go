package conformance_test

import (
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
)

// faultyHub is this project's hub with one fault.
type faultyHub struct {
	name       string
	middleware func(http.Handler) http.Handler
	hook       func(target string) http.Handler // stands between the hub and the webhooks; may be nil
	// fails has the checks that must fail, each with a text that Result.Got must contain. All other quick checks of the
	// same themes must pass.
	fails map[string]string
	also  []string // checks that fail too, or not, depending on which checks run at the same time
}

// slowHubChecks run only where a fault names them.
var slowHubChecks = map[string]bool{stalled: true, "hub.stream.ping": true, "hub.webhook.slow": true,
	"hub.lane.retry-after": true}

var thorough = flag.Bool("thorough", false, "with each faulty hub, run all checks of the theme; else with each fourth")

// TestHubFaultsAreDetected tests that checks can fail, and that they fail only because of their own rules: with some
// faulty hubs, the checks of the same theme run too, and must pass. TestOwnHubPasses tests that the same checks pass
// without the fault.
func TestHubFaultsAreDetected(t *testing.T) {
	t.Parallel()
	for i, f := range faultyHubs() {
		if raceDetector && i%8 != 0 {
			continue // the race detector makes them slow
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			runFaulty(t, f, !raceDetector && (*thorough || i%4 == 0))
		})
	}
}

// runFaulty runs the checks that must find the fault f. withTheme adds the other checks of their themes.
func runFaulty(t *testing.T, f faultyHub, withTheme bool) {
	waits := false
	for number := range f.fails {
		waits = waits || slowHubChecks[number]
	}
	if !waits {
		takeTurn(t)
	}
	served := startHub(t, f.middleware)
	o := conformance.HubOptions{OperatorKey: served.operator, WebhookListen: "127.0.0.1:0"}
	if f.hook != nil {
		o.WebhookListen = freeAddress(t)
		hook := httptest.NewServer(f.hook("http://" + o.WebhookListen))
		t.Cleanup(hook.Close)
		o.WebhookURL = hook.URL
	}
	themes := map[string]bool{}
	for _, c := range conformance.HubChecks() {
		if _, named := f.fails[c.Number]; named {
			themes[c.Theme] = withTheme
		}
	}
	for _, c := range conformance.HubChecks() {
		if _, named := f.fails[c.Number]; named || themes[c.Theme] && !slowHubChecks[c.Number] {
			o.Only = append(o.Only, c.Number)
		}
	}
	report, err := conformance.RunHub(t.Context(), served.url, o)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, r := range report.Results {
		want, named := f.fails[r.Number]
		switch {
		case named && r.Status == conformance.Failed && strings.Contains(r.Got, want):
			failed++
		case named:
			t.Errorf("want failed with %q:\n%s", want, r.Finding())
		case r.Status != conformance.Passed && r.Status != conformance.NotTested && !slices.Contains(f.also, r.Number):
			t.Errorf("must not fail:\n%s", r.Finding())
		}
	}
	if failed != len(f.fails) || report.Holds() {
		t.Errorf("%d checks failed, want %d; Holds returns %v", failed, len(f.fails), report.Holds())
	}
}

// freeAddress returns an address of this machine at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

// TestEveryHubCheckCanFail tests that each check is named by a fault. TestHubLimits has the faults of the large limits.
// There is none for a check that only waits longer than a similar one.
func TestEveryHubCheckCanFail(t *testing.T) {
	named := map[string]bool{}
	for _, f := range faultyHubs() {
		for number := range f.fails {
			named[number] = true
		}
	}
	for _, number := range agoraChecks(conformance.HubChecks()) {
		named[number] = true // see TestAgoraFaults
	}
	elsewhere := append([]string{"hub.replay.minute", "hub.webhook.minute", registrationLimit}, largeLimits...)
	for _, c := range conformance.HubChecks() {
		if !named[c.Number] && !slices.Contains(elsewhere, c.Number) {
			t.Errorf("no fault shows that %s can fail", c.Number)
		}
	}
}

func faultyHubs() (all []faultyHub) {
	for _, list := range [][]faultyHub{documentFaults(), bodyFaults(), keyFaults(), registrationFaults(),
		envelopeFaults(),
		sendFaults(), streamFaults(), stateFaults(), historyFaults(), directoryFaults(), webhookFaults(),
		operatorFaults()} {
		all = append(all, list...)
	}
	return all
}

// wideText is in the answers of hub.ack.cut.
const wideText = "中中中"

func documentFaults() []faultyHub {
	return []faultyHub{
		{name: "names a wrong path in its document", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if hubPath(r) == "/.well-known/chorus.json" {
				a.body["endpoints"].(map[string]any)["ack"] = "/agent/acknowledge"
			}
		}), fails: map[string]string{"hub.document.fields": "/agent/acknowledge", "hub.document.paths": "status 404"}},
		{name: "has no document at the root", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if r.URL.Path == "/.well-known/chorus.json" {
				setAnswer(a, http.StatusNotFound, refusal("ERR_NOT_FOUND"))
			}
		}), fails: map[string]string{"hub.document.root": "status 404"}},
		{name: "does not count its streams", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if hubPath(r) == "/health" {
				a.data()["inbox_connections"] = 0
			}
		}), fails: map[string]string{"hub.health": `"inbox_connections":0`}},
		{name: "knows only one language", middleware: withHubQuery("/skill",
			func(q map[string][]string) { q["lang"] = []string{"en"} }),
			fails: map[string]string{"hub.skill": "the texts begin with"}},
		{name: "writes no timestamp", middleware: editsHubAnswers(func(_ *http.Request, a *hubAnswer) {
			delete(a.body, "metadata")
		}), fails: map[string]string{"hub.http.wrapper": "status 200"}},
		{name: "redirects double slashes", middleware: redirects,
			fails: map[string]string{"hub.http.unknown-path": "status 301"}},
		{name: "has no Allow header", middleware: hidesHeader("Allow"),
			fails: map[string]string{"hub.http.method": "status 405"}},
		{name: "requires a Content-Type", middleware: refusesHub(http.StatusUnsupportedMediaType,
			"ERR_UNSUPPORTED_MEDIA_TYPE", func(r *http.Request, _ map[string]any) bool {
				return r.Method == http.MethodPost && r.Header.Get("Content-Type") != "application/json"
			}), fails: map[string]string{"hub.http.content-type": "status 415"}},
		{name: "ignores Content-Encoding", middleware: dropsHeader("Content-Encoding"),
			fails: map[string]string{"hub.http.encoding": "accepted"}},
		{name: "takes the first of several parameters", middleware: func(h http.Handler) http.Handler {
			return withHubQuery("/discover", firstParameter)(withHubQuery("/agent/messages", firstParameter)(h))
		}, fails: map[string]string{"hub.http.parameters": "accepted"}},
	}
}

func bodyFaults() []faultyHub {
	return []faultyHub{
		{
			name:       "refuses large bodies with 400",
			middleware: otherStatus(http.StatusRequestEntityTooLarge, http.StatusBadRequest),
			fails:      map[string]string{"hub.body.size": "another status or code"},
		},
		{name: "takes 32 levels", middleware: refusesHub(http.StatusBadRequest, "ERR_VALIDATION",
			func(r *http.Request, _ map[string]any) bool {
				return strings.Contains(string(readBody(r)), strings.Repeat("[", 32))
			}), fails: map[string]string{"hub.body.depth": "status 400"}},
		{name: "refuses unknown members", middleware: refusesHub(http.StatusBadRequest, "ERR_VALIDATION",
			func(_ *http.Request, body map[string]any) bool { return body["x"] != nil }),
			fails: map[string]string{"hub.body.unknown-members": "status 400", "hub.body.depth": "status 400"}},
		{name: "takes the last of several members", middleware: keepsDuplicates,
			fails: map[string]string{"hub.body.duplicates": "accepted", "hub.body.strings": "accepted"}},
		{name: "reads one JSON value and ignores the rest", middleware: readsFirstValue,
			fails: map[string]string{"hub.body.object": "accepted"}},
		{name: "takes U+0000", middleware: acceptsOnHub(func(_ *http.Request, a *hubAnswer) bool {
			return strings.Contains(string(a.raw), `\u0000`)
		}), fails: map[string]string{"hub.body.strings": "accepted"}},
		{name: "takes numbers that are too large", middleware: acceptsOnHub(func(_ *http.Request, a *hubAnswer) bool {
			return strings.Contains(string(a.raw), "e999") || strings.Contains(string(a.raw), "e400")
		}), fails: map[string]string{"hub.body.numbers": "accepted"}},
	}
}

func keyFaults() []faultyHub {
	return []faultyHub{
		{name: "does not say how to authorize", middleware: hidesHeader("WWW-Authenticate"),
			fails: map[string]string{"hub.key.required": "status 401", "hub.key.invalid": "status 401"}},
		{name: "compares the scheme exactly", middleware: changesHeader(func(r *http.Request) {
			if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
				r.Header.Del("Authorization")
			}
		}), fails: map[string]string{"hub.key.scheme": "status 401"}},
		{name: "lets agents delete each other", middleware: withKeys(letsAgentsDelete),
			fails: map[string]string{"hub.key.purpose": "accepted", "hub.delete.own": "accepted"}},
		{name: "shows keys", middleware: withKeys(showsKeys), fails: map[string]string{"hub.key.told-once": "ca_"}},
		{name: "takes a session token again", middleware: acceptsUsedTokens,
			fails: map[string]string{"hub.session.stream": "no answer", "hub.session.race": "6 streams"}},
		{name: "makes sessions of an hour", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if hubPath(r) == "/agent/session" && a.Code == http.StatusOK {
				a.data()["expires_in_seconds"] = 3600
			}
		}), fails: map[string]string{"hub.session.token": "3600"}},
	}
}

func registrationFaults() []faultyHub {
	return []faultyHub{
		{name: "takes addresses with spaces", middleware: acceptsOnHub(func(r *http.Request, a *hubAnswer) bool {
			id, _ := a.sent["agent_id"].(string)
			return hubPath(r) == "/register" && strings.Count(id, "@") == 1 && strings.Contains(id, " ")
		}), fails: map[string]string{"hub.address.form": "accepted"}},
		{name: "takes addresses of 64 characters", middleware: refusesHub(http.StatusBadRequest, "ERR_VALIDATION",
			func(_ *http.Request, body map[string]any) bool {
				id, _ := body["agent_id"].(string)
				return len(id) > 64
			}), fails: map[string]string{"hub.address.bounds": "status 400"}},
		{name: "ignores the case of addresses", middleware: changesHeader(func(r *http.Request) {
			if strings.HasPrefix(hubPath(r), "/agents/KIT") {
				r.URL.Path = strings.Replace(r.URL.Path, "KIT", "kit", 1)
			}
		}), fails: map[string]string{"hub.address.case": "accepted"}},
		{name: "needs a host in receiver_id", middleware: refusesHub(http.StatusNotFound, "ERR_AGENT_NOT_FOUND",
			func(r *http.Request, body map[string]any) bool {
				to, _ := body["receiver_id"].(string)
				return isSend(r) && to != "" && !strings.Contains(to, "@")
			}), fails: map[string]string{"hub.address.short": "status 404"}},
		{name: "ignores unknown members of cards", middleware: dropsUnknownMembers("agent_card", "card_version",
			"user_culture", "supported_languages"), fails: map[string]string{"hub.card.strict": "accepted"}},
		{name: "takes 16 languages", middleware: refusesHub(http.StatusBadRequest, "ERR_VALIDATION",
			func(_ *http.Request, body map[string]any) bool {
				card, _ := body["agent_card"].(map[string]any)
				list, _ := card["supported_languages"].([]any)
				return len(list) > 16
			}), fails: map[string]string{"hub.card.languages": "status 400"}},
		{name: "takes any text as a culture", middleware: acceptsOnHub(func(r *http.Request, a *hubAnswer) bool {
			card, _ := a.sent["agent_card"].(map[string]any)
			culture, _ := card["user_culture"].(string)
			return a.Code == http.StatusBadRequest && culture != "" && culture != "en"
		}), fails: map[string]string{"hub.card.culture": "accepted"}},
		{name: "answers a new registration with 200", middleware: otherStatus(http.StatusCreated, http.StatusOK),
			fails: everything("Registration", "")},
		{name: "lets anyone rotate a key", middleware: withKeys(letsAnyoneRegister),
			fails: map[string]string{"hub.register.taken": "accepted", "hub.register.repeat": "accepted",
				"hub.register.race": "times 409"}},
		{name: "ignores the card of a rotation", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if data := a.data(); strings.HasPrefix(hubPath(r), "/agents/") && data["agent_card"] != nil {
				data["agent_card"].(map[string]any)["user_culture"] = "en"
			}
		}), fails: map[string]string{"hub.register.rotate": `"user_culture":"en"`}},
		{name: "keeps old keys", middleware: withKeys(keepsOldKeys), fails: map[string]string{
			"hub.register.old-key": "accepted", "hub.register.repeat": "accepted",
			"hub.register.rotate-race": "work", "hub.delete.reserved": "accepted"}},
		{name: "ends streams without a word", middleware: eachFrame(func(frame string) string {
			if lineOf(frame, "event: ") == "closed" {
				return ""
			}
			return frame
		}), fails: map[string]string{"hub.register.closes-stream": "the last frame", "hub.delete.own": "the last frame",
			"hub.stream.replaced": "the last frame"}},
		{name: "answers a repeated DELETE with 404", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if r.Method == http.MethodDelete && a.data()["deleted"] == false {
				setAnswer(a, http.StatusNotFound, refusal("ERR_AGENT_NOT_FOUND"))
			}
		}), fails: map[string]string{"hub.delete.again": "status 404"}},
		{name: "lets anyone have a deleted address", middleware: withKeys(forgetsDeletedAddresses),
			fails: map[string]string{"hub.delete.reserved": "accepted"}},
		{
			name:       "does not say why a message has failed",
			middleware: eachRow(func(row map[string]any) { delete(row, "error_code") }),
			fails: map[string]string{"hub.delete.queue": "delivered_via", "hub.ack.error": "no culture",
				"hub.ack.cut": wideText},
		},
		{
			name:       "shows endpoints",
			middleware: showsEndpoints,
			fails:      map[string]string{"hub.endpoint.hidden": "53cr3t"},
		},
		{name: "calls any endpoint", middleware: acceptsOnHub(func(r *http.Request, a *hubAnswer) bool {
			return a.code() == "ERR_ENDPOINT_BLOCKED"
		}), fails: map[string]string{"hub.endpoint.blocked": "accepted"}},
		{name: "hides endpoints from their agents", middleware: editsHubAnswers(func(_ *http.Request, a *hubAnswer) {
			delete(a.data(), "endpoint")
		}), fails: map[string]string{"hub.endpoint.own": "status 200"}},
	}
}

// everything returns all checks of a theme but some, with a text for each of them.
func everything(theme, got string, but ...string) map[string]string {
	fails := map[string]string{}
	for _, c := range conformance.HubChecks() {
		if c.Theme == theme && !slices.Contains(but, c.Number) {
			fails[c.Number] = got
		}
	}
	return fails
}
