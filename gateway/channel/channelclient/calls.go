package channelclient

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// Channel is a channel.
type Channel struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Context string `json:"context"`
}

// Create creates a channel and returns it with its ck_ key. c is a client of the gateway with the operator's key.
func (c *Client) Create(ctx context.Context, name, about string) (channel Channel, key string, err error) {
	var answer struct {
		Channel Channel `json:"channel"`
		Key     string  `json:"key"`
	}
	body := map[string]string{"name": name}
	if about != "" {
		body["context"] = about
	}
	err = c.do(ctx, call{method: http.MethodPost, path: "/channels", body: body, out: &answer})
	if err == nil && (answer.Channel.ID == "" || answer.Key == "") {
		err = errors.New("the answer has no channel or no key; is this the URL of a channel gateway?")
	}
	return answer.Channel, answer.Key, err
}

// ChannelURL returns the URL of a channel of the gateway that c is a client of.
func (c *Client) ChannelURL(channel Channel) string {
	return c.URL + "/channels/" + url.PathEscape(channel.ID)
}

// Read reads the channel. It needs the channel's key or the operator's.
func (c *Client) Read(ctx context.Context) (Channel, error) {
	var answer struct {
		Channel Channel `json:"channel"`
	}
	err := c.do(ctx, call{method: http.MethodGet, safe: true, out: &answer})
	return answer.Channel, err
}

// AddMember adds a member and returns its cm_ key. It needs the channel's key.
func (c *Client) AddMember(ctx context.Context, name string) (key string, err error) {
	var answer struct {
		Key string `json:"key"`
	}
	body := map[string]string{"name": name}
	err = c.do(ctx, call{method: http.MethodPost, path: "/members", body: body, out: &answer})
	if err == nil && answer.Key == "" {
		err = errors.New("the answer has no key")
	}
	return answer.Key, err
}

// Member is a member of a channel.
type Member struct {
	Name string `json:"name"`
}

// Connection is an agent in a channel. Its URL is not shown.
type Connection struct {
	Name   string `json:"name"`
	Host   string `json:"host"`
	Status string `json:"status"` // active or revoked
	Queued int    `json:"queued"`
	Dead   int    `json:"dead"`
	MCP    string `json:"mcp"` // object, array or none
}

// Members returns the members of the channel. It needs the channel's key.
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	var answer struct {
		Members []Member `json:"members"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/members", safe: true, out: &answer})
	return answer.Members, err
}

// Connections returns the agents of the channel. It needs the channel's key.
func (c *Client) Connections(ctx context.Context) ([]Connection, error) {
	var answer struct {
		Connections []Connection `json:"connections"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/connections", safe: true, out: &answer})
	return answer.Connections, err
}

// Connect connects an agent to the channel by its connection string, which is a secret URL. mcp is object, array or
// none; empty: the gateway's default. With replace, an agent with this name gets the new URL. It needs the channel's
// key.
func (c *Client) Connect(ctx context.Context, name, secretURL, mcp string, replace bool) (Connection, error) {
	var answer struct {
		Connection Connection `json:"connection"`
	}
	body := map[string]string{"url": secretURL}
	if mcp != "" {
		body["mcp"] = mcp
	}
	if replace {
		q := call{method: http.MethodPut, path: "/connections/" + url.PathEscape(name), body: body, safe: true, out: &answer}
		err := c.do(ctx, q)
		if refused, ok := errors.AsType[*Error](err); !ok || refused.Status != http.StatusNotFound {
			return answer.Connection, err
		}
	}
	body["name"] = name
	err := c.do(ctx, call{method: http.MethodPost, path: "/connections", body: body, out: &answer})
	return answer.Connection, err
}

// ErrNoSuchName is in the error of Remove if the channel has nobody with the name.
var ErrNoSuchName = errors.New("the channel has no member and no agent with this name")

// Remove removes a member or an agent from the channel. Both share one set of names. It needs the channel's key. kind
// is what was removed: member or agent.
func (c *Client) Remove(ctx context.Context, name string) (kind string, err error) {
	connections, err := c.Connections(ctx)
	if err != nil {
		return "", err
	}
	path := ""
	for _, known := range connections {
		if known.Name == name {
			kind, path = "agent", "/connections/"
		}
	}
	if path == "" {
		members, err := c.Members(ctx)
		if err != nil {
			return "", err
		}
		for _, known := range members {
			if known.Name == name {
				kind, path = "member", "/members/"
			}
		}
	}
	if path == "" {
		return "", ErrNoSuchName
	}
	return kind, c.do(ctx, call{method: http.MethodDelete, path: path + url.PathEscape(name)})
}

