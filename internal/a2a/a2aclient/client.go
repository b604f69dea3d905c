// Package a2aclient calls A2A servers of version 1.0, in both bindings, and of version 0.3 in JSON-RPC (A2A §8). A
// server is a stranger: its answers are bounded in bytes, no redirect is followed, and no request goes to another origin
// than the one that the caller named or allowed.
package a2aclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/exchange"
	"github.com/agora-relay/agora/internal/hostname"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Limits of what a server may send, and for how long.
const (
	maxAnswer = 8 << 20         // bytes of an answer, and of one event of a stream
	maxStream = 64 << 20        // bytes of a stream
	timeout   = 2 * time.Minute // of a request without a stream; a server waits about one minute at most
)

var service = exchange.Service{Name: "A2A server", Start: "agora a2a expose or an A2A SDK", MaxAnswer: maxAnswer}

// Options of a Client. The zero value works.
type Options struct {
	Bearer       string     // sent as Authorization: Bearer; empty: none
	DID          didkey.DID // the card must have a signature of this DID; empty: no signature is needed
	AllowOrigins []string   // other origins than the card's that may be called. They never get the bearer
	// Here sends all calls to the origin of the base URL, whatever the card says. The card gives only the path. Servers
	// often do not know the URL at which they are reached.
	Here bool
	HTTP *http.Client // nil: Go's default transport
}

// Client calls one A2A server. It is safe for concurrent use.
type Client struct {
	Upstream a2a.Upstream
	at       a2a.Interface
	bearer   string
	http     *http.Client
}

// CheckURL returns the base URL of a server. It must be https, or http on this machine. Errors: what is wrong with it.
func CheckURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("want the URL of an A2A server, such as https://agent.example/")
	}
	if u.Scheme == "http" && !loopback(u) {
		return nil, fmt.Errorf("%s is not on this machine, so its URL must begin with https://", hostname.Of(u))
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, a2a.CardPath), "/")
	u.RawPath = ""
	return u, nil
}

func loopback(u *url.URL) bool {
	host := hostname.Of(u)
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// Open reads the card of the server at base, which CheckURL has returned, and chooses the first address in it that the
// options allow.
func Open(ctx context.Context, base *url.URL, o Options) (*Client, error) {
	c := &Client{bearer: o.Bearer, http: plainHTTP(o.HTTP)}
	text, err := c.card(ctx, base)
	if err != nil {
		return nil, err
	}
	if o.DID != "" {
		if err := a2a.VerifyCard(text, o.DID); err != nil {
			return nil, fmt.Errorf("%s: %w; do not call this server", o.DID, err)
		}
	}
	if c.Upstream, err = a2a.ReadCard(text); err != nil {
		return nil, err
	}
	return c, c.choose(base, o)
}

// Card returns the card of the server at base, as it was sent and as it was read. It verifies no signature.
func Card(ctx context.Context, base *url.URL) (text []byte, u a2a.Upstream, err error) {
	c := &Client{http: plainHTTP(nil)}
	defer c.Close()
	if text, err = c.card(ctx, base); err == nil {
		u, err = a2a.ReadCard(text)
	}
	return text, u, err
}

// plainHTTP returns a copy of a client that follows no redirect and asks for no compression, which has no bound.
func plainHTTP(given *http.Client) *http.Client {
	h := http.Client{}
	if given != nil {
		h = *given
	}
	if h.Transport == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.DisableCompression = true
		h.Transport = transport
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &h
}

// choose chooses the address to call.
func (c *Client) choose(base *url.URL, o Options) error {
	var others []string
	for _, at := range c.Upstream.Interfaces {
		u, err := base.Parse(at.URL)
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
			continue
		}
		if o.Here {
			u.Scheme, u.Host = base.Scheme, base.Host
		}
		at.URL = strings.TrimSuffix(u.String(), "/")
		if at.ProtocolBinding == a2a.BindingRPC {
			at.URL = u.String()
		}
		switch origin := hostname.Origin(u); {
		case origin == hostname.Origin(base):
		case slices.Contains(o.AllowOrigins, origin) && (u.Scheme == "https" || loopback(u)):
			c.bearer = ""
		default:
			others = append(others, origin)
			continue
		}
		c.at = at
		return nil
	}
	if len(others) > 0 {
		return fmt.Errorf("the card names only addresses at other origins: %s; allow one that you trust with --allow-origin",
			exchange.Shorten(strings.Join(others, ", ")))
	}
	return errors.New("the card names no address that this program can call: it needs JSONRPC or HTTP+JSON of version 1.0, " +
		"or JSONRPC of version 0.3")
}

// URL returns the address that is called.
func (c *Client) URL() string { return c.at.URL }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// legacy reports whether the server speaks 0.3.
func (c *Client) legacy() bool { return strings.HasPrefix(c.at.ProtocolVersion, a2a.LegacyVersion) }

// card reads the card. It sends no bearer: a card is public.
func (c *Client) card(ctx context.Context, base *url.URL) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, http.MethodGet, base.String()+a2a.CardPath, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", a2a.JSONType)
	response, text, err := service.Do(ctx, c.http, r, timeout)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers with status %d; is this the URL of an A2A server?", r.URL, response.StatusCode)
	}
	return text, nil
}

// legacyNames are the methods of 0.3.
var legacyNames = map[string]string{"SendMessage": "message/send", "SendStreamingMessage": "message/stream",
	"GetTask": "tasks/get", "CancelTask": "tasks/cancel", "SubscribeToTask": "tasks/resubscribe"}

