package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Thread is what a relay has of a conversation. The record is the relay's unsigned claim; the envelopes are verified.
type Thread struct {
	thread.Thread
	Deadline time.Time // when the relay will end the thread, by its clock; zero if the thread has ended
	// Events are the thread's envelopes in the relay's order, opened as Follow does. Those that do not verify are left
	// out.
	Events  []*envelope.Envelope
	Expired int // how many more envelopes there were
}

// Thread asks for the thread with this id that client opened; for the oldest with this id if client is empty.
// Errors: *envelope.Error, most often CodeThreadNotFound.
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
		Expired int `json:"expired"`
	}
	events := &envelopes{most: maxThread}
	good := reply{out: &answer, limit: maxPage, list: "events", take: events.take}
	if err := c.read(ctx, "/threads/"+url.PathEscape(id), query, good); err != nil {
		return nil, err
	}
	record := answer.Thread.Thread
	if record.ID != id || client != "" && record.Client != client {
		return nil, fmt.Errorf("client: the relay answered with another thread than %s", id)
	}
	t := &Thread{Thread: record, Deadline: answer.Thread.Deadline, Expired: answer.Expired}
	t.Events = c.wanted(events, func(e *envelope.Envelope) bool { return e.Thread == id })
	return t, nil
}

// read makes a GET. It retries only if the relay refuses the read because of a rate, and only if the relay's
// Retry-After ends before exchangeTimeout and ctx do. Other failures are for the caller to retry.
func (c *Client) read(ctx context.Context, path string, query url.Values, good reply) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var pause backoff
	for {
		err := c.get(ctx, path, query, good)
		failed, ok := errors.AsType[*failure](err)
		if !ok || failed.status != http.StatusTooManyRequests || failed.retryAfter == 0 ||
			failed.retryAfter > time.Until(deadline) {
			return err
		}
		if waiting := pause.wait(ctx, failed.retryAfter, maxPause); waiting != nil {
			return fmt.Errorf("%w; given up: %w", err, waiting)
		}
	}
}

// wanted returns the wanted events, opened where that is possible, and logs those that it leaves out.
func (c *Client) wanted(events *envelopes, wanted func(*envelope.Envelope) bool) []*envelope.Envelope {
	events.log(c)
	var all []*envelope.Envelope
	for _, e := range events.good {
		if !wanted(e) {
			c.log.Warn("an event was left out: it does not belong to the answer", "id", e.ID, "sender", e.Sender.ID)
			continue
		}
		all = append(all, c.open(e))
	}
	return all
}

// Info is what a relay says about itself under /.well-known/agora.json: its identity, and the whole answer with its
// limits, timeouts and features.
type Info struct {
	DID  didkey.DID
	JSON json.RawMessage
}

// Info asks the relay who it is.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var info Info
	if err := c.read(ctx, wellKnown, nil, reply{out: &info.JSON, limit: maxDocument}); err != nil {
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

// Health returns nil if the relay answers and reports no problem, and the version of the protocol it speaks.
func (c *Client) Health(ctx context.Context) (version string, err error) {
	var answer struct {
		Version string `json:"version"`
	}
	err = c.read(ctx, health, nil, reply{out: &answer, limit: maxShort})
	return shorten(answer.Version), err
}
