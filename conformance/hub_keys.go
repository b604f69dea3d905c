package conformance

import (
	"net/http"
	"strings"
)

// keyedRequests are the requests that need an agent's key.
var keyedRequests = []struct{ method, path string }{
	{http.MethodPost, "/agent/session"}, {http.MethodGet, "/agent/inbox"}, {http.MethodGet, "/agent/messages"},
	{http.MethodPost, "/agent/ack"}, {http.MethodPost, "/messages"},
}

// askKeyed sends a request of keyedRequests with this Authorization. If it is empty, there is none.
func (h *hubProbe) askKeyed(what, method, path, authorization string) answer {
	header := http.Header{}
	if authorization != "" {
		header.Set("Authorization", authorization)
	}
	var body any
	if method == http.MethodPost {
		body = message{}
	}
	return h.ask(what, method, path, "", header, body)
}

// wantNoKeyAsked is wantNoKey that also requires the header WWW-Authenticate.
func (h *hubProbe) wantNoKeyAsked(a answer) {
	h.wantNoKey(a)
	h.wantChallenge(a)
}

const unknownKey = "ca_00000000000000000000000000000000"

// hubKeyChecks test who may do what.
var hubKeyChecks = []hubCheck{
	{number: "hub.key.required",
		title: "A request without a key is refused with 401 ERR_UNAUTHORIZED and WWW-Authenticate: Bearer",
		cites: `HUB "Endpoints"; GATEWAYS "Keys of callers"`, run: func(h *hubProbe) {
			for _, r := range keyedRequests {
				h.wantNoKeyAsked(h.askKeyed("without a key", r.method, r.path, ""))
			}
			h.wantNoKeyAsked(h.write("", "/agents", registration(h.hub.address())))
			h.wantNoKeyAsked(h.ask("", http.MethodDelete, "/agents/"+h.one().id, "", nil, nil))
		}},
	{number: "hub.key.invalid",
		title: "An unknown key, another scheme and a malformed Authorization are refused with 401",
		cites: `GATEWAYS "Keys of callers"; G-10`, run: func(h *hubProbe) {
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
			h.wantNoKey(h.ask("two Authorization headers", http.MethodGet, "/agent/messages", "", header, nil))
		}},
	{number: "hub.key.scheme", title: "The scheme Bearer is case-insensitive", cites: `GATEWAYS "Keys of callers"`,
		run: func(h *hubProbe) {
			a := h.one()
			for _, scheme := range []string{"bearer ", "BEARER ", "bEaReR "} {
				h.rows(h.ask(scheme, http.MethodGet, "/agent/messages", "",
					http.Header{"Authorization": {scheme + a.key}}, nil))
			}
		}},
	{number: "hub.key.purpose",
		title: "A key is refused for everything it does not belong to", cites: `GATEWAYS "Keys of callers"; G-10`,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			token := h.wantData(h.write(alice.key, "/agent/session", nil), http.StatusOK).text("session_token")
			for _, r := range keyedRequests {
				h.wantNoKey(h.askKeyed("with a session token as the key", r.method, r.path, "Bearer "+token))
			}
			h.wantNoKey(h.read("", "/agent/inbox?session="+alice.key))
			h.wantNotYours(h.write(alice.key, "/agents",
				message{"agent_id": h.hub.address(), "endpoint": "https://agent.example/receive"}))
			h.wantNotYours(h.ask("with the key of another agent", http.MethodDelete, "/agents/"+bob.id, alice.key,
				nil, nil))
		}},
	{number: "hub.key.told-once", title: "No other answer contains a key", cites: `GATEWAYS "Keys of callers"; G-9`,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			h.send(alice, bob, "hello")
			for _, key := range []string{"", alice.key, bob.key} {
				for _, path := range []string{"/agents", "/agents/" + alice.id, "/discover", "/invite/" + alice.id,
					"/health"} {
					h.wantNoText(h.read(key, path), "no key of an agent", alice.key, bob.key)
				}
			}
			h.wantNoText(h.read(bob.key, "/agent/messages?since="+bob.seen), "no key of an agent", alice.key, bob.key)
		}},
	{number: "hub.session.token", title: "POST /agent/session returns cs_ and 32 hexadecimal digits, for 300 seconds",
		cites: `HUB "Endpoints"; GATEWAYS "Keys of callers"`, run: func(h *hubProbe) {
			a := h.one()
			answered := h.write(a.key, "/agent/session", nil)
			data := h.wantData(answered, http.StatusOK)
			h.want(sessionForm.MatchString(data.text("session_token")) && data.number("expires_in_seconds") == 300,
				answered, `{"session_token":"cs_…","expires_in_seconds":300}`)
		}},
	{number: "hub.session.stream", title: "A session token opens the stream of its agent without Authorization, once",
		cites: `HUB "Endpoints"; GATEWAYS "Keys of callers"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			target := h.session(bob)
			s := h.openRaw(bob, target, nil)
			h.wantOpen(s)
			h.want(s.answer.header.Get("Cache-Control") == "no-store" &&
				s.answer.header.Get("Referrer-Policy") == "no-referrer", s.answer,
				"Cache-Control: no-store and Referrer-Policy: no-referrer, as the query has a key; the header is %v",
				s.answer.header)
			h.wantNoKey(h.read("", target))
			h.wantNoKey(h.read("", "/agent/inbox?session=cs_"+strings.Repeat("0", 32)))
			h.wantMessages(s, h.send(alice, bob, "to the stream of a session"))
		}},
	{number: "hub.session.race", title: "Of several requests with one session token, one gets the stream",
		cites: `GATEWAYS "Keys of callers"`, run: func(h *hubProbe) {
			a := h.one()
			target := h.session(a)
			answers := h.inParallel(6, func(int) answer { return h.peek(target) })
			h.expect("one stream, and 5 refusals with 401")
			if countStatus(answers, http.StatusOK) != 1 || countStatus(answers, http.StatusUnauthorized) != 5 {
				h.failf("%d streams and %d refusals with 401", countStatus(answers, http.StatusOK),
					countStatus(answers, http.StatusUnauthorized))
			}
		}},
}
