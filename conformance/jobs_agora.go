package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/agora-relay/agora/envelope"
)

// creditsCurrency is the currency of the registry.
const creditsCurrency = "chorus_credits_v1"

// jobsAgoraChecks test what a registry hands to an agent whose endpoint is its DID, and what the answers of the agent do.
var jobsAgoraChecks = []jobsCheck{
	{number: "jobs.agora.register",
		title: "A registration with a DID as its endpoint belongs to that DID, whose signed calls stand for the key",
		cites: `JOBS "Agents with a DID"; B-1`, needs: needsDID, run: jobsRegistersDID},
	{number: "jobs.agora.request", title: "A job becomes one sealed REQUEST of the gateways' DID with the skill, its input and its price",
		cites: `JOBS "Agents with a DID"; B-2, B-10`, needs: needsDID, run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			j := h.hire(hirer, a, set("input_data", map[string]any{"text": "<你好>" + astral, "n": 1}))
			w := h.workOf(j)
			h.wantForm(w, "job_")
			h.want(w.says.text("intent") == a.skill && sameJSON(w.says.members["params"], j.body["input_data"]), w.says,
				"the intent %s with the params %s", a.skill, canonical(j.body["input_data"]))
			h.want(sameJSON(w.says.members["constraints"], map[string]any{
				"max_cost": map[string]any{"amount": number(a.price), "currency": creditsCurrency},
				"job_id":   j.id, "orchestrator_id": hirer.owner}), w.says,
				"constraints with the job_id, the orchestrator_id, and the price %s of the skill as max_cost", a.price)
			h.hired(hirer, a, j.body) // a repeat makes no other REQUEST
			h.sleep(quiet)
			h.workOf(j)
			h.takeOn(w)
			h.succeed(w, map[string]any{})
			h.wantEnded(j, "SUCCESS")
		}},
	{number: "jobs.agora.together", title: "The jobs of an agent do not wait for each other",
		cites: `JOBS "Agents with a DID"; B-3`, needs: needsDID, run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			first, second := h.hire(hirer, a), h.hire(hirer, a)
			earlier, later := h.workOf(first), h.workOf(second)
			for w, j := range map[*work]*job{&later: second, &earlier: first} {
				h.takeOn(*w)
				h.succeed(*w, map[string]any{})
				h.wantEnded(j, "SUCCESS")
			}
		}},
	{number: "jobs.agora.offers", title: "An OFFER of at most the price in credits is accepted and paid, and any other is cancelled",
		cites: `JOBS "Agents with a DID"; B-11`, needs: needsDID, run: jobsOffers},
	{number: "jobs.agora.result", title: "A RESULT with the status success ends the job in SUCCESS, and another one in EXECUTION_ERROR",
		cites: `JOBS "Agents with a DID"; B-12`, needs: needsDID, run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			for _, c := range []struct{ output, data any }{
				{map[string]any{"words": 2}, map[string]any{"words": 2}},
				{"42", map[string]any{"result": "42"}},
				{[]any{1}, map[string]any{"result": []any{1}}},
			} {
				j := h.hire(hirer, a)
				w := h.workOf(j)
				h.takeOn(w)
				h.succeed(w, c.output)
				got := h.wantEnded(j, "SUCCESS")
				h.want(sameJSON(got.members["output_data"], c.data), got, "output_data %s", canonical(c.data))
			}
			before := h.watch(hirer)
			j := h.hire(hirer, a)
			w := h.workOf(j)
			h.takeOn(w)
			h.say(w, envelope.Result{RequestID: w.sent.Thread, Status: "partial", Output: json.RawMessage(`{}`)})
			h.wantFailedJob(j, "EXECUTION_ERROR")
			before.wantMoved("0")
		}},
	{number: "jobs.agora.error", title: "The code of an ERROR becomes that of the job's FAILURE, and the hirer gets all credits back",
		cites: `JOBS "Agents with a DID"; B-12`, needs: needsDID, run: func(h *jobsProbe) {
			hirer, a := h.one(), h.worker()
			before := h.watch(hirer)
			for _, c := range []struct {
				code envelope.AgentCode
				want string
			}{{"INTENT_NOT_SUPPORTED", "SKILL_MISMATCH"}, {"INSUFFICIENT_BUDGET", "BUDGET_INSUFFICIENT"},
				{"UNAVAILABLE", "AGENT_OFFLINE"}, {"KIT_IS_TIRED", "EXECUTION_ERROR"}} {
				j := h.hire(hirer, a)
				w := h.workOf(j)
				h.takeOn(w)
				h.fail(w, c.code, "not today")
				got := h.wantFailedJob(j, c.want)
				h.want(got.text("error_message") == "not today", got, `"error_message":"not today", which the ERROR says`)
			}
			before.wantMoved("0")
		}},
}

