package hubclient

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/exchange"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Registration is the body of a registration.
type Registration struct {
	AgentID string `json:"agent_id"`
	Card    Card   `json:"agent_card"`
}

// Card is an agent card, version 0.3.
type Card struct {
	Version   string   `json:"card_version"`
	Culture   string   `json:"user_culture"`
	Languages []string `json:"supported_languages"`
}

// NewCard returns the card of an agent. Without languages, the culture is the only one.
func NewCard(culture string, languages []string) Card {
	if len(languages) == 0 {
		languages = []string{culture}
	}
	return Card{"0.3", culture, languages}
}

// Register registers an agent and returns its key. If the address is taken, c.Key must be its current key. A request
// without an answer is not repeated, because the hub tells a key only once.
func (c *Client) Register(ctx context.Context, r Registration) (key string, err error) {
	var made struct {
		AgentID string `json:"agent_id"`
		Key     string `json:"api_key"`
	}
	_, err = c.exchange(ctx, http.MethodPost, "/register", nil, jsontext.Compact(r), &made)
	if l, isLost := errors.AsType[*exchange.Lost](err); isLost && !l.Unsent {
		return "", fmt.Errorf("%w. The agent may be registered nevertheless. Run the command again; if the address is "+
			"taken then, choose another one", err)
	}
	if err == nil && (made.AgentID != r.AgentID || !isKey(made.Key)) {
		err = errors.New("the hub's answer has no valid key for this agent")
	}
	return made.Key, err
}

// Envelope is a Chorus envelope, version 0.4.
type Envelope struct {
	Version      string `json:"chorus_version"`
	SenderID     string `json:"sender_id"`
	Text         string `json:"original_text"`
	Culture      string `json:"sender_culture"`
	Context      string `json:"cultural_context,omitempty"`
	Conversation string `json:"conversation_id,omitempty"`
	Turn         int64  `json:"turn_number,omitempty"`
}

// Outcome is what a hub says about a message that it has accepted.
type Outcome struct {
	Data     json.RawMessage // the data of the answer
	Delivery string          // delivered, delivered_sse, queued or failed
	Records  []Record        // what the caller has to write to the history
}

// Send sends an envelope of the agent me. While the hub is busy or does not answer, it repeats the request a few times
// with the same Idempotency-Key. So the message is sent only once. If Send fails, the message may have been sent all
// the same. Then the next Follow records it.
func (c *Client) Send(ctx context.Context, me Profile, receiver string, e Envelope) (o Outcome, err error) {
	e.Version, e.SenderID = "0.4", me.AgentID
	text, err := envelope.Canonicalize(jsontext.Compact(e))
	if err != nil {
		return o, err
	}
	body := jsontext.Compact(struct {
		ReceiverID string          `json:"receiver_id"`
		Envelope   json.RawMessage `json:"envelope"`
	}{receiver, text})
	header := http.Header{"Idempotency-Key": {rand.Text()}}
	var told struct {
		Delivery string `json:"delivery"`
		TraceID  string `json:"trace_id"`
	}
	var a answer
	if err = c.try(ctx, func() (err error) {
		a, err = c.exchange(ctx, http.MethodPost, "/messages", header, body, &told)
		return err
	}); err != nil {
		return o, err
	}
	o.Data, o.Delivery = a.Data, told.Delivery
	if o.Records, err = c.stored(ctx, me, told.TraceID); err == nil {
		return o, nil
	}
	c.Log.Warn("the message is sent, but its id is not known; it is recorded without an id", "err", err)
	r, err := newRecord(Sent, receiver, message{TraceID: told.TraceID, Envelope: text, Timestamp: a.Metadata.Timestamp})
	if err != nil {
		return o, fmt.Errorf("the hub has accepted the message, but its answer is not valid: %w", err)
	}
	o.Records = []Record{r}
	return o, nil
}

// stored returns the record of a message that was just sent. It reads the history of the hub, because the answer to a
// new message has no id. It also returns the other messages that the hub hands out there, because they may not come
// again on the inbox stream.
func (c *Client) stored(ctx context.Context, me Profile, traceID string) (all []Record, err error) {
	var rows []message
	if err := c.try(ctx, func() (err error) {
		rows, _, err = c.page(ctx, me.asOf, maxRows)
		return err
	}); err != nil {
		return nil, err
	}
	found := false
	for _, m := range rows {
		some, err := m.records(me.AgentID)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		found = found || m.TraceID == traceID
	}
	if !found {
		return nil, errors.New("the message is not in the history that the hub shows")
	}
	return all, nil
}

// message is a message as a hub describes it. On a stream it has no receiver_id.
type message struct {
	ID         int64           `json:"id"`
	TraceID    string          `json:"trace_id"`
	SenderID   string          `json:"sender_id"`
	ReceiverID string          `json:"receiver_id"`
	Envelope   json.RawMessage `json:"envelope"`
	Timestamp  string          `json:"timestamp"`
}

