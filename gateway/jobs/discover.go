package jobs

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file finds agents and shows them.

// shownSkill is a skill as answers show it.
type shownSkill struct {
	Name        string          `json:"skill_name"`
	Description string          `json:"description"`
	Cost        credits.Amount  `json:"cost_per_call"`
	Input       json.RawMessage `json:"input_schema"`
	Output      json.RawMessage `json:"output_schema"`
}

func (s skill) shown() shownSkill {
	return shownSkill{s.name, s.description, s.cost, json.RawMessage(s.input), json.RawMessage(s.output)}
}

// shownAgent is an agent as answers show it.
type shownAgent struct {
	ID            string       `json:"agent_id"`
	Name          string       `json:"agent_name"`
	OwnerID       string       `json:"owner_id"`
	Endpoint      string       `json:"api_endpoint"`
	JobURL        string       `json:"job_url"`
	Skill         *shownSkill  `json:"skill"` // the one that was searched for; else the first; null: it has none
	Skills        []shownSkill `json:"skills"`
	Reputation    score        `json:"reputation_score"`
	Status        string       `json:"status"` // online or offline
	RegisteredAt  stamp        `json:"registered_at"`
	LastHeartbeat stamp        `json:"last_heartbeat"`
}

// show returns an agent as answers to r show it. wanted is the skill that was searched for; empty: none. If short is true,
// that skill is its only one, and has no schemas.
func (g *Gateway) show(q relay.Querier, r *request, a agent, wanted string, short bool) (s shownAgent, err error) {
	account, err := ownerByNumber(q, a.owner)
	if err != nil {
		return s, err
	}
	s = shownAgent{ID: a.id, Name: a.name, OwnerID: account.id, JobURL: g.jobURL(a), Skills: []shownSkill{},
		Reputation: a.score, Status: "offline", RegisteredAt: stamp(a.registered),
		LastHeartbeat: stamp(max(a.heartbeat, a.registered))}
	if a.online(g.Relay.Now().UnixNano()) {
		s.Status = "online"
	}
	if s.Endpoint = r.base + "/a/" + a.id; r.base == g.url && a.way() == toEndpoint {
		if s.Endpoint, err = g.endpointOf(a); err != nil {
			return s, err
		}
	}
	var skills []skill
	if short {
		skills, err = skillNamed(q, a.n, wanted)
	} else {
		skills, err = skillsOf(q, a.n)
	}
	for _, k := range skills {
		shown := k.shown()
		s.Skills = append(s.Skills, shown)
		if s.Skill == nil && (wanted == "" || wanted == k.name) {
			s.Skill = &shown
		}
	}
	return s, err
}

// stamp is a time in an answer.
type stamp int64

// MarshalText implements encoding.TextMarshaler.
func (s stamp) MarshalText() ([]byte, error) { return []byte(gateway.Stamp(int64(s))), nil }

// getDiscover is the handler of GET /discover.
func (g *Gateway) getDiscover(r *request) error {
	query, err := newQuery(r.Request, "skill", "min_reputation", "max_cost")
	if err != nil {
		return err
	}
	name, given := query.values["skill"]
	switch {
	case !given:
		query.fail("skill", "is missing; give the name of a skill, such as ?skill=analyze_text")
	case !skillForm.MatchString(name):
		query.fail("skill", "is not the name of a skill")
	}
	least, _ := query.amount("min_reputation", 100*credits.One) // a point has as many millionths as a credit
	most, limited := query.amount("max_cost", credits.Limit)
	if err := query.err(); err != nil {
		return err
	}
	if !limited {
		most = credits.Limit
	}
	var found []int64
	err = g.Relay.View(r.Context(), r.from, func(q relay.Querier) error {
		found, err = discover(q, name, score(least), most, g.Relay.Now().UnixNano())
		return err
	})
	if err != nil {
		return err
	}
	return g.listFound(r, found, name)
}

