package conformance

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// jobsHTTPChecks test paths, methods and the form of answers.
var jobsHTTPChecks = []jobsCheck{
	{number: "jobs.http.unknown-path", title: "An unknown path is answered with 404 and never redirected",
		cites: `GATEWAYS "Turn them on"; GATEWAYS "Bodies and errors"; G-25`, run: func(h *jobsProbe) {
			for _, path := range []string{"/nothing-is-here", "/register/", "//register", "/job", "/agents", "/a",
				"/reputation", "/discover/", "/x/../register", "/accounts/a/b", "/agents/" + unknownAgent + "/nothing"} {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					h.wantUnknown(h.ask("", method, path, "", nil, encodeBody(message{})))
				}
			}
		}},
	{number: "jobs.http.method", title: "A method that a path does not support is refused with 405 and an Allow header",
		cites: `GATEWAYS "Bodies and errors"; G-25`, run: jobsMethods},
	{number: "jobs.http.error-form", title: "A refusal is JSON with a text in detail, and without error_code",
		cites: `JOBS "The HTTP interface"; GATEWAYS "Bodies and errors"; G-25`, run: jobsErrorForm},
	{number: "jobs.http.validation-form", title: "A 422 names each bad value with loc, msg and type",
		cites: `JOBS "The HTTP interface"; G-25`, run: jobsValidationForm},
	{number: "jobs.http.content-type", title: "The Content-Type of a request is ignored",
		cites: `GATEWAYS "Bodies and errors"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, values := range [][]string{{"text/plain"}, {"application/x-www-form-urlencoded"}, {"nonsense"}, nil} {
				h.wantStatus(h.ask("Content-Type: "+strings.Join(values, ""), http.MethodPost, "/heartbeat", a.key,
					http.Header{"Content-Type": values}, message{"agent_id": a.id}), http.StatusOK)
			}
		}},
	{number: "jobs.http.encoding", title: "A body with any Content-Encoding is refused with 415",
		cites: `GATEWAYS "Bodies and errors"; G-25`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, encoding := range []string{"gzip", "br", "identity"} {
				for path, body := range map[string]message{"/heartbeat": {"agent_id": a.id},
					"/register": registrationOf(a.id, a.owner, a.skill, a.price)} {
					h.wantRefused(h.ask("Content-Encoding: "+encoding, http.MethodPost, path, a.key,
						http.Header{"Content-Encoding": {encoding}}, body), http.StatusUnsupportedMediaType)
				}
			}
		}},
	{number: "jobs.http.parameters",
		title: "Unknown query parameters are ignored, and repeated or malformed ones are refused with 422",
		cites: `GATEWAYS "Bodies and errors"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.wantStatus(h.read("", "/discover?unknown=1&also=2&unknown=3&skill="+a.skill), http.StatusOK)
			h.audit(a.key, "?unknown=1&limit=1")
			for _, target := range []string{"/discover?skill=x&skill=x", "/discover?skill=x&max_cost=1&max_cost=1",
				"/discover?skill=%zz", "/audit?limit=1&limit=1", "/audit?limit=", "/audit?limit=x", "/audit?limit=1.5",
				"/agents/" + a.id + "/jobs?wait=0&wait=0", "/agents/" + a.id + "/jobs?wait=x"} {
				h.wantInvalid(h.read(a.key, target))
			}
		}},
	{number: "jobs.http.host", title: "No answer contains the Host header of the request",
		cites: `GATEWAYS "Turn them on"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			const evil = "evil-host.example"
			own := h.row(a).text("job_url")
			for _, header := range []http.Header{{"Host": {evil}}, {"X-Forwarded-Host": {evil}},
				{"Forwarded": {"host=" + evil}}} {
				for _, target := range []string{"/agents/" + a.id, "/discover?skill=" + a.skill, "/nothing-is-here"} {
					got := h.ask("with a false Host header", http.MethodGet, target, "", header, nil)
					h.wantNoText(got, "nothing of the false Host", evil)
					h.want(got.status != http.StatusOK || got.text("job_url") == "" || got.text("job_url") == own, got,
						"the job_url %s", own)
				}
			}
		}},
	{number: "jobs.http.health", title: "GET /health names the service and has its counts",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			h.agent(h.one())
			a := h.wantStatus(h.read("", "/health"), http.StatusOK)
			h.want(a.text("service") == registryName && a.text("status") == "healthy", a,
				`"service":%q and "status":"healthy"`, registryName)
			for _, name := range []string{"agents_online", "total_skills", "total_accounts"} {
				h.want(a.number(name) >= 1, a, "%s is a number that counts those of the kit", name)
			}
		}},
}

func jobsMethods(h *jobsProbe) {
	for _, asked := range []struct{ method, path, allowed string }{
		{"GET", "/accounts", "POST"}, {"POST", "/accounts/" + newName(), "GET"}, {"GET", "/register", "POST"},
		{"POST", "/discover", "GET"}, {"GET", "/heartbeat", "POST"}, {"PUT", "/agents/" + unknownAgent, "GET"},
		{"PATCH", "/agents/" + unknownAgent, "DELETE"}, {"POST", "/skills", "GET"},
		{"DELETE", "/reputation/" + unknownAgent, "GET"}, {"GET", "/a/" + unknownAgent + "/jobs", "POST"},
		{"DELETE", "/a/" + unknownAgent, "POST"}, {"POST", "/jobs/" + unknownAgent, "GET"},
		{"POST", "/agents/" + unknownAgent + "/jobs", "GET"}, {"GET", "/agents/" + unknownAgent + "/results", "POST"},
		{"GET", "/cb/" + unknownToken, "POST"}, {"GET", "/transfer", "POST"}, {"POST", "/audit", "GET"},
		{"POST", "/economy", "GET"}, {"GET", "/operator/grants", "POST"}, {"POST", "/health", "GET"},
	} {
		a := h.ask("", asked.method, asked.path, "", nil, []byte("{}"))
		h.wantRefused(a, http.StatusMethodNotAllowed)
		h.wantAllow(a, asked.method, asked.allowed)
	}
}

func jobsErrorForm(h *jobsProbe) {
	hirer, a := h.pair()
	for _, got := range []answer{
		h.read("", "/nothing-is-here"), h.read("", "/accounts"), h.read("", "/audit"),
		h.read(hirer.key, "/accounts/"+newName()), h.read(hirer.key, "/accounts/"+a.owner),
		h.write(hirer.key, "/heartbeat", message{"agent_id": a.id}), h.read("", "/agents/"+unknownAgent),
		h.write(hirer.key, "/accounts", message{"owner_id": a.owner}), h.write("", "/cb/"+unknownToken, message{}),
		h.write(hirer.key, "/accounts", []byte(strings.Repeat(" ", 65537))),
		h.write("", "/reputation/"+a.id+"/success", message{}),
	} {
		h.expect(`{"detail":"…"} without error_code, as application/json`)
		if got.status < 400 || got.text("detail") == "" || got.members["error_code"] != nil ||
			!strings.HasPrefix(got.header.Get("Content-Type"), "application/json") {
			h.failf("%v: %s", got.header["Content-Type"], got)
		}
	}
}

func jobsValidationForm(h *jobsProbe) {
	a := h.agent(h.one())
	again := func(changes ...func(message)) message {
		body := registrationOf(a.id, a.owner, a.skill, a.price)
		combine(changes...)(body)
		return body
	}
	skill := skillOf("another", "-0.1")
	for _, c := range []struct {
		got answer
		loc []any
	}{
		{h.write(a.key, "/register", again(set("agent_name", ""))), []any{"body", "agent_name"}},
		{h.write(a.key, "/register", again(without("owner_id"))), []any{"body", "owner_id"}},
		{h.write(a.key, "/register", again(set("skills", []any{skill}))), []any{"body", "skills", 0, "cost_per_call"}},
		{h.write(a.key, "/register", again(set("skills", []any{skillOf("one", "1"), skill}))),
			[]any{"body", "skills", 1, "cost_per_call"}},
		{h.write(a.key, "/transfer", message{"from_owner": a.owner, "to_owner": newName(), "amount": -1, "job_id": "x"}),
			[]any{"body", "amount"}},
		{h.read("", "/discover"), []any{"query", "skill"}},
		{h.read("", "/discover?skill=x&min_reputation=101"), []any{"query", "min_reputation"}},
		{h.write(a.key, "/register", []byte("{")), nil},
	} {
		h.wantInvalid(c.got)
		list, _ := c.got.list("detail")
		h.want(len(list) > 0 && strings.HasPrefix(c.got.header.Get("Content-Type"), "application/json"), c.got,
			`{"detail":[{"loc":[…],"msg":"…","type":"value_error"}]}, as application/json`)
		found := c.loc == nil
		for _, raw := range list {
			row := parseRow(raw)
			_, isList := row.list("loc")
			h.want(isList && row.text("msg") != "" && row.text("type") != "", c.got,
				`each element has a list loc and the texts msg and type`)
			found = found || sameJSON(row.members["loc"], c.loc)
		}
		h.want(found, c.got, "an element with the loc %s", canonical(c.loc))
	}
}

// jobsBodyChecks test how a registry reads the body of a request.
var jobsBodyChecks = []jobsCheck{
	{number: "jobs.body.size", title: "A body of 65,536 bytes is taken, and one byte more is refused with 413",
		cites: `GATEWAYS "Bodies and errors"; G-26`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.wantStatus(h.write(a.key, "/heartbeat", padBody(message{"agent_id": a.id}, 65536)), http.StatusOK)
			for _, path := range []string{"/heartbeat", "/register", a.path(), "/transfer", "/accounts"} {
				h.wantRefused(h.write(a.key, path, padBody(message{"agent_id": a.id}, 65537)),
					http.StatusRequestEntityTooLarge)
			}
		}},
	{number: "jobs.body.depth", title: "A body with 64 levels of nesting is taken, and one with 65 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-26`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.wantStatus(h.write(a.key, "/heartbeat", deepBody(message{"agent_id": a.id}, 64)), http.StatusOK)
			for _, levels := range []int{65, 30_000} {
				h.wantInvalid(h.write(a.key, "/heartbeat", deepBody(message{"agent_id": a.id}, levels)))
			}
		}},
	{number: "jobs.body.unknown-members", title: "Unknown members of a body are ignored",
		cites: `GATEWAYS "Bodies and errors"`, run: func(h *jobsProbe) {
			a := h.agent(h.one(), set("x", []any{nil}))
			h.wantStatus(h.write(a.key, "/heartbeat", message{"agent_id": a.id, "x": true}), http.StatusOK)
			h.wantStatus(h.write(a.key, "/accounts", message{"owner_id": a.owner, "x": 1}), http.StatusCreated)
		}},
	{number: "jobs.body.object", title: "A body that is not one JSON object is refused",
		cites: `GATEWAYS "Bodies and errors"; G-27`, run: refusesRegistrations(notOneObject)},
	{number: "jobs.body.duplicates", title: "A body with a duplicate member is refused, at any depth and in any spelling",
		cites: `GATEWAYS "Bodies and errors"; G-27`, run: refusesRegistrations(func(good string) []string {
			return doubledMembers(good, "agent_name")
		})},
	{number: "jobs.body.strings", title: "A body with a lone surrogate, U+0000 or invalid UTF-8 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-27, G-35`, run: refusesRegistrations(badTexts)},
	{number: "jobs.body.numbers", title: "A body with a number that no finite double holds is refused",
		cites: `GATEWAYS "Bodies and errors"`, run: refusesRegistrations(hugeNumbers)},
}