// records returns the records of a message: one, or two if the agent has sent the message to itself. Then the second
// one is the received one.
func (m message) records(me string) (all []Record, err error) {
	if m.ID < 1 {
		return nil, errors.New("its id is not a positive number")
	}
	add := func(dir, peer string) {
		r, failed := newRecord(dir, peer, m)
		all, err = append(all, r), errors.Join(err, failed)
	}
	if m.SenderID == me {
		add(Sent, m.ReceiverID)
	}
	if m.ReceiverID == me {
		add(Received, m.SenderID)
	}
	return all, err
}

// How many messages one request reads from the history of the hub.
const (
	pageRows = 100  // by messages
	maxRows  = 1000 // by stored
)

// messages returns the messages with ids above after that the agent has sent or received, the oldest first. The request
// also confirms what the agent has received up to that id. more means that other messages may follow.
func (c *Client) messages(ctx context.Context, after int64) (rows []message, more bool, err error) {
	rows, more, err = c.page(ctx, strconv.FormatInt(after, 10), pageRows)
	for len(rows) > 0 && rows[0].ID <= after {
		rows = rows[1:] // a hub that ignores since also returns these
	}
	for i := 1; i < len(rows); i++ {
		if rows[i].ID <= rows[i-1].ID && err == nil {
			err = errors.New("the hub's history is not in the order of its ids")
		}
	}
	return rows, more, err
}

// page returns a part of the history. since is an id or a time.
func (c *Client) page(ctx context.Context, since string, limit int) (rows []message, more bool, err error) {
	query := url.Values{"since": {since}, "limit": {strconv.Itoa(limit)}}
	a, err := c.exchange(ctx, http.MethodGet, "/agent/messages?"+query.Encode(), nil, nil, &rows)
	return rows, a.Metadata.HasMore || len(rows) >= limit, err
}

// acknowledge confirms all that the agent has received up to this id.
func (c *Client) acknowledge(ctx context.Context, upTo int64) error {
	_, err := c.exchange(ctx, http.MethodPost, "/agent/ack", nil, jsontext.Compact(map[string]int64{"up_to": upTo}), nil)
	return err
}

// Discover returns the agents of the hub, as JSON. culture and online restrict them.
func (c *Client) Discover(ctx context.Context, culture string, online bool) (agents []json.RawMessage, err error) {
	query := url.Values{}
	if culture != "" {
		query.Set("culture", culture)
	}
	if online {
		query.Set("online", "true")
	}
	path := "/discover"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	err = c.try(ctx, func() error {
		a, err := c.exchange(ctx, http.MethodGet, path, nil, nil, nil)
		if err != nil {
			return err
		}
		if a.Data == nil { // the bare list of a call without a key
			a.Data = a.body
		}
		if json.Unmarshal(a.Data, &agents) != nil {
			return &exchange.Lost{Text: "the answer is not a list of agents; is this the URL of a hub?"}
		}
		return nil
	})
	return agents, err
}

// Profile is what Send needs to know of the agent that sends.
type Profile struct {
	AgentID string
	Culture string // empty: the agent has no card
	asOf    string // the time on the hub's clock when it sent the profile
}

// Profile returns the profile of an agent.
func (c *Client) Profile(ctx context.Context, agentID string) (Profile, error) {
	var registration struct {
		Card struct {
			Culture string `json:"user_culture"`
		} `json:"agent_card"`
	}
	var a answer
	err := c.try(ctx, func() (err error) {
		a, err = c.exchange(ctx, http.MethodGet, "/agents/"+url.PathEscape(agentID), nil, nil, &registration)
		return err
	})
	return Profile{agentID, registration.Card.Culture, a.Metadata.Timestamp}, err
}

// Address returns the full address of an agent. A name without @ means an agent with the hub's own host.
func (c *Client) Address(ctx context.Context, name string) (string, error) {
	address := name
	if !strings.Contains(name, "@") {
		var document struct {
			Host string `json:"server_name"`
		}
		err := c.try(ctx, func() error {
			a, err := c.exchange(ctx, http.MethodGet, "/.well-known/chorus.json", nil, nil, nil)
			if err == nil && (json.Unmarshal(a.body, &document) != nil || document.Host == "") {
				err = &exchange.Lost{Text: "the hub does not say its own host; give the full address, NAME@HOST"}
			}
			return err
		})
		if err != nil {
			return "", err
		}
		address = name + "@" + document.Host
	}
	if !isAddress(address) {
		return "", fmt.Errorf("an address has 1 to %d characters, such as bob@relay.example", maxAddress)
	}
	return address, nil
}

// InviteLink returns the link that an agent gives to others.
func (c Credentials) InviteLink() string { return c.HubURL + "/invite/" + url.PathEscape(c.AgentID) }
