package conformance_test

import (
	"flag"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
)

var thorough = flag.Bool("thorough", false, "with each fault, run all checks of its themes; else with each fourth")

// hubs is the suite of hubs.
func hubs() suite {
	return suite{checks: conformance.HubChecks(),
		slow:   []string{stalled, "hub.stream.ping", "hub.webhook.slow", "hub.lane.retry-after"},
		shares: true, start: func(t *testing.T, front middleware) string { return startHub(t, front).url },
		run: func(t *testing.T, url string, only []string, listen, listenURL string) (conformance.Report, error) {
			return conformance.RunHub(t.Context(), url, conformance.HubOptions{OperatorKey: operatorKey,
				WebhookListen: listen, WebhookURL: listenURL, Only: only})
		}}
}

// TestHubFaultsAreDetected tests that checks can fail, and that each fails only if its own rule is broken.
// TestOwnHubPasses tests that the same checks pass without the fault.
func TestHubFaultsAreDetected(t *testing.T) {
	t.Parallel()
	hubs().testFaults(t, faultyHubs())
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
	elsewhere := slices.Concat([]string{"hub.replay.minute", "hub.webhook.minute", registrationLimit}, largeLimits,
		agoraChecks(conformance.HubChecks())) // see TestAgoraFaults
	hubs().wantNamed(t, faultyHubs(), elsewhere...)
}

func faultyHubs() (all []fault) {
	for _, list := range [][]fault{documentFaults(), bodyFaults(), keyFaults(), registrationFaults(),
		envelopeFaults(),
		sendFaults(), streamFaults(), stateFaults(), historyFaults(), directoryFaults(), webhookFaults(),
		operatorFaults()} {
		all = append(all, list...)
	}
	return all
}

// wideText is in the answers of hub.ack.cut.
const wideText = "中中中"

func documentFaults() []fault {
	return []fault{
		{name: "names a wrong path in its document", front: editsAnswers(func(r *http.Request, a *exchange) {
			if hubPath(r) == "/.well-known/chorus.json" {
				a.body["endpoints"].(object)["ack"] = "/agent/acknowledge"
			}
		}), fails: map[string]string{"hub.document.fields": "/agent/acknowledge", "hub.document.paths": "status 404"}},
		{name: "has no document at the root", front: editsAnswers(func(r *http.Request, a *exchange) {
			if r.URL.Path == "/.well-known/chorus.json" {
				setAnswer(a, http.StatusNotFound, refusal("ERR_NOT_FOUND"))
			}
		}), fails: map[string]string{"hub.document.root": "status 404"}},
		{name: "does not count its streams", front: editsAnswers(func(r *http.Request, a *exchange) {
			if hubPath(r) == "/health" {
				a.data()["inbox_connections"] = 0
			}
		}), fails: map[string]string{"hub.health": `"inbox_connections":0`}},
		{name: "knows only one language", front: withQuery("/hub/skill",
			func(q url.Values) { q["lang"] = []string{"en"} }),
			fails: map[string]string{"hub.skill": "the texts begin with"}},
		{name: "writes no timestamp", front: editsAnswers(func(_ *http.Request, a *exchange) {
			delete(a.body, "metadata")
		}), fails: map[string]string{"hub.http.wrapper": "status 200"}},
		{name: "redirects double slashes", front: redirects,
			fails: map[string]string{"hub.http.unknown-path": "status 301"}},
		{name: "has no Allow header", front: hidesHeader("Allow"),
			fails: map[string]string{"hub.http.method": "status 405"}},
		{name: "requires a Content-Type", front: requiresContentType(refusal("ERR_UNSUPPORTED_MEDIA_TYPE")),
			fails: map[string]string{"hub.http.content-type": "status 415"}},
		{name: "ignores Content-Encoding", front: dropsHeader("Content-Encoding"),
			fails: map[string]string{"hub.http.encoding": "accepted"}},
		{name: "takes the first of several parameters", front: func(h http.Handler) http.Handler {
			return withQuery("/hub/discover", firstParameter)(withQuery("/hub/agent/messages", firstParameter)(h))
		}, fails: map[string]string{"hub.http.parameters": "accepted"}},
	}
}

