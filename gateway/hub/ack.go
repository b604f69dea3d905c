package hub

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// confirmation is a receiver's reply to some of the messages that it has received: those with these trace ids, or, if
// traces is nil, all with ids up to upTo.
type confirmation struct {
	upTo   int64
	traces []string
	reply  reply // the zero reply: the receiver confirms the messages without a reply
}

// Limits of an acknowledgement and of a reply.
const (
	maxTraces    = 1000
	maxReplyText = 1000 // UTF-16 code units
)

// reply is a receiver's reply to a message (skill/en/PROTOCOL.md, "The receiver's reply").
type reply struct {
	Status string `json:"status,omitempty"`
	Code   string `json:"error_code,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// parseReply parses a reply. ok is false if the text is not a reply. Other members are left out, and long texts are
// cut.
func parseReply(text []byte) (r reply, ok bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return reply{}, false
	}
	for name, field := range map[string]*string{"status": &r.Status, "error_code": &r.Code, "detail": &r.Detail} {
		if json.Unmarshal(members[name], field) != nil {
			*field = "" // absent, or not a text
		}
		*field = cut(*field, maxReplyText)
	}
	if r.Status != "ok" && r.Status != "error" {
		return reply{}, false
	}
	return r, true
}

// apply sets the state and the result of a delivery to what the receiver has replied. fallback is the code of an error
// if the reply has no error_code.
func (r reply) apply(d *delivery, fallback string) {
	known := result{}
	if r.Status != "" {
		known.Response = jsontext.Compact(r)
	}
	d.state = delivered
	if r.Status == "error" {
		d.state = failed
		if known.Code, known.Detail = r.Code, r.Detail; known.Code == "" {
			known.Code = fallback
		}
	}
	d.result = known.text()
}

// postAck is the handler of POST /agent/ack.
func (h *Hub) postAck(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.admitChange(r.Context(), from, r)
	if err != nil {
		return err
	}
	if err := c.agentOnly(); err != nil {
		return err
	}
	body, err := h.readObject(w, r, from)
	if err != nil {
		return err
	}
	confirmed, err := parseAck(body)
	if err != nil {
		return err
	}
	count, err := h.confirm(context.WithoutCancel(r.Context()), from, c.agent, confirmed)
	if err != nil {
		return err
	}
	return h.answer(w, http.StatusOK, struct {
		Acknowledged int `json:"acknowledged"`
	}{count})
}

var traceForm = regexp.MustCompile(`^[0-9a-f-]{36}$`)

// parseAck checks the body of POST /agent/ack.
func parseAck(body []byte) (c confirmation, err error) {
	o := newObject("", body)
	if o.Err != nil {
		return c, o.Err
	}
	upTo, hasUpTo := o.Members["up_to"]
	traces, hasTraces := o.Members["trace_ids"]
	if hasUpTo == hasTraces {
		return c, gateway.Invalid("give either up_to, the id of a message, or trace_ids, a list of trace ids")
	}
	if hasUpTo && (json.Unmarshal(upTo, &c.upTo) != nil || c.upTo < 0 || string(upTo) == "null") {
		o.Fail("up_to", "must be the id of a message")
	}
	if hasTraces {
		var list []*string // nil: the element is null
		err := json.Unmarshal(traces, &list)
		if err != nil || len(list) < 1 || len(list) > maxTraces || slices.Contains(list, nil) {
			o.Fail("trace_ids", "must be a list of 1 to %d texts", maxTraces)
			return c, o.Err
		}
		for _, trace := range list {
			c.traces = append(c.traces, *trace)
		}
	}
	c.reply.Status = "ok"
	if text, given := o.Members["response"]; given {
		var valid bool
		if c.reply, valid = parseReply(text); !valid {
			o.Fail("response", `must be {"status":"ok"}, or {"status":"error"} with error_code and detail`)
		}
	}
	return c, o.Err
}

// confirm applies a confirmation to the messages of an agent, and returns how many it has changed. Many messages need
// several Updates. If one of them fails, the earlier ones stay.
func (h *Hub) confirm(ctx context.Context, from relay.Peer, agent int64, c confirmation) (count int, err error) {
	if err := h.streams.waitRecorded(ctx, agent); err != nil {
		return 0, err
	}
	if c.traces == nil {
		return h.confirmUpTo(ctx, from, agent, c)
	}
	for some := range slices.Chunk(c.traces, changeBatch) {
		changed := 0
		if err := h.update(ctx, from, func(o *op) (err error) {
			changed, err = o.confirmTraces(agent, some, c.reply)
			return err
		}); err != nil {
			return count, err
		}
		count += changed
	}
	return count, nil
}

// confirmTraces applies a reply to the messages to an agent that have these trace ids.
func (o *op) confirmTraces(agent int64, traces []string, r reply) (count int, err error) {
	for _, trace := range traces {
		if !traceForm.MatchString(trace) {
			continue // unknown
		}
		found, err := deliveries(o, "SELECT "+joinedDelivery+" FROM hub_message m JOIN hub_delivery d ON d.message = m.n "+
			"WHERE m.trace = ? AND m.receiver = ? AND "+notRequest, trace, agent)
		if err != nil {
			return 0, err
		}
		n, err := o.confirm(found, r)
		if err != nil {
			return 0, err
		}
		count += n
	}
	return count, nil
}

// confirmUpTo applies a confirmation of all messages up to an id.
func (h *Hub) confirmUpTo(ctx context.Context, from relay.Peer, agent int64, c confirmation) (count int, err error) {
	find := func(q relay.Querier) (all []delivery, err error) {
		return deliveries(q, "SELECT "+deliveryColumns+" FROM hub_delivery WHERE receiver = ? AND message <= ? AND "+
			"(state = 1 OR state = 0 AND handed > 0) AND NOT EXISTS (SELECT 1 FROM hub_request r WHERE "+
			"r.message = hub_delivery.message AND r.state > 0) ORDER BY message LIMIT ?", agent, c.upTo, changeBatch)
	}
	for {
		var found []delivery
		// Usually there is nothing to confirm. A View shows that without a write.
		if err := h.Relay.View(ctx, from, func(q relay.Querier) (err error) {
			found, err = find(q)
			return err
		}); err != nil || len(found) == 0 {
			return count, err
		}
		changed := 0
		if err := h.update(ctx, from, func(o *op) error {
			found, err := find(o)
			if err == nil {
				changed, err = o.confirm(found, c.reply)
			}
			return err
		}); err != nil {
			return count, err
		}
		if count += changed; len(found) < changeBatch {
			return count, nil
		}
	}
}

// confirm applies a reply to those deliveries that were handed out and whose state is not final. count is their number.
func (o *op) confirm(found []delivery, r reply) (count int, err error) {
	for _, d := range found {
		before := d.state
		if !d.received() || before.final() {
			continue
		}
		r.apply(&d, codeUnreachable)
		d.acked = o.Now
		if err := o.change(before, d); err != nil {
			return 0, err
		}
		count++
	}
	return count, nil
}
