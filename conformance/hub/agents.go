package hub

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// The agents of a run. A hub allows 20 registrations an hour from one address. So the checks use the same agents, one
// check after the other. Only some checks register agents of their own, which later become agents of the pool.

// maxPooledAgents is how many agents the checks share.
const maxPooledAgents = 7

// hubAgent is an agent that the run has registered. At any time only one check uses it.
type hubAgent struct {
	id, key string
	seen    string          // the id of the newest message before the check, in digits
	changed bool            // the check has changed the registration
	lost    bool            // the check has deleted the agent, or its key is not known
	past    map[string]bool // the trace ids of messages to it from earlier checks
}

// agentPool holds the agents that the checks share.
type agentPool struct {
	shared kit.Pool[*hubAgent]
	run    string // part of all addresses of the run

	mu     sync.Mutex  // guards what follows
	number int         // of addresses so far
	spare  []*hubAgent // agents that checks have registered and that are not in the pool yet
	all    []*hubAgent // all agents that the run has registered
}

// address returns a new address. Its host is the name of the hub, if that is known.
func (run *hubRun) address() string {
	run.agents.mu.Lock()
	defer run.agents.mu.Unlock()
	run.agents.number++
	host := "conformance.example"
	if run.knowsName() {
		host = run.name
	}
	return fmt.Sprintf("kit-%s-%d@%s", run.agents.run, run.agents.number, host)
}

