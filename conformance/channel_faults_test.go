package conformance_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
)

// faultyChannel is a channel service with one fault.
type faultyChannel struct {
	name string // see channelDouble.has
	// fails has the checks that must fail, each with a text that Result.Got must contain.
	fails map[string]string
	also  []string // other checks of the same themes that fail too, or may fail
}

// TestChannelFaultsAreDetected tests that checks can fail, and that they fail only because of their own rules: with
// some faults, the other checks of the same themes run too, and must pass. TestChannelDoublePasses tests that all checks
// pass without a fault.
func TestChannelFaultsAreDetected(t *testing.T) {
	t.Parallel()
	for i, f := range faultyChannels() {
		if raceDetector && i%4 != 0 {
			continue // the race detector makes them slow
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			takeTurn(t)
			runFaultyChannel(t, f, *thorough || i%4 == 0)
		})
	}
}

// slowChannelChecks run only where a fault names them.
var slowChannelChecks = []string{"N-67", "N-97", "N-98", "N-99"}

// runFaultyChannel runs the checks that must find the fault f. withTheme adds the other checks of their themes.
func runFaultyChannel(t *testing.T, f faultyChannel, withTheme bool) {
	d := startChannelDouble(t, f.name)
	themes := map[string]bool{}
	o := conformance.ChannelOptions{OperatorKey: d.operator, Listen: "127.0.0.1:0", Thorough: true}
	for _, c := range conformance.ChannelChecks() {
		if _, named := f.fails[c.Number]; named {
			themes[c.Theme] = withTheme
		}
	}
	for _, c := range conformance.ChannelChecks() {
		if _, named := f.fails[c.Number]; named || themes[c.Theme] && !slices.Contains(slowChannelChecks, c.Number) {
			o.Only = append(o.Only, c.Number)
		}
	}
	report, err := conformance.RunChannel(t.Context(), d.url, o)
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
		case r.Status != conformance.Passed && !slices.Contains(f.also, r.Number):
			t.Errorf("must not fail:\n%s", r.Finding())
		}
	}
	if failed != len(f.fails) || report.Holds() {
		t.Errorf("%d checks failed, want %d; Holds returns %v", failed, len(f.fails), report.Holds())
	}
}

// TestEveryChannelCheckCanFail tests that each check is named by a fault.
func TestEveryChannelCheckCanFail(t *testing.T) {
	named := map[string]bool{}
	for _, f := range faultyChannels() {
		for number := range f.fails {
			named[number] = true
		}
	}
	for _, c := range conformance.ChannelChecks() {
		if !named[c.Number] {
			t.Errorf("no fault shows that %s can fail", c.Number)
		}
	}
}

func faultyChannels() (all []faultyChannel) {
	for _, list := range [][]faultyChannel{httpFaults(), channelFaults(), callerFaults(), eventFaults(), laneFaults(),
		callbackFaults(), mcpFaults()} {
		all = append(all, list...)
	}
	return all
}

func httpFaults() []faultyChannel {
	return []faultyChannel{
		{name: "redirects double slashes", fails: map[string]string{"N-1": "status 301"}},
		{name: "has no Allow header", fails: map[string]string{"N-2": "status 405"}},
		{name: "does not say whether to retry", fails: map[string]string{"N-3": "status 404"}},
		{name: "requires a Content-Type", fails: map[string]string{"N-4": "status 415"}},
		{name: "ignores Content-Encoding", fails: map[string]string{"N-5": "accepted", "N-14": "accepted"}},
		{name: "ignores bad parameters", fails: map[string]string{"N-6": "accepted", "N-50": "accepted",
			"N-53": "accepted"}},
		{name: "lets answers be stored", fails: map[string]string{"N-7": "status 200"}},
		{name: "refuses large bodies with 400", fails: map[string]string{"N-8": "another status",
			"N-14": "another status"}},
		{name: "takes 32 levels", fails: map[string]string{"N-9": "status 400", "N-14": "status 400"}},
		{name: "refuses unknown members", fails: map[string]string{"N-10": "status 400",
			"N-9": "status 400", "N-14": "status 400"}},
		{name: "reads one JSON value and ignores the rest", fails: map[string]string{"N-11": "accepted",
			"N-14": "accepted"}},
		{name: "parses leniently", fails: map[string]string{"N-12": "accepted", "N-13": "accepted",
			"N-14": "accepted"}},
		{name: "takes U+0000", fails: map[string]string{"N-13": "accepted", "N-14": "accepted"}},
	}
}

