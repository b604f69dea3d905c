package jobs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// jobsProbe is the context of one running check of a registry of jobs.
type jobsProbe struct {
	kit.GatewayProbe
	registry *jobsRun
	taken    []*principal // of the pool
	made     []*principal // that the check has made for itself; they belong to the pool after it
	agents   []*jobAgent  // that the check has registered
	workers  []*jobAgent  // the same, with the DID of the run's agent
	hires    int          // jobs that did not end at once
}

// A registry allows 10 new principals a day to one address. So the checks share principals, one check after the other.
// Only some checks make principals of their own.

// maxPrincipals is how many principals the checks share.
const maxPrincipals = 5

// principal is a principal with its accounts. At any time only one check uses it.
type principal struct {
	key     string
	owner   string   // its oldest account, which has credits
	others  []string // its other accounts, the oldest first
	initial int64    // credits that its oldest account got without asking for an amount, in millionths
}

// jobAgent is an agent of the check that registered it.
type jobAgent struct {
	*principal
	owner string // its account
	id    string
	skill string
	price string // a decimal number
}

// path returns a path of the agent's jobs, such as /a/…/jobs.
func (a *jobAgent) path() string { return "/a/" + a.id + "/jobs" }

var (
	principalKeyForm = regexp.MustCompile(`^cj_[A-Za-z0-9_-]{43}$`)
	numberForm       = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$`)
	amountForm       = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]{0,5}[1-9])?$`)
	scoreForm        = regexp.MustCompile(`^[0-9]+\.[0-9]{1,2}$`)
	jobsTimeForm     = kit.TimeForm
	jobCallbackForm  = regexp.MustCompile(`^https?://.+(/cb/tok_[A-Za-z0-9_-]{43})$`)
	uuidForm         = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// Keys and ids of the right form that the registry does not know.
var (
	unknownPrincipal = "cj_" + strings.Repeat("A", 43)
	unknownAgent     = "00000000-0000-4000-8000-000000000000"
)

// newUUID returns a random UUID.
func newUUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// isJobsRateLimit reports whether the registry limits the rate of requests, and not the number of something.
func isJobsRateLimit(a kit.Answer) bool {
	return a.Status == http.StatusTooManyRequests && !slices.Contains(jobsLimits, a.Text("limit"))
}

// jobsLimits are the limits that are not limits on the rate of requests (GATEWAYS §7a).
var jobsLimits = []string{"principals", "owners", "agents", "unfinishedJobs", "payments"}

// isFreeAtJobs reports whether a request changes nothing, so that a registry allows many of them.
func isFreeAtJobs(method, _ string) bool { return method == http.MethodGet }

// wantStatus ends the check unless a has this status.
func (h *jobsProbe) wantStatus(a kit.Answer, status int) kit.Answer {
	h.Expect("status %d", status)
	if a.Status == http.StatusTooManyRequests && a.Text("limit") == "principals" {
		h.End(kit.Skipped, "the registry allows no more principals from this address for now: %s", a)
	}
	if a.Err != nil || a.Status != status || a.Members == nil {
		h.Failf("%s", a)
	}
	return a
}

// wantRefused ends the check unless a is a refusal with this status.
func (h *jobsProbe) wantRefused(a kit.Answer, status int) kit.Answer {
	h.Expect(`refused: status %d with {"detail":…}`, status)
	switch {
	case a.Err != nil:
		h.Failf("%s", a)
	case a.Status < 300:
		h.Failf("the registry accepted it: %s", a)
	case a.Status != status || a.Members["detail"] == nil:
		h.Failf("the registry refused it with another status or form: %s", a)
	}
	return a
}

// Refusals that many checks expect.
func (h *jobsProbe) wantInvalid(a kit.Answer) { h.wantRefused(a, http.StatusUnprocessableEntity) }
func (h *jobsProbe) wantForeign(a kit.Answer) { h.wantRefused(a, http.StatusForbidden) }
func (h *jobsProbe) wantUnknown(a kit.Answer) { h.wantRefused(a, http.StatusNotFound) }
func (h *jobsProbe) wantTaken(a kit.Answer)   { h.wantRefused(a, http.StatusConflict) }

