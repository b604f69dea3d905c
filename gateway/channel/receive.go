package channel

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file takes the deliveries of services to inboxes, and hands them to the owners.

// intent is the intent of the REQUESTs to the owners of inboxes.
const intent = "chorus.channel.message"

// onlyOut is gateway.Holder.Only of the tokens for POST /out/{token}. Their owner is a request. The owner of the other
// tokens with the same first characters is an attempt.
const onlyOut = "out"

// Limits of a delivery, in bytes.
const (
	maxDeliveryID = 256 // also of the sender
	maxTools      = 16
)

// received is a delivery of a service.
type received struct {
	channel, message json.RawMessage
	callback         string
	mcp              []json.RawMessage
	subject          [sha256.Size]byte
}

// reduced returns the delivery without the members that the protocol does not know.
func (d received) reduced() received {
	d.channel = onlyMembers(d.channel, "id", "name", "service", "context")
	d.message = onlyMembers(d.message, "id", "sender", "content")
	d.mcp = slices.Clone(d.mcp)
	for i, one := range d.mcp {
		d.mcp[i] = onlyMembers(one, "name", "url", "headers")
	}
	return d
}

// onlyMembers returns an object with only these members.
func onlyMembers(object json.RawMessage, names ...string) json.RawMessage {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(object, &members) // parseDelivery has checked that it is an object
	maps.DeleteFunc(members, func(name string, _ json.RawMessage) bool { return !slices.Contains(names, name) })
	return jsontext.Compact(members)
}

// parseDelivery checks a delivery. body is in the form of RFC 8785.
func (g *Gateway) parseDelivery(body []byte) (d received, err error) {
	o := gateway.NewObject("", body)
	if o.Err != nil {
		return d, o.Err
	}
	channel := parsePart(o, "channel", []string{"id"}, []string{"name", "service", "context"})
	message := parsePart(o, "message", []string{"id", "sender"}, nil)
	if content, given := message.Text("content", true); given && content == "" {
		message.Fail("content", "must not be empty")
	}
	callback, given := o.Text("callback", true)
	if given {
		if err := g.checkCallback(callback); err != nil {
			o.Fail("callback", "%v", err)
		}
	}
	if err := cmp.Or(channel.Err, message.Err, o.Err); err != nil {
		return d, err
	}
	d.channel, d.message, d.callback = o.Members["channel"], o.Members["message"], callback
	d.subject = sha256.Sum256(fmt.Appendf(nil, "%s/%s", channel.Members["id"], message.Members["id"]))
	d.mcp, err = parseTools(o.Members["mcp"])
	return d, err
}

// parsePart returns an object in a delivery. ids are the members that must have 1 to 256 bytes. Each of texts must be a
// string or null, if it is given.
func parsePart(o *gateway.Object, name string, ids, texts []string) *gateway.Object {
	part := gateway.NewObject(name, o.Members[name])
	for _, id := range ids {
		part.Sized(id, true, 1, maxDeliveryID)
	}
	for _, text := range texts {
		if string(part.Members[text]) != "null" {
			part.Text(text, false)
		}
	}
	return part
}

// parseTools returns the member mcp of a delivery as a list in which each element has a name.
func parseTools(raw json.RawMessage) (all []json.RawMessage, err error) {
	all = []json.RawMessage{}
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return all, nil
	case raw[0] == '{':
		all = append(all, raw)
	case raw[0] != '[' || json.Unmarshal(raw, &all) != nil || len(all) > maxTools:
		return nil, gateway.Invalid("mcp: must be an object, a list of at most %d objects, or null", maxTools)
	}
	for n, one := range all {
		o := gateway.NewObject(fmt.Sprintf("mcp[%d]", n), one)
		o.Sized("url", true, 1, gateway.MaxURL)
		for _, name := range []string{"name", "headers"} {
			if string(o.Members[name]) == "null" {
				delete(o.Members, name)
			}
		}
		_, named := o.Text("name", false)
		if headers, given := o.Members["headers"]; given {
			checkHeaders(o, headers)
		}
		if o.Err != nil {
			return nil, o.Err
		}
		if !named {
			o.Members["name"] = jsontext.Compact(fmt.Sprintf("mcp%d", n+1))
			all[n] = jsontext.Compact(o.Members)
		}
	}
	return all, nil
}

