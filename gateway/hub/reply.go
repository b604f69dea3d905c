package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file reads what agents with a DID answer, and sends their replies.

// Limits of replies (B-9).
const (
	maxDepth   = 4  // a reply that comes after more replies is not delivered
	maxReplies = 60 // of a pair of agents in a minute
)

// outputs is what a RESULT says.
type outputs struct {
	response reply   // for the sender
	replies  bool    // there is a reply
	original message // that is replied to
	envelope string  // of the reply
	invalid  string  // why the reply is no message; empty: it is one
	request  prepared
}

// outputsOf reads the RESULT to a message.
func (h *Hub) outputsOf(ctx context.Context, d deliver.Delivery, e *envelope.Envelope) (x outputs, err error) {
	x.response.Status = "ok"
	var result envelope.Result
	var output struct {
		Response json.RawMessage `json:"response"`
		Reply    json.RawMessage `json:"reply"`
	}
	if e.DecodePayload(&result) != nil || json.Unmarshal(result.Output, &output) != nil {
		return x, nil
	}
	if said, ok := parseReply(output.Response); ok {
		said.Code, said.Detail = gateway.CleanText(said.Code), gateway.CleanText(said.Detail)
		x.response = said
	}
	if x.replies = len(output.Reply) > 0 && string(output.Reply) != "null"; !x.replies {
		return x, nil
	}
	var from agent
	if err := h.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if x.original, _, err = messageByID(q, decimal(d.N)); err == nil {
			from, err = agentByNumber(q, x.original.receiver)
		}
		return err
	}); err != nil {
		return x, err
	}
	x.envelope, err = replyEnvelope(x.original, from, output.Reply)
	if err != nil {
		refused, _ := errors.AsType[*envelope.Error](err)
		if refused == nil {
			return x, err
		}
		x.invalid = refused.Message
		x.envelope = refusedEnvelope(x.original, from, x.invalid)
		return x, nil
	}
	x.request, err = h.prepare(ctx, self, x.original.receiverID, x.original.senderID, x.envelope)
	x.request.last = true
	return x, err
}

// chorusEnvelope is an envelope, in the order of RFC 8785.
type chorusEnvelope struct {
	Version      string  `json:"chorus_version"`
	Conversation *string `json:"conversation_id,omitempty"`
	Context      *string `json:"cultural_context,omitempty"`
	Text         string  `json:"original_text"`
	Culture      string  `json:"sender_culture"`
	Sender       string  `json:"sender_id"`
	Turn         int64   `json:"turn_number,omitempty"`
}

// answering returns the envelope of an answer to a message: it has the same conversation_id, and the next turn_number. A missing
// one counts as 1.
func answering(m message, from agent) (e chorusEnvelope) {
	_ = json.Unmarshal([]byte(m.envelope), &e) // the hub has checked it
	e = chorusEnvelope{Version: envelopeVersion, Conversation: e.Conversation, Culture: from.culture, Sender: from.address,
		Turn: min(max(e.Turn, 1)+1, maxTurn)}
	return e
}

// replyEnvelope returns the envelope of a reply to a message. Errors: CodeInvalidRequest if it is no valid one.
func replyEnvelope(m message, from agent, said json.RawMessage) (string, error) {
	canonical, err := envelope.ParseObject(said, max(len(said), 1))
	if err != nil {
		return "", gateway.Invalid("output.reply: must be an object with original_text")
	}
	o := newObject("output.reply", canonical)
	e := answering(m, from)
	e.Text, _ = o.Text("original_text", true)
	if _, given := o.Members["sender_culture"]; given || e.Culture == "" {
		e.Culture = o.culture("sender_culture")
	}
	if text, given := o.Text("cultural_context", false); given {
		e.Context = &text
	}
	if o.Err != nil {
		return "", o.Err
	}
	text := jsontext.Compact(e)
	if canonical, err = envelope.ParseObject(text, len(text)); err != nil {
		return "", gateway.Invalid("output.reply: %v", err)
	}
	_, err = checkEnvelope(canonical)
	return string(canonical), err
}