func bodyFaults() []fault {
	return []fault{
		{
			name:  "refuses large bodies with 400",
			front: otherStatus(http.StatusRequestEntityTooLarge, http.StatusBadRequest),
			fails: map[string]string{"hub.body.size": "another status or code"},
		},
		{name: "takes 32 levels", front: takesLevels32(http.StatusBadRequest, refusal("ERR_VALIDATION")),
			fails: map[string]string{"hub.body.depth": "status 400"}},
		{name: "refuses unknown members", front: refusesMembers(http.StatusBadRequest, refusal("ERR_VALIDATION")),
			fails: map[string]string{"hub.body.unknown-members": "status 400", "hub.body.depth": "status 400"}},
		{name: "takes the last of several members", front: keepsDuplicates,
			fails: map[string]string{"hub.body.duplicates": "accepted", "hub.body.strings": "accepted"}},
		{name: "reads one JSON value and ignores the rest", front: readsFirstValue,
			fails: map[string]string{"hub.body.object": "accepted"}},
		{name: "takes U+0000", front: acceptsOnHub(func(_ *http.Request, a *exchange) bool {
			return strings.Contains(string(a.raw), `\u0000`)
		}), fails: map[string]string{"hub.body.strings": "accepted"}},
		{name: "takes numbers that are too large", front: acceptsOnHub(func(_ *http.Request, a *exchange) bool {
			return strings.Contains(string(a.raw), "e999") || strings.Contains(string(a.raw), "e400")
		}), fails: map[string]string{"hub.body.numbers": "accepted"}},
	}
}

func keyFaults() []fault {
	return []fault{
		{name: "does not say how to authorize", front: hidesHeader("WWW-Authenticate"),
			fails: map[string]string{"hub.key.required": "status 401", "hub.key.invalid": "status 401"}},
		{name: "compares the scheme exactly", front: comparesSchemes(), fails: map[string]string{"hub.key.scheme": "status 401"}},
		{name: "lets agents delete each other", front: withKeys(letsAgentsDelete),
			fails: map[string]string{"hub.key.purpose": "accepted", "hub.delete.own": "accepted"}},
		{name: "shows keys", front: withKeys(showsKeys), fails: map[string]string{"hub.key.told-once": "ca_"}},
		{name: "takes a session token again", front: acceptsUsedTokens,
			fails: map[string]string{"hub.session.stream": "no answer", "hub.session.race": "6 streams"}},
		{name: "makes sessions of an hour", front: editsAnswers(func(r *http.Request, a *exchange) {
			if hubPath(r) == "/agent/session" && a.Code == http.StatusOK {
				a.data()["expires_in_seconds"] = 3600
			}
		}), fails: map[string]string{"hub.session.token": "3600"}},
	}
}

