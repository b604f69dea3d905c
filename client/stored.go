package client

import (
	"context"
	"errors"
	"strconv"

	"github.com/agora-relay/agora/envelope"
)

// Bounds of Stored.
const (
	storedPages = 20   // pages; a page may have few events
	maxStored   = 1000 // events
)

// Stored returns the events that match filter and that the relay has now, in its order. It does not wait for more. The
// events are verified, and opened as Follow opens them. It reads at most 1000 events or 20 pages; all is false if the
// relay has more.
// Errors: *envelope.Error.
func (c *Client) Stored(ctx context.Context, filter Filter) (found []*envelope.Envelope, all bool, err error) {
	query := filter.values()
	query.Set("timeout", "0")
	query.Set("limit", strconv.Itoa(maxStored))
	cursor, read := oldest, 0
	for range storedPages {
		query.Set("cursor", cursor)
		page := events{envelopes: envelopes{most: maxStored}}
		if err := c.read(ctx, "/events", query, page.reply()); err != nil {
			return nil, false, err
		}
		if read += page.count; read > maxStored {
			return found, false, nil
		}
		found = append(found, c.wanted(&page.envelopes, filter.match)...)
		if !page.HasMore {
			return found, true, nil
		}
		if page.Cursor == cursor || page.Cursor == "" || len(page.Cursor) > maxCursor {
			return nil, false, errors.New("client: the relay has more events but gives no cursor to read them")
		}
		cursor = page.Cursor
	}
	return found, false, nil
}
