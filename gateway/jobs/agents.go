package jobs

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// This file registers, changes and removes agents.

// registration is the body of POST /register.
type registration struct {
	id, name, owner, endpoint string
	skills                    []skill
}

func (g *Gateway) parseRegistration(f *form) (p registration) {
	p.id, p.owner = f.uuid("agent_id"), f.ownerID("owner_id")
	p.name = f.text("agent_name", true, 1, maxName)
	p.endpoint = f.endpoint("api_endpoint", g.Outgoing.Destinations)
	bridged := strings.HasPrefix(p.endpoint, deliver.Scheme)
	seen := map[string]bool{}
	for i, s := range f.list("skills", maxSkills) {
		parsed := skill{name: s.skillName("skill_name"), position: int64(i), cost: s.amount("cost_per_call", true),
			description: s.text("description", false, 0, maxDescription), input: s.data("input_schema"),
			output: s.data("output_schema")}
		if seen[parsed.name] {
			s.fail("skill_name", "is the name of an earlier skill too; each skill needs its own name")
		}
		if bridged && envelope.IsGatewayIntent(parsed.name) {
			s.fail("skill_name", "begins with chorus. or a2a.; such REQUESTs come from the gateways themselves, so choose another name")
		}
		seen[parsed.name] = true
		p.skills = append(p.skills, parsed)
	}
	return p
}

// postAgent is the handler of POST /register.
func (g *Gateway) postAgent(r *request) error {
	if r.caller.kind == theOperator {
		return r.needPrincipal()
	}
	f, err := g.read(r.from, r.body)
	if err != nil {
		return err
	}
	parsed := g.parseRegistration(f)
	if err := f.err(); err != nil {
		return err
	}
	if err := r.caller.mayOwn(parsed.owner); err != nil {
		return err
	}
	if err := r.caller.mayBridge(parsed.endpoint); err != nil {
		return err
	}
	if parsed.id == "" {
		parsed.id = newUUID()
	}
	created := g.newPrincipal(r)
	var a agent
	var key string
	err = g.agents.End(r.detached(), r.from, "the agent has registered another endpoint", ofAgentID(parsed.id),
		func(o *gateway.Op) error {
			c, err := r.caller.now(o)
			if err != nil {
				return err
			}
			old, account, err := g.registered(o, c, parsed)
			if err != nil {
				return err
			}
			var p principal
			if p, key, err = created.find(o); err != nil {
				return err
			}
			if account.n == 0 {
				if account, err = createOwner(o, p, parsed.owner); err != nil {
					return err
				}
			}
			a, err = g.register(o, p, account, old, parsed)
			return err
		})
	if err != nil {
		return err
	}
	return r.answer(http.StatusCreated, struct {
		Status     string `json:"status"`
		AgentID    string `json:"agent_id"`
		Reputation score  `json:"reputation_score"`
		APIKey     string `json:"api_key,omitempty"`
		JobURL     string `json:"job_url"`
	}{"registered", a.id, a.score, key, g.jobURL(a)})
}

// registered returns the agent and the account that a registration names, as far as they exist. It refuses those of
// another principal.
func (g *Gateway) registered(q relay.Querier, c caller, p registration) (a agent, account owner, err error) {
	if a, err = agentByID(q, p.id); err != nil {
		return a, account, err
	}
	if account, err = ownerByID(q, p.owner); err != nil {
		return a, account, err
	}
	switch {
	case account.n != 0 && !c.owns(account.principal):
		err = ownerTaken()
	case a.n != 0 && !c.owns(a.principal):
		err = conflict("this agent_id is taken; choose another one, or send the key of the principal that has it")
	}
	return a, account, err
}