// wantNoKey ends the check unless a is the refusal of a request without a valid key.
func (h *jobsProbe) wantNoKey(a kit.Answer) {
	h.wantRefused(a, http.StatusUnauthorized)
	h.WantChallenge(a)
}

// wantLimit ends the check unless a names this limit and says when to try again.
func (h *jobsProbe) wantLimit(a kit.Answer, limit string) {
	h.wantRefused(a, http.StatusTooManyRequests)
	h.Want(a.Text("limit") == limit && kit.WaitsForSeconds(a), a,
		"the limit %q, and the header Retry-After with seconds, instead of %q", limit, a.Header.Get("Retry-After"))
}

// micros returns an amount or a score in millionths. It reports false if the text is no number with at most six
// decimal places.
func micros(text string) (int64, bool) {
	if len(text) > 40 || !numberForm.MatchString(text) {
		return 0, false
	}
	number, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, false
	}
	number.Mul(number, big.NewRat(1_000_000, 1))
	return number.Num().Int64(), number.IsInt() && number.Num().IsInt64()
}

// mustMicros does the same as micros, for a text of this package.
func mustMicros(text string) int64 {
	n, ok := micros(text)
	if !ok {
		panic("conformance: no amount: " + text)
	}
	return n
}

// credits returns an amount as text.
func credits(n int64) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	text := fmt.Sprintf("%s%d.%06d", sign, n/1_000_000, n%1_000_000)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// amount returns a member of a that is an amount, in millionths.
func (h *jobsProbe) amount(a kit.Answer, member string) int64 {
	n, ok := micros(string(a.Members[member]))
	h.Want(ok, a, "%s is a number with at most six decimal places", member)
	return n
}

// wantAmount ends the check unless a member of a is this amount.
func (h *jobsProbe) wantAmount(a kit.Answer, member string, want int64) {
	h.Want(h.amount(a, member) == want, a, "%s is %s", member, credits(want))
}

// number is a JSON number that is written as it is.
type number = json.Number

// take returns n principals that no other check uses until the end of this check. A check calls it at most once.
func (h *jobsProbe) take(n int) []*principal {
	taken, ok := h.registry.principals.Take(h.Ctx, n, maxPrincipals)
	if !ok {
		h.Stopped()
	}
	h.taken = slices.Concat(taken, make([]*principal, n-len(taken)))
	for i, p := range h.taken {
		if p == nil {
			h.taken[i] = h.createPrincipal()
		}
	}
	return h.taken
}

// one, two and three are take for that number of principals.
func (h *jobsProbe) one() *principal { return h.take(1)[0] }

func (h *jobsProbe) two() (a, b *principal) {
	list := h.take(2)
	return list[0], list[1]
}

func (h *jobsProbe) three() (a, b, c *principal) {
	list := h.take(3)
	return list[0], list[1], list[2]
}

// enough is the balance that an account of a check has at least.
const enough = 10_000_000

// newPrincipal makes a principal. Only checks that cannot use a principal of the pool call it.
func (h *jobsProbe) newPrincipal() *principal {
	p := h.createPrincipal()
	h.made = append(h.made, p)
	return p
}

// createPrincipal makes a principal whose account has credits.
func (h *jobsProbe) createPrincipal() *principal {
	p := &principal{owner: kit.NewName()}
	a := h.wantStatus(h.Write("", "/accounts", kit.Message{"owner_id": p.owner}), http.StatusCreated)
	p.key = a.Text("api_key")
	h.Want(principalKeyForm.MatchString(p.key) && a.Text("owner_id") == p.owner, a,
		"an api_key such as cj_ and 43 characters of base64url")
	p.initial = h.amount(a, "balance")
	if p.initial < enough {
		if h.registry.OperatorKey == "" {
			h.End(kit.NotTested, "this needs a registry that gives new principals %s credits, or --operator-key",
				credits(enough))
		}
		h.wantStatus(h.grant(newUUID(), p.owner, number("100")), http.StatusCreated)
	}
	return p
}

// grant asks for credits as the operator.
func (h *jobsProbe) grant(id, owner string, amount any) kit.Answer {
	return h.Write(h.registry.OperatorKey, "/operator/grants",
		kit.Message{"grant_id": id, "owner_id": owner, "amount": amount})
}

