package conformance

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// jobsKeyChecks test who may do what.
var jobsKeyChecks = []jobsCheck{
	{number: "jobs.key.required", title: "Without a key, what needs one is refused with 401 and WWW-Authenticate: Bearer",
		cites: `JOBS "Who is who"; GATEWAYS "Keys of callers"; G-25`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			before := h.row(a)
			for _, id := range []string{a.id, unknownAgent} {
				for _, r := range keyedJobsRequests(id, a.owner) {
					h.wantNoKey(h.try("without a key", "", r))
				}
			}
			h.wantSame(h.row(a), before)
		}},
	{number: "jobs.key.invalid", title: "An unknown key, another scheme and a malformed Authorization are refused with 401",
		cites: `GATEWAYS "Keys of callers"; G-10`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, authorization := range []string{"Bearer " + unknownPrincipal, "Bearer", "Bearer x", a.key,
				"Basic " + a.key, "Bearer " + a.key + "A", "Bearer " + a.key[:len(a.key)-1], "Bearer " + a.key + " " + a.key,
				"Bearer op_" + strings.Repeat("A", 43)} {
				for _, r := range keyedJobsRequests(a.id, a.owner) {
					h.wantNoKey(h.try("with an invalid Authorization", "", r, authorization))
				}
				for path, body := range map[string]message{"/accounts": {"owner_id": newName()},
					"/register": registrationOf(newUUID(), newName(), a.skill, a.price)} {
					h.wantNoKey(h.ask("with an invalid Authorization", http.MethodPost, path, "",
						http.Header{"Authorization": {authorization}}, body))
				}
			}
			h.wantNoKey(h.try("two Authorization headers", "", jobsRequest{"GET", "/audit"}, "Bearer "+a.key,
				"Bearer "+unknownPrincipal))
		}},
	{number: "jobs.key.scheme", title: "The scheme Bearer is case-insensitive", cites: `GATEWAYS "Keys of callers"`,
		run: func(h *jobsProbe) {
			p := h.one()
			for _, scheme := range []string{"bearer ", "BEARER ", "bEaReR "} {
				h.records(h.try(scheme, "", jobsRequest{"GET", "/audit"}, scheme+p.key))
			}
		}},
	{number: "jobs.key.told-once", title: "No other answer contains a key or a URL that an agent keeps secret",
		cites: `GATEWAYS "Keys of callers"; G-9`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			h.reported(j, successOf(j))
			const what = "no key"
			for _, key := range []string{"", hirer.key, a.key} {
				for _, path := range []string{"/discover?skill=" + a.skill, "/agents/" + a.id, "/skills", "/economy", "/health",
					"/reputation/" + a.id} {
					h.wantNoText(h.read(key, path), what, hirer.key, a.key)
				}
			}
			for _, key := range []string{hirer.key, a.key} {
				h.wantNoText(h.read(key, "/jobs/"+j.id), what, hirer.key, a.key)
				h.wantNoText(h.read(key, "/audit"), what, hirer.key, a.key)
			}
			h.wantNoText(h.write(a.key, "/accounts", message{"owner_id": a.owner}), what, "cj_")
			h.wantNoText(h.write(a.key, "/register", registrationOf(a.id, a.owner, a.skill, a.price)), what, "cj_")
		}},
	{number: "jobs.key.foreign", title: "What only an agent's principal may do is 403 for others, and 404 for unknown agents",
		cites: `JOBS "Who is who"; GATEWAYS "Keys of callers"; G-10, J-29`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			for id, want := range map[string]int{a.id: http.StatusForbidden, unknownAgent: http.StatusNotFound} {
				h.wantRefused(h.write(hirer.key, "/heartbeat", message{"agent_id": id}), want)
				h.wantRefused(h.remove(hirer.key, "/agents/"+id), want)
				h.wantRefused(h.read(hirer.key, "/agents/"+id+"/jobs"), want)
				h.wantRefused(h.write(hirer.key, "/agents/"+id+"/results", successOf(j)), want)
			}
			h.wantResult(h.at(j), "PENDING")
			h.dispatch(a, j)
		}},
	{number: "jobs.key.job",
		title: "A job is shown to its hirer and to the agent's principal; to others it is 403, as any unknown job",
		cites: `JOBS "Who is who"; GATEWAYS "Keys of callers"; G-11`, run: func(h *jobsProbe) {
			hirer, p, stranger := h.three()
			a := h.agent(p)
			j := h.hire(hirer, a)
			for _, key := range []string{hirer.key, p.key} {
				h.wantResult(h.wantStatus(h.read(key, "/jobs/"+j.id), http.StatusOK), "PENDING")
			}
			foreign, unknown := h.read(stranger.key, "/jobs/"+j.id), h.read(stranger.key, "/jobs/"+newUUID())
			h.wantForeign(foreign)
			h.wantForeign(unknown)
			h.want(string(foreign.body) == string(unknown.body), foreign, "the same answer as for an unknown job: %s", unknown)
			h.wantNoKey(h.read("", "/jobs/"+j.id))
		}},
}

