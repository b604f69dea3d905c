package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/didkey"
)

// Agent inboxes (CHANNEL §4). A service of the Chorus Channel Protocol delivers messages to an inbox by its URL. The
// relay passes each one to the owner of the inbox, as a sealed REQUEST from the DID of its gateways. So an agent needs
// no address that others can reach.

// Inbox is an agent inbox. It belongs to the DID that created it.
type Inbox struct {
	ID        string     `json:"id"` // "in_" and 26 characters
	Label     string     `json:"label"`
	Owner     didkey.DID `json:"owner"`
	CreatedAt time.Time  `json:"createdAt"`
}

// ChannelGateway returns the base URL of the relay's channel gateway, and the DID that signs its deliveries. It reads them
// from the relay's document, at most once in five minutes. Errors: ErrNoChannel; errors of reading the document;
// an *envelope.Error if the document names another relay than the one that this client talks to.
func (c *Client) ChannelGateway(ctx context.Context) (baseURL string, did didkey.DID, err error) {
	g, err := c.conn.Gateway(ctx, conn.Channel)
	return g.URLs[conn.Channel], g.DID, err
}

// NewInbox creates an inbox that belongs to this client's identity. label is a text for its owner, of at most 80
// characters; it may be empty. The url is a secret: anybody who has it can send messages to the agent. The relay shows it
// only in this answer.
//
// Errors: ErrNoChannel; *envelope.Error, such as CodeRateLimited for more than 20 inboxes. An error that says "unknown"
// means that the relay may have created the inbox.
func (c *Client) NewInbox(ctx context.Context, label string) (inbox Inbox, url string, err error) {
	body, err := json.Marshal(map[string]string{"label": label})
	if err != nil {
		return Inbox{}, "", err
	}
	var answer struct {
		Inbox Inbox  `json:"inbox"`
		URL   string `json:"url"`
	}
	call := conn.Call{Method: http.MethodPost, Path: "/inboxes", Body: body, Status: http.StatusCreated, Out: &answer}
	if err := c.conn.Call(ctx, conn.Channel, call); err != nil {
		return Inbox{}, "", err
	}
	if answer.Inbox.ID == "" || answer.Inbox.Owner != c.conn.Signer.DID() {
		return Inbox{}, "", errors.New("client: the relay's answer is about an inbox of another owner")
	}
	return answer.Inbox, answer.URL, c.checkInboxURL(ctx, answer.URL)
}

// checkInboxURL returns an error unless inboxURL is a URL of the gateway's inboxes.
func (c *Client) checkInboxURL(ctx context.Context, inboxURL string) error {
	gateway, _, err := c.ChannelGateway(ctx)
	if err == nil && !strings.HasPrefix(inboxURL, gateway+"/inbox/") {
		err = errors.New("client: the URL in the relay's answer is not that of an inbox of its gateway")
	}
	return err
}

// Inboxes returns the inboxes of this client's identity, without their URLs. Errors: ErrNoChannel; *envelope.Error.
func (c *Client) Inboxes(ctx context.Context) ([]Inbox, error) {
	var answer struct {
		Inboxes []Inbox `json:"inboxes"`
	}
	err := c.conn.Call(ctx, conn.Channel,
		conn.Call{Method: http.MethodGet, Path: "/inboxes", Repeatable: true, Out: &answer})
	return answer.Inboxes, err
}

// RotateInbox gives an inbox a new URL, and returns it. The old URL ends at once. Errors: ErrNoChannel;
// *envelope.Error, such as CodeForbidden if this identity has no such inbox.
func (c *Client) RotateInbox(ctx context.Context, id string) (url string, err error) {
	var answer struct {
		URL string `json:"url"`
	}
	// A repeat gives the inbox one more new URL, and returns it. So repeating the call does no harm.
	err = c.conn.Call(ctx, conn.Channel,
		conn.Call{Method: http.MethodPost, Path: conn.InboxPath(id) + "/rotate", Repeatable: true, Out: &answer})
	if err != nil {
		return "", err
	}
	return answer.URL, c.checkInboxURL(ctx, answer.URL)
}

// DeleteInbox deletes an inbox. Its URL and the callbacks of its deliveries end, and the relay cancels their open
// threads. Errors: those of RotateInbox.
func (c *Client) DeleteInbox(ctx context.Context, id string) error {
	return c.conn.Call(ctx, conn.Channel, conn.Call{Method: http.MethodDelete, Path: conn.InboxPath(id)})
}