func channelFaults() []faultyChannel {
	return []faultyChannel{
		{name: "hides the context", fails: map[string]string{"N-15": "context", "N-16": "context",
			"N-18": "context", "N-17": "status 201"}, also: []string{"N-19"}},
		{name: "has other keys", fails: map[string]string{"N-15": "key_", "N-16": "key_"},
			also: everyChannelCheck("Channels")},
		{name: "counts characters", fails: map[string]string{"N-17": "accepted", "N-42": "accepted",
			"N-75": "accepted"}, also: []string{"N-18"}},
		{name: "changes the name before it reads the context", fails: map[string]string{"N-18": "good"}},
		{name: "keeps the keys of deleted channels", fails: map[string]string{"N-19": "another status"}},
		{name: "keeps the tokens of deleted channels", fails: map[string]string{"N-20": "status 200"}},
		{name: "tells which channels exist", fails: map[string]string{"N-21": "status 404"}},
		{name: "shows connection strings", fails: map[string]string{"N-22": "sk_53cr3t",
			"N-27": "also url"}, also: []string{"N-28", "N-31"}},
		{name: "lists one member", fails: map[string]string{"N-23": "status 200"}},
		{name: "takes every name", fails: map[string]string{"N-24": "accepted"}},
		{name: "has two sets of names", fails: map[string]string{"N-25": "accepted"}},
		{name: "keeps the keys of deleted members", fails: map[string]string{"N-26": "accepted"}},
		{name: "shows no host", fails: map[string]string{"N-27": "host", "N-28": "host",
			"N-31": "host"}},
		{name: "takes every form of mcp", fails: map[string]string{"N-28": "accepted",
			"N-31": "accepted"}},
		{name: "calls any URL", fails: map[string]string{"N-29": "accepted", "N-30": "accepted",
			"N-31": "accepted"}},
		{name: "calls itself", fails: map[string]string{"N-30": "accepted"}},
		{name: "forgets mcp at a PUT", fails: map[string]string{"N-31": `"mcp":"object"`}, also: []string{
			"N-28"}},
		{name: "changes the URL before it reads mcp", fails: map[string]string{"N-31": "third.example"}},
		{name: "keeps the names of deleted connections", fails: map[string]string{"N-32": "status 200"}},
		{name: "has no limits", fails: map[string]string{"N-97": "accepted", "N-98": "accepted",
			"N-99": "accepted"}},
	}
}

// everyChannelCheck returns the checks of a theme.
func everyChannelCheck(theme string) (numbers []string) {
	for _, c := range conformance.ChannelChecks() {
		if c.Theme == theme {
			numbers = append(numbers, c.Number)
		}
	}
	return numbers
}

func callerFaults() []faultyChannel {
	return []faultyChannel{
		{name: "does not say how to authorize", fails: map[string]string{"N-33": "status 401",
			"N-34": "status 401", "N-39": "status 401"}},
		{name: "takes any scheme", fails: map[string]string{"N-34": "accepted"}},
		{name: "compares the scheme exactly", fails: map[string]string{"N-35": "status 401"}},
		{name: "lets managers post", fails: map[string]string{"N-36": "accepted"}},
		{name: "lets members manage", fails: map[string]string{"N-37": "accepted"}},
		{name: "takes keys of other channels", fails: map[string]string{"N-38": "accepted"}},
		{name: "lets channels create channels", fails: map[string]string{"N-39": "accepted"}},
		{name: "takes tokens as keys", fails: map[string]string{"N-40": "status 200"}},
	}
}

func eventFaults() []faultyChannel {
	return []faultyChannel{
		{name: "does not say how an event came", fails: map[string]string{"N-41": "via",
			"N-43": "hello", "N-73": "web_search"}, also: append(everyChannelCheck("Messages"),
			everyChannelCheck("Callback")...)},
		{name: "believes what is sent", fails: map[string]string{"N-43": "mallory",
			"N-77": "mallory"}},
		{name: "hides that it repeats", fails: map[string]string{"N-44": "status 201",
			"N-45": "status 201", "N-79": "status 200"}},
		{name: "compares the bytes of bodies", fails: map[string]string{"N-44": "status 409",
			"N-79": "status 409"}},
		{name: "repeats answers to other bodies", fails: map[string]string{"N-45": "accepted",
			"N-46": "accepted", "N-79": "accepted"}},
		{name: "has one set of Idempotency-Keys", fails: map[string]string{"N-46": "alice",
			"N-79": "status 409"}, also: []string{"N-47"}},
		{name: "takes long Idempotency-Keys", fails: map[string]string{"N-47": "accepted"}},
		{name: "does not wait for the first request", fails: map[string]string{"N-48": "status 201"}},
		{name: "takes after as inclusive", fails: map[string]string{"N-49": ""}, also: everyChannelCheck("Events")},
		{name: "shows 100 events", fails: map[string]string{"N-50": "52 events"}},
		{name: "counts the events of all channels", fails: map[string]string{"N-51": "", "N-78": "seq"},
			also: append(everyChannelCheck("Events"), everyChannelCheck("Callback")...)},
		{name: "does not wait", fails: map[string]string{"N-52": "status 200", "N-53": "status 200"}},
		{name: "tells nobody that there are events", fails: map[string]string{"N-52": "status 200"}},
		{name: "takes other values as texts", fails: map[string]string{"N-42": "accepted",
			"N-75": "accepted", "N-24": "accepted", "N-17": "accepted"}},
	}
}