// base returns the base of a principal, relative to the registry's address.
func (p *principal) base() string { return "/k/" + p.key }

// jobsBaseChecks test bases that contain a key.
var jobsBaseChecks = []jobsCheck{
	{number: "jobs.base.key", title: "Under a base with a key every path is authenticated, without Authorization",
		cites: `JOBS "Who is who"`, run: func(h *jobsProbe) {
			hirer, p := h.two()
			a := &jobAgent{principal: p, owner: p.owner, id: newUUID(), skill: newName(), price: usualPrice}
			h.wantStatus(h.write("", p.base()+"/register", registrationOf(a.id, a.owner, a.skill, a.price)),
				http.StatusCreated)
			h.agents = append(h.agents, a)
			h.wantStatus(h.write("", p.base()+"/accounts", message{"owner_id": p.owner}), http.StatusCreated)
			h.wantAmount(h.wantStatus(h.read("", hirer.base()+"/accounts/"+hirer.owner), http.StatusOK), "balance",
				h.balance(hirer, hirer.owner))
			body := request(hirer, a)
			j := h.pending(hirer, a, body, h.write("", hirer.base()+a.path()+"?wait=0", body))
			h.wantStatus(h.read("", p.base()+"/agents/"+a.id+"/jobs"), http.StatusOK)
			h.wantStatus(h.write("", p.base()+"/agents/"+a.id+"/results", successOf(j)), http.StatusOK)
			h.wantResult(h.wantStatus(h.read("", hirer.base()+"/jobs/"+j.id), http.StatusOK), "SUCCESS")
			h.records(h.read("", hirer.base()+"/audit?job_id="+j.id))
			for _, r := range []jobsRequest{{"GET", "/health"}, {"GET", "/skills"}, {"GET", "/economy"}} {
				h.wantStatus(h.try("", p.base(), r), http.StatusOK)
			}
			h.wantUnknown(h.read("", p.base()+"/nothing-is-here"))
		}},
	{number: "jobs.base.wrong", title: "Under a base with a wrong key every path is 401", cites: `JOBS "Who is who"; J-30`,
		run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, key := range []string{unknownPrincipal, a.key[:len(a.key)-1], a.key + "A", "cj_", "x"} {
				for _, r := range append(everyJobsRequest(a.id, a.owner), jobsRequest{"GET", "/nothing-is-here"},
					jobsRequest{"POST", "/cb/" + unknownToken}) {
					got := h.try("below a wrong key", "/k/"+key, r)
					h.wantRefused(got, http.StatusUnauthorized)
				}
			}
		}},
	{number: "jobs.base.two", title: "A key in the base and another one in Authorization are 401; the same one twice is taken",
		cites: `JOBS "Who is who"`, run: func(h *jobsProbe) {
			p, other := h.two()
			audit := jobsRequest{"GET", "/audit"}
			h.records(h.try("the same key twice", p.base(), audit, "Bearer "+p.key))
			for _, authorization := range []string{"Bearer " + other.key, "Bearer " + unknownPrincipal, "Bearer x"} {
				h.wantRefused(h.try("two keys that differ", p.base(), audit, authorization), http.StatusUnauthorized)
			}
			h.wantRefused(h.try("two keys that differ", "/k/"+unknownPrincipal, audit, "Bearer "+p.key),
				http.StatusUnauthorized)
		}},
	{number: "jobs.base.private",
		title: "Answers under a base with a key have Cache-Control: no-store and Referrer-Policy: no-referrer",
		cites: `GATEWAYS "Keys of callers"`, run: func(h *jobsProbe) {
			p := h.one()
			for _, got := range []answer{h.read("", p.base()+"/audit"), h.read("", p.base()+"/health"),
				h.read("", p.base()+"/accounts/"+newName()), h.read("", "/k/"+unknownPrincipal+"/audit"),
				h.write("", "/cb/"+unknownToken, message{})} {
				h.want(got.header.Get("Cache-Control") == "no-store" && got.header.Get("Referrer-Policy") == "no-referrer", got,
					"Cache-Control: no-store and Referrer-Policy: no-referrer, instead of %q and %q",
					got.header.Get("Cache-Control"), got.header.Get("Referrer-Policy"))
			}
		}},
	{number: "jobs.base.discover",
		title: "Under a base with a key api_endpoint is that base's /a/ID, at which jobs can be posted",
		cites: `JOBS "Agents"`, run: func(h *jobsProbe) {
			hirer, p := h.two()
			skill := newName()
			pull := h.agentAt(p, skill, usualPrice)
			endpoint := h.agentAt(p, skill, usualPrice, set("api_endpoint", exampleURL))
			for _, a := range []*jobAgent{pull, endpoint} {
				for _, row := range []answer{h.found(hirer.base(), a), h.wantStatus(h.read("", hirer.base()+"/agents/"+a.id),
					http.StatusOK)} {
					h.want(strings.HasSuffix(row.text("api_endpoint"), hirer.base()+"/a/"+a.id), row, `an api_endpoint {B}%s/a/%s`,
						hirer.base(), a.id)
				}
			}
			h.want(h.found("", endpoint).text("api_endpoint") == exampleURL, h.found("", endpoint), "otherwise the registered one")
			body := request(hirer, pull)
			h.dispatch(pull, h.pending(hirer, pull, body, h.write("", hirer.base()+"/a/"+pull.id+"/jobs?wait=0", body)))
		}},
}

