package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// TestBefore reads an inbox backwards, and follows it from where it began. It does so on an open and on a private
// relay, by both names of the path.
func TestBefore(t *testing.T) {
	open := newFront(t, start(t), httpapi.Options{Log: quiet}).Handler(false)
	for name, c := range map[string]struct {
		handler http.Handler
		get     func(h http.Handler, reader didkey.Key, target string) answer
	}{
		"open":    {open, func(h http.Handler, _ didkey.Key, target string) answer { return get(t, h, target) }},
		"private": {privateHandler(t), func(h http.Handler, k didkey.Key, target string) answer { return getAs(t, h, k, target) }},
	} {
		for _, path := range []string{"/events", "/v1/messages"} {
			agent, sent := key(t), []string(nil)
			read := func(query string) answer {
				t.Helper()
				a := c.get(c.handler, agent, path+"?recipient="+string(agent.DID())+"&"+query)
				a.want(t, 200, "")
				return a
			}
			send := func() {
				e := sign(t, key(t), envelope.Draft{Recipient: agent.DID(), Payload: envelope.Request{Intent: "echo"}})
				post(t, c.handler, "/events", e.Canonical()).want(t, 200, "")
				sent = append(sent, string(e.Canonical()))
			}
			wantEvents := func(what string, a answer, more bool, want ...string) {
				t.Helper()
				var got []string
				for _, e := range a.Events {
					got = append(got, string(e))
				}
				if !slices.Equal(got, want) || a.HasMore != more {
					t.Errorf("%s %s, %s: %s, want %v, hasMore %v", name, path, what, a.body, want, more)
				}
			}
			if a := read("before=end"); !strings.HasPrefix(string(a.body), `{"ok":true,"events":[],"hasMore":false,"cursor":"`) {
				t.Errorf("an empty page: %s", a.body)
			}
			send()
			send()
			send()
			newest := read("before=end&limit=2")
			wantEvents("the newest page", newest, true, sent[2], sent[1])
			if strings.Contains(string(newest.body), "lastTs") || newest.After == "" {
				t.Errorf("%s", newest.body)
			}
			send()
			wantEvents("the next page", read("before="+newest.Cursor), false, sent[0])
			wantEvents("the same page again", read("before="+newest.After+"&limit=2"), true, sent[2], sent[1])
			wantEvents("the news", read("timeout=0&cursor="+newest.After), false, sent[3])
			wantEvents("before all events", read("before=0"), false)
		}
	}
}

// TestBeforeTakesNoOtherStart checks the refusals of parameters that before excludes, and of cursors.
func TestBeforeTakesNoOtherStart(t *testing.T) {
	for _, reads := range []relay.Visibility{relay.ToAll, relay.ToParties} {
		r := startWith(t, asIs, relay.Config{Origin: origin, Reads: reads})
		h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
		for query, want := range map[string]string{
			"before=end&timeout=0":                "leave out since, cursor and timeout",
			"before=end&cursor=0":                 "leave out since, cursor and timeout",
			"before=0&since=2026-01-01T00:00:00Z": "leave out since, cursor and timeout",
			"before=now":                          "or end for the newest events",
			"before=":                             "or end for the newest events",
			"limit=1":                             "give one of since",
			"before=00000001-1":                   "another database",
			"before=" + strings.Repeat("0123abcd", 4): "",
		} {
			a := get(t, h, "/events?"+query)
			a.want(t, 400, envelope.CodeInvalidRequest)
			if !strings.Contains(a.Message, want) {
				t.Errorf("%s: %s, want %q", query, a.Message, want)
			}
		}
	}
	private := privateHandler(t)
	alice, bob := key(t), key(t)
	inbox := "/events?before=end&recipient=" + string(bob.DID())
	unauthorized(t, "anonymous", get(t, private, inbox), envelope.ReasonUnsigned)
	unauthorized(t, "another reader", getAs(t, private, alice, inbox), envelope.ReasonUnsigned)
	unauthorized(t, "a bad token", getWith(t, private, "/events?before=end", "Agora x"), envelope.ReasonMalformed)
}