// Event is something that was said or reported in a channel. JSON is the whole event as the gateway sent it. The other
// fields are members of the event. Those that its type does not have are empty.
type Event struct {
	Seq     int64     `json:"seq"`
	ID      string    `json:"id"`
	TS      time.Time `json:"ts"`
	Sender  string    `json:"sender"`
	Kind    string    `json:"kind"` // member or agent
	Type    string    `json:"type"`
	Content string    `json:"content"`
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Message string    `json:"message"`
	Code    string    `json:"code"`

	JSON json.RawMessage `json:"-"`
}

// UnmarshalJSON reads an event.
func (e *Event) UnmarshalJSON(text []byte) error {
	type plain Event
	if err := json.Unmarshal(text, (*plain)(e)); err != nil {
		// A member of another type than usual, such as a content that is an object, does not hide the event.
		var head struct {
			Seq int64 `json:"seq"`
		}
		if json.Unmarshal(text, &head) != nil {
			return err
		}
		e.Seq = head.Seq
	}
	e.JSON = append(json.RawMessage(nil), text...)
	return nil
}

// Say says something in the channel. It needs a member's key. A repeat of the request says it only once. deliveries is
// to how many agents the message goes.
func (c *Client) Say(ctx context.Context, content string) (event Event, deliveries int, err error) {
	var answer struct {
		Event      Event `json:"event"`
		Deliveries int   `json:"deliveries"`
	}
	body := map[string]string{"content": content}
	q := call{method: http.MethodPost, path: "/messages", body: body, key: rand.Text(), safe: true, out: &answer}
	err = c.do(ctx, q)
	return answer.Event, answer.Deliveries, err
}

// MaxEvents is the largest number of events in one answer.
const MaxEvents = 200

// longPoll is how long Follow lets the gateway wait for new events.
const longPoll = 50 * time.Second

// events reads the events after a seq, at most limit. If there are none, the gateway waits for them.
func (c *Client) events(ctx context.Context, after int64, limit int, wait time.Duration) ([]Event, int64, error) {
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(limit)}}
	if wait > 0 {
		query.Set("wait", strconv.Itoa(int(wait/time.Second)))
	}
	var answer struct {
		Events []Event `json:"events"`
		Cursor int64   `json:"cursor"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/events?" + query.Encode(), safe: true, wait: wait, out: &answer})
	if err != nil {
		return nil, after, err
	}
	cursor := max(answer.Cursor, after)
	var later []Event
	for _, e := range answer.Events {
		if e.Seq > after {
			later = append(later, e)
			cursor = max(cursor, e.Seq)
		}
	}
	return later, cursor, nil
}

// ErrEnough is returned by the function show of Follow to end it.
var ErrEnough = errors.New("enough events")

// FollowOptions say which events Follow passes on.
type FollowOptions struct {
	After int64 // only events with a larger seq
	Limit int   // end after this many events; 0: no limit
	// Wait makes Follow wait for later events until ctx ends, and keep trying while the gateway does not answer.
	Wait bool
}

// Follow passes the events of a channel to show, in the order of their seq. It needs a member's key or the channel's.
// Errors: show's error, except ErrEnough; ctx's error; *Error if the gateway refuses the request.
func (c *Client) Follow(ctx context.Context, o FollowOptions, show func(Event) error) error {
	shown := 0
	var pause exchange.Backoff
	for wait := time.Duration(0); ; {
		limit := MaxEvents
		if o.Limit > 0 {
			limit = min(limit, o.Limit-shown)
		}
		began := time.Now()
		events, cursor, err := c.events(ctx, o.After, limit, wait)
		if err != nil {
			if _, again := exchange.Repeatable(err, true); !again || !o.Wait {
				return err
			}
			c.Log.Warn("reading the channel failed, will be retried", "err", err)
			if err := pause.Wait(ctx, 0); err != nil {
				return err
			}
			continue
		}
		for _, e := range events {
			if err := show(e); errors.Is(err, ErrEnough) {
				return nil
			} else if err != nil {
				return err
			}
			if shown++; shown == o.Limit {
				return nil
			}
		}
		o.After = cursor
		switch {
		case len(events) > 0:
			pause = exchange.Backoff{}
		case !o.Wait:
			return nil
		case wait > 0 && time.Since(began) < wait/2: // the gateway does not wait: do not ask it in a hot loop
			if err := pause.Wait(ctx, 0); err != nil {
				return err
			}
		}
		if o.Wait && len(events) == 0 {
			wait = longPoll
		}
	}
}

// Key says whose key a text is, by its first characters.
type Key string

// The kinds of keys.
const (
	ChannelKey  Key = "ck_"
	MemberKey   Key = "cm_"
	OperatorKey Key = "op_"
)

// keyLength is the number of characters of a key after its kind.
const keyLength = 43

// ParseKey returns the kind of a key.
func ParseKey(text string) (Key, error) {
	for _, kind := range []Key{ChannelKey, MemberKey, OperatorKey} {
		if len(text) == len(kind)+keyLength && text[:len(kind)] == string(kind) {
			return kind, nil
		}
	}
	return "", fmt.Errorf("want ck_, cm_ or op_ and %d characters", keyLength)
}