// found returns the row of an agent in /discover below a base.
func (h *jobsProbe) found(base string, a *jobAgent) answer {
	rows := h.discovered(h.read("", base+"/discover?skill="+a.skill))
	for _, row := range rows {
		if row.text("agent_id") == a.id {
			return row
		}
	}
	h.expect("the agent %s in /discover", a.id)
	h.failf("%s", describeRows(rows))
	panic("unreachable")
}

// jobsSignedChecks test principals that are DIDs.
var jobsSignedChecks = []jobsCheck{
	{number: "jobs.signed.principal", title: "A DID is a principal: it signs its calls, and needs no key",
		cites: `JOBS "Who is who"; GATEWAYS "Signed calls"; G-12`, needs: needsSigned, run: func(h *jobsProbe) {
			from, stranger := h.actor("a DID"), h.one()
			a := h.wantStatus(h.sign(from, "POST", "/accounts", message{"owner_id": from.did()}, nil, nil), http.StatusCreated)
			h.want(a.text("owner_id") == from.did() && a.members["api_key"] == nil, a, "its owner_id, and no api_key")
			again := h.wantStatus(h.sign(from, "GET", "/accounts/"+from.did(), nil, nil, nil), http.StatusOK)
			h.wantAmount(again, "balance", h.amount(a, "balance"))
			h.wantForeign(h.read(stranger.key, "/accounts/"+from.did()))
			id, skill := newUUID(), newName()
			h.wantStatus(h.sign(from, "POST", "/register", registrationOf(id, from.did(), skill, "0"), nil, nil),
				http.StatusCreated)
			h.wantStatus(h.sign(from, "POST", "/heartbeat", message{"agent_id": id}, nil, nil), http.StatusOK)
			h.wantForeign(h.remove(stranger.key, "/agents/"+id))
			h.wantStatus(h.sign(from, "DELETE", "/agents/"+id, nil, nil, nil), http.StatusOK)
		}},
	{number: "jobs.signed.refused", title: "A signed call that fails a check is 401, and reason names the check",
		cites: `GATEWAYS "Signed calls"; G-12, G-13`, needs: needsSigned, run: func(h *jobsProbe) {
			from := h.actor("a DID")
			body := message{"owner_id": newName()}
			for _, c := range []struct {
				reason, also string
				change       func(*envelope.Call)
				edit         func(string) string
			}{
				{"malformed", "", nil, func(string) string { return "x" }},
				{"malformed", "", nil, func(token string) string { return token[:len(token)-8] }},
				{"audience", "aud", func(c *envelope.Call) { c.Audience = "https://other.example" }, nil},
				{"request", "", func(c *envelope.Call) { c.Method = "PUT" }, nil},
				{"request", "", func(c *envelope.Call) { c.Target += "?x=1" }, nil},
				{"time", "now", func(c *envelope.Call) { c.TS = c.TS.Add(-10 * time.Minute) }, nil},
				{"time", "now", func(c *envelope.Call) { c.TS = c.TS.Add(10 * time.Minute) }, nil},
				{"body", "", func(c *envelope.Call) { c.Body = sha256.Sum256([]byte("{}")) }, nil},
			} {
				h.wantReason(h.sign(from, "POST", "/accounts", body, c.change, c.edit), c.reason, c.also)
			}
			token := ""
			keep := func(t string) string { token = t; return t }
			h.wantRefused(h.sign(from, "GET", "/accounts/"+newName(), nil, nil, keep), http.StatusNotFound)
			h.wantStatus(h.sign(from, "GET", "/audit", nil, nil, keep), http.StatusOK)
			h.wantReason(h.sign(from, "GET", "/audit", nil, nil, func(string) string { return token }), "used", "")
		}},
}

// wantReason ends the check unless a signed call was refused for this reason. Unless also is empty, the answer has this
// member too.
func (h *jobsProbe) wantReason(a answer, reason, also string) {
	h.wantRefused(a, http.StatusUnauthorized)
	h.want(a.text("reason") == reason && (also == "" || a.members[also] != nil), a, `"reason":%q, and %s`, reason, also)
}