// worker registers the run's agent with one skill.
func (h *jobsProbe) worker() *jobAgent {
	did := h.agora.agent.did()
	a := &jobAgent{principal: &principal{owner: did}, owner: did, id: newUUID(), skill: newName(), price: usualPrice}
	got := h.wantStatus(h.asAgent(http.MethodPost, "/register", h.registrationOfDID(a)), http.StatusCreated)
	h.want(got.members["api_key"] == nil, got, "no api_key")
	h.workers = append(h.workers, a)
	return a
}

// registrationOfDID returns the body of POST /register for an agent whose endpoint is the DID of the run's agent.
func (h *jobsProbe) registrationOfDID(a *jobAgent) message {
	body := registrationOf(a.id, a.owner, a.skill, a.price)
	body["api_endpoint"] = h.agora.agent.endpoint()
	return body
}

// workOf returns the one REQUEST for a job.
func (h *jobsProbe) workOf(j *job) work {
	return h.wantWork("a job", func(says answer) bool { return says.object("constraints").text("job_id") == j.id }, nil)
}

// wantFailedJob waits until a job has failed with this code. It returns how the hirer sees the job.
func (h *jobsProbe) wantFailedJob(j *job, code string) answer {
	got := h.wantEnded(j, "FAILURE")
	h.want(got.text("error_code") == code, got, `"error_code":%q`, code)
	return got
}

func jobsRegistersDID(h *jobsProbe) {
	a, stranger, eve := h.worker(), h.one(), h.actor("another DID")
	again := h.wantStatus(h.asAgent(http.MethodPost, "/register", h.registrationOfDID(a)), http.StatusCreated)
	h.want(again.members["api_key"] == nil, again, "no api_key")
	row := h.row(a)
	h.want(row.text("api_endpoint") != h.agora.agent.endpoint(), row, "a base of the registry as api_endpoint for strangers")
	// A key, and another DID, can neither set such an endpoint nor change this one.
	other := &jobAgent{owner: stranger.owner, id: newUUID(), skill: newName(), price: usualPrice}
	h.wantForeign(h.write(stranger.key, "/register", h.registrationOfDID(other)))
	foreign := h.registrationOfDID(other)
	foreign["owner_id"] = eve.did()
	h.wantForeign(h.sign(eve, http.MethodPost, "/register", foreign, nil, nil))
	h.wantTaken(h.write(stranger.key, "/register", registrationOf(a.id, stranger.owner, a.skill, a.price)))
	for _, name := range []string{"chorus.hub.message", "a2a.message"} {
		body := h.registrationOfDID(a)
		body["skills"] = []any{skillOf(name, usualPrice)}
		h.wantInvalid(h.asAgent(http.MethodPost, "/register", body))
	}
	// A signed call stands for the key.
	h.wantStatus(h.asAgent(http.MethodPost, "/heartbeat", message{"agent_id": a.id}), http.StatusOK)
	h.wantStatus(h.asAgent(http.MethodGet, "/agents/"+a.id+"/jobs?wait=0", nil), http.StatusOK)
	h.wantForeign(h.sign(eve, http.MethodDelete, "/agents/"+a.id, nil, nil, nil))
	h.wantForeign(h.remove(stranger.key, "/agents/"+a.id))
	h.wantStatus(h.asAgent(http.MethodDelete, "/agents/"+a.id, nil), http.StatusOK)
	h.wantUnknown(h.read("", "/agents/"+a.id))
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
		offer := pricedOffer(w, c.amount, c.currency)
		if c.currency == "" {
			offer.Price = nil
		}
		h.say(w, offer)
		if c.paid == "" {
			h.wantNext(w, envelope.TypeCancel)
			h.wantFailedJob(j, "BUDGET_INSUFFICIENT")
			before.wantMoved("0")
			continue
		}
		h.wantNext(w, envelope.TypeAccept)
		h.succeed(w, map[string]any{"words": 1})
		h.wantAmount(h.wantEnded(j, "SUCCESS"), "execution_cost", mustMicros(c.paid))
		h.describe("the balance of the hirer after an OFFER of %s", fmt.Sprint(c.amount, " ", c.currency))
		before.wantMoved("-" + c.paid)
	}
}
