package jobs

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

// jobsKeyChecks test who may do what.
var jobsKeyChecks = []jobsCheck{
	{Number: "jobs.key.required", Title: "Without a key, what needs one is refused with 401 and WWW-Authenticate: Bearer",
		Cites: `JOBS "Who is who"; GATEWAYS "Keys of callers"; G-25`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			before := h.row(a)
			for _, id := range []string{a.id, unknownAgent} {
				for _, r := range keyedJobsRequests(id, a.owner) {
					h.wantNoKey(h.try("without a key", "", r))
				}
			}
			h.wantSame(h.row(a), before)
		}},
	{Number: "jobs.key.invalid", Title: "An unknown key, another scheme and a malformed Authorization are refused with 401",
		Cites: `GATEWAYS "Keys of callers"; G-10`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, authorization := range []string{"Bearer " + unknownPrincipal, "Bearer", "Bearer x", a.key,
				"Basic " + a.key, "Bearer " + a.key + "A", "Bearer " + a.key[:len(a.key)-1], "Bearer " + a.key + " " + a.key,
				"Bearer op_" + strings.Repeat("A", 43)} {
				for _, r := range keyedJobsRequests(a.id, a.owner) {
					h.wantNoKey(h.try("with an invalid Authorization", "", r, authorization))
				}
				for path, body := range map[string]kit.Message{"/accounts": {"owner_id": kit.NewName()},
					"/register": registrationOf(newUUID(), kit.NewName(), a.skill, a.price)} {
					h.wantNoKey(h.Ask("with an invalid Authorization", http.MethodPost, path, "",
						http.Header{"Authorization": {authorization}}, body))
				}
			}
			h.wantNoKey(h.try("two Authorization headers", "", jobsRequest{"GET", "/audit"}, "Bearer "+a.key,
				"Bearer "+unknownPrincipal))
		}},
	{Number: "jobs.key.scheme", Title: "The scheme Bearer is case-insensitive", Cites: `GATEWAYS "Keys of callers"`,
		Run: func(h *jobsProbe) {
			p := h.one()
			for _, scheme := range []string{"bearer ", "BEARER ", "bEaReR "} {
				h.records(h.try(scheme, "", jobsRequest{"GET", "/audit"}, scheme+p.key))
			}
		}},
	{Number: "jobs.key.told-once", Title: "No other answer contains a key or a URL that an agent keeps secret",
		Cites: `GATEWAYS "Keys of callers"; G-9`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			h.reported(j, successOf(j))
			const what = "no key"
			for _, key := range []string{"", hirer.key, a.key} {
				for _, path := range []string{"/discover?skill=" + a.skill, "/agents/" + a.id, "/skills", "/economy", "/health",
					"/reputation/" + a.id} {
					h.WantNoText(h.Read(key, path), what, hirer.key, a.key)
				}
			}
			for _, key := range []string{hirer.key, a.key} {
				h.WantNoText(h.Read(key, "/jobs/"+j.id), what, hirer.key, a.key)
				h.WantNoText(h.Read(key, "/audit"), what, hirer.key, a.key)
			}
			h.WantNoText(h.Write(a.key, "/accounts", kit.Message{"owner_id": a.owner}), what, "cj_")
			h.WantNoText(h.Write(a.key, "/register", registrationOf(a.id, a.owner, a.skill, a.price)), what, "cj_")
		}},
	{Number: "jobs.key.foreign", Title: "What only an agent's principal may do is 403 for others, and 404 for unknown agents",
		Cites: `JOBS "Who is who"; GATEWAYS "Keys of callers"; G-10, J-29`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			for id, want := range map[string]int{a.id: http.StatusForbidden, unknownAgent: http.StatusNotFound} {
				h.wantRefused(h.Write(hirer.key, "/heartbeat", kit.Message{"agent_id": id}), want)
				h.wantRefused(h.Remove(hirer.key, "/agents/"+id), want)
				h.wantRefused(h.Read(hirer.key, "/agents/"+id+"/jobs"), want)
				h.wantRefused(h.Write(hirer.key, "/agents/"+id+"/results", successOf(j)), want)
			}
			h.wantResult(h.at(j), "PENDING")
			h.dispatch(a, j)
		}},
	{Number: "jobs.key.job",
		Title: "A job is shown to its hirer and to the agent's principal; to others it is 403, as any unknown job",
		Cites: `JOBS "Who is who"; GATEWAYS "Keys of callers"; G-11`, Run: func(h *jobsProbe) {
			hirer, p, stranger := h.three()
			a := h.agent(p)
			j := h.hire(hirer, a)
			for _, key := range []string{hirer.key, p.key} {
				h.wantResult(h.wantStatus(h.Read(key, "/jobs/"+j.id), http.StatusOK), "PENDING")
			}
			foreign, unknown := h.Read(stranger.key, "/jobs/"+j.id), h.Read(stranger.key, "/jobs/"+newUUID())
			h.wantForeign(foreign)
			h.wantForeign(unknown)
			h.Want(string(foreign.Body) == string(unknown.Body), foreign, "the same answer as for an unknown job: %s", unknown)
			h.wantNoKey(h.Read("", "/jobs/"+j.id))
		}},
}

