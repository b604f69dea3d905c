package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strconv"

	"github.com/agora-relay/agora/envelope"
)

// Bounds of Stored.
const (
	storedPages = 20   // answers; a relay may give few events in one
	maxStored   = 1000 // events
)

// Stored returns the events that match filter and that the relay has now, in its order, without waiting for more. They
// are verified, and opened as Follow opens them. It reads 1000 events or 20 answers at most; all is false if the relay
// has more.
// Errors: *envelope.Error.
func (c *Client) Stored(ctx context.Context, filter Filter) (found []*envelope.Envelope, all bool, err error) {
	query := filter.values()
	query.Set("timeout", "0")
	query.Set("limit", strconv.Itoa(maxStored))
	cursor, read := oldest, 0
	for range storedPages {
		answer, err := c.storedPage(ctx, query, cursor)
		if err != nil {
			return nil, false, err
		}
		if read += len(answer.Events); read > maxStored {
			return found, false, nil
		}
		found = append(found, c.verifiedAll(answer.Events, filter.match)...)
		if !answer.HasMore {
			return found, true, nil
		}
		if answer.Cursor == cursor || answer.Cursor == "" || len(answer.Cursor) > maxCursor {
			return nil, false, errors.New("client: the relay says that it has more, and not where")
		}
		cursor = answer.Cursor
	}
	return found, false, nil
}

type storedPage struct {
	Events  []json.RawMessage `json:"events"`
	HasMore bool              `json:"hasMore"`
	Cursor  string            `json:"cursor"`
}

func (c *Client) storedPage(ctx context.Context, query url.Values, cursor string) (answer storedPage, err error) {
	query.Set("cursor", cursor)
	return answer, c.read(ctx, "/events", query, &answer)
}
