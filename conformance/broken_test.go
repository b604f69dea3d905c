package conformance_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/relay"
)

// TestFaultsAreDetected tests that checks can fail. Each faulty relay must fail the checks of its fault, and the
// results must describe the fault. TestOwnRelayPasses tests that the same checks pass without the fault.
func TestFaultsAreDetected(t *testing.T) {
	t.Parallel()
	testRelayFaults(t, relay.Config{Key: relayKey(t)}, faultyRelays())
}

// testRelayFaults starts relays with this configuration and one fault each.
func testRelayFaults(t *testing.T, c relay.Config, faults []fault) {
	relays := suite{checks: conformance.Checks(), idle: true,
		run: func(t *testing.T, url string, only []string, _, _ string) (conformance.Report, error) {
			return conformance.Run(t.Context(), url, conformance.Options{Only: only})
		}}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			one := relays
			one.start = func(t *testing.T, front middleware) string { return startWith(t, c, f.store, front) }
			one.testFault(t, f, false)
		})
	}
}

func faultyRelays() []fault {
	return []fault{
		{name: "does not detect duplicates", front: deliversDuplicates,
			fails: map[string]string{
				"C-18": "delivered twice",
				"C-19": "accepted",
				"S-50": `"duplicate":false`,
				"S-52": "accepted",
			}},
		{name: "treats since as inclusive", front: sinceInclusive,
			fails: map[string]string{"C-39": "unexpected event"}},
		{name: "returns only events with ts > since, so events with equal and older timestamps are lost",
			store: literalSince,
			fails: map[string]string{"S-110": "is missing", "S-112": "is missing", "S-118": "did not receive"}},
		{name: "accepts a RESULT from any sender",
			front: acceptsRefusals(
				func(e, a object) bool { return e["type"] == "RESULT" && a["error"] == "FORBIDDEN" }),
			fails: map[string]string{"S-62": "the relay accepted it", "S-63": "the relay accepted it"}},
		{name: "wakes no polls", store: func(s relay.Store) relay.Store { return neverNotifies{s} },
			fails: map[string]string{"C-33": "after the event was posted", "S-111": "after the event was posted",
				"X-56": "has not come"}},
		{name: "encodes events again for delivery", front: rewritesEvents(encodesDifferently),
			fails: map[string]string{"C-3": "differs from the signed one", "S-12": "byte for byte"}},
		{name: "ignores case in member names", front: foldsCase,
			fails: map[string]string{"S-17": "the relay accepted it"}},
		{name: "redirects double slashes", front: redirects,
			fails: map[string]string{"S-92": "status 301"}},
		{name: "accepts stale timestamps", front: acceptsRefusals(refusedFor("STALE_TIMESTAMP")),
			fails: map[string]string{
				"C-16": "the relay accepted it",
				"C-17": "the relay accepted it",
				"S-24": "the relay accepted it",
			}},
		{name: "takes messages for other homes", front: acceptsRefusals(func(e, a object) bool {
			details, _ := a["details"].(object)
			return details["reason"] == "home"
		}), fails: map[string]string{"X-86": "the relay accepted it"}},
		{name: "takes malformed homes", front: acceptsRefusals(func(e, a object) bool {
			return a["error"] == "INVALID_REQUEST" && strings.Contains(string(encode(a)), "meta.home")
		}), fails: map[string]string{"X-87": "the relay accepted it"}},
		{name: "takes any hash", front: acceptsRefusals(func(e, a object) bool {
			return a["error"] == "INVALID_REQUEST" && strings.Contains(string(encode(a)), "must be the hash")
		}), fails: map[string]string{"X-87": "the relay accepted it"}},
		{name: "refuses its own home", front: refusesPosts(func(e object) bool {
			meta, _ := e["meta"].(object)
			return meta["home"] != nil
		}), fails: map[string]string{"X-85": "the relay refused it", "X-86": "status 403"}},
		{name: "ignores meta.ttl", store: func(s relay.Store) relay.Store { return neverExpires{s} },
			fails: map[string]string{"C-45": "still delivered"}},
		{name: "ignores the filter recipient", front: dropsParameter("recipient"),
			fails: map[string]string{"C-34": "unexpected event", "S-108": "unexpected event"}},
		{name: "ignores unknown parameters", front: ignoresUnknownParameters,
			fails: map[string]string{"S-102": "the relay accepted it"}},
		{name: "answers 200 and loses every seventh message", front: losesEveryNth(7),
			fails: map[string]string{"S-59": "is missing"}},
		{name: "refuses in plain text", front: plainErrors,
			fails: map[string]string{"S-90": "status 4", "S-96": "text/plain", "S-2": "not JSON"}},
		{name: "accepts invalid signatures", front: acceptsRefusals(refusedFor("INVALID_SIGNATURE")),
			fails: map[string]string{
				"C-5":  "the relay accepted it",
				"C-6":  "the relay accepted it",
				"C-7":  "the relay accepted it",
				"S-39": "the relay accepted it",
			}},
		{name: "answers idle readers in a hot loop", front: sinceInclusive,
			fails: map[string]string{"S-113": "polls answered"}},
		{name: "restarts its sequence", front: restartsSequence,
			fails: map[string]string{"X-6": "cursor", "X-9": "is missing"}},
		{name: "holds no polls", front: setsParameter("timeout", "0"),
			fails: map[string]string{"C-32": "answered after", "C-39": "answered after"}},
		{name: "delivers in the order of ts", front: rewritesEvents(sortsByTS),
			fails: map[string]string{"S-109": "in the order"}},
		{name: "answers messages in the wrong state with 400",
			front: otherStatus(http.StatusConflict, http.StatusBadRequest),
			fails: map[string]string{
				"S-71": "another status or error: status 400",
				"S-52": "another status or error: status 400",
			}},
		{name: "forgets the id of an expired message", front: acceptsRefusals(refusedFor("DUPLICATE_ID")),
			fails: map[string]string{"S-55": "the relay accepted it"}},
		{name: "adds a member to delivered events", front: rewritesEvents(addsMember),
			fails: map[string]string{"C-3": "differs from the signed one"}},
		{name: "identifies a thread only by its id", front: identifiesThreadsByID,
			fails: map[string]string{"S-85": "the relay refused it"}},
		{name: "ends a page between events with the same ts",
			front: rewritesEvents(
				func(events []json.RawMessage) []json.RawMessage { return events[:min(2, len(events))] }),
			fails: map[string]string{"S-101": "2 events", "S-115": "is missing"}},
		{name: "ignores the filter sender", front: dropsParameter("sender"),
			fails: map[string]string{"C-35": "unexpected event"}},
		{name: "ignores the filter type", front: dropsParameter("type"),
			fails: map[string]string{"C-36": "unexpected event"}},
		{name: "ignores the filter thread", front: dropsParameter("thread"),
			fails: map[string]string{"C-37": "unexpected event", "S-107": "unexpected event"}},
		{name: "returns broadcasts to a poll with recipient", front: setsParameter("broadcast", "true"),
			fails: map[string]string{"S-108": "unexpected event"}},
		{name: "refuses with status 200", front: otherStatus(http.StatusBadRequest, http.StatusOK),
			fails: map[string]string{"S-21": "another status or error: status 200", "S-90": "status 200"}},
		{name: "identifies a message only by its id", front: comparesIDsOnly,
			fails: map[string]string{"S-53": "the relay refused it"}},
		{name: "drops unknown members", front: rewritesEvents(dropsUnknown),
			fails: map[string]string{"S-18": "differs from the signed one"}},
		{name: "holds only one poll at a time", front: onePollAtATime,
			fails: map[string]string{"S-123": "came after"}},
		{name: "has no lastTs", front: withoutMember("lastTs"),
			fails: map[string]string{"X-13": "lastTs", "X-32": "no lastTs"}},
		{name: "has no hasMore", front: withoutMember("hasMore"),
			fails: map[string]string{"C-31": "status 200", "S-101": "status 200"}},
		{name: "limits the rate of OFFERs but not their number", front: limitsRateInsteadOfCount,
			fails: map[string]string{"S-58": "the relay accepted it"}},
		{name: "accepts two ACCEPTs",
			front: acceptsRefusals(
				func(e, a object) bool { return e["type"] == "ACCEPT" && a["error"] == "INVALID_TRANSITION" }),
			fails: map[string]string{"C-22": "the relay accepted it", "S-57": "are accepted"}},
		{name: "reads backwards in the order of arrival", front: ofBefore(reversesEvents),
			fails: map[string]string{"X-45": "instead of", "X-47": "in the order", "X-49": "in the order"}},
		{name: "returns as after the position behind the page", front: ofBefore(swapsAfter),
			fails: map[string]string{"X-46": "answered after"}},
		{name: "leaves out the event right before the position",
			store: func(s relay.Store) relay.Store { return skipsNewest{s} },
			fails: map[string]string{"X-45": "instead of", "X-47": "is missing"}},
		{name: "holds reads backwards", front: ofBefore(answersLate),
			fails: map[string]string{"X-48": "came after"}},
		{name: "reads backwards without the filter type", front: ofBefore(dropsParameter("type")),
			fails: map[string]string{"X-49": "unexpected event"}},
		{name: "reads expired events backwards",
			store: func(s relay.Store) relay.Store { return expiresForwards{s, neverExpires{s}} },
			fails: map[string]string{"X-50": "unexpected event"}},
		{name: "ignores timeout beside before", front: ofBefore(dropsParameter("timeout")),
			fails: map[string]string{"X-51": "the relay accepted it"}},
		{name: "takes every before for the end", front: ofBefore(setsParameter("before", "end")),
			fails: map[string]string{"X-52": "the relay accepted it"}},
		{name: "lists no features", front: withoutMember("features"),
			fails: map[string]string{"X-53": "status 200"}},
		{name: "lets proxies buffer streams", front: ofStreams(withoutStreamHeader("X-Accel-Buffering")),
			fails: map[string]string{"X-55": "the header"}},
		{name: "lets caches answer polls with streams", front: ofStreams(withoutStreamHeader("Vary")),
			fails: map[string]string{"X-55": "the header"}},
		{name: "begins streams with the oldest event", front: ofStreams(fromTheOldest),
			fails: map[string]string{"X-56": "the stream has"}},
		{name: "writes events in streams with other bytes", front: ofStreams(rewritesStreams("data: {", "data: { ")),
			fails: map[string]string{"X-56": "{ "}},
		{name: "names the events of streams", front: ofStreams(rewritesStreams("data: {", "event: event\ndata: {")),
			fails: map[string]string{"X-56": "has the name"}},
		{name: "streams without the filter sender", front: ofStreams(dropsParameter("sender")),
			fails: map[string]string{"X-57": "the stream has"}},
		{name: "ignores Last-Event-ID", front: ofStreams(withoutRequestHeader("Last-Event-ID")),
			fails: map[string]string{"X-58": "unexpected event", "X-59": "has not come", "X-60": "the relay accepted it"}},
		{name: "begins streams without an id", front: ofStreams(rewritesStreams(": begin\nid: ", ": begin\n: ")),
			fails: map[string]string{"X-59": "none has come"}},
		{name: "ignores timeout in streams", front: ofStreams(dropsParameter("timeout")),
			fails: map[string]string{"X-60": "the relay accepted it"}},
		{name: "streams whenever Accept mentions streams", front: prefersStreams,
			fails: map[string]string{"X-61": "status 400"}},
		{name: "is silent in streams", front: ofStreams(rewritesStreams(": keep-alive", "")),
			fails: map[string]string{"X-62": "none has come"}},
		{name: "has no results for refused lines", front: changesResults(onlyReceipts),
			fails: map[string]string{"X-64": "results", "X-66": "results"}},
		{name: "stops at the first refused line", front: changesResults(stopsAtRefusal),
			fails: map[string]string{"X-64": "results", "X-66": "results"}},
		{name: "stores the lines of a bulk request in another order", front: changesLines(reversed),
			fails: map[string]string{"X-64": "another result", "X-65": "another result", "X-66": "another result"}},
		{name: "ignores a last line without LF", front: changesLines(wholeLines),
			fails: map[string]string{"X-67": "0 results"}},
		{name: "skips empty lines", front: changesLines(withoutEmpty),
			fails: map[string]string{"X-68": "2 results"}},
		{name: "ignores the parameters of bulk requests", front: ignoresQueries,
			fails: map[string]string{"X-69": "the relay accepted it"}},
	}
}
