package hub

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// historyRow is a message as its parties see it.
type historyRow struct {
	ID         int64           `json:"id"`
	Trace      string          `json:"trace_id"`
	SenderID   string          `json:"sender_id"`
	ReceiverID string          `json:"receiver_id"`
	Envelope   json.RawMessage `json:"envelope"`
	Via        string          `json:"delivered_via"`
	Timestamp  string          `json:"timestamp"`
	State      string          `json:"state"`
	Code       string          `json:"error_code,omitempty"`
	Detail     string          `json:"detail,omitempty"`
	Response   json.RawMessage `json:"receiver_response,omitempty"`
	AckedAt    string          `json:"acknowledged_at,omitempty"`
}

func newHistoryRow(m message, d delivery) historyRow {
	known := d.decodeResult()
	row := historyRow{m.n, m.trace, m.senderID, m.receiverID, json.RawMessage(m.envelope), d.via, gateway.Stamp(m.ts),
		d.state.String(), known.Code, known.Detail, known.Response, ""}
	if d.state == queued || d.via == "" {
		row.Via = queued.String()
	}
	if d.acked > 0 {
		row.AckedAt = gateway.Stamp(d.acked)
	}
	return row
}

// maxLimit is how many rows one answer may have if its reader gives a limit.
const maxLimit = 10_000

// historyQuery is what a reader asks for.
type historyQuery struct {
	agent   int64
	after   int64 // only rows with larger ids
	from    int64 // only rows with this timestamp or a later one, in nanoseconds; 0: all
	left    int   // how many more rows to return; -1: all
	confirm bool  // the reader confirms what it has received up to after
}

// parseHistory reads the query parameters of GET /agent/messages.
func parseHistory(r *http.Request) (q historyQuery, err error) {
	p, err := gateway.Parameters(r, "since", "limit")
	if err != nil {
		return q, err
	}
	q.left = -1
	if text, given := p["limit"]; given {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n < 1 || n > maxLimit {
			return q, gateway.Invalid("limit must be a whole number from 1 to %d", maxLimit)
		}
		q.left = int(n)
	}
	since, given := p["since"]
	if !given {
		return q, nil
	}
	var ok bool
	if q.after, q.confirm = parseID(since); q.confirm {
		return q, nil
	}
	at, ok := envelope.ParseTime(since)
	if !ok {
		return q, gateway.Invalid("since must be the id of a message, or an RFC 3339 time such as 2026-03-20T10:00:00.000Z; " +
			"in a query string + means a space, so write %%2B for a plus")
	}
	switch { // UnixNano works from the year 1678 to 2262
	case at.Year() < 1970:
		q.from = 0
	case at.Year() > 2200:
		q.from = math.MaxInt64
	default:
		q.from = at.UnixNano()
	}
	return q, nil
}

// getHistory is the handler of GET /agent/messages.
func (h *Hub) getHistory(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.caller(r.Context(), from, r, true)
	if err != nil {
		return err
	}
	if err := c.agentOnly(); err != nil {
		return err
	}
	q, err := parseHistory(r)
	if err != nil {
		return err
	}
	q.agent = c.agent
	if q.confirm {
		if _, err := h.confirm(r.Context(), from, c.agent, confirmation{upTo: q.after}); err != nil {
			return err
		}
	}
	hasMore := false
	return httpapi.WriteList(w, httpapi.List{Head: listHead, Tail: func() string { return h.listTail(hasMore) },
		Elements: gateway.Parts(r.Context(), h.Core, from, func() (part []byte, more bool, err error) {
			part, hasMore, err = h.nextPart(r.Context(), from, &q)
			return part, hasMore && q.left != 0, err
		})})
}

// nextPart returns the next rows of a history as JSON, and changes q so that the next call continues after them. It
// marks messages that were queued for the reader as handed out. more means that other rows follow, even if q.left is
// now 0.
func (h *Hub) nextPart(ctx context.Context, from relay.Peer, q *historyQuery) (part []byte, more bool, err error) {
	limit := gateway.PieceRows
	if q.left >= 0 {
		limit = min(limit, q.left)
	}
	var piece gateway.Piece
	var handed []int64
	var rows int
	var last int64
	err = h.Relay.View(ctx, from, func(querier relay.Querier) error {
		piece, handed, rows, more = gateway.Piece{}, nil, 0, false
		err := querier.Query(func(scan gateway.Scanner) error {
			var m message
			var d delivery
			if err := scan(append(m.fields(), d.fields()...)...); err != nil {
				return err
			}
			if rows == limit || piece.Full() {
				more = true
				return errBatchFull
			}
			if d.receiver == q.agent && d.state == queued {
				handed = append(handed, m.n)
				d.state, d.via = sent, viaPoll
			}
			rows, last = rows+1, m.n
			piece.Add(newHistoryRow(m, d))
			return nil
		}, "SELECT "+joinedColumns+" FROM hub_entry e JOIN hub_message m ON m.n = e.message "+
			"JOIN hub_delivery d ON d.message = e.message WHERE e.agent = ? AND e.message > ? AND m.ts >= ? "+
			"AND (d.receiver <> ? OR "+notRequest+") ORDER BY e.message LIMIT ?", q.agent, q.after, q.from, q.agent, limit+1)
		if errors.Is(err, errBatchFull) {
			return nil
		}
		return err
	})
	if err != nil || rows == 0 {
		return nil, false, err
	}
	if len(handed) > 0 {
		if err := h.handOut(q.agent, viaPoll, handed); errors.Is(err, errRequested) {
			return h.nextPart(ctx, from, q) // it is not in the history of its receiver now
		} else if err != nil {
			return nil, false, err
		}
	}
	q.after = last
	if q.left > 0 {
		q.left -= rows
	}
	return piece.Text(), more, nil
}
