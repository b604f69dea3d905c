package jobs

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// jobsHTTPChecks test paths, methods and the form of answers.
var jobsHTTPChecks = []jobsCheck{
	{Number: "jobs.http.unknown-path", Title: "An unknown path is answered with 404 and never redirected",
		Cites: `GATEWAYS "Turn them on"; GATEWAYS "Bodies and errors"; G-25`, Run: func(h *jobsProbe) {
			for _, path := range []string{"/nothing-is-here", "/register/", "//register", "/job", "/agents", "/a",
				"/reputation", "/discover/", "/x/../register", "/accounts/a/b", "/agents/" + unknownAgent + "/nothing"} {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					h.wantUnknown(h.Ask("", method, path, "", nil, kit.EncodeBody(kit.Message{})))
				}
			}
		}},
	{Number: "jobs.http.method", Title: "A method that a path does not support is refused with 405 and an Allow header",
		Cites: `GATEWAYS "Bodies and errors"; G-25`, Run: jobsMethods},
	{Number: "jobs.http.error-form", Title: "A refusal is JSON with a text in detail, and without error_code",
		Cites: `JOBS "The HTTP interface"; GATEWAYS "Bodies and errors"; G-25`, Run: jobsErrorForm},
	{Number: "jobs.http.validation-form", Title: "A 422 names each bad value with loc, msg and type",
		Cites: `JOBS "The HTTP interface"; G-25`, Run: jobsValidationForm},
	{Number: "jobs.http.content-type", Title: "The Content-Type of a request is ignored",
		Cites: `GATEWAYS "Bodies and errors"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, values := range [][]string{{"text/plain"}, {"application/x-www-form-urlencoded"}, {"nonsense"}, nil} {
				h.wantStatus(h.Ask("Content-Type: "+strings.Join(values, ""), http.MethodPost, "/heartbeat", a.key,
					http.Header{"Content-Type": values}, kit.Message{"agent_id": a.id}), http.StatusOK)
			}
		}},
	{Number: "jobs.http.encoding", Title: "A body with any Content-Encoding is refused with 415",
		Cites: `GATEWAYS "Bodies and errors"; G-25`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, encoding := range []string{"gzip", "br", "identity"} {
				for path, body := range map[string]kit.Message{"/heartbeat": {"agent_id": a.id},
					"/register": registrationOf(a.id, a.owner, a.skill, a.price)} {
					h.wantRefused(h.Ask("Content-Encoding: "+encoding, http.MethodPost, path, a.key,
						http.Header{"Content-Encoding": {encoding}}, body), http.StatusUnsupportedMediaType)
				}
			}
		}},
	{Number: "jobs.http.parameters",
		Title: "Unknown query parameters are ignored, and repeated or malformed ones are refused with 422",
		Cites: `GATEWAYS "Bodies and errors"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.wantStatus(h.Read("", "/discover?unknown=1&also=2&unknown=3&skill="+a.skill), http.StatusOK)
			h.audit(a.key, "?unknown=1&limit=1")
			for _, target := range []string{"/discover?skill=x&skill=x", "/discover?skill=x&max_cost=1&max_cost=1",
				"/discover?skill=%zz", "/audit?limit=1&limit=1", "/audit?limit=", "/audit?limit=x", "/audit?limit=1.5",
				"/agents/" + a.id + "/jobs?wait=0&wait=0", "/agents/" + a.id + "/jobs?wait=x"} {
				h.wantInvalid(h.Read(a.key, target))
			}
		}},
	{Number: "jobs.http.host", Title: "No answer contains the Host header of the request",
		Cites: `GATEWAYS "Turn them on"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			const evil = "evil-host.example"
			own := h.row(a).Text("job_url")
			for _, header := range []http.Header{{"Host": {evil}}, {"X-Forwarded-Host": {evil}},
				{"Forwarded": {"host=" + evil}}} {
				for _, target := range []string{"/agents/" + a.id, "/discover?skill=" + a.skill, "/nothing-is-here"} {
					got := h.Ask("with a false Host header", http.MethodGet, target, "", header, nil)
					h.WantNoText(got, "nothing of the false Host", evil)
					h.Want(got.Status != http.StatusOK || got.Text("job_url") == "" || got.Text("job_url") == own, got,
						"the job_url %s", own)
				}
			}
		}},
	{Number: "jobs.http.health", Title: "GET /health names the service and has its counts",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			h.agent(h.one())
			a := h.wantStatus(h.Read("", "/health"), http.StatusOK)
			h.Want(a.Text("service") == registryName && a.Text("status") == "healthy", a,
				`"service":%q and "status":"healthy"`, registryName)
			for _, name := range []string{"agents_online", "total_skills", "total_accounts"} {
				h.Want(a.Number(name) >= 1, a, "%s is a number that counts those of the kit", name)
			}
		}},
}

func jobsMethods(h *jobsProbe) {
	for _, asked := range []struct{ method, path, allowed string }{
		{"GET", "/accounts", "POST"}, {"POST", "/accounts/" + kit.NewName(), "GET"}, {"GET", "/register", "POST"},
		{"POST", "/discover", "GET"}, {"GET", "/heartbeat", "POST"}, {"PUT", "/agents/" + unknownAgent, "GET"},
		{"PATCH", "/agents/" + unknownAgent, "DELETE"}, {"POST", "/skills", "GET"},
		{"DELETE", "/reputation/" + unknownAgent, "GET"}, {"GET", "/a/" + unknownAgent + "/jobs", "POST"},
		{"DELETE", "/a/" + unknownAgent, "POST"}, {"POST", "/jobs/" + unknownAgent, "GET"},
		{"POST", "/agents/" + unknownAgent + "/jobs", "GET"}, {"GET", "/agents/" + unknownAgent + "/results", "POST"},
		{"GET", "/cb/" + kit.UnknownToken, "POST"}, {"GET", "/transfer", "POST"}, {"POST", "/audit", "GET"},
		{"POST", "/economy", "GET"}, {"GET", "/operator/grants", "POST"}, {"POST", "/health", "GET"},
	} {
		a := h.Ask("", asked.method, asked.path, "", nil, []byte("{}"))
		h.wantRefused(a, http.StatusMethodNotAllowed)
		h.WantAllow(a, asked.method, asked.allowed)
	}
}

func jobsErrorForm(h *jobsProbe) {
	hirer, a := h.pair()
	for _, got := range []kit.Answer{
		h.Read("", "/nothing-is-here"), h.Read("", "/accounts"), h.Read("", "/audit"),
		h.Read(hirer.key, "/accounts/"+kit.NewName()), h.Read(hirer.key, "/accounts/"+a.owner),
		h.Write(hirer.key, "/heartbeat", kit.Message{"agent_id": a.id}), h.Read("", "/agents/"+unknownAgent),
		h.Write(hirer.key, "/accounts", kit.Message{"owner_id": a.owner}), h.Write("", "/cb/"+kit.UnknownToken,
			kit.Message{}),
		h.Write(hirer.key, "/accounts", []byte(strings.Repeat(" ", 65537))),
		h.Write("", "/reputation/"+a.id+"/success", kit.Message{}),
	} {
		h.Expect(`{"detail":"…"} without error_code, as application/json`)
		if got.Status < 400 || got.Text("detail") == "" || got.Members["error_code"] != nil ||
			!strings.HasPrefix(got.Header.Get("Content-Type"), "application/json") {
			h.Failf("%v: %s", got.Header["Content-Type"], got)
		}
	}
}

func jobsValidationForm(h *jobsProbe) {
	a := h.agent(h.one())
	again := func(changes ...func(kit.Message)) kit.Message {
		body := registrationOf(a.id, a.owner, a.skill, a.price)
		kit.Combine(changes...)(body)
		return body
	}
	skill := skillOf("another", "-0.1")
	for _, c := range []struct {
		got kit.Answer
		loc []any
	}{
		{h.Write(a.key, "/register", again(kit.Set("agent_name", ""))), []any{"body", "agent_name"}},
		{h.Write(a.key, "/register", again(kit.Without("owner_id"))), []any{"body", "owner_id"}},
		{h.Write(a.key, "/register", again(kit.Set("skills", []any{skill}))), []any{"body", "skills", 0, "cost_per_call"}},
		{h.Write(a.key, "/register", again(kit.Set("skills", []any{skillOf("one", "1"), skill}))),
			[]any{"body", "skills", 1, "cost_per_call"}},
		{h.Write(a.key, "/transfer", kit.Message{"from_owner": a.owner, "to_owner": kit.NewName(), "amount": -1,
			"job_id": "x"}),
			[]any{"body", "amount"}},
		{h.Read("", "/discover"), []any{"query", "skill"}},
		{h.Read("", "/discover?skill=x&min_reputation=101"), []any{"query", "min_reputation"}},
		{h.Write(a.key, "/register", []byte("{")), nil},
	} {
		h.wantInvalid(c.got)
		list, _ := c.got.List("detail")
		h.Want(len(list) > 0 && strings.HasPrefix(c.got.Header.Get("Content-Type"), "application/json"), c.got,
			`{"detail":[{"loc":[…],"msg":"…","type":"value_error"}]}, as application/json`)
		found := c.loc == nil
		for _, raw := range list {
			row := kit.ParseRow(raw)
			_, isList := row.List("loc")
			h.Want(isList && row.Text("msg") != "" && row.Text("type") != "", c.got,
				`each element has a list loc and the texts msg and type`)
			found = found || kit.SameJSON(row.Members["loc"], c.loc)
		}
		h.Want(found, c.got, "an element with the loc %s", kit.Canonical(c.loc))
	}
}

// jobsBodyChecks test how a registry reads the body of a request.
var jobsBodyChecks = []jobsCheck{
	{Number: "jobs.body.size", Title: "A body of 65,536 bytes is taken, and one byte more is refused with 413",
		Cites: `GATEWAYS "Bodies and errors"; G-26`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.wantStatus(h.Write(a.key, "/heartbeat", kit.PadBody(kit.Message{"agent_id": a.id}, 65536)), http.StatusOK)
			for _, path := range []string{"/heartbeat", "/register", a.path(), "/transfer", "/accounts"} {
				h.wantRefused(h.Write(a.key, path, kit.PadBody(kit.Message{"agent_id": a.id}, 65537)),
					http.StatusRequestEntityTooLarge)
			}
		}},
	{Number: "jobs.body.depth", Title: "A body with 64 levels of nesting is taken, and one with 65 is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-26`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.wantStatus(h.Write(a.key, "/heartbeat", kit.DeepBody(kit.Message{"agent_id": a.id}, 64)), http.StatusOK)
			for _, levels := range []int{65, 30_000} {
				h.wantInvalid(h.Write(a.key, "/heartbeat", kit.DeepBody(kit.Message{"agent_id": a.id}, levels)))
			}
		}},
	{Number: "jobs.body.unknown-members", Title: "Unknown members of a body are ignored",
		Cites: `GATEWAYS "Bodies and errors"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one(), kit.Set("x", []any{nil}))
			h.wantStatus(h.Write(a.key, "/heartbeat", kit.Message{"agent_id": a.id, "x": true}), http.StatusOK)
			h.wantStatus(h.Write(a.key, "/accounts", kit.Message{"owner_id": a.owner, "x": 1}), http.StatusCreated)
		}},
	{Number: "jobs.body.object", Title: "A body that is not one JSON object is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-27`, Run: refusesRegistrations(kit.NotOneObject)},
	{Number: "jobs.body.duplicates", Title: "A body with a duplicate member is refused, at any depth and in any spelling",
		Cites: `GATEWAYS "Bodies and errors"; G-27`, Run: refusesRegistrations(func(good string) []string {
			return kit.DoubledMembers(good, "agent_name")
		})},
	{Number: "jobs.body.strings", Title: "A body with a lone surrogate, U+0000 or invalid UTF-8 is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-27, G-35`, Run: refusesRegistrations(kit.BadTexts)},
	{Number: "jobs.body.numbers", Title: "A body with a number that no finite double holds is refused",
		Cites: `GATEWAYS "Bodies and errors"`, Run: refusesRegistrations(kit.HugeNumbers)},
}

