package hub

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// keyedRequests are the requests that need an agent's key.
var keyedRequests = []struct{ method, path string }{
	{http.MethodPost, "/agent/session"}, {http.MethodGet, "/agent/inbox"}, {http.MethodGet, "/agent/messages"},
	{http.MethodPost, "/agent/ack"}, {http.MethodPost, "/messages"},
}

// askKeyed sends a request of keyedRequests with this Authorization. If it is empty, there is none.
func (h *hubProbe) askKeyed(what, method, path, authorization string) kit.Answer {
	header := http.Header{}
	if authorization != "" {
		header.Set("Authorization", authorization)
	}
	var body any
	if method == http.MethodPost {
		body = kit.Message{}
	}
	return h.Ask(what, method, path, "", header, body)
}

// wantNoKeyAsked does the same as wantNoKey, and also requires the header WWW-Authenticate.
func (h *hubProbe) wantNoKeyAsked(a kit.Answer) {
	h.wantNoKey(a)
	h.WantChallenge(a)
}

const unknownKey = "ca_00000000000000000000000000000000"

// hubKeyChecks test who may do what.
var hubKeyChecks = []hubCheck{
	{Number: "hub.key.required",
		Title: "A request without a key is refused with 401 ERR_UNAUTHORIZED and WWW-Authenticate: Bearer",
		Cites: `HUB "Endpoints"; GATEWAYS "Keys of callers"`, Run: func(h *hubProbe) {
			for _, r := range keyedRequests {
				h.wantNoKeyAsked(h.askKeyed("without a key", r.method, r.path, ""))
			}
			h.wantNoKeyAsked(h.Write("", "/agents", registration(h.hub.address())))
			h.wantNoKeyAsked(h.Ask("", http.MethodDelete, "/agents/"+h.one().id, "", nil, nil))
		}},
	{Number: "hub.key.invalid",
		Title: "An unknown key, another scheme and a malformed Authorization are refused with 401",
		Cites: `GATEWAYS "Keys of callers"; G-10`, Run: func(h *hubProbe) {
			a := h.one()
			for _, authorization := range []string{"Bearer " + unknownKey, "Bearer", "Bearer x", a.key,
				"Basic " + a.key,
				"Bearer " + a.key + "0", "Bearer " + strings.ToUpper(a.key), "Bearer " + a.key + " " + a.key,
				"Bearer op_" + strings.Repeat("A", 43)} {
				for _, r := range keyedRequests {
					h.wantNoKeyAsked(h.askKeyed("with an invalid Authorization", r.method, r.path, authorization))
				}
			}
			header := http.Header{"Authorization": {"Bearer " + a.key, "Bearer " + unknownKey}}
			h.wantNoKey(h.Ask("two Authorization headers", http.MethodGet, "/agent/messages", "", header, nil))
		}},
	{Number: "hub.key.scheme", Title: "The scheme Bearer is case-insensitive", Cites: `GATEWAYS "Keys of callers"`,
		Run: func(h *hubProbe) {
			a := h.one()
			for _, scheme := range []string{"bearer ", "BEARER ", "bEaReR "} {
				h.rows(h.Ask(scheme, http.MethodGet, "/agent/messages", "",
					http.Header{"Authorization": {scheme + a.key}}, nil))
			}
		}},
	{Number: "hub.key.purpose",
		Title: "A key is refused for everything it does not belong to", Cites: `GATEWAYS "Keys of callers"; G-10`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			token := h.wantData(h.Write(alice.key, "/agent/session", nil), http.StatusOK).Text("session_token")
			for _, r := range keyedRequests {
				h.wantNoKey(h.askKeyed("with a session token as the key", r.method, r.path, "Bearer "+token))
			}
			h.wantNoKey(h.Read("", "/agent/inbox?session="+alice.key))
			h.wantNotYours(h.Write(alice.key, "/agents",
				kit.Message{"agent_id": h.hub.address(), "endpoint": "https://agent.example/receive"}))
			h.wantNotYours(h.Ask("with the key of another agent", http.MethodDelete, "/agents/"+bob.id, alice.key,
				nil, nil))
		}},
	{Number: "hub.key.told-once", Title: "No other answer contains a key", Cites: `GATEWAYS "Keys of callers"; G-9`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			h.send(alice, bob, "hello")
			for _, key := range []string{"", alice.key, bob.key} {
				for _, path := range []string{"/agents", "/agents/" + alice.id, "/discover", "/invite/" + alice.id,
					"/health"} {
					h.WantNoText(h.Read(key, path), "no key of an agent", alice.key, bob.key)
				}
			}
			h.WantNoText(h.Read(bob.key, "/agent/messages?since="+bob.seen), "no key of an agent", alice.key, bob.key)
		}},
	{Number: "hub.session.token", Title: "POST /agent/session returns cs_ and 32 hexadecimal digits, for 300 seconds",
		Cites: `HUB "Endpoints"; GATEWAYS "Keys of callers"`, Run: func(h *hubProbe) {
			a := h.one()
			answered := h.Write(a.key, "/agent/session", nil)
			data := h.wantData(answered, http.StatusOK)
			h.Want(sessionForm.MatchString(data.Text("session_token")) && data.Number("expires_in_seconds") == 300,
				answered, `{"session_token":"cs_…","expires_in_seconds":300}`)
		}},
	{Number: "hub.session.stream", Title: "A session token opens the stream of its agent without Authorization, once",
		Cites: `HUB "Endpoints"; GATEWAYS "Keys of callers"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			target := h.session(bob)
			s := h.openRaw(bob, target, nil)
			h.wantOpen(s)
			h.Want(s.answer.Header.Get("Cache-Control") == "no-store" &&
				s.answer.Header.Get("Referrer-Policy") == "no-referrer", s.answer,
				"Cache-Control: no-store and Referrer-Policy: no-referrer, as the query has a key; the header is %v",
				s.answer.Header)
			h.wantNoKey(h.Read("", target))
			h.wantNoKey(h.Read("", "/agent/inbox?session=cs_"+strings.Repeat("0", 32)))
			h.wantMessages(s, h.send(alice, bob, "to the stream of a session"))
		}},
	{Number: "hub.session.race", Title: "Of several requests with one session token, one gets the stream",
		Cites: `GATEWAYS "Keys of callers"`, Run: func(h *hubProbe) {
			a := h.one()
			target := h.session(a)
			answers := h.InParallel(6, func(int) kit.Answer { return h.peek(target) })
			h.Expect("one stream, and 5 refusals with 401")
			if countStatus(answers, http.StatusOK) != 1 || countStatus(answers, http.StatusUnauthorized) != 5 {
				h.Failf("%d streams and %d refusals with 401", countStatus(answers, http.StatusOK),
					countStatus(answers, http.StatusUnauthorized))
			}
		}},
}
