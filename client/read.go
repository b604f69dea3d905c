package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Thread is what a relay has of a conversation. The record is the relay's own word; the envelopes are verified.
type Thread struct {
	thread.Thread
	Deadline time.Time            // by the relay's clock, when it will end the thread; zero if it has ended
	Events   []*envelope.Envelope // of this thread, in the relay's order, those that do not verify left out; see Follow for Opened
	Expired  int                  // how many more there were
}

// Thread asks for the thread with this id that client opened; for the oldest with this id if client is empty.
// Errors: *envelope.Error, CodeThreadNotFound above all.
func (c *Client) Thread(ctx context.Context, id string, client didkey.DID) (*Thread, error) {
	query := url.Values{}
	if client != "" {
		query.Set("client", string(client))
	}
	var answer struct {
		Thread struct {
			thread.Thread
			Deadline time.Time `json:"deadline"`
		} `json:"thread"`
		Events  []json.RawMessage `json:"events"`
		Expired int               `json:"expired"`
	}
	if err := c.read(ctx, "/threads/"+url.PathEscape(id), query, &answer); err != nil {
		return nil, err
	}
	record := answer.Thread.Thread
	if record.ID != id || client != "" && record.Client != client {
		return nil, fmt.Errorf("client: the relay answered with another thread than %s", id)
	}
	t := &Thread{Thread: record, Deadline: answer.Thread.Deadline, Expired: answer.Expired}
	t.Events = c.verifiedAll(answer.Events, func(e *envelope.Envelope) bool { return e.Thread == id })
	return t, nil
}

// read makes a GET. It is repeated only where the relay refuses it for its rate, and only if the time that the relay
// asks for (Retry-After) lies within exchangeTimeout and ctx's own; how long to insist otherwise is for the caller to say.
func (c *Client) read(ctx context.Context, path string, query url.Values, out any) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var pause backoff
	for {
		err := c.get(ctx, path, query, out)
		failed, ok := errors.AsType[*failure](err)
		if !ok || failed.status != http.StatusTooManyRequests || failed.retryAfter == 0 || failed.retryAfter > time.Until(deadline) {
			return err
		}
		if waiting := pause.wait(ctx, failed.retryAfter, maxPause); waiting != nil {
			return fmt.Errorf("%w; given up: %w", err, waiting)
		}
	}
}

// verifiedAll returns the envelopes that verify and are wanted, and logs the others.
func (c *Client) verifiedAll(raw []json.RawMessage, wanted func(*envelope.Envelope) bool) []*envelope.Envelope {
	var all []*envelope.Envelope
	for _, text := range raw {
		e, err := verified(text)
		if err != nil || !wanted(e) {
			c.log.Warn("an envelope was left out: it does not verify, or does not belong to the answer", "error", err)
			continue
		}
		all = append(all, c.open(e))
	}
	return all
}

// AgentQuery finds agents in the relay's directory (PROTOCOL §6); empty fields do not matter.
type AgentQuery struct {
	Intent string // of one of the agent's manifests
	Text   string // that occurs in one of them
	Online bool   // only agents heard from in the last five minutes
	Limit  int    // of a page; 0: the relay's default
	Cursor string // of the page before
}

// AgentPage is a part of the directory; Cursor asks for the next where HasMore.
type AgentPage struct {
	Agents  []Agent
	HasMore bool
	Cursor  string
}

// Agent is a row of the directory. Online and LastSeen are the relay's word; the MANIFEST envelopes are verified and
// the agent's own, one in an AgentPage, all it has announced from Client.Agent.
type Agent struct {
	ID        didkey.DID
	Online    bool
	LastSeen  time.Time
	Manifests []*envelope.Envelope
}

type agentRow struct {
	ID        didkey.DID        `json:"id"`
	Online    bool              `json:"online"`
	LastSeen  time.Time         `json:"lastSeen"`
	Envelope  json.RawMessage   `json:"envelope"`
	Manifests []json.RawMessage `json:"manifests"`
}

func (c *Client) agent(row agentRow, manifests []json.RawMessage) Agent {
	own := func(e *envelope.Envelope) bool { return e.Type == envelope.TypeManifest && e.Sender.ID == row.ID }
	return Agent{ID: row.ID, Online: row.Online, LastSeen: row.LastSeen, Manifests: c.verifiedAll(manifests, own)}
}

// Agents returns a page of the directory. Rows whose manifest does not verify are left out.
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
		Agents  []agentRow `json:"agents"`
		HasMore bool       `json:"hasMore"`
		Cursor  string     `json:"cursor"`
	}
	if err := c.read(ctx, "/agents", query, &answer); err != nil {
		return AgentPage{}, err
	}
	page := AgentPage{HasMore: answer.HasMore, Cursor: answer.Cursor}
	for _, row := range answer.Agents {
		if a := c.agent(row, []json.RawMessage{row.Envelope}); len(a.Manifests) > 0 {
			page.Agents = append(page.Agents, a)
		}
	}
	return page, nil
}

// Agent returns one agent with all its manifests. Errors: *envelope.Error, CodeAgentNotFound above all.
func (c *Client) Agent(ctx context.Context, id didkey.DID) (Agent, error) {
	var answer struct {
		Agent agentRow `json:"agent"`
	}
	if err := c.read(ctx, "/agents/"+url.PathEscape(string(id)), nil, &answer); err != nil {
		return Agent{}, err
	}
	if answer.Agent.ID != id {
		return Agent{}, fmt.Errorf("client: the relay answered with another agent than %s", id)
	}
	return c.agent(answer.Agent, answer.Agent.Manifests), nil
}

// Info is what a relay says of itself under /.well-known/agora.json: its identity, and the whole answer with its
// limits, timeouts and features.
type Info struct {
	DID  didkey.DID
	JSON json.RawMessage
}

// Info asks the relay who it is.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var info Info
	if err := c.read(ctx, wellKnown, nil, &info.JSON); err != nil {
		return Info{}, err
	}
	var named struct {
		DID string `json:"did"`
	}
	if err := json.Unmarshal(info.JSON, &named); err != nil {
		return Info{}, err
	}
	var err error
	if info.DID, err = didkey.Parse(named.DID); err != nil {
		return Info{}, fmt.Errorf("client: the relay's did: %w", err)
	}
	return info, nil
}

// Health returns nil if the relay answers and says that it is well, and the version of the protocol it speaks.
func (c *Client) Health(ctx context.Context) (version string, err error) {
	var answer struct {
		Version string `json:"version"`
	}
	err = c.read(ctx, health, nil, &answer)
	return answer.Version, err
}
