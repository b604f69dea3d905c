package hub

import (
	"context"
	"strconv"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// removedText is what the operator's removal leaves of a message.
const removedText = "The operator of this hub has removed this message."

// Remove removes the text of a message for the operator. id is its id or its trace_id. The message stays in the histories,
// with a text that says so. The message fails unless the receiver has confirmed it, and it is not delivered any more.
// If it is just being sent to a stream or a webhook, the receiver may still get its text. Errors: CodeNotFound.
func (h *Hub) Remove(ctx context.Context, id string) error {
	return h.ending(ctx, gateway.OperatorPeer, "the operator of the hub has removed the message", requestFor(id), func(o *op) error {
		m, d, err := messageByID(o, id)
		switch {
		case err != nil:
			return err
		case m.n == 0:
			return envelope.Errorf(envelope.CodeNotFound, "the hub has no message with this id; it may have removed it because of its age")
		}
		if m.envelope, err = removedEnvelope(m); err != nil {
			return err
		}
		if err := updateEnvelope(o.ExtTx, m); err != nil {
			return err
		}
		before := d.state
		d.result = result{Code: codeForbidden, Detail: removedText}.text()
		if before.final() {
			return updateDelivery(o.ExtTx, d) // a reply of the receiver is removed too
		}
		d.state = failed
		return o.change(before, d)
	})
}

// examined is how many messages one view examines for RemoveSender.
const examined = 1000

// RemoveSender is a gateway.SenderRemover. A sender is an address of the hub, such as bob@relay.example, or the DID of its agents.
func (h *Hub) RemoveSender(ctx context.Context, sender string, since time.Time, limit int) (int, error) {
	_, notDID := didkey.Parse(sender)
	if !isAddress(sender) && notDID != nil {
		return 0, nil
	}
	return h.RemoveFound(ctx, limit, func(q relay.Querier, after int64) (ids []string, next int64, err error) {
		next, err = gateway.Number(q, "SELECT coalesce(max(n), 0) FROM "+
			"(SELECT n FROM hub_message WHERE n > ? ORDER BY n LIMIT ?) w", after, examined)
		if err != nil {
			return nil, 0, err
		}
		err = q.Query(func(scan gateway.Scanner) error {
			var m message
			if err := scan(m.fields()...); err != nil {
				return err
			}
			if text, err := removedEnvelope(m); err != nil || text != m.envelope {
				ids = append(ids, strconv.FormatInt(m.n, 10))
			}
			return nil
		}, "SELECT "+messageColumns+" FROM hub_message WHERE n > ? AND n <= ? AND (sender_id = ? OR sender IN "+
			"(SELECT n FROM hub_agent WHERE did = ? AND did <> '')) AND ts >= ? ORDER BY n",
			after, next, sender, sender, since.UnixNano())
		return ids, next, err
	}, h.Remove)
}

// messageByID returns the message with an id or a trace_id, and its delivery. It returns zero rows if there is none.
func messageByID(q relay.Querier, id string) (m message, d delivery, err error) {
	n, isNumber := parseID(id)
	if !isNumber {
		if n, err = gateway.Number(q, "SELECT n FROM hub_message WHERE trace = ?", id); err != nil {
			return m, d, err
		}
	}
	err = q.Query(func(scan gateway.Scanner) error { return scan(append(m.fields(), d.fields()...)...) },
		"SELECT "+joinedColumns+" FROM hub_message m JOIN hub_delivery d ON d.message = m.n WHERE m.n = ?", n)
	return m, d, err
}

// removedEnvelope returns the new envelope of a removed message: only the required members are left.
func removedEnvelope(m message) (string, error) {
	o := newObject("envelope", []byte(m.envelope))
	culture, _ := o.Text("sender_culture", true)
	sender, _ := o.Text("sender_id", true)
	return string(jsontext.Compact(struct { // in the order of RFC 8785
		Version string `json:"chorus_version"`
		Text    string `json:"original_text"`
		Culture string `json:"sender_culture"`
		Sender  string `json:"sender_id"`
	}{envelopeVersion, removedText, culture, sender})), o.Err
}