// refusesRegistrations returns a check that registers an agent, and then tries to change it with variants of a good
// body, which the registry must refuse.
func refusesRegistrations(variants func(good string) []string) func(*jobsProbe) {
	return func(h *jobsProbe) {
		a := h.agent(h.one())
		before := h.row(a)
		body := registrationOf(a.id, a.owner, a.skill, a.price)
		body["agent_name"] = "hello"
		for _, text := range variants(string(canonical(body))) {
			h.wantInvalid(h.write(a.key, "/register", []byte(text)))
		}
		h.describe("the agent, after the refused registrations")
		h.wantSame(h.row(a), before)
	}
}

// wantSame ends the check unless two answers are the same JSON.
func (h *jobsProbe) wantSame(a, want answer) {
	var expected any
	_ = json.Unmarshal(want.body, &expected) // the registry has answered 200 with an object
	h.want(sameJSON(a.body, expected), a, "the same answer as before: %s", excerpt(want.body, 400))
}

// jobsRequest is a request that needs a key.
type jobsRequest struct{ method, path string }

// keyedJobsRequests returns all requests that need a key, for an agent and an account.
func keyedJobsRequests(agent, owner string) []jobsRequest {
	return []jobsRequest{{"GET", "/accounts/" + owner}, {"POST", "/heartbeat"}, {"DELETE", "/agents/" + agent},
		{"POST", "/a/" + agent + "/jobs"}, {"POST", "/a/" + agent}, {"GET", "/jobs/" + newUUID()},
		{"GET", "/agents/" + agent + "/jobs"}, {"POST", "/agents/" + agent + "/results"}, {"POST", "/transfer"},
		{"GET", "/audit"}, {"POST", "/operator/grants"}}
}

// openJobsRequests returns all requests that need no key, for an agent.
func openJobsRequests(agent string) []jobsRequest {
	return []jobsRequest{{"POST", "/accounts"}, {"POST", "/register"}, {"GET", "/discover?skill=x"},
		{"GET", "/agents/" + agent}, {"GET", "/skills"}, {"GET", "/reputation/" + agent}, {"GET", "/economy"},
		{"POST", "/reputation/" + agent + "/success"}, {"POST", "/reputation/" + agent + "/failure"}, {"GET", "/health"}}
}

// everyJobsRequest returns the requests of both lists.
func everyJobsRequest(agent, owner string) []jobsRequest {
	return slices.Concat(keyedJobsRequests(agent, owner), openJobsRequests(agent))
}

// try sends a request with this Authorization, below a path such as /k/cj_…. A POST has an empty object.
func (h *jobsProbe) try(what, base string, r jobsRequest, authorization ...string) answer {
	header := http.Header{}
	if len(authorization) > 0 {
		header["Authorization"] = authorization
	}
	var body any
	if r.method == http.MethodPost {
		body = message{}
	}
	return h.ask(what, r.method, base+r.path, "", header, body)
}