func laneFaults() []faultyChannel {
	return []faultyChannel{
		{name: "sends the whole event", fails: map[string]string{"N-54": "message is not",
			"N-55": "message is not", "N-56": "message is not"}},
		{name: "sends one object to all", fails: map[string]string{"N-55": "mcp is not"}},
		{name: "does not name its server", fails: map[string]string{"N-55": "mcp is not"}},
		{name: "sends mcp to all", fails: map[string]string{"N-56": "also mcp"}},
		{name: "sends a key", fails: map[string]string{"N-57": "Bearer x"}},
		{name: "drops the query", fails: map[string]string{"N-58": `the query ""`}},
		{name: "delivers to one connection", fails: map[string]string{"N-59": "status 201",
			"N-60": "status 201"}},
		{name: "returns messages to their senders", fails: map[string]string{"N-60": "2 calls"}},
		{name: "delivers all events", fails: map[string]string{"N-61": "calls"}},
		{name: "has one token for all attempts", fails: map[string]string{"N-62": "the headers"}},
		{name: "changes the id in each attempt", fails: map[string]string{"N-62": "deliveries of",
			"N-65": "deliveries of"}, also: everyChannelCheck("Order and failures")},
		{name: "ends the tokens of earlier attempts", fails: map[string]string{"N-62": "status 404"}},
		{name: "delivers at the same time", fails: map[string]string{"N-63": ""},
			also: everyChannelCheck("Order and failures")},
		{name: "delivers the newest message first", fails: map[string]string{"N-63": "deliveries of"},
			also: []string{"N-64", "N-68"}}, // N-64 posts several messages, and may see their order
		{name: "has one lane for all", fails: map[string]string{"N-64": "calls"},
			also: everyChannelCheck("Order and failures")},
		{name: "gives up at the first failure", fails: map[string]string{"N-65": "1 calls",
			"N-66": "1 calls", "N-63": "8 calls", "N-71": "0 calls", "N-67": "1 calls"},
			also: []string{"N-72"}},
		{name: "ignores Retry-After", fails: map[string]string{"N-66": "after"}},
		{name: "waits for ever", fails: map[string]string{"N-67": "1 calls"}},
		{name: "follows redirects", fails: map[string]string{"N-68": ""}},
		{name: "repeats what was refused", fails: map[string]string{"N-68": ""}},
		{name: "takes 404 as any failure", fails: map[string]string{"N-69": "active"}},
		{name: "revokes for ever", fails: map[string]string{"N-69": "revoked"}},
		{name: "keeps the tokens of revoked connections", fails: map[string]string{"N-69": "accepted"}},
		{name: "does not count what it tries", fails: map[string]string{"N-70": `"queued":`}},
		{name: "keeps the URL of what is queued", fails: map[string]string{"N-71": "0 calls"}},
		{name: "goes on after DELETE", fails: map[string]string{"N-72": "calls"}},
	}
}

func callbackFaults() []faultyChannel {
	return []faultyChannel{
		{name: "takes short names", fails: map[string]string{"N-73": "status 400",
			"N-61": "status 400"}},
		{name: "takes events of every type", fails: map[string]string{"N-74": "accepted"}},
		{name: "checks no members", fails: map[string]string{"N-75": "accepted"}},
		{name: "keeps the spelling of numbers", fails: map[string]string{"N-76": "1.50e1"}},
		{name: "drops unknown members", fails: map[string]string{"N-76": `"type"`}},
		{name: "answers unknown callbacks with 401", fails: map[string]string{"N-80": "status 401",
			"N-81": "status 401"}},
		{name: "takes tokens of other channels", fails: map[string]string{"N-81": "accepted",
			"N-93": "status 200"}},
		{name: "keeps the tokens of deleted connections", fails: map[string]string{"N-82": "accepted",
			"N-94": "status 200"}},
		{name: "opens callbacks late", fails: map[string]string{"N-83": "status 404"},
			also: everyChannelCheck("Callback")},
		{name: "never stops", fails: map[string]string{"N-84": "calls"}},
		{name: "stops at depth 3", fails: map[string]string{"N-84": "calls"}},
		{name: "lets agents say everything", fails: map[string]string{"N-85": ""}},
	}
}

func mcpFaults() []faultyChannel {
	return []faultyChannel{
		{name: "answers MCP as a stream", fails: map[string]string{"N-86": "event: message"},
			also: everyChannelCheck("MCP")},
		{name: "has three tools", fails: map[string]string{"N-87": "send_message"}},
		{name: "takes tools for callbacks", fails: map[string]string{"N-88": `"via":"callback"`}},
		{name: "shows the newest message first", fails: map[string]string{"N-89": `"seq":5`},
			also: []string{"N-90"}},
		{name: "shows all events as messages", fails: map[string]string{"N-89": `"hasMore":false`}},
		{name: "shows 20 messages", fails: map[string]string{"N-90": `"hasMore":true`}},
		{name: "shows no status", fails: map[string]string{"N-91": `"status":""`}},
		{name: "hides that a tool refuses", fails: map[string]string{"N-92": `"isError":false`}},
		{name: "takes every token", fails: map[string]string{"N-93": "status 200"}},
		{name: "guards its MCP server by Host", fails: map[string]string{"N-95": "status 403"}},
		{name: "shows the messages of all channels", fails: map[string]string{"N-96": "53cr3t"},
			also: everyChannelCheck("MCP")},
	}
}