// refusedEnvelope returns the envelope that stands for a reply which is no message, in the history of its sender.
func refusedEnvelope(m message, from agent, why string) string {
	e := answering(m, from)
	e.Text = cut("The hub has refused a reply: "+why, maxText)
	if e.Culture == "" {
		e.Culture = "en"
	}
	return string(jsontext.Compact(e))
}

// reply stores the reply to a message, once, as a message of its receiver to its sender. It is refused as any other message,
// and if there were too many replies (B-9). A refused one is in the history of the agent that replies.
func (o *op) reply(x outputs) error {
	from, err := agentByNumber(o, x.original.receiver)
	if err != nil || !from.live() {
		return err
	}
	to, err := agentByNumber(o, x.original.sender)
	if err != nil {
		return err
	}
	n := newMessage{sender: from, receiver: to, envelope: x.envelope, depth: x.original.depth + 1, prepared: x.request}
	if n.source, err = sourceOf(o, from.n); err != nil {
		return err
	}
	if !to.live() {
		n.receiver = agent{n: x.original.sender, address: x.original.senderID}
	}
	why, err := o.refusal(x, n)
	if err != nil {
		return err
	}
	if why.Code != "" {
		return o.storeFailed(n, why)
	}
	_, err = o.store(n, new(sending))
	return err
}

// refusal returns why a reply is not delivered. The code is empty if it is.
func (o *op) refusal(x outputs, n newMessage) (why result, err error) {
	switch {
	case x.invalid != "":
		return result{Code: codeValidation, Detail: cut(x.invalid, maxReplyText)}, nil
	case !n.receiver.live() || n.receiver.registered == 0:
		return result{Code: codeAgentNotFound, Detail: "the sender of the message has left the hub"}, nil
	case n.depth > maxDepth:
		return result{Code: codeRateLimited, Detail: fmt.Sprintf("%d replies came one after the other; the hub delivers no more of "+
			"them, because two agents would never stop", maxDepth)}, nil
	}
	recent, err := o.recentReplies(n.sender.n, n.receiver.n)
	if err != nil {
		return why, err
	}
	if recent >= maxReplies {
		return result{Code: codeRateLimited, Detail: fmt.Sprintf("these two agents have sent each other %d replies in a minute, "+
			"which is the limit", maxReplies)}, nil
	}
	err = o.checkQueue(n.source, n.receiver, len(n.envelope))
	if full, ok := errors.AsType[*apiError](err); ok {
		return result{Code: full.code, Detail: cut(full.message, maxReplyText)}, nil
	}
	return why, err
}

// recentReplies counts the replies that two agents have sent each other in the last minute, up to maxReplies. Those that were
// refused do not count.
func (o *op) recentReplies(one, two int64) (count int64, err error) {
	since := o.Now - int64(time.Minute)
	for _, pair := range [][2]int64{{one, two}, {two, one}} {
		n, err := o.Number("SELECT COUNT(*) FROM (SELECT 1 FROM hub_message m JOIN hub_delivery d ON d.message = m.n WHERE "+
			"m.sender = ? AND m.receiver = ? AND m.depth > 0 AND m.ts > ? AND d.state <> 3 LIMIT ?) AS recent",
			pair[0], pair[1], since, maxReplies)
		if err != nil {
			return 0, err
		}
		if count += n; one == two {
			break
		}
	}
	return count, nil
}

// storeFailed stores a message that is not delivered. Only its sender sees it.
func (o *op) storeFailed(n newMessage, why result) error {
	m, err := o.insert(n)
	if err != nil {
		return err
	}
	d := delivery{message: m.n, sender: m.sender, receiver: m.receiver, size: int64(len(m.envelope)), state: failed,
		result: why.text()}
	if err := insertDelivery(o.ExtTx, d); err != nil {
		return err
	}
	o.stored++
	o.failed++
	return o.keep(m.sender, d)
}
