package client

import (
	"context"
	"errors"
	"strconv"

	"github.com/agora-relay/agora/envelope"
)

// Bounds of Stored.
const (
	storedPages = 20   // pages; a page may have few events, or none
	maxStored   = 1000 // events
)

// Stored returns the events that match filter and that the relay has now, in the relay's order. It does not wait for
// new events. The events are verified. Payloads that are sealed to the client's own key are decrypted if possible.
//
// Stored reads at most 1000 events and at most 20 pages. all is false if the relay has more. Errors: *envelope.Error.
func (c *Client) Stored(ctx context.Context, filter Filter) (found []*envelope.Envelope, all bool, err error) {
	query := filter.values()
	query.Set("timeout", "0")
	query.Set("limit", strconv.Itoa(maxStored))
	cursor, read := oldest, 0
	for range storedPages {
		query.Set("cursor", cursor)
		page := events{envelopes: envelopes{limit: maxStored}}
		if err := c.read(ctx, "/events", query, page.spec()); err != nil {
			return nil, false, err
		}
		if read += page.received; read > maxStored {
			return found, false, nil
		}
		found = append(found, c.filterEvents(&page.envelopes, filter.match)...)
		if !page.HasMore {
			return found, true, nil
		}
		if page.Cursor == cursor || page.Cursor == "" || len(page.Cursor) > maxCursor {
			return nil, false, errors.New("client: the relay has more events, but sends no usable cursor to read them")
		}
		cursor = page.Cursor
	}
	return found, false, nil
}
