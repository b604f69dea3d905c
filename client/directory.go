package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/client/internal/follow"
	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// AgentQuery selects agents in the relay's directory (PROTOCOL §6). An agent must match all fields that are set. The
// zero value selects all agents.
type AgentQuery struct {
	Intent string // one of the agent's manifests has this intent
	Text   string // one of the agent's manifests contains this text
	Online bool   // the relay has received a message or a signed read from the agent in the last five minutes
	Limit  int    // agents in a page, at most 1000; 0: the relay's default
	Cursor string // AgentPage.Cursor of the previous page
}

// AgentPage is one page of the directory. If HasMore is true, there may be a next page: pass Cursor as
// AgentQuery.Cursor to read it.
type AgentPage struct {
	Agents  []Agent
	HasMore bool
	Cursor  string
}

// Agent is a row of the directory. Online and LastSeen are claims of the relay and are not signed. The MANIFEST
// envelopes are verified: the agent has signed them. An Agent in an AgentPage has one manifest. Client.Agent returns
// all manifests of an agent.
type Agent struct {
	ID        didkey.DID
	Online    bool
	LastSeen  time.Time
	Manifests []*envelope.Envelope
}

// agentRow is an Agent as the relay sends it.
type agentRow struct {
	ID       didkey.DID      `json:"id"`
	Online   bool            `json:"online"`
	LastSeen time.Time       `json:"lastSeen"`
	Envelope json.RawMessage `json:"envelope"`
}

// owns reports whether e is a MANIFEST of this row's agent.
func (row agentRow) owns(e *envelope.Envelope) bool {
	return e.Type == envelope.TypeManifest && e.Sender.ID == row.ID
}

// Agents returns a page of the directory. It skips rows whose manifest does not verify. To read the whole directory use
// Directory, which also detects a relay that always claims to have one more page.
//
// Errors: *envelope.Error if the relay refuses the request; errors of the network; malformed responses.
func (c *Client) Agents(ctx context.Context, q AgentQuery) (AgentPage, error) {
	query := url.Values{}
	for name, value := range map[string]string{"intent": q.Intent, "q": q.Text, "cursor": q.Cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if q.Online {
		query.Set("online", "true")
	}
	if q.Limit != 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	var answer struct {
		HasMore bool   `json:"hasMore"`
		Cursor  string `json:"cursor"`
	}
	var page AgentPage
	rows := 0
	take := func(text []byte) error {
		if rows++; rows > wire.MaxRows {
			return fmt.Errorf("%w: more than %d agents", wire.ErrTooLong, wire.MaxRows)
		}
		var row agentRow
		err := json.Unmarshal(text, &row)
		var manifest *envelope.Envelope
		if err == nil {
			manifest, err = wire.ParseVerified(row.Envelope)
		}
		if err == nil && !row.owns(manifest) {
			err = errors.New("the manifest belongs to another agent")
		}
		if err != nil {
			c.conn.Log.Warn("a row of the directory was skipped, because its manifest is not valid", "error", err)
			return nil
		}
		page.Agents = append(page.Agents, Agent{ID: row.ID, Online: row.Online, LastSeen: row.LastSeen,
			Manifests: []*envelope.Envelope{c.conn.Open(manifest)}})
		return nil
	}
	spec := wire.Spec{Out: &answer, Limit: wire.MaxDirectory, ListName: "agents", OnElement: take}
	if err := c.conn.Read(ctx, "/agents", query, spec); err != nil {
		return AgentPage{}, err
	}
	if len(answer.Cursor) > follow.MaxCursor {
		return AgentPage{}, errors.New("client: the cursor in the relay's response is too long")
	}
	page.HasMore, page.Cursor = answer.HasMore, answer.Cursor
	return page, nil
}

// ErrEndless is the error of Directory if the relay claims that there are more agents, but sends no new ones.
var ErrEndless = errors.New("client: the relay's directory does not end: " +
	"the relay claims to have more agents, but sends no new ones")

const (
	maxIdlePages = 100     // pages in a row without a new agent
	maxPages     = 100_000 // pages in total
)

// Directory yields the agents that match q, from the page of q.Cursor to the last page. It ends with an error of Agents
// if a page cannot be read. It ends with ErrEndless if the relay claims to have more agents, but sends no new cursor,
// has sent 100 pages in a row without a new agent, or has sent 100 000 pages.
func (c *Client) Directory(ctx context.Context, q AgentQuery) iter.Seq2[Agent, error] {
	return func(yield func(Agent, error) bool) {
		seen := recent.New[recent.Message, struct{}](1 << 16)
		idle := 0
		for range maxPages {
			page, err := c.Agents(ctx, q)
			if err != nil {
				yield(Agent{}, err)
				return
			}
			idle++
			for _, a := range page.Agents {
				if seen.Add(recent.Message{Sender: a.ID, ID: a.Manifests[0].ID}, struct{}{}) {
					idle = 0
				}
				if !yield(a, nil) {
					return
				}
			}
			if !page.HasMore {
				return
			}
			if page.Cursor == "" || page.Cursor == q.Cursor || idle == maxIdlePages {
				break
			}
			q.Cursor = page.Cursor
		}
		yield(Agent{}, ErrEndless)
	}
}

// Agent returns one agent with all its manifests. It skips manifests that do not verify. Errors: *envelope.Error, most
// often CodeAgentNotFound.
func (c *Client) Agent(ctx context.Context, id didkey.DID) (Agent, error) {
	var answer struct {
		Agent json.RawMessage `json:"agent"`
	}
	spec := wire.Spec{Out: &answer, Limit: wire.MaxDirectory}
	if err := c.conn.Read(ctx, "/agents/"+url.PathEscape(string(id)), nil, spec); err != nil {
		return Agent{}, err
	}
	manifests := &wire.Events{Limit: wire.MaxRows}
	text, err := wire.SplitList(answer.Agent, "manifests", manifests.Add)
	var row agentRow
	if err == nil {
		err = json.Unmarshal(text, &row)
	}
	if err != nil {
		return Agent{}, fmt.Errorf("client: the relay's response about the agent %s is malformed: %w", id, err)
	}
	if row.ID != id {
		return Agent{}, fmt.Errorf("client: the relay's response is not about the agent %s, but about another one", id)
	}
	return Agent{ID: row.ID, Online: row.Online, LastSeen: row.LastSeen,
		Manifests: c.conn.Wanted(manifests, row.owns)}, nil
}