// register stores an agent, which is new or replaces old. It keeps the score.
func (g *Gateway) register(o *gateway.Op, p principal, account owner, old agent, as registration) (a agent, err error) {
	if a = old; !old.live() {
		if err := checkAgentLimit(o, p); err != nil {
			return a, err
		}
	}
	if old.n == 0 {
		a = agent{id: as.id, principal: p.n, score: newScore, registered: o.Now}
		if a.n, err = gateway.Next(o.ExtTx, agentCounter); err != nil {
			return a, err
		}
		if err := insertAgent(o.ExtTx, a); err != nil {
			return a, err
		}
	}
	a.owner, a.name, a.active, a.offline, a.deleted = account.n, as.name, o.Now, false, 0
	a.bridged = strings.HasPrefix(as.endpoint, deliver.Scheme)
	switch {
	case a.bridged || a.heartbeat != 0 && !old.bridged:
		a.heartbeat = o.Now // it was heard from
	case old.bridged:
		a.heartbeat = 0 // it never sent one
	}
	before, err := g.endpointOf(old)
	if err != nil {
		return a, err
	}
	if a.endpoint = nil; as.endpoint != "" {
		a.endpoint = g.Secrets.Encrypt(endpointPlace(a.n), []byte(as.endpoint))
	}
	if before != as.endpoint || !old.live() {
		if err := g.reroute(o, a); err != nil {
			return a, err
		}
	}
	if err := updateAgent(o.ExtTx, a); err != nil {
		return a, err
	}
	if err := deleteSkills(o.ExtTx, a.n); err != nil {
		return a, err
	}
	for _, s := range as.skills {
		s.agent = a.n
		if err := insertSkill(o.ExtTx, s); err != nil {
			return a, err
		}
	}
	return a, nil
}

// endpointOf returns the endpoint of an agent; empty: it has none.
func (g *Gateway) endpointOf(a agent) (string, error) {
	if a.pulls() {
		return "", nil
	}
	endpoint, err := g.Secrets.Decrypt(endpointPlace(a.n), a.endpoint)
	return string(endpoint), err
}

// checkAgentLimit refuses one more agent if the principal has too many.
func checkAgentLimit(o *gateway.Op, p principal) error {
	live, err := o.Number("SELECT COUNT(*) FROM jobs_agent WHERE principal = ? AND deleted = 0", p.n)
	if err != nil {
		return err
	}
	all, err := o.Number("SELECT COUNT(*) FROM jobs_agent WHERE principal = ?", p.n)
	switch {
	case err != nil:
		return err
	case live >= maxAgents:
		return limitReached(limitAgents, "a principal can have %d agents, and this one has them; delete one first", maxAgents)
	case all >= maxAgents+maxDeleted:
		return limitReached(limitAgents, "this principal has deleted %d agents, whose ids remain taken; register one of these "+
			"agent_ids again", all-live)
	}
	return nil
}

// jobURL returns the URL to which hirers of an agent post their jobs.
func (g *Gateway) jobURL(a agent) string { return g.url + "/a/" + a.id + "/jobs" }

// until returns the time when a silent agent no longer counts as online, in nanoseconds since 1970; 0: it is not
// online.
func (a agent) until() int64 {
	switch {
	case !a.live() || a.offline:
		return 0
	case a.bridged:
		return a.heartbeat + int64(bridgedLife)
	case a.heartbeat != 0:
		return a.heartbeat + int64(heartbeatLife)
	}
	return a.active + int64(quietLife)
}

// online reports whether an agent is online at a time, in nanoseconds since 1970.
func (a agent) online(now int64) bool { return a.until() > now }

// unknownAgent is the refusal of an agent_id that no agent has.
func unknownAgent() error { return notFound("there is no agent with this agent_id") }

// agent returns the agent with an id. It must not have been deleted.
func (g *Gateway) agent(r *request, id string) (a agent, err error) {
	err = g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		a, err = agentByID(q, id)
		return err
	})
	if err == nil && !a.live() {
		err = unknownAgent()
	}
	return a, err
}

// leftReason is why the REQUESTs to a deleted agent are canceled.
const leftReason = "the agent has left the registry"

// changeAgent runs f on an agent of the caller, in one Update. f may be run twice. ends finds the REQUESTs that f may end;
// nil: it ends none.
func (g *Gateway) changeAgent(
	r *request, id string, ends func(relay.Querier) ([]deliver.Delivery, error), f func(*gateway.Op, agent) error,
) error {
	if err := r.needPrincipal(); err != nil {
		return err
	}
	return g.agents.End(r.detached(), r.from, leftReason, ends, func(o *gateway.Op) error {
		a, err := agentByID(o, id)
		switch {
		case err != nil:
			return err
		case !a.live():
			return unknownAgent()
		case !r.caller.owns(a.principal):
			return foreignAgent()
		}
		return f(o, a)
	})
}