var hubNameForm = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,80}$`)

// knowsName reports whether server_name in the hub's document can be the name of the hub.
func (run *hubRun) knowsName() bool {
	return hubNameForm.MatchString(run.name) && run.name != "did.key"
}

// card returns the card of the run's agents.
func card() map[string]any {
	return map[string]any{"card_version": "0.3", "user_culture": "en", "supported_languages": []any{"en", "zh-CN"}}
}

// registration returns the body of POST /register for an address.
func registration(id string) kit.Message { return kit.Message{"agent_id": id, "agent_card": card()} }

// take returns n agents that no other check uses until the end of this check. A check calls it at most once.
func (h *hubProbe) take(n int) []*hubAgent {
	pool := &h.hub.agents
	limit := maxPooledAgents
	if h.hub.Thorough {
		limit = maxPooledAgents + 4 // for hub.limits.messages
	}
	taken, ok := pool.shared.Take(h.Ctx, n, limit)
	if !ok {
		h.Stopped()
	}
	h.taken = taken
	pool.mu.Lock()
	for range n - len(taken) {
		h.taken = append(h.taken, &hubAgent{lost: true})
		if last := len(pool.spare) - 1; last >= 0 {
			h.taken[len(h.taken)-1] = pool.spare[last]
			pool.spare = pool.spare[:last]
		}
	}
	pool.mu.Unlock()
	for i, a := range h.taken {
		if a.id == "" {
			h.taken[i] = h.newAgent()
		}
	}
	return h.taken
}

// one, two and three are take for that number of agents.
func (h *hubProbe) one() *hubAgent { return h.take(1)[0] }

func (h *hubProbe) two() (a, b *hubAgent) {
	list := h.take(2)
	return list[0], list[1]
}

func (h *hubProbe) three() (a, b, c *hubAgent) {
	list := h.take(3)
	return list[0], list[1], list[2]
}

// newAgent registers a new agent. Only checks that cannot use an agent of the pool call it.
func (h *hubProbe) newAgent() *hubAgent {
	a, _ := h.register(h.hub.address())
	return a
}

// register registers a free address. It also returns the data of the answer.
func (h *hubProbe) register(id string) (*hubAgent, kit.Answer) {
	data := h.wantData(h.Write("", "/register", registration(id)), http.StatusCreated)
	return h.keep(id, data), data
}

// keep returns the agent that a registration has made. The run deletes the agent at its end.
func (h *hubProbe) keep(id string, data kit.Answer) *hubAgent {
	a := &hubAgent{id: id, key: data.Text("api_key"), seen: "0", past: map[string]bool{}}
	h.Expect(`an api_key such as ca_ and 32 hexadecimal digits`)
	if !agentKeyForm.MatchString(a.key) {
		h.Failf("the api_key has another form")
	}
	h.made = append(h.made, a)
	h.hub.agents.mu.Lock()
	defer h.hub.agents.mu.Unlock()
	h.hub.agents.all = append(h.hub.agents.all, a)
	return a
}

var agentKeyForm = regexp.MustCompile(`^ca_[0-9a-f]{32}$`)

// rotate registers the agent a again, with its key. It records the new key and returns the data of the answer.
func (h *hubProbe) rotate(a *hubAgent, changes ...func(kit.Message)) kit.Answer {
	body := registration(a.id)
	kit.Combine(changes...)(body)
	data := h.wantData(h.Write(a.key, "/register", body), http.StatusOK)
	if key := data.Text("api_key"); agentKeyForm.MatchString(key) && key != a.key {
		a.key = key
	} else {
		h.Expect("a new api_key")
		h.Failf("the api_key is the old one or has another form")
	}
	a.changed = a.changed || len(changes) > 0
	return data
}

// release ends the streams of the check and returns its agents to the pool.
func (h *hubProbe) release() {
	for _, s := range h.streams {
		s.close()
	}
	pool := &h.hub.agents
	for _, a := range h.taken {
		if h.Ctx.Err() == nil && !a.lost && h.settle(a) {
			pool.shared.Give(a)
		} else {
			pool.shared.Lose()
		}
	}
	for _, a := range h.made {
		if !slices.Contains(h.taken, a) && h.Ctx.Err() == nil && !a.lost && h.settle(a) {
			pool.mu.Lock()
			pool.spare = append(pool.spare, a)
			pool.mu.Unlock()
		}
	}
}

// settle gives an agent its usual registration again, and confirms all messages to it. So they do not come again in the
// next check. It reports false if that fails.
func (h *hubProbe) settle(a *hubAgent) bool {
	client := h.hub.client
	send := func(method, target string, body any) kit.Answer {
		h.hub.pace.Wait(h.Ctx, method, target)
		header := http.Header{"Authorization": {"Bearer " + a.key}}
		r := kit.RetryableRequest{Method: method, Target: target, Header: header}
		if body != nil {
			r.Body = kit.Canonical(body)
		}
		return client.DoWithRetries(h.Ctx, r, h.hub.pace.Refused)
	}
	if a.changed {
		again := send(http.MethodPost, "/register", registration(a.id))
		if again.Status != http.StatusOK || again.Object("data").Text("api_key") == "" {
			return false
		}
		a.key, a.changed = again.Object("data").Text("api_key"), false
	}
	history := send(http.MethodGet, "/agent/messages?since="+a.seen, nil)
	rows, ok := history.List("data")
	if history.Status != http.StatusOK || !ok {
		return false
	}
	if len(rows) == 0 {
		return true
	}
	var received []string
	for _, raw := range rows {
		if row := kit.ParseRow(raw); row.Text("receiver_id") == a.id {
			received = append(received, row.Text("trace_id"))
			a.past[row.Text("trace_id")] = true
		}
	}
	a.seen = string(kit.ParseRow(rows[len(rows)-1]).Members["id"])
	if len(received) == 0 {
		return true
	}
	return send(http.MethodPost, "/agent/ack", map[string]any{"trace_ids": received}).Status == http.StatusOK
}

// deleteAgents deletes all agents that the run has registered, as far as their keys are known.
func (run *hubRun) deleteAgents(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, a := range run.agents.all {
		// The result does not matter: the check may have deleted the agent already.
		_ = run.client.Do(ctx, http.MethodDelete, "/agents/"+a.id,
			http.Header{"Authorization": {"Bearer " + a.key}}, nil)
	}
	for _, id := range run.workers.ids {
		target := "/agents/" + id
		if token, err := run.agora.Token(run.agora.Agent, http.MethodDelete, target, nil, run.client.Now(), nil); err == nil {
			_ = run.client.Do(ctx, http.MethodDelete, target, http.Header{"Authorization": {"Agora " + token}}, nil)
		}
	}
}