// refusesRegistrations returns a check that registers an agent, and then tries to change it with variants of a good
// body, which the registry must refuse.
func refusesRegistrations(variants func(good string) []string) func(*jobsProbe) {
	return func(h *jobsProbe) {
		a := h.agent(h.one())
		before := h.row(a)
		body := registrationOf(a.id, a.owner, a.skill, a.price)
		body["agent_name"] = "hello"
		for _, text := range variants(string(kit.Canonical(body))) {
			h.wantInvalid(h.Write(a.key, "/register", []byte(text)))
		}
		h.Describe("the agent, after the refused registrations")
		h.wantSame(h.row(a), before)
	}
}

// wantSame ends the check unless two answers are the same JSON.
func (h *jobsProbe) wantSame(a, want kit.Answer) {
	var expected any
	_ = json.Unmarshal(want.Body, &expected) // the registry has answered 200 with an object
	h.Want(kit.SameJSON(a.Body, expected), a, "the same answer as before: %s", kit.Excerpt(want.Body, 400))
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
func (h *jobsProbe) try(what, base string, r jobsRequest, authorization ...string) kit.Answer {
	header := http.Header{}
	if len(authorization) > 0 {
		header["Authorization"] = authorization
	}
	var body any
	if r.method == http.MethodPost {
		body = kit.Message{}
	}
	return h.Ask(what, r.method, base+r.path, "", header, body)
}