// base returns the base of a principal, relative to the registry's address.
func (p *principal) base() string { return "/k/" + p.key }

// jobsBaseChecks test bases that contain a key.
var jobsBaseChecks = []jobsCheck{
	{Number: "jobs.base.key", Title: "Under a base with a key every path is authenticated, without Authorization",
		Cites: `JOBS "Who is who"`, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			a := &jobAgent{principal: p, owner: p.owner, id: newUUID(), skill: kit.NewName(), price: usualPrice}
			h.wantStatus(h.Write("", p.base()+"/register", registrationOf(a.id, a.owner, a.skill, a.price)),
				http.StatusCreated)
			h.agents = append(h.agents, a)
			h.wantStatus(h.Write("", p.base()+"/accounts", kit.Message{"owner_id": p.owner}), http.StatusCreated)
			h.wantAmount(h.wantStatus(h.Read("", hirer.base()+"/accounts/"+hirer.owner), http.StatusOK), "balance",
				h.balance(hirer, hirer.owner))
			body := request(hirer, a)
			j := h.pending(hirer, a, body, h.Write("", hirer.base()+a.path()+"?wait=0", body))
			h.wantStatus(h.Read("", p.base()+"/agents/"+a.id+"/jobs"), http.StatusOK)
			h.wantStatus(h.Write("", p.base()+"/agents/"+a.id+"/results", successOf(j)), http.StatusOK)
			h.wantResult(h.wantStatus(h.Read("", hirer.base()+"/jobs/"+j.id), http.StatusOK), "SUCCESS")
			h.records(h.Read("", hirer.base()+"/audit?job_id="+j.id))
			for _, r := range []jobsRequest{{"GET", "/health"}, {"GET", "/skills"}, {"GET", "/economy"}} {
				h.wantStatus(h.try("", p.base(), r), http.StatusOK)
			}
			h.wantUnknown(h.Read("", p.base()+"/nothing-is-here"))
		}},
	{Number: "jobs.base.wrong", Title: "Under a base with a wrong key every path is 401", Cites: `JOBS "Who is who"; J-30`,
		Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, key := range []string{unknownPrincipal, a.key[:len(a.key)-1], a.key + "A", "cj_", "x"} {
				for _, r := range append(everyJobsRequest(a.id, a.owner), jobsRequest{"GET", "/nothing-is-here"},
					jobsRequest{"POST", "/cb/" + kit.UnknownToken}) {
					got := h.try("below a wrong key", "/k/"+key, r)
					h.wantRefused(got, http.StatusUnauthorized)
				}
			}
		}},
	{Number: "jobs.base.two", Title: "A key in the base and another one in Authorization are 401; the same one twice is taken",
		Cites: `JOBS "Who is who"`, Run: func(h *jobsProbe) {
			p, other := h.two()
			audit := jobsRequest{"GET", "/audit"}
			h.records(h.try("the same key twice", p.base(), audit, "Bearer "+p.key))
			for _, authorization := range []string{"Bearer " + other.key, "Bearer " + unknownPrincipal, "Bearer x"} {
				h.wantRefused(h.try("two keys that differ", p.base(), audit, authorization), http.StatusUnauthorized)
			}
			h.wantRefused(h.try("two keys that differ", "/k/"+unknownPrincipal, audit, "Bearer "+p.key),
				http.StatusUnauthorized)
		}},
	{Number: "jobs.base.private",
		Title: "Answers under a base with a key have Cache-Control: no-store and Referrer-Policy: no-referrer",
		Cites: `GATEWAYS "Keys of callers"`, Run: func(h *jobsProbe) {
			p := h.one()
			for _, got := range []kit.Answer{h.Read("", p.base()+"/audit"), h.Read("", p.base()+"/health"),
				h.Read("", p.base()+"/accounts/"+kit.NewName()), h.Read("", "/k/"+unknownPrincipal+"/audit"),
				h.Write("", "/cb/"+kit.UnknownToken, kit.Message{})} {
				h.Want(got.Header.Get("Cache-Control") == "no-store" && got.Header.Get("Referrer-Policy") == "no-referrer", got,
					"Cache-Control: no-store and Referrer-Policy: no-referrer, instead of %q and %q",
					got.Header.Get("Cache-Control"), got.Header.Get("Referrer-Policy"))
			}
		}},
	{Number: "jobs.base.discover",
		Title: "Under a base with a key api_endpoint is that base's /a/ID, at which jobs can be posted",
		Cites: `JOBS "Agents"`, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			skill := kit.NewName()
			pull := h.agentAt(p, skill, usualPrice)
			endpoint := h.agentAt(p, skill, usualPrice, kit.Set("api_endpoint", kit.ExampleURL))
			for _, a := range []*jobAgent{pull, endpoint} {
				for _, row := range []kit.Answer{h.found(hirer.base(), a), h.wantStatus(h.Read("", hirer.base()+"/agents/"+a.id),
					http.StatusOK)} {
					h.Want(strings.HasSuffix(row.Text("api_endpoint"), hirer.base()+"/a/"+a.id), row, `an api_endpoint {B}%s/a/%s`,
						hirer.base(), a.id)
				}
			}
			h.Want(h.found("", endpoint).Text("api_endpoint") == kit.ExampleURL, h.found("", endpoint),
				"otherwise the registered one")
			body := request(hirer, pull)
			h.dispatch(pull, h.pending(hirer, pull, body, h.Write("", hirer.base()+"/a/"+pull.id+"/jobs?wait=0", body)))
		}},
}

