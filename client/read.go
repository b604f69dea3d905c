package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/agora-relay/agora/client/internal/chain"
	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/follow"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Thread is a relay's record of a thread, and the thread's envelopes. The record is a claim of the relay and is not
// signed. The envelopes are verified.
type Thread struct {
	thread.Thread
	Deadline time.Time // when the relay will end the thread, by its clock; zero if the thread has ended
	// Events are the thread's envelopes in the relay's order. Envelopes that do not verify are skipped. Payloads that
	// are sealed to the client's own key are decrypted if possible.
	Events  []*envelope.Envelope
	Expired int // the number of further envelopes that have expired, as the relay claims
	Removed []Removed
}

// Removed is an envelope of a thread that the operator of the relay has removed (PROTOCOL §4), as the relay claims.
type Removed struct {
	ID string    `json:"id"`
	At time.Time `json:"at"` // by the relay's clock
}

// Thread reads the thread that client has opened with this id. If client is empty, it reads the oldest thread with this
// id. Errors: *envelope.Error, most often CodeThreadNotFound.
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
		Expired int       `json:"expired"`
		Removed []Removed `json:"removed"`
	}
	events := &wire.Events{Limit: wire.MaxThread}
	spec := wire.Spec{Out: &answer, Limit: wire.MaxPage, ListName: "events", OnElement: events.Add}
	if err := c.conn.Read(ctx, "/threads/"+url.PathEscape(id), query, spec); err != nil {
		return nil, err
	}
	record := answer.Thread.Thread
	if record.ID != id || client != "" && record.Client != client {
		return nil, fmt.Errorf("client: the relay's response is not about the thread %s, but about another one", id)
	}
	t := &Thread{Thread: record, Deadline: answer.Thread.Deadline, Expired: answer.Expired, Removed: answer.Removed}
	t.Events = c.conn.Wanted(events, func(e *envelope.Envelope) bool { return e.Thread == id })
	return t, nil
}

// Info is the relay's document /.well-known/agora.json. DID is the relay's identity. JSON is the whole document, with
// the relay's limits, timeouts and features.
type Info struct {
	DID  didkey.DID
	JSON json.RawMessage
}

// Info reads the relay's document /.well-known/agora.json.
func (c *Client) Info(ctx context.Context) (Info, error) {
	info, err := c.conn.Info(ctx)
	return Info(info), err
}

// Private reports whether the relay's document says that it shows a directed message only to its sender and its
// recipient (PROTOCOL §8).
func (i Info) Private() bool {
	var doc struct {
		Reads string `json:"reads"`
	}
	return json.Unmarshal(i.JSON, &doc) == nil && doc.Reads == "parties"
}

// Health returns the version of the protocol that the relay uses. err is nil if the relay answers and reports no
// problem.
func (c *Client) Health(ctx context.Context) (version string, err error) {
	var answer struct {
		Version string `json:"version"`
	}
	err = c.conn.Read(ctx, conn.Health, nil, wire.Spec{Out: &answer, Limit: wire.MaxShort})
	return wire.Shorten(answer.Version), err
}

// Join makes a draft a message of the thread: it names the thread's home, if it has one, and the message that it
// answers (RELAYS ), as far as the relay shows them.
func (t *Thread) Join(d envelope.Draft) envelope.Draft {
	l := chain.Links{Request: t.Request()}
	for _, e := range t.Events {
		if e.Type == envelope.TypeAccept && e.Sender.ID == t.Client && e.RequestID == t.RequestID {
			l.Accept = e
		}
	}
	return l.Join(d)
}

// storedPages is how many pages Stored reads at most; a page may have few events, or none.
const storedPages = 20

// EventPage is one page of the events that a relay has. Cursor is the position after it.
type EventPage struct {
	Events   []*envelope.Envelope
	Received int // the number of events that the relay sent, including those that are not valid
	Cursor   string
	HasMore  bool
}

// Events returns the events after cursor that match filter and that the relay has now, in the relay's order, at most
// limit of them (1 to 1000). It does not wait for new events. An empty cursor stands for the oldest event. The events are
// verified. Payloads that are sealed to the client's own key are decrypted if possible.
//
// Errors: *envelope.Error; its Reason is envelope.ReasonUnknownCursor if the relay does not know the cursor.
func (c *Client) Events(ctx context.Context, filter Filter, cursor string, limit int) (EventPage, error) {
	page, err := follow.Read(ctx, c.conn, follow.Filter(filter), "cursor", cmp.Or(cursor, follow.Oldest), limit)
	return EventPage(page), err
}

// EventsBefore returns the events before the position before that match filter, the newest first, at most limit of them
// (1 to 1000). An empty before stands for the end, so the page begins with the newest event. EventPage.Cursor is the
// before of the next page, which has older events. The rest is as in Events.
func (c *Client) EventsBefore(ctx context.Context, filter Filter, before string, limit int) (EventPage, error) {
	page, err := follow.Read(ctx, c.conn, follow.Filter(filter), "before", cmp.Or(before, theEnd), limit)
	return EventPage(page), err
}

// theEnd is the value of the parameter before for the position after the newest event.
const theEnd = "end"

// Stored returns the events that match filter and that the relay has now, in the relay's order. It reads at most 1000
// events and at most 20 pages. all is false if the relay has more. Errors: those of Events.
func (c *Client) Stored(ctx context.Context, filter Filter) (found []*envelope.Envelope, all bool, err error) {
	cursor, read := "", 0
	for range storedPages {
		page, err := c.Events(ctx, filter, cursor, follow.MaxRead)
		if err != nil {
			return nil, false, err
		}
		if read += page.Received; read > follow.MaxRead {
			return found, false, nil
		}
		found = append(found, page.Events...)
		if !page.HasMore {
			return found, true, nil
		}
		cursor = page.Cursor
	}
	return found, false, nil
}
