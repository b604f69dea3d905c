package jobs

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

// creditsCurrency is the currency of the registry.
const creditsCurrency = "chorus_credits_v1"

// jobsAgoraChecks test what a registry hands to an agent whose endpoint is its DID, and what the answers of the agent do.
var jobsAgoraChecks = []jobsCheck{
	{Number: "jobs.agora.register",
		Title: "A registration with a DID as its endpoint belongs to that DID, whose signed calls stand for the key",
		Cites: `JOBS "Agents with a DID"; B-1`, Needs: kit.NeedsDID, Run: jobsRegistersDID},
	{Number: "jobs.agora.request", Title: "A job becomes one sealed REQUEST of the gateways' DID with the skill, its input and its price",
		Cites: `JOBS "Agents with a DID"; B-2, B-10`, Needs: kit.NeedsDID, Run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			j := h.hire(hirer, a, kit.Set("input_data", map[string]any{"text": "<你好>" + kit.Astral, "n": 1}))
			w := h.workOf(j)
			h.WantForm(w, "job_")
			h.Want(w.Says.Text("intent") == a.skill && kit.SameJSON(w.Says.Members["params"], j.body["input_data"]), w.Says,
				"the intent %s with the params %s", a.skill, kit.Canonical(j.body["input_data"]))
			h.Want(kit.SameJSON(w.Says.Members["constraints"], map[string]any{
				"max_cost": map[string]any{"amount": number(a.price), "currency": creditsCurrency},
				"job_id":   j.id, "orchestrator_id": hirer.owner}), w.Says,
				"constraints with the job_id, the orchestrator_id, and the price %s of the skill as max_cost", a.price)
			h.hired(hirer, a, j.body) // a repeat makes no other REQUEST
			h.Sleep(kit.Quiet)
			h.workOf(j)
			h.TakeOn(w)
			h.Succeed(w, map[string]any{})
			h.wantEnded(j, "SUCCESS")
		}},
	{Number: "jobs.agora.together", Title: "The jobs of an agent do not wait for each other",
		Cites: `JOBS "Agents with a DID"; B-3`, Needs: kit.NeedsDID, Run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			first, second := h.hire(hirer, a), h.hire(hirer, a)
			earlier, later := h.workOf(first), h.workOf(second)
			for w, j := range map[*kit.Work]*job{&later: second, &earlier: first} {
				h.TakeOn(*w)
				h.Succeed(*w, map[string]any{})
				h.wantEnded(j, "SUCCESS")
			}
		}},
	{Number: "jobs.agora.offers", Title: "An OFFER of at most the price in credits is accepted and paid, and any other is cancelled",
		Cites: `JOBS "Agents with a DID"; B-11`, Needs: kit.NeedsDID, Run: jobsOffers},
	{Number: "jobs.agora.result", Title: "A RESULT with the status success ends the job in SUCCESS, and another one in EXECUTION_ERROR",
		Cites: `JOBS "Agents with a DID"; B-12`, Needs: kit.NeedsDID, Run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			for _, c := range []struct{ output, data any }{
				{map[string]any{"words": 2}, map[string]any{"words": 2}},
				{"42", map[string]any{"result": "42"}},
				{[]any{1}, map[string]any{"result": []any{1}}},
			} {
				j := h.hire(hirer, a)
				w := h.workOf(j)
				h.TakeOn(w)
				h.Succeed(w, c.output)
				got := h.wantEnded(j, "SUCCESS")
				h.Want(kit.SameJSON(got.Members["output_data"], c.data), got, "output_data %s", kit.Canonical(c.data))
			}
			before := h.watch(hirer)
			j := h.hire(hirer, a)
			w := h.workOf(j)
			h.TakeOn(w)
			h.Say(w, envelope.Result{RequestID: w.Sent.Thread, Status: "partial", Output: json.RawMessage(`{}`)})
			h.wantFailedJob(j, "EXECUTION_ERROR")
			before.wantMoved("0")
		}},
	{Number: "jobs.agora.error", Title: "The code of an ERROR becomes that of the job's FAILURE, and the hirer gets all credits back",
		Cites: `JOBS "Agents with a DID"; B-12`, Needs: kit.NeedsDID, Run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			before := h.watch(hirer)
			for _, c := range []struct {
				code envelope.AgentCode
				want string
			}{{"INTENT_NOT_SUPPORTED", "SKILL_MISMATCH"}, {"INSUFFICIENT_BUDGET", "BUDGET_INSUFFICIENT"},
				{"UNAVAILABLE", "AGENT_OFFLINE"}, {"KIT_IS_TIRED", "EXECUTION_ERROR"}} {
				j := h.hire(hirer, a)
				w := h.workOf(j)
				h.TakeOn(w)
				h.Fail(w, c.code, "not today")
				got := h.wantFailedJob(j, c.want)
				h.Want(got.Text("error_message") == "not today", got, `"error_message":"not today", which the ERROR says`)
			}
			before.wantMoved("0")
		}},
}