// foreignAgent is the refusal of a request about an agent of another principal.
func foreignAgent() error {
	return forbidden("this agent belongs to another principal; send the key with which it was registered")
}

// postHeartbeat is the handler of POST /heartbeat.
func (g *Gateway) postHeartbeat(r *request) error {
	if err := r.needPrincipal(); err != nil {
		return err
	}
	f, err := g.read(r.from, r.body)
	if err != nil {
		return err
	}
	id := f.requiredUUID("agent_id")
	if err := f.err(); err != nil {
		return err
	}
	var now stamp
	if err := g.changeAgent(r, id, nil, func(o *gateway.Op, a agent) error {
		now = stamp(o.Now)
		a.heartbeat, a.offline = o.Now, false
		return updateAgent(o.ExtTx, a)
	}); err != nil {
		return err
	}
	return r.answer(http.StatusOK, struct {
		Status    string `json:"status"`
		AgentID   string `json:"agent_id"`
		Timestamp stamp  `json:"timestamp"`
	}{"ok", id, now})
}

// deleteAgent is the handler of DELETE /agents/{id}. Jobs that the agent has got can still end.
func (g *Gateway) deleteAgent(r *request) error {
	if err := g.changeAgent(r, r.id(), ofAgentID(r.id()), g.unregister); err != nil {
		return err
	}
	return r.answer(http.StatusOK, struct {
		Status  string `json:"status"`
		AgentID string `json:"agent_id"`
	}{"unregistered", r.id()})
}

// unregister deletes an agent. REQUESTs that it has not accepted end.
func (g *Gateway) unregister(o *gateway.Op, a agent) error {
	if a.bridged {
		waiting, err := jobs(o, "SELECT "+jobColumns+" FROM jobs_job WHERE agent = ? AND state = 0 AND dispatched = 0 ORDER BY n", a.n)
		for _, j := range waiting {
			if err == nil {
				_, err = g.end(o, j, outcome{state: failure, code: codeOffline, message: leftReason})
			}
		}
		if err != nil {
			return err
		}
		if a, err = agentByNumber(o, a.n); err != nil { // the end of its jobs has changed it
			return err
		}
	}
	a.deleted = o.Now
	if err := deleteSkills(o.ExtTx, a.n); err != nil {
		return err
	}
	return updateAgent(o.ExtTx, a)
}

// getReputation is the handler of GET /reputation/{id}.
func (g *Gateway) getReputation(r *request) error {
	a, err := g.agent(r, r.id())
	if err != nil {
		return err
	}
	type stats struct {
		Total     int64 `json:"total"`
		Successes int64 `json:"successes"`
		Failures  int64 `json:"failures"`
	}
	return r.answer(http.StatusOK, struct {
		AgentID string `json:"agent_id"`
		Score   score  `json:"score"`
		Stats   stats  `json:"stats"`
	}{a.id, a.score, stats{a.successes + a.failures, a.successes, a.failures}})
}

// postReputation is the handler of POST /reputation/{id}/success and …/failure, which upstream's programs use.
func postReputation(*request) error {
	return forbidden("nobody can report reputation; it follows from jobs that were paid or failed")
}

// getHealth is the handler of GET /health.
func (g *Gateway) getHealth(r *request) error {
	h := struct {
		Service  string `json:"service"`
		Status   string `json:"status"`
		Online   int64  `json:"agents_online"`
		Skills   int64  `json:"total_skills"`
		Accounts int64  `json:"total_accounts"`
	}{Service: "chorus-registry", Status: "healthy"}
	if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) error {
		f, err := readFigures(q, g.Relay.Now().UnixNano())
		h.Online, h.Skills, h.Accounts = f.online, f.skills, f.accounts
		return err
	}); err != nil {
		return err
	}
	return r.answer(http.StatusOK, h)
}