// checkHeaders checks that the member headers is an object of strings.
func checkHeaders(o *gateway.Object, headers json.RawMessage) {
	var texts map[string]*string
	bad := headers[0] != '{' || json.Unmarshal(headers, &texts) != nil
	for _, text := range texts {
		bad = bad || text == nil
	}
	if bad {
		o.Fail("headers", "must be an object of strings")
	}
}

// inboxOf returns the inbox of a key. Errors: 404.
func (g *Gateway) inboxOf(q relay.Querier, key string) (i inbox, err error) {
	h, found, err := gateway.FindKey(q, key, g.Relay.Now())
	if err == nil && found && h.Kind == gateway.Inbox {
		i, err = inboxByNumber(q, h.Owner)
	}
	if err == nil && !i.live() {
		err = gateway.NotFound("there is no inbox with this key; its owner may have rotated or deleted it")
	}
	return i, err
}

// postDelivery is the handler of POST /inbox/{key}.
func (g *Gateway) postDelivery(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	key := mux.Vars(r)["key"]
	if err := g.Relay.View(r.Context(), from, func(q relay.Querier) error {
		_, err := g.inboxOf(q, key)
		return err
	}); err != nil {
		return err
	}
	_, body, err := g.ReadObject(w, r, from)
	if err != nil {
		return err
	}
	if err := g.receive(context.WithoutCancel(r.Context()), from, key, body); err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, done{true})
}

// receive stores a delivery, and hands it to the owner of the inbox.
func (g *Gateway) receive(ctx context.Context, from relay.Peer, key string, body []byte) error {
	d, err := g.parseDelivery(body)
	if err != nil {
		return err
	}
	var to inbox
	var known request
	if err := g.Relay.View(ctx, from, func(q relay.Querier) error {
		if to, err = g.inboxOf(q, key); err != nil {
			return err
		}
		known, err = requestBySubject(q, to.n, d.subject[:])
		return err
	}); err != nil {
		return err
	}
	if g.repeats(known) {
		return g.Update(ctx, from, func(o *gateway.Op) error { return g.replaceCallback(o, known.n, d.callback) })
	}
	pair := to.n ^ g.Source(from) // a source is 0 or a hash, so no two pairs have the same number
	if err := g.deliveries.Take(pair, g.Relay.Now); err != nil {
		return err
	}
	return g.handOver(ctx, from, key, to, d)
}

// repeats reports whether a delivery with the subject of r is a repeat of r.
func (g *Gateway) repeats(r request) bool {
	return r.n != 0 && g.Relay.Now().Before(time.Unix(0, r.created).Add(repeatTime))
}

// replaceCallback gives a request the callback of a repeated delivery.
func (g *Gateway) replaceCallback(o *gateway.Op, n int64, callback string) error {
	r, err := requestByNumber(o, n)
	if err != nil {
		return err
	}
	r.callback, r.ended = g.Secrets.Encrypt(callbackPlace(r.n), []byte(callback)), 0
	r.version++
	if err := g.callbacks.RestartLane(o.ExtTx, r.n); err != nil {
		return err
	}
	o.Then(func() { g.callbacks.Wake(r.n) })
	return updateRequest(o.ExtTx, r)
}