func registrationFaults() []fault {
	return []fault{
		{name: "takes addresses with spaces", front: acceptsOnHub(func(r *http.Request, a *exchange) bool {
			id, _ := a.sent["agent_id"].(string)
			return hubPath(r) == "/register" && strings.Count(id, "@") == 1 && strings.Contains(id, " ")
		}), fails: map[string]string{"hub.address.form": "accepted"}},
		{name: "takes addresses of 64 characters", front: refuses(http.StatusBadRequest, refusal("ERR_VALIDATION"),
			func(_ *http.Request, body object) bool {
				id, _ := body["agent_id"].(string)
				return len(id) > 64
			}), fails: map[string]string{"hub.address.bounds": "status 400"}},
		{name: "ignores the case of addresses", front: changesHeader(func(r *http.Request) {
			if strings.HasPrefix(hubPath(r), "/agents/KIT") {
				r.URL.Path = strings.Replace(r.URL.Path, "KIT", "kit", 1)
			}
		}), fails: map[string]string{"hub.address.case": "accepted"}},
		{name: "needs a host in receiver_id", front: refuses(http.StatusNotFound, refusal("ERR_AGENT_NOT_FOUND"),
			func(r *http.Request, body object) bool {
				to, _ := body["receiver_id"].(string)
				return isSend(r) && to != "" && !strings.Contains(to, "@")
			}), fails: map[string]string{"hub.address.short": "status 404"}},
		{name: "ignores unknown members of cards", front: dropsUnknownMembers("agent_card", "card_version",
			"user_culture", "supported_languages"), fails: map[string]string{"hub.card.strict": "accepted"}},
		{name: "takes 16 languages", front: refuses(http.StatusBadRequest, refusal("ERR_VALIDATION"),
			func(_ *http.Request, body object) bool {
				card, _ := body["agent_card"].(object)
				list, _ := card["supported_languages"].([]any)
				return len(list) > 16
			}), fails: map[string]string{"hub.card.languages": "status 400"}},
		{name: "takes any text as a culture", front: acceptsOnHub(func(r *http.Request, a *exchange) bool {
			card, _ := a.sent["agent_card"].(object)
			culture, _ := card["user_culture"].(string)
			return a.Code == http.StatusBadRequest && culture != "" && culture != "en"
		}), fails: map[string]string{"hub.card.culture": "accepted"}},
		{name: "answers a new registration with 200", front: otherStatus(http.StatusCreated, http.StatusOK),
			fails: everything("Registration", "")},
		{name: "lets anyone rotate a key", front: withKeys(letsAnyoneRegister),
			fails: map[string]string{"hub.register.taken": "accepted", "hub.register.repeat": "accepted",
				"hub.register.race": "times 409"}},
		{name: "ignores the card of a rotation", front: editsAnswers(func(r *http.Request, a *exchange) {
			if data := a.data(); strings.HasPrefix(hubPath(r), "/agents/") && data["agent_card"] != nil {
				data["agent_card"].(object)["user_culture"] = "en"
			}
		}), fails: map[string]string{"hub.register.rotate": `"user_culture":"en"`}},
		{name: "keeps old keys", front: withKeys(keepsOldKeys), fails: map[string]string{
			"hub.register.old-key": "accepted", "hub.register.repeat": "accepted",
			"hub.register.rotate-race": "work", "hub.delete.reserved": "accepted"}},
		{name: "ends streams without a word", front: eachFrame(func(frame string) string {
			if lineOf(frame, "event: ") == "closed" {
				return ""
			}
			return frame
		}), fails: map[string]string{"hub.register.closes-stream": "the last frame", "hub.delete.own": "the last frame",
			"hub.stream.replaced": "the last frame"}},
		{name: "answers a repeated DELETE with 404", front: editsAnswers(func(r *http.Request, a *exchange) {
			if r.Method == http.MethodDelete && a.data()["deleted"] == false {
				setAnswer(a, http.StatusNotFound, refusal("ERR_AGENT_NOT_FOUND"))
			}
		}), fails: map[string]string{"hub.delete.again": "status 404"}},
		{name: "lets anyone have a deleted address", front: withKeys(forgetsDeletedAddresses),
			fails: map[string]string{"hub.delete.reserved": "accepted"}},
		{
			name:  "does not say why a message has failed",
			front: eachHistoryRow(func(row object) { delete(row, "error_code") }),
			fails: map[string]string{"hub.delete.queue": "delivered_via", "hub.ack.error": "no culture",
				"hub.ack.cut": wideText},
		},
		{
			name:  "shows endpoints",
			front: showsEndpoints,
			fails: map[string]string{"hub.endpoint.hidden": "53cr3t"},
		},
		{name: "calls any endpoint", front: acceptsOnHub(func(r *http.Request, a *exchange) bool {
			return a.code() == "ERR_ENDPOINT_BLOCKED"
		}), fails: map[string]string{"hub.endpoint.blocked": "accepted"}},
		{name: "hides endpoints from their agents", front: editsAnswers(func(_ *http.Request, a *exchange) {
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
