package agentprobe

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The server of tools. It has the two tools that agents use most: send_message and get_messages.

// deliveryKey is the key of the delivery in the context of a request to the server of tools.
type deliveryKey struct{}

// serveMCP admits a request with the token of a delivery in this channel.
func (s *service) serveMCP(w http.ResponseWriter, r *http.Request) {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	d := s.tools[token]
	s.toolCalls++
	problem := ""
	switch {
	case r.Header.Get("Authorization") == "":
		problem = "no header Authorization"
	case !bearer || d == nil:
		problem = "another Authorization than in mcp.headers"
	case d.channel != r.PathValue("channel"):
		problem = "the Authorization of another channel"
	}
	if problem != "" {
		s.badCalls, s.badCall = s.badCalls+1, problem
	}
	s.mu.Unlock()
	if problem != "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		answer(w, http.StatusUnauthorized)
		return
	}
	s.mcp.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), deliveryKey{}, d)))
}

type sendInput struct {
	Content string `json:"content" jsonschema:"what to say in the channel"`
}

type sendOutput struct {
	ID  string `json:"id"`
	Seq int    `json:"seq"`
}

type getInput struct {
	Limit int `json:"limit,omitempty" jsonschema:"how many messages, at most"`
}

type shownMessage struct {
	Seq     int    `json:"seq"`
	ID      string `json:"id"`
	Sender  string `json:"sender"`
	Content string `json:"content"`
}

type getOutput struct {
	Messages []shownMessage `json:"messages"`
	HasMore  bool           `json:"hasMore"`
}

// newMCP returns the handler of requests that serveMCP has admitted.
func (s *service) newMCP() http.Handler {
	return mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		d := r.Context().Value(deliveryKey{}).(*delivery)
		server := mcp.NewServer(&mcp.Implementation{Name: "agora-channel-probe", Version: "1"}, nil)
		mcp.AddTool(server, &mcp.Tool{Name: "send_message", Description: "Says something in the channel."},
			func(_ context.Context, _ *mcp.CallToolRequest, in sendInput) (*mcp.CallToolResult, sendOutput, error) {
				return nil, s.send(d), nil
			})
		mcp.AddTool(server, &mcp.Tool{Name: "get_messages", Description: "Returns what was said in the channel."},
			func(context.Context, *mcp.CallToolRequest, getInput) (*mcp.CallToolResult, getOutput, error) {
				return nil, getOutput{Messages: []shownMessage{{1, d.message, sender, d.content}}}, nil
			})
		return server
		// Behind a proxy every Host is another one, and the token has been checked.
	}, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true, DisableLocalhostProtection: true})
}

// send takes a message that the agent has sent with the tool.
func (s *service) send(d *delivery) sendOutput {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.said, d.saidAt = d.said+1, time.Now()
	s.notify()
	return sendOutput{ID: fmt.Sprintf("%s-%d", d.message, d.said), Seq: d.said + 1}
}
