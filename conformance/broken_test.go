package conformance_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/relay"
)

// broken is our relay with one fault, and what the kit must say of it.
type broken struct {
	name  string
	store func(relay.Store) relay.Store
	wire  func(http.Handler) http.Handler
	// fails holds checks that must fail, each with words that its message must have.
	fails map[string]string
}

// TestTheKitNotices holds that the kit can fail: each broken relay is noticed by the checks that are about its fault,
// and their messages name the cause. That the same checks pass without the fault is TestOurRelayHolds.
func TestTheKitNotices(t *testing.T) {
	t.Parallel()
	for _, b := range brokenRelays() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			var only []string
			for number := range b.fails {
				only = append(only, number)
			}
			report, err := conformance.Run(t.Context(), start(t, b.store, b.wire), conformance.Options{Only: only})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range report.Results {
				if r.Status != conformance.Failed || !strings.Contains(r.Got, b.fails[r.Number]) {
					t.Errorf("%s %s, want it failed with %q\nsent %s\nexpected %s\ngot %s", r.Number, r.Status, b.fails[r.Number], r.Sent, r.Expected, r.Got)
				}
			}
			if len(report.Results) != len(b.fails) || report.Holds() {
				t.Errorf("%d results, holds: %v", len(report.Results), report.Holds())
			}
		})
	}
}

func brokenRelays() []broken {
	return []broken{
		{name: "drops the duplicate check", wire: deliversDuplicates,
			fails: map[string]string{"C-18": "delivered twice", "C-19": "accepted", "S-50": `"duplicate":false`, "S-52": "accepted"}},
		{name: "takes since as at or after", wire: sinceInclusive,
			fails: map[string]string{"C-39": "does not belong here"}},
		{name: "takes since literally, so equal and older timestamps are lost", store: literalSince,
			fails: map[string]string{"S-110": "not delivered", "S-112": "not delivered", "S-118": "never reached"}},
		{name: "accepts anybody's RESULT", wire: pretends(func(e, a map[string]any) bool { return e["type"] == "RESULT" && a["error"] == "FORBIDDEN" }),
			fails: map[string]string{"S-62": "it is accepted", "S-63": "it is accepted"}},
		{name: "wakes nobody", store: func(s relay.Store) relay.Store { return deaf{s} },
			fails: map[string]string{"C-33": "after the event came", "S-111": "after the event came"}},
		{name: "encodes what it delivers again", wire: rewritesEvents(encodesAgain),
			fails: map[string]string{"C-3": "another envelope", "S-12": "other bytes"}},
		{name: "folds the case of member names", wire: foldsCase,
			fails: map[string]string{"S-17": "it is accepted"}},
		{name: "redirects double slashes", wire: redirects,
			fails: map[string]string{"S-92": "status 301"}},
		{name: "accepts stale timestamps", wire: pretends(refusedFor("STALE_TIMESTAMP")),
			fails: map[string]string{"C-16": "it is accepted", "C-17": "it is accepted", "S-24": "it is accepted"}},
		{name: "ignores meta.ttl", store: func(s relay.Store) relay.Store { return ageless{s} },
			fails: map[string]string{"C-45": "delivered still"}},
		{name: "delivers to everybody", wire: dropsParameter("recipient"),
			fails: map[string]string{"C-34": "does not belong here", "S-108": "does not belong here"}},
		{name: "ignores unknown parameters", wire: keepsParameters,
			fails: map[string]string{"S-102": "it is accepted"}},
		{name: "answers before it stores, and loses every seventh", wire: losesEvery(7),
			fails: map[string]string{"S-59": "is not delivered"}},
		{name: "refuses in plain text", wire: plainErrors,
			fails: map[string]string{"S-90": "status 4", "S-96": "text/plain", "S-2": "not JSON"}},
		{name: "accepts what is not signed", wire: pretends(refusedFor("INVALID_SIGNATURE")),
			fails: map[string]string{"C-5": "it is accepted", "C-6": "it is accepted", "C-7": "it is accepted", "S-39": "it is accepted"}},
		{name: "answers idle readers without end", wire: sinceInclusive,
			fails: map[string]string{"S-113": "polls answered"}},
		{name: "starts its sequence again", wire: restartsSequence,
			fails: map[string]string{"X-6": "cursor", "X-9": "not delivered"}},
		{name: "holds no poll", wire: setsParameter("timeout", "0"),
			fails: map[string]string{"C-32": "answered after", "C-39": "answered after"}},
		{name: "delivers by ts", wire: rewritesEvents(sortsByTS),
			fails: map[string]string{"S-109": "in the order"}},
		{name: "answers wrong states with 400", wire: otherStatus(http.StatusConflict, http.StatusBadRequest),
			fails: map[string]string{"S-71": "in another way: status 400", "S-52": "in another way: status 400"}},
		{name: "forgets an expired message's id", wire: pretends(refusedFor("DUPLICATE_ID")),
			fails: map[string]string{"S-55": "it is accepted"}},
		{name: "adds a member to what it delivers", wire: rewritesEvents(addsMember),
			fails: map[string]string{"C-3": "another envelope"}},
		{name: "shows a thread of the first who took its id", wire: sharesThreads,
			fails: map[string]string{"S-85": "it is refused"}},
		{name: "fills a page to the limit whatever it splits", wire: rewritesEvents(func(events []json.RawMessage) []json.RawMessage { return events[:min(2, len(events))] }),
			fails: map[string]string{"S-101": "2 events", "S-115": "is not delivered"}},
		{name: "ignores the filter sender", wire: dropsParameter("sender"), fails: map[string]string{"C-35": "does not belong here"}},
		{name: "ignores the filter type", wire: dropsParameter("type"), fails: map[string]string{"C-36": "does not belong here"}},
		{name: "ignores the filter thread", wire: dropsParameter("thread"), fails: map[string]string{"C-37": "does not belong here", "S-107": "does not belong here"}},
		{name: "sends everybody the broadcasts", wire: setsParameter("broadcast", "true"), fails: map[string]string{"S-108": "does not belong here"}},
		{name: "refuses with status 200", wire: otherStatus(http.StatusBadRequest, http.StatusOK), fails: map[string]string{"S-21": "in another way: status 200", "S-90": "status 200"}},
		{name: "knows a message by its id alone", wire: knowsByID, fails: map[string]string{"S-53": "it is refused"}},
		{name: "drops members it does not know", wire: rewritesEvents(dropsUnknown), fails: map[string]string{"S-18": "another envelope"}},
		{name: "holds one poll after the other", wire: onePollAtATime, fails: map[string]string{"S-123": "came after"}},
		{name: "has no lastTs", wire: withoutMember("lastTs"), fails: map[string]string{"X-13": "lastTs", "X-32": "no lastTs"}},
		{name: "says never that there is more", wire: withoutMember("hasMore"), fails: map[string]string{"C-31": "status 200", "S-101": "status 200"}},
		{name: "limits how often OFFERs come, and not how many", wire: limitsRateForNumber,
			fails: map[string]string{"S-58": "it is accepted"}},
		{name: "accepts two ACCEPTs", wire: pretends(func(e, a map[string]any) bool { return e["type"] == "ACCEPT" && a["error"] == "INVALID_TRANSITION" }),
			fails: map[string]string{"C-22": "it is accepted", "S-57": "are accepted"}},
	}
}
