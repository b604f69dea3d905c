package mcpserver

import (
	"context"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/untrusted"
)

type spendingOut struct {
	You      string        `json:"you"` // the DID
	PerJob   float64       `json:"per_job_usd"`
	PerDay   float64       `json:"per_day_usd"`
	Reserved float64       `json:"reserved_usd"` // in the last 24 hours
	Left     float64       `json:"left_usd"`
	Intents  []string      `json:"intents,omitempty"` // the only ones that may be asked for
	Agents   []string      `json:"agents,omitempty"`  // the only ones that may be hired
	Jobs     []reservation `json:"jobs"`              // of the last 24 hours; at most shownJobs, the newest
}

type reservation struct {
	Thread string         `json:"thread"` // its name
	Agent  string         `json:"agent"`
	Intent untrusted.Text `json:"intent"`
	USD    float64        `json:"usd"`
	Time   time.Time      `json:"time"`
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
	p.Say("You are %s.", s.DID)
	p.Say("A job may cost %v USD, and all jobs of 24 hours %v USD. %v USD are reserved or spent, %v USD are left.",
		l.PerJob, l.PerDay, status.Reserved, left)
	if len(l.Intents) > 0 {
		p.Say("Only these intents may be asked for: %s.", strings.Join(l.Intents, ", "))
	}
	for _, agent := range l.Agents {
		out.Agents = append(out.Agents, string(agent))
		p.Say("Only agents that are listed here may be hired. One of them is %s.", agent)
	}
	var intents []untrusted.Text
	for i, r := range status.Jobs[max(0, len(status.Jobs)-shownJobs):] {
		// The LLM has asked for the intent, but an agent has chosen its name.
		intent := untrusted.New(string(r.Agent), "intent", []byte(r.Intent), shortText, "")
		thread := s.threads.name(r.Thread)
		out.Jobs = append(out.Jobs, reservation{Thread: thread, Agent: string(r.Agent), Intent: intent, USD: inUSD(r.USD), Time: r.Time})
		intents = append(intents, intent)
		p.Say("%d: %v USD in thread %s, by %s.", i+1, r.USD, thread, r.Agent)
	}
	p.Lines("intents of the jobs with these numbers", intents)
	p.Say("%s", s.tellPerson(ctx))
	return out, nil
}

// inUSD returns an amount as a JSON number. The schemas of the SDK know no other type for one.
func inUSD(a credits.Amount) float64 { return float64(a) / float64(credits.One) }