// request makes the request of an operation. task is the id for the path of HTTP+JSON; empty: the operation has none.
func (c *Client) request(ctx context.Context, name, task string, params json.RawMessage) (*http.Request, error) {
	m, _ := a2a.FindMethod(name)
	method, target, body := http.MethodPost, c.at.URL, params
	if c.at.ProtocolBinding == a2a.BindingRPC {
		if c.legacy() {
			name = legacyNames[name]
		}
		body = jsontext.Compact(map[string]any{"jsonrpc": "2.0", "id": 1, "method": name, "params": params})
	} else {
		method, target = m.Verbs[0], target+strings.Replace(m.Path, "{id}", url.PathEscape(task), 1)
		if method == http.MethodGet {
			body = nil
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", a2a.JSONType)
	}
	r.Header.Set("Accept", a2a.JSONType)
	if m.Stream {
		r.Header.Set("Accept", a2a.StreamType)
	}
	if !c.legacy() {
		r.Header.Set(a2a.VersionName, a2a.Version)
	}
	r.Header.Set("User-Agent", "agora-a2aclient")
	if c.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	return r, nil
}

// call sends a request and returns the result.
func (c *Client) call(ctx context.Context, name, task string, params json.RawMessage) (json.RawMessage, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := c.request(limited, name, task, params)
	if err != nil {
		return nil, err
	}
	response, text, err := service.Do(ctx, c.http, r, timeout)
	if err != nil {
		return nil, err
	}
	return c.result(response, text)
}

// result returns the result in an answer. Errors: *a2a.Error, if the server refuses the call.
func (c *Client) result(response *http.Response, text []byte) (json.RawMessage, error) {
	body, err := a2a.Body(text, maxAnswer)
	if err != nil {
		if response.StatusCode != http.StatusOK {
			return nil, a2a.Front(response.StatusCode, "the server answers with status "+response.Status)
		}
		return nil, fmt.Errorf("the answer of the A2A server is malformed: %w", err)
	}
	var read struct{ Error, Result json.RawMessage }
	if err := json.Unmarshal(body, &read); err != nil {
		return nil, err
	}
	ok := response.StatusCode >= 200 && response.StatusCode < 300
	switch {
	case len(read.Error) > 0 && (!ok || c.at.ProtocolBinding == a2a.BindingRPC):
		return nil, a2a.ReadError(read.Error, errorStatus(response.StatusCode))
	case !ok:
		return nil, a2a.Front(response.StatusCode, "the server answers with status "+response.Status)
	case c.at.ProtocolBinding == a2a.BindingHTTP:
		return body, nil
	case len(read.Result) == 0:
		return nil, errors.New("the answer of the A2A server has neither result nor error")
	}
	return read.Result, nil
}

// errorStatus returns the status of an error; 0: it says nothing, because errors of JSON-RPC have 200.
func errorStatus(status int) int {
	if status == http.StatusOK {
		return 0
	}
	return status
}

// Send sends a message. The answer has a task or a message.
func (c *Client) Send(ctx context.Context, s a2a.Send) (a2a.Stream, error) {
	params, err := c.sendParams(s)
	if err != nil {
		return a2a.Stream{}, err
	}
	result, err := c.call(ctx, "SendMessage", "", params)
	if err != nil {
		return a2a.Stream{}, err
	}
	return c.event(result)
}

func (c *Client) sendParams(s a2a.Send) (json.RawMessage, error) {
	if c.legacy() {
		return a2a.ToLegacy(s)
	}
	return jsontext.Compact(s), nil
}

// event reads an event, or an answer of the same form.
func (c *Client) event(result json.RawMessage) (event a2a.Stream, err error) {
	if c.legacy() {
		if result, err = a2a.FromLegacy(result); err != nil {
			return event, err
		}
	}
	if event, err = a2a.ParseStream("", result); err != nil {
		err = fmt.Errorf("the answer of the A2A server is malformed: %w", err)
	}
	return event, err
}

// task sends a call about a task, whose answer is the task.
func (c *Client) task(ctx context.Context, name, id string) (a2a.Task, error) {
	result, err := c.call(ctx, name, id, jsontext.Compact(map[string]string{"id": id}))
	if err != nil {
		return a2a.Task{}, err
	}
	if c.legacy() {
		event, err := c.event(result)
		if err == nil && event.Task == nil {
			err = errors.New("the answer of the A2A server is not a task")
		}
		if err != nil {
			return a2a.Task{}, err
		}
		return *event.Task, nil
	}
	t, err := a2a.ParseTask("task", result)
	if err != nil {
		err = fmt.Errorf("the answer of the A2A server is malformed: %w", err)
	}
	return t, err
}

// Get reads a task.
func (c *Client) Get(ctx context.Context, id string) (a2a.Task, error) {
	return c.task(ctx, "GetTask", id)
}

// Cancel cancels a task, and returns it.
func (c *Client) Cancel(ctx context.Context, id string) (a2a.Task, error) {
	return c.task(ctx, "CancelTask", id)
}

// Unanswered reports whether err says only that the server gave no complete answer, so that the call may have had its
// effect.
func Unanswered(err error) bool {
	_, lost := errors.AsType[*exchange.Lost](err)
	_, network := errors.AsType[net.Error](err)
	return lost || network || errors.Is(err, errCut)
}

var errCut = errors.New("the A2A server has ended the stream before the task had a result")

// host is for errors.
func (c *Client) host() string {
	u, err := url.Parse(c.at.URL)
	return cmp.Or(hostOf(u, err), "the server")
}

func hostOf(u *url.URL, err error) string {
	if err != nil {
		return ""
	}
	return u.Host
}
