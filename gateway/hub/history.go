package hub

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
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

// Limits of a part of a history. Each part is read, marked as handed out, and written before the next one is read.
const (
	partRows  = 200
	partBytes = 256 << 10
	maxLimit  = 10_000
)

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
	part, more, err := h.nextPart(r.Context(), from, &q)
	if err != nil {
		return err
	}
	httpapi.SetHeader(w, "application/json")
	text := `{"success":true,"data":[`
	for {
		text += strings.Join(part, ",")
		if !more || q.left == 0 {
			break
		}
		httpapi.ExtendWrite(w)
		if _, err := w.Write([]byte(text + ",")); err != nil {
			return nil // the client has disconnected
		}
		text = ""
		if part, more, err = h.nextPartLater(r.Context(), from, &q); err != nil {
			if envelope.CodeOf(err) != envelope.CodeForbidden { // the client was banned meanwhile
				h.Log.Error("a history was cut off because its next messages cannot be read", "err", err)
			}
			panic(http.ErrAbortHandler) // breaks the connection, so that the client sees that the history is not complete
		}
	}
	metadata := h.metadata()
	metadata.HasMore = more
	httpapi.ExtendWrite(w)
	text += `],"metadata":` + string(jsontext.Compact(metadata)) + "}\n"
	_, _ = w.Write([]byte(text)) // if that fails, the client has disconnected
	return nil
}

// nextPartLater is like nextPart, but waits if the relay refuses reads for the moment.
func (h *Hub) nextPartLater(ctx context.Context, from relay.Peer, q *historyQuery) ([]string, bool, error) {
	for {
		part, more, err := h.nextPart(ctx, from, q)
		if err == nil || !isTemporary(err) || h.Relay.Health() != nil {
			return part, more, err
		}
		wait := time.NewTimer(time.Second)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, false, ctx.Err()
		}
	}
}

// nextPart returns the next rows of a history as JSON, and changes q so that the next call continues after them. It
// marks messages that were queued for the reader as handed out. more means that other rows follow, even if q.left is
// now 0.
func (h *Hub) nextPart(ctx context.Context, from relay.Peer, q *historyQuery) (part []string, more bool, err error) {
	limit := partRows
	if q.left >= 0 {
		limit = min(limit, q.left)
	}
	type joined struct {
		message
		delivery
	}
	var rows []joined
	size := 0
	err = h.Relay.View(ctx, from, func(querier relay.Querier) error {
		rows, size, more = nil, 0, false
		err := querier.Query(func(scan gateway.Scanner) error {
			var row joined
			if err := scan(append(row.message.fields(), row.delivery.fields()...)...); err != nil {
				return err
			}
			if len(rows) == limit || size > partBytes {
				more = true
				return errBatchFull
			}
			size += len(row.envelope)
			rows = append(rows, row)
			return nil
		}, "SELECT "+joinedColumns+" FROM hub_entry e JOIN hub_message m ON m.n = e.message "+
			"JOIN hub_delivery d ON d.message = e.message WHERE e.agent = ? AND e.message > ? AND m.ts >= ? "+
			"ORDER BY e.message LIMIT ?", q.agent, q.after, q.from, limit+1)
		if errors.Is(err, errBatchFull) {
			return nil
		}
		return err
	})
	if err != nil || len(rows) == 0 {
		return nil, false, err
	}
	var handed []int64
	for i, row := range rows {
		if row.delivery.receiver == q.agent && row.state == queued {
			handed = append(handed, row.n)
			rows[i].state, rows[i].via = sent, viaPoll
		}
	}
	if len(handed) > 0 {
		if err := h.handOut(q.agent, viaPoll, handed); err != nil {
			return nil, false, err
		}
	}
	for _, row := range rows {
		part = append(part, string(jsontext.Compact(newHistoryRow(row.message, row.delivery))))
	}
	q.after = rows[len(rows)-1].n
	if q.left > 0 {
		q.left -= len(rows)
	}
	return part, more, nil
}
