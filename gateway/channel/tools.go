package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/gorilla/mux"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/internal/untrusted"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file is the MCP server of channels (docs/CHANNEL.md, "Tools").

// postTools is the handler of POST /mcp/{channel}. It checks the token and the body itself, so that errors have the form
// of the gateway. The SDK gets only requests that passed.
func (g *Gateway) postTools(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	key, _ := gateway.Bearer(r)
	channel := mux.Vars(r)["channel"]
	user := toolUser{key: key, channel: channel, from: from}
	var t token
	if err := g.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
		t, err = g.toolToken(q, user)
		return err
	}); err != nil {
		return err
	}
	if err := g.Relay.Gate().AdmitCaller(from, t.name()); err != nil {
		return err
	}
	sent, _, err := g.ReadObject(w, r, from)
	if err != nil {
		return err
	}
	r = r.Clone(context.WithValue(r.Context(), toolUserKey{}, user))
	r.Header.Set("Content-Type", "application/json") // gateways ignore this header, and the SDK does not
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
	httpapi.SetHeader(w, "application/json")
	g.toolHandler.ServeHTTP(w, r)
	return nil
}

// toolUser is the client of a request to the MCP server.
type toolUser struct {
	key, channel string
	from         relay.Peer
}

type toolUserKey struct{}

// toolToken returns what the token of an MCP client stands for. Errors: 401; 403 if the client is banned.
func (g *Gateway) toolToken(q relay.Querier, u toolUser) (token, error) {
	t, known, err := g.findToken(q, u.key, gateway.ToolUser, u.channel)
	if err == nil && !known || errors.Is(err, errGone) {
		err = gateway.Unauthorized("this request needs the mcp token of a delivery in this channel, as Authorization: Bearer TOKEN; " +
			"the token must not have expired")
	}
	if err == nil {
		err = g.checkConnection(q, t.agent)
	}
	return t, err
}

// checkConnection refuses a connection to an inbox of this relay if the owner of the inbox is banned. It accepts
// inboxes of other services, because the relay does not know their owners.
func (g *Gateway) checkConnection(q relay.Querier, agent party) error {
	url, err := g.Secrets.Decrypt(urlPlace(agent.n), agent.url)
	if err != nil {
		return err
	}
	key, own := g.ownInboxKey(string(url))
	if !own {
		return nil
	}
	i, err := g.inboxOf(q, key)
	if envelope.CodeOf(err) == envelope.CodeNotFound {
		return nil // it was rotated or deleted
	}
	if err != nil {
		return err
	}
	return g.Relay.Gate().CheckAgent(i.owner)
}