// listFound answers a request with these agents, which have the wanted skill.
func (g *Gateway) listFound(r *request, agents []int64, wanted string) error {
	type position struct {
		size  int // of the skills so far, in bytes
		total int64
	}
	var total int64
	return r.list("agents", gateway.List(r.Context(), g.Core, r.from, position{},
		func(q relay.Querier, at position, p *gateway.Piece) (position, bool, error) {
			left := agents[at.total:]
			done, err := gateway.AddRows(p, left, func(n int64) error {
				a, err := agentByNumber(q, n)
				if err != nil {
					return err
				}
				s, err := g.show(q, r, a, wanted, at.size > maxFoundBytes)
				for _, k := range s.Skills {
					at.size += len(k.Description) + len(k.Input) + len(k.Output)
				}
				p.Add(s)
				return err
			})
			at.total += int64(done)
			total = at.total
			return at, done < len(left), err
		}), totalTail("total", &total))
}

// errEnough ends the reading of rows.
var errEnough = errors.New("the answer is full")

// discover returns the agents that are online, have a skill, have at least this score, and cost at most this, the best
// first. It examines the maxExamined best agents with the skill. Of equally good ones, it examines those first that
// registered first, and returns them in the order of their ids.
func discover(q relay.Querier, name string, least score, most credits.Amount, now int64) ([]int64, error) {
	type candidate struct {
		rank, n int64 // equally good agents have the same rank
		id      string
	}
	var found []candidate
	var rank int64
	var lastScore score
	var lastCost credits.Amount
	err := q.Query(func(scan gateway.Scanner) error {
		var c candidate
		var until int64
		var score score
		var cost credits.Amount
		if err := scan(&c.n, &c.id, &until, &score, &cost); err != nil || cost > most || until <= now {
			return err
		}
		if score != lastScore || cost != lastCost {
			rank, lastScore, lastCost = rank+1, score, cost
		}
		c.rank = rank
		if found = append(found, c); len(found) == maxFound {
			return errEnough
		}
		return nil
	}, "SELECT a.n, a.id, a.until, s.score, s.cost FROM jobs_skill s JOIN jobs_agent a ON a.n = s.agent WHERE s.name = ? "+
		"AND s.online = 1 AND s.score >= ? ORDER BY s.score DESC, s.cost, s.agent LIMIT ?",
		name, int64(least), maxExamined)
	if errors.Is(err, errEnough) {
		err = nil
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.id, b.id))
	})
	numbers := make([]int64, len(found))
	for i, c := range found {
		numbers[i] = c.n
	}
	return numbers, err
}

// getAgent is the handler of GET /agents/{id}.
func (g *Gateway) getAgent(r *request) error {
	a, err := g.agent(r, r.id())
	if err != nil {
		return err
	}
	var s shownAgent
	if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		s, err = g.show(q, r, a, "", false)
		return err
	}); err != nil {
		return err
	}
	return r.answer(http.StatusOK, s)
}

// getSkills is the handler of GET /skills.
func (g *Gateway) getSkills(r *request) error {
	var names []string
	var total int64
	if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) error {
		names = nil
		if err := q.Query(func(scan gateway.Scanner) error {
			var name string
			err := scan(&name)
			names = append(names, name)
			return err
		}, "SELECT name FROM (SELECT name FROM jobs_skill_name WHERE online > 0 ORDER BY online DESC LIMIT ?) AS listed",
			maxListed); err != nil {
			return err
		}
		f, err := readFigures(q, g.Relay.Now().UnixNano())
		total = f.online
		return err
	}); err != nil {
		return err
	}
	slices.Sort(names)
	return r.list("skills", gateway.List(r.Context(), g.Core, r.from, names,
		func(_ relay.Querier, left []string, p *gateway.Piece) ([]string, bool, error) {
			done, err := gateway.AddRows(p, left, func(name string) error { p.Add(name); return nil })
			return left[done:], done < len(left), err
		}), totalTail("total_agents", &total))
}

// maxListed is how many names of skills one answer has: those that most agents have.
const maxListed = 1000