// account returns an account of p that is not its oldest one. The first has the index 0. It has no certain balance.
func (h *jobsProbe) account(p *principal, index int) string {
	for len(p.others) <= index {
		owner := kit.NewName()
		h.wantStatus(h.Write(p.key, "/accounts", kit.Message{"owner_id": owner}), http.StatusCreated)
		p.others = append(p.others, owner)
	}
	return p.others[index]
}

// release deletes the agents of the check, and returns its principals to the pool. A check that has not passed may leave
// less than nothing in the other accounts of a principal, so the next check makes new ones. Its jobs may still be running
// and change balances, so then its principals do not return.
func (h *jobsProbe) release(passed bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Ctx), kit.AnswerTimeout)
	defer cancel()
	for _, a := range h.agents {
		// The result does not matter: the check may have deleted the agent already.
		_ = h.registry.client.DoWithRetries(ctx, kit.RetryableRequest{Method: http.MethodDelete, Target: "/agents/" + a.id,
			Header: http.Header{"Authorization": {"Bearer " + a.key}}}, isJobsRateLimit)
	}
	for _, a := range h.workers {
		target := "/agents/" + a.id
		token, err := h.Agora.Token(h.Agora.Agent, http.MethodDelete, target, nil, h.Now(), nil)
		if err == nil {
			_ = h.registry.client.DoWithRetries(ctx, kit.RetryableRequest{Method: http.MethodDelete, Target: target,
				Header: http.Header{"Authorization": {"Agora " + token}}}, isJobsRateLimit)
		}
	}
	for _, p := range slices.Concat(h.made, h.taken) {
		if p != nil && !passed {
			p.others = nil
		}
	}
	for _, p := range h.made {
		if h.Ctx.Err() == nil && (passed || h.hires == 0) {
			h.registry.principals.Add(p)
		}
	}
	for _, p := range h.taken {
		if p == nil || h.Ctx.Err() != nil || !passed && h.hires > 0 {
			h.registry.principals.Lose()
		} else {
			h.registry.principals.Give(p)
		}
	}
}

// skillOf returns a skill for a registration.
func skillOf(name, price string) map[string]any {
	return map[string]any{"skill_name": name, "description": "Counts words. 你好 " + kit.Astral,
		"cost_per_call": number(price),
		"input_schema":  map[string]any{"text": "string"}, "output_schema": map[string]any{"words": "number"}}
}

// usualPrice is the price of an agent's skill, and usualBudget is what hirers offer.
const (
	usualPrice  = "0.1"
	usualBudget = "0.15"
)

// registrationOf returns the body of a good POST /register for an agent without an endpoint.
func registrationOf(id, owner, skill, price string) kit.Message {
	return kit.Message{"agent_id": id, "agent_name": "Kit " + kit.Astral, "owner_id": owner, "api_endpoint": "",
		"skills": []any{skillOf(skill, price)}, "version": "0.1", "timestamp_utc": "2026-02-11T14:15:09Z"}
}

// agent registers an agent of p without an endpoint, with one skill.
func (h *jobsProbe) agent(p *principal, changes ...func(kit.Message)) *jobAgent {
	return h.agentAt(p, kit.NewName(), usualPrice, changes...)
}

// agentAt does the same as agent, for a skill and a price.
func (h *jobsProbe) agentAt(p *principal, skill, price string, changes ...func(kit.Message)) *jobAgent {
	a := &jobAgent{principal: p, owner: p.owner, id: newUUID(), skill: skill, price: price}
	body := registrationOf(a.id, a.owner, skill, price)
	kit.Combine(changes...)(body)
	a.owner, _ = body["owner_id"].(string)
	h.wantStatus(h.Write(p.key, "/register", body), http.StatusCreated)
	h.agents = append(h.agents, a)
	return a
}

// pair registers an agent of one principal, and returns another principal, which can hire it.
func (h *jobsProbe) pair(changes ...func(kit.Message)) (hirer *principal, a *jobAgent) {
	hirer, p := h.two()
	return hirer, h.agent(p, changes...)
}

// row returns how the registry shows the agent.
func (h *jobsProbe) row(a *jobAgent) kit.Answer {
	return h.wantStatus(h.Read("", "/agents/"+a.id), http.StatusOK)
}