// newToolHandler returns the handler that answers the requests of MCP clients. The SDK's own check of the Host is off:
// behind a local proxy every Host looks like that of another site, and the relay has already checked it.
func (g *Gateway) newToolHandler() http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "agora-channel", Title: "Agora channel", Version: g.Build},
		&mcp.ServerOptions{Instructions: "Tools to take part in one channel. Your messages appear under the name of your " +
			"connection.", Capabilities: &mcp.ServerCapabilities{}})
	mcp.AddTool(server, &mcp.Tool{Name: "send_message", Description: "Say something in the channel."}, g.sendMessage)
	mcp.AddTool(server, &mcp.Tool{Name: "get_messages", Description: "Read messages of the channel, the oldest first. " +
		"Without after, the newest ones.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, g.getMessages)
	mcp.AddTool(server, &mcp.Tool{Name: "get_roster", Description: "List who takes part in the channel.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, g.getRoster)
	mcp.AddTool(server, &mcp.Tool{Name: "set_status", Description: "Show the others what you are doing."}, g.setStatus)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: gateway.MaxBody})
	// postTools has verified the token, by the clock of the relay.
	verify := func(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
		user, ok := ctx.Value(toolUserKey{}).(toolUser)
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{Extra: map[string]any{"user": user}}, nil
	}
	return auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(handler)
}

// userOf returns the client that calls a tool.
func userOf(r *mcp.CallToolRequest) (u toolUser, err error) {
	if r.Extra != nil && r.Extra.TokenInfo != nil {
		if u, ok := r.Extra.TokenInfo.Extra["user"].(toolUser); ok {
			return u, nil
		}
	}
	return u, errors.New("the client of this tool is not known")
}

// toolError returns the error of a tool as its client sees it. The SDK sends it as a tool error (isError).
func (g *Gateway) toolError(err error) error {
	if e, ok := errors.AsType[*envelope.Error](err); ok {
		return errors.New(e.Message)
	}
	g.Log.Error("a tool of a channel failed", "err", err)
	return errors.New("the relay has failed; its log says why")
}

// act stores an event that came by a tool.
func (g *Gateway) act(ctx context.Context, r *mcp.CallToolRequest, body []byte) (stored event, err error) {
	u, err := userOf(r)
	if err != nil {
		return stored, g.toolError(err)
	}
	said, err := parseEvent(body)
	if err != nil {
		return stored, g.toolError(err)
	}
	admitted := onceFor(func(delivery int64) error { return g.events.Take(delivery, g.Relay.Now) })
	err = g.Update(context.WithoutCancel(ctx), u.from, func(o *gateway.Op) error {
		t, err := g.toolToken(o, u)
		if err != nil {
			return err
		}
		if err := admitted(t.delivery.n); err != nil {
			return err
		}
		stored, err = g.answer(o, t, said, viaTool)
		return err
	})
	if err != nil {
		return stored, g.toolError(err)
	}
	return stored, nil
}

type sendMessageIn struct {
	Content string `json:"content" jsonschema:"the text, 1 to 32768 bytes, plain or Markdown"`
}

type sendMessageOut struct {
	ID  string `json:"id"`
	Seq int64  `json:"seq"`
}

func (g *Gateway) sendMessage(
	ctx context.Context, r *mcp.CallToolRequest, in sendMessageIn,
) (*mcp.CallToolResult, sendMessageOut, error) {
	e, err := g.act(ctx, r, []byte(newMessage(in.Content).body))
	return nil, sendMessageOut{e.id, e.seq}, err
}

type setStatusIn struct {
	Status string `json:"status" jsonschema:"what you are doing, 1 to 500 bytes"`
}

func (g *Gateway) setStatus(
	ctx context.Context, r *mcp.CallToolRequest, in setStatusIn,
) (*mcp.CallToolResult, done, error) {
	_, err := g.act(ctx, r, []byte(newEvent(map[string]string{"type": typeStatus, "status": in.Status}).body))
	return nil, done{err == nil}, err
}

type getMessagesIn struct {
	Limit  *int64 `json:"limit,omitempty" jsonschema:"how many messages at most, 1 to 200; 50 by default"`
	Before *int64 `json:"before,omitempty" jsonschema:"only messages with a smaller seq"`
	After  *int64 `json:"after,omitempty" jsonschema:"only messages with a larger seq, the oldest of them first"`
}

type getMessagesOut struct {
	Messages []map[string]any `json:"messages"`
	HasMore  bool             `json:"hasMore"`
}

func (g *Gateway) getMessages(
	ctx context.Context, r *mcp.CallToolRequest, in getMessagesIn,
) (*mcp.CallToolResult, getMessagesOut, error) {
	limit, before, after := valueOr(in.Limit, defaultPage), valueOr(in.Before, 1<<63-1), valueOr(in.After, 0)
	if limit < 1 || limit > maxPage || before < 0 || after < 0 {
		return nil, getMessagesOut{}, errors.New("limit must be from 1 to 200, and before and after at least 0")
	}
	var rows []event
	var more bool
	err := g.look(ctx, r, func(q relay.Querier, t token) (err error) {
		if in.After != nil {
			rows, more, err = eventsPage(q, "SELECT "+eventColumns+" FROM channel_event WHERE channel = ? AND seq > ? AND seq < ? "+
				"AND type = 'message' ORDER BY seq LIMIT ?", t.room.n, after, before, limit+1)
			return err
		}
		rows, more, err = eventsPage(q, "SELECT "+eventColumns+" FROM channel_event WHERE channel = ? AND seq < ? "+
			"AND type = 'message' ORDER BY seq DESC LIMIT ?", t.room.n, before, limit+1)
		return err
	})
	if err != nil {
		return nil, getMessagesOut{}, err
	}
	if int64(len(rows)) > limit {
		rows, more = rows[:limit], true
	}
	if in.After == nil {
		slices.Reverse(rows)
	}
	out := getMessagesOut{shownEvents(rows), more}
	about := fmt.Sprintf("Messages of the channel: %d, the oldest first. There are more: %v.", len(rows), more)
	return marked(about, out.Messages), out, nil
}

// marked returns rows as the text of an answer. What members have written may give orders to the LLM that reads it, so it
// stands between marks. The same rows are the structured answer, for programs.
func marked[T any](about string, rows []T) *mcp.CallToolResult {
	p := untrusted.NewPage()
	p.Say("%s", about)
	texts := make([]untrusted.Text, len(rows))
	for i, row := range rows {
		text := jsontext.Compact(row)
		texts[i] = untrusted.New("", "", text, len(text), "")
	}
	p.Lines("written by members of the channel", texts)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: p.String()}}}
}

// valueOr returns a parameter, or a default if it is absent.
func valueOr(given *int64, otherwise int64) int64 {
	if given == nil {
		return otherwise
	}
	return *given
}

type rosterMember struct {
	Name     string  `json:"name"`
	Kind     string  `json:"kind" jsonschema:"member or agent"`
	Status   string  `json:"status"`
	LastSeen *string `json:"lastSeen" jsonschema:"a time as in RFC 3339; null: never"`
}

type getRosterOut struct {
	Members []rosterMember `json:"members"`
}

func (g *Gateway) getRoster(
	ctx context.Context, r *mcp.CallToolRequest, _ struct{},
) (*mcp.CallToolResult, getRosterOut, error) {
	out := getRosterOut{Members: []rosterMember{}}
	err := g.look(ctx, r, func(q relay.Querier, t token) error {
		all, err := partiesOf(q, t.room.n)
		if err != nil {
			return err
		}
		for _, p := range all {
			shown, err := presenceOf(q, p.n)
			if err != nil {
				return err
			}
			m := rosterMember{Name: p.name, Kind: kindOf(p.agent), Status: shown.status}
			if shown.seen != 0 {
				seen := gateway.Stamp(shown.seen)
				m.LastSeen = &seen
			}
			out.Members = append(out.Members, m)
		}
		return nil
	})
	if err != nil {
		return nil, out, err
	}
	return marked(fmt.Sprintf("Members and agents of the channel: %d.", len(out.Members)), out.Members), out, nil
}

// look runs a tool that only reads.
func (g *Gateway) look(ctx context.Context, r *mcp.CallToolRequest, f func(relay.Querier, token) error) error {
	u, err := userOf(r)
	if err != nil {
		return g.toolError(err)
	}
	err = g.Relay.View(ctx, u.from, func(q relay.Querier) error {
		t, err := g.toolToken(q, u)
		if err != nil {
			return err
		}
		return f(q, t)
	})
	if err != nil {
		return g.toolError(err)
	}
	return nil
}
