package mcpserver

import (
	"context"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/gateway/jobs/credits"
)

type spendingOut struct {
	You      string        `json:"you" jsonschema:"your own DID"`
	PerJob   float64       `json:"per_job_usd" jsonschema:"the most that one job may cost"`
	PerDay   float64       `json:"per_day_usd" jsonschema:"the most that all jobs of 24 hours may cost"`
	Reserved float64       `json:"reserved_usd" jsonschema:"what is reserved or spent in the last 24 hours"`
	Left     float64       `json:"left_usd" jsonschema:"what can still be spent now"`
	Intents  []string      `json:"intents,omitempty" jsonschema:"the only intents that may be asked for; absent: all. One that ends in * stands for all that begin so"`
	Agents   []string      `json:"agents,omitempty" jsonschema:"the only agents that may be hired; absent: all"`
	Jobs     []reservation `json:"jobs" jsonschema:"the newest jobs of the last 24 hours that cost something, at most 20"`
}

type reservation struct {
	Thread string    `json:"thread"`
	Agent  string    `json:"agent"`
	Intent string    `json:"intent"`
	USD    float64   `json:"usd"`
	Time   time.Time `json:"time"`
}

// shownJobs is how many jobs the tool spending shows.
const shownJobs = 20

func (s *Server) spending(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}, p *page) (out spendingOut, err error) {
	status, err := s.Book.Status(ctx)
	if err != nil {
		return out, local(err)
	}
	l := status.Limits
	left := max(0, l.PerDay-status.Reserved)
	out = spendingOut{You: string(s.DID), PerJob: inUSD(l.PerJob), PerDay: inUSD(l.PerDay), Reserved: inUSD(status.Reserved),
		Left: inUSD(left), Intents: l.Intents, Jobs: []reservation{}}
	p.say("You are %s.", s.DID)
	p.say("A job may cost %v USD, and all jobs of 24 hours %v USD. %v USD are reserved or spent, %v USD are left.",
		l.PerJob, l.PerDay, status.Reserved, left)
	if len(l.Intents) > 0 {
		p.say("Only these intents may be asked for: %s.", strings.Join(l.Intents, ", "))
	}
	for _, agent := range l.Agents {
		out.Agents = append(out.Agents, string(agent))
		p.say("This agent may be hired, and no other that is not listed: %s.", agent)
	}
	for _, r := range status.Jobs[max(0, len(status.Jobs)-shownJobs):] {
		out.Jobs = append(out.Jobs, reservation{Thread: r.Thread, Agent: string(r.Agent), Intent: r.Intent, USD: inUSD(r.USD), Time: r.Time})
		p.say("%v USD for %s in thread %s, by %s.", r.USD, r.Intent, r.Thread, r.Agent)
	}
	p.say("%s", s.tellPerson())
	return out, nil
}

// inUSD returns an amount as a JSON number. The schemas of the SDK know no other type for one.
func inUSD(a credits.Amount) float64 { return float64(a) / float64(credits.One) }