// handOver stores a new delivery, and the REQUEST to the owner, in one transaction.
func (g *Gateway) handOver(ctx context.Context, from relay.Peer, key string, to inbox, d received) error {
	r := request{id: gateway.NewID("dlv_"), inbox: to.n, subject: d.subject[:], version: 1, source: g.Source(from)}
	token := gateway.NewKey(gateway.Callback)
	checked, err := g.signRequest(r.id, to, d, token)
	if err != nil {
		// Unknown members may be too large or too deep for an envelope. The owner does not need them.
		checked, err = g.signRequest(r.id, to, d.reduced(), token)
	}
	if err != nil {
		return err
	}
	return g.Update(ctx, from, func(o *gateway.Op) error {
		now, err := g.inboxOf(o, key) // again, because it may have been deleted or rotated
		if err != nil {
			return err
		}
		known, err := requestBySubject(o, now.n, r.subject)
		if err != nil {
			return err
		}
		if g.repeats(known) {
			return g.replaceCallback(o, known.n, d.callback)
		}
		if err := g.checkOpen(o, now, r.source); err != nil {
			return err
		}
		if r.n, err = gateway.Next(o.ExtTx, requestCounter); err != nil {
			return err
		}
		r.created, r.callback = o.Now, g.Secrets.Encrypt(callbackPlace(r.n), []byte(d.callback))
		if err := insertRequest(o.ExtTx, r); err != nil {
			return err
		}
		holder := gateway.Holder{Kind: gateway.Callback, Owner: r.n, Only: onlyOut, Expires: tokenExpiry(r.created)}
		if err := gateway.AddKey(o.ExtTx, token, holder); err != nil {
			return err
		}
		return g.owners.Append(o, checked)
	})
}

// signRequest returns the REQUEST to the owner of an inbox. token is the token of its callback.
func (g *Gateway) signRequest(id string, to inbox, d received, token string) (relay.Checked, error) {
	params := jsontext.Compact(struct {
		Inbox    string            `json:"inbox"`
		Channel  json.RawMessage   `json:"channel"`
		Message  json.RawMessage   `json:"message"`
		Callback string            `json:"callback"`
		MCP      []json.RawMessage `json:"mcp"`
	}{to.id, d.channel, d.message, g.url + "/out/" + token, d.mcp})
	return g.owners.Seal(id, to.owner, envelope.Request{RequestID: id, Intent: intent, Params: params})
}

// checkOpen refuses a delivery if the inbox has too many that its owner has not finished. The owner knows a network if it
// has finished a delivery from there (G-37).
func (g *Gateway) checkOpen(o *gateway.Op, i inbox, source int64) error {
	open, err := o.Number("SELECT COUNT(*) FROM (SELECT 1 FROM channel_request WHERE inbox = ? AND idle = 0 "+
		"AND created > ? LIMIT ?) AS open", i.n, o.Now-int64(answerTime), g.open)
	if err != nil {
		return err
	}
	finished, err := o.Number("SELECT COUNT(*) FROM (SELECT 1 FROM channel_request WHERE inbox = ? AND source = ? AND idle = 1 "+
		"LIMIT 1) AS finished", i.n, source)
	if err != nil {
		return err
	}
	if full, most := (gateway.Queue{Most: g.open, Count: open}).Check(source == 0 || finished > 0, 0); full != gateway.NotFull {
		return envelope.NotStored(fmt.Sprintf("the agent has %d deliveries of the last 24 hours that it has not finished; "+
			"try again later", most), fullInboxRetry)
	}
	return nil
}

// maxOwnBody is how many bytes a delivery within the relay may have. The text of a message may be longer in a delivery
// than in the request of its sender, because some characters are escaped.
const maxOwnBody = 2 * gateway.MaxBody

// ownInbox returns what answers the connection strings of this relay's inboxes, if url is one. So a channel of this
// relay reaches them without HTTP (C-30).
func (g *Gateway) ownInbox(url string) gateway.Answerer {
	key, own := g.ownInboxKey(url)
	if !own {
		return nil
	}
	return func(ctx context.Context, c gateway.Call) (gateway.Response, error) {
		body, err := g.Relay.Object(self, c.Body, maxOwnBody)
		if err != nil {
			return gateway.ResponseTo(err, inboxAnswerTo)
		}
		return gateway.ResponseTo(g.receive(context.WithoutCancel(ctx), self, key, body), inboxAnswerTo)
	}
}
