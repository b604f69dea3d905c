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

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// AgentQuery selects agents of the relay's directory (PROTOCOL §6). Empty fields select nothing.
type AgentQuery struct {
	Intent string // one of the agent's manifests has this intent
	Text   string // one of the agent's manifests contains this text
	Online bool   // only agents heard from in the last five minutes
	Limit  int    // agents in a page, at most 1000; 0: the relay's default
	Cursor string // AgentPage.Cursor of the previous page
}

// AgentPage is one page of the directory. If HasMore, Cursor asks for the next page.
type AgentPage struct {
	Agents  []Agent
	HasMore bool
	Cursor  string
}

// Agent is a row of the directory. Online and LastSeen are unsigned claims of the relay. The MANIFEST envelopes are
// verified: the agent signed them. In an AgentPage each row has one; Client.Agent returns all manifests of an agent.
type Agent struct {
	ID        didkey.DID
	Online    bool
	LastSeen  time.Time
	Manifests []*envelope.Envelope
}

type agentRow struct {
	ID       didkey.DID      `json:"id"`
	Online   bool            `json:"online"`
	LastSeen time.Time       `json:"lastSeen"`
	Envelope json.RawMessage `json:"envelope"`
}

func (row agentRow) owns(e *envelope.Envelope) bool {
	return e.Type == envelope.TypeManifest && e.Sender.ID == row.ID
}

// Agents returns a page of the directory. Rows whose manifest does not verify are left out. To read the whole
// directory use Directory, which notices a relay whose pages never end.
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
		if rows++; rows > maxRows {
			return fmt.Errorf("%w: more than %d agents", errTooLong, maxRows)
		}
		var row agentRow
		err := json.Unmarshal(text, &row)
		var manifest *envelope.Envelope
		if err == nil {
			manifest, err = verified(row.Envelope)
		}
		if err != nil || !row.owns(manifest) {
			c.log.Warn("a row of the directory was left out: its manifest does not verify, or belongs to another agent",
				"error", err)
			return nil
		}
		page.Agents = append(page.Agents, Agent{ID: row.ID, Online: row.Online, LastSeen: row.LastSeen,
			Manifests: []*envelope.Envelope{c.open(manifest)}})
		return nil
	}
	good := reply{out: &answer, limit: maxDirectory, list: "agents", take: take}
	if err := c.read(ctx, "/agents", query, good); err != nil {
		return AgentPage{}, err
	}
	if len(answer.Cursor) > maxCursor {
		return AgentPage{}, errors.New("client: the relay's answer has no usable cursor")
	}
	page.HasMore, page.Cursor = answer.HasMore, answer.Cursor
	return page, nil
}

// ErrEndless is the error of Directory if the relay keeps saying that there is more but sends nothing new.
var ErrEndless = errors.New("client: the relay's directory does not end: the relay promises more agents but sends none")

const (
	maxIdlePages = 100     // pages in a row without a new agent
	maxPages     = 100_000 // pages in all
)

// Directory yields the agents that q finds, from the page that q.Cursor asks for to the last one. It ends with an
// error if a page cannot be read (see Agents), and with ErrEndless if the pages do not end.
func (c *Client) Directory(ctx context.Context, q AgentQuery) iter.Seq2[Agent, error] {
	return func(yield func(Agent, error) bool) {
		seen := newRecent[key, struct{}](1 << 16)
		idle := 0
		for range maxPages {
			page, err := c.Agents(ctx, q)
			if err != nil {
				yield(Agent{}, err)
				return
			}
			idle++
			for _, a := range page.Agents {
				if seen.add(key{a.ID, a.Manifests[0].ID}, struct{}{}) {
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

// Agent returns one agent with all its manifests. Errors: *envelope.Error, most often CodeAgentNotFound.
func (c *Client) Agent(ctx context.Context, id didkey.DID) (Agent, error) {
	var answer struct {
		Agent json.RawMessage `json:"agent"`
	}
	good := reply{out: &answer, limit: maxDirectory}
	if err := c.read(ctx, "/agents/"+url.PathEscape(string(id)), nil, good); err != nil {
		return Agent{}, err
	}
	manifests := &envelopes{most: maxRows}
	text, err := members(answer.Agent, "manifests", manifests.take)
	var row agentRow
	if err == nil {
		err = json.Unmarshal(text, &row)
	}
	if err != nil {
		return Agent{}, fmt.Errorf("client: the relay's answer about %s cannot be read: %w", id, err)
	}
	if row.ID != id {
		return Agent{}, fmt.Errorf("client: the relay answered with another agent than %s", id)
	}
	return Agent{ID: row.ID, Online: row.Online, LastSeen: row.LastSeen, Manifests: c.wanted(manifests, row.owns)}, nil
}