// found returns the row of an agent in /discover below a base.
func (h *jobsProbe) found(base string, a *jobAgent) kit.Answer {
	rows := h.discovered(h.Read("", base+"/discover?skill="+a.skill))
	for _, row := range rows {
		if row.Text("agent_id") == a.id {
			return row
		}
	}
	h.Expect("the agent %s in /discover", a.id)
	h.Failf("%s", kit.DescribeRows(rows))
	panic("unreachable")
}

// jobsSignedChecks test principals that are DIDs.
var jobsSignedChecks = []jobsCheck{
	{Number: "jobs.signed.principal", Title: "A DID is a principal: it signs its calls, and needs no key",
		Cites: `JOBS "Who is who"; GATEWAYS "Signed calls"; G-12`, Needs: needsSigned, Run: func(h *jobsProbe) {
			from, stranger := h.Actor("a DID"), h.one()
			a := h.wantStatus(h.Sign(from, "POST", "/accounts", kit.Message{"owner_id": from.DID()}, nil, nil),
				http.StatusCreated)
			h.Want(a.Text("owner_id") == from.DID() && a.Members["api_key"] == nil, a, "its owner_id, and no api_key")
			again := h.wantStatus(h.Sign(from, "GET", "/accounts/"+from.DID(), nil, nil, nil), http.StatusOK)
			h.wantAmount(again, "balance", h.amount(a, "balance"))
			h.wantForeign(h.Read(stranger.key, "/accounts/"+from.DID()))
			id, skill := newUUID(), kit.NewName()
			h.wantStatus(h.Sign(from, "POST", "/register", registrationOf(id, from.DID(), skill, "0"), nil, nil),
				http.StatusCreated)
			h.wantStatus(h.Sign(from, "POST", "/heartbeat", kit.Message{"agent_id": id}, nil, nil), http.StatusOK)
			h.wantForeign(h.Remove(stranger.key, "/agents/"+id))
			h.wantStatus(h.Sign(from, "DELETE", "/agents/"+id, nil, nil, nil), http.StatusOK)
		}},
	{Number: "jobs.signed.refused", Title: "A signed call that fails a check is 401, and reason names the check",
		Cites: `GATEWAYS "Signed calls"; G-12, G-13`, Needs: needsSigned, Run: func(h *jobsProbe) {
			from := h.Actor("a DID")
			body := kit.Message{"owner_id": kit.NewName()}
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
				h.wantReason(h.Sign(from, "POST", "/accounts", body, c.change, c.edit), c.reason, c.also)
			}
			token := ""
			keep := func(t string) string { token = t; return t }
			h.wantRefused(h.Sign(from, "GET", "/accounts/"+kit.NewName(), nil, nil, keep), http.StatusNotFound)
			h.wantStatus(h.Sign(from, "GET", "/audit", nil, nil, keep), http.StatusOK)
			h.wantReason(h.Sign(from, "GET", "/audit", nil, nil, func(string) string { return token }), "used", "")
		}},
}

// wantReason ends the check unless a signed call was refused for this reason. Unless also is empty, the answer has this
// member too.
func (h *jobsProbe) wantReason(a kit.Answer, reason, also string) {
	h.wantRefused(a, http.StatusUnauthorized)
	h.Want(a.Text("reason") == reason && (also == "" || a.Members[also] != nil), a, `"reason":%q, and %s`, reason, also)
}