// worker registers the run's agent with one skill.
func (h *jobsProbe) worker() *jobAgent {
	did := h.Agora.Agent.DID()
	a := &jobAgent{principal: &principal{owner: did}, owner: did, id: newUUID(), skill: kit.NewName(), price: usualPrice}
	got := h.wantStatus(h.AsAgent(http.MethodPost, "/register", h.registrationOfDID(a)), http.StatusCreated)
	h.Want(got.Members["api_key"] == nil, got, "no api_key")
	h.workers = append(h.workers, a)
	return a
}

// registrationOfDID returns the body of POST /register for an agent whose endpoint is the DID of the run's agent.
func (h *jobsProbe) registrationOfDID(a *jobAgent) kit.Message {
	body := registrationOf(a.id, a.owner, a.skill, a.price)
	body["api_endpoint"] = h.Agora.Agent.Endpoint()
	return body
}

// workOf returns the one REQUEST for a job.
func (h *jobsProbe) workOf(j *job) kit.Work {
	return h.WantWork("a job", func(says kit.Answer) bool { return says.Object("constraints").Text("job_id") == j.id },
		nil)
}

// wantFailedJob waits until a job has failed with this code. It returns how the hirer sees the job.
func (h *jobsProbe) wantFailedJob(j *job, code string) kit.Answer {
	got := h.wantEnded(j, "FAILURE")
	h.Want(got.Text("error_code") == code, got, `"error_code":%q`, code)
	return got
}

func jobsRegistersDID(h *jobsProbe) {
	a, stranger, eve := h.worker(), h.one(), h.Actor("another DID")
	again := h.wantStatus(h.AsAgent(http.MethodPost, "/register", h.registrationOfDID(a)), http.StatusCreated)
	h.Want(again.Members["api_key"] == nil, again, "no api_key")
	row := h.row(a)
	h.Want(row.Text("api_endpoint") != h.Agora.Agent.Endpoint(), row,
		"a base of the registry as api_endpoint for strangers")
	// A key, and another DID, can neither set such an endpoint nor change this one.
	other := &jobAgent{owner: stranger.owner, id: newUUID(), skill: kit.NewName(), price: usualPrice}
	h.wantForeign(h.Write(stranger.key, "/register", h.registrationOfDID(other)))
	foreign := h.registrationOfDID(other)
	foreign["owner_id"] = eve.DID()
	h.wantForeign(h.Sign(eve, http.MethodPost, "/register", foreign, nil, nil))
	h.wantTaken(h.Write(stranger.key, "/register", registrationOf(a.id, stranger.owner, a.skill, a.price)))
	for _, name := range []string{"chorus.hub.message", "a2a.message"} {
		body := h.registrationOfDID(a)
		body["skills"] = []any{skillOf(name, usualPrice)}
		h.wantInvalid(h.AsAgent(http.MethodPost, "/register", body))
	}
	// A signed call stands for the key.
	h.wantStatus(h.AsAgent(http.MethodPost, "/heartbeat", kit.Message{"agent_id": a.id}), http.StatusOK)
	h.wantStatus(h.AsAgent(http.MethodGet, "/agents/"+a.id+"/jobs?wait=0", nil), http.StatusOK)
	h.wantForeign(h.Sign(eve, http.MethodDelete, "/agents/"+a.id, nil, nil, nil))
	h.wantForeign(h.Remove(stranger.key, "/agents/"+a.id))
	h.wantStatus(h.AsAgent(http.MethodDelete, "/agents/"+a.id, nil), http.StatusOK)
	h.wantUnknown(h.Read("", "/agents/"+a.id))
}

func jobsOffers(h *jobsProbe) {
	hirer, a := h.one(), h.worker()
	for _, c := range []struct {
		amount   float64
		currency string // empty: the OFFER has no price
		paid     string // empty: the OFFER is cancelled
	}{
		{0, "", "0.1"}, {0, "EUR", "0.1"}, {0.04, creditsCurrency, "0.04"}, {0.1, creditsCurrency, "0.1"},
		{0.11, creditsCurrency, ""}, {0.01, "EUR", ""},
	} {
		before := h.watch(hirer)
		j := h.hire(hirer, a)
		w := h.workOf(j)
		offer := kit.PricedOffer(w, c.amount, c.currency)
		if c.currency == "" {
			offer.Price = nil
		}
		h.Say(w, offer)
		if c.paid == "" {
			h.WantNext(w, envelope.TypeCancel)
			h.wantFailedJob(j, "BUDGET_INSUFFICIENT")
			before.wantMoved("0")
			continue
		}
		h.WantNext(w, envelope.TypeAccept)
		h.Succeed(w, map[string]any{"words": 1})
		h.wantAmount(h.wantEnded(j, "SUCCESS"), "execution_cost", mustMicros(c.paid))
		h.Describe("the balance of the hirer after an OFFER of %s", fmt.Sprint(c.amount, " ", c.currency))
		before.wantMoved("-" + c.paid)
	}
}
