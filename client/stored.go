package client

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
)

// Bounds of Stored.
const (
	storedPages = 20   // pages; a page may have few events, or none
	maxStored   = 1000 // events
)

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
	return c.eventPage(ctx, filter, "cursor", cmp.Or(cursor, oldest), limit)
}

// EventsBefore returns the events before the position before that match filter, the newest first, at most limit of them
// (1 to 1000). An empty before stands for the end, so the page begins with the newest event. EventPage.Cursor is the
// before of the next page, which has older events. The rest is as in Events.
func (c *Client) EventsBefore(ctx context.Context, filter Filter, before string, limit int) (EventPage, error) {
	return c.eventPage(ctx, filter, "before", cmp.Or(before, theEnd), limit)
}

// theEnd is the value of the parameter before for the position after the newest event.
const theEnd = "end"

// eventPage reads a page of GET /events. position is the value of the parameter start, cursor or before.
func (c *Client) eventPage(
	ctx context.Context, filter Filter, start, position string, limit int,
) (EventPage, error) {
	query := filter.values()
	query.Set(start, position)
	query.Set("limit", strconv.Itoa(limit))
	if start == "cursor" {
		query.Set("timeout", "0")
	}
	page := events{Events: wire.Events{Limit: maxStored}}
	if err := c.read(ctx, "/events", query, page.spec()); err != nil {
		return EventPage{}, err
	}
	if page.Cursor == "" || len(page.Cursor) > maxCursor || page.HasMore && page.Cursor == position {
		return EventPage{}, errors.New("client: the relay sends no usable cursor to read further events")
	}
	return EventPage{Events: c.filterEvents(&page.Events, filter.match), Received: page.Received,
		Cursor: page.Cursor, HasMore: page.HasMore}, nil
}

// Stored returns the events that match filter and that the relay has now, in the relay's order. It reads at most 1000
// events and at most 20 pages. all is false if the relay has more. Errors: those of Events.
func (c *Client) Stored(ctx context.Context, filter Filter) (found []*envelope.Envelope, all bool, err error) {
	cursor, read := "", 0
	for range storedPages {
		page, err := c.Events(ctx, filter, cursor, maxStored)
		if err != nil {
			return nil, false, err
		}
		if read += page.Received; read > maxStored {
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
