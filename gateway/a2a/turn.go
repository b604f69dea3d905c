package a2a

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file hands turns to agents: each as one sealed REQUEST (docs/A2A.md, "How the agent takes work").

// options is what a caller has sent beside its message, for the agent.
type options struct {
	AcceptedOutputModes []string        `json:"acceptedOutputModes,omitempty"`
	Extensions          []string        `json:"extensions,omitempty"`
	Metadata            json.RawMessage `json:"metadata,omitempty"`
}

// work is all that a REQUEST says.
type work struct {
	endpoint endpoint
	task     task
	turn     turn
	context  string // cv_…
	caller   wire.Caller
	message  string   // the caller's message, without ids
	history  []string // the newest earlier messages, with ids, oldest first, at most wire.MaxSealed bytes
	partial  bool     // history does not have all of them
}

// workURL returns the URL at which the agent finds all of a turn.
func (g *Gateway) workURL(u turn) string { return g.url + "/work/" + u.id }

// agentNames returns the ids that the agent sees in messages. In the first turn, they have no task.
func (w work) agentNames() names {
	if w.turn.number > 1 {
		return names{w.context, w.task.id}
	}
	return names{context: w.context}
}

// request returns the REQUEST of a turn. Errors: BadParams, if the message does not fit the agent.
func (g *Gateway) request(w work) (envelope.Request, error) {
	r := envelope.Request{RequestID: w.turn.id, Intent: wire.MessageIntent}
	if w.endpoint.mode == wire.ModeParams {
		m, err := wire.ParseMessage("message", []byte(w.message))
		if err != nil {
			return r, err
		}
		r.Intent, r.Params = plainRequest(w.endpoint, m)
		if len(r.Params) > wire.MaxSealed {
			return r, wire.Invalid("message.parts", "must have at most %d bytes for this agent", wire.MaxSealed)
		}
		return r, nil
	}
	r.Params = g.turnParams(w)
	return r, nil
}

// turnParams returns the params for an agent that knows A2A. They have at most wire.MaxSealed bytes. What does not fit is left
// out: first the history, then the parts of the message, then metadata.
func (g *Gateway) turnParams(w work) json.RawMessage {
	var o options
	_ = json.Unmarshal([]byte(w.turn.options), &o) // the relay has written this text
	params := struct {
		Task    string            `json:"task"`
		Turn    int64             `json:"turn"`
		Context string            `json:"context"`
		Caller  wire.Caller       `json:"caller"`
		Message json.RawMessage   `json:"message"`
		History []json.RawMessage `json:"history"`
		options
		Partial bool   `json:"partial,omitempty"`
		Work    string `json:"work"`
	}{Task: w.task.id, Turn: w.turn.number, Context: w.context, Caller: w.caller, History: []json.RawMessage{},
		Message: json.RawMessage(w.agentNames().message(w.message)), options: o, Partial: w.partial,
		Work: g.workURL(w.turn)}
	size := len(jsontext.Compact(params))
	first := len(w.history)
	for ; first > 0 && size+len(w.history[first-1])+1 <= wire.MaxSealed; first-- {
		size += len(w.history[first-1]) + 1
	}
	for _, m := range w.history[first:] {
		params.History = append(params.History, json.RawMessage(m))
	}
	params.Partial = params.Partial || first > 0
	if text := jsontext.Compact(params); len(text) <= wire.MaxSealed {
		return text
	}
	params.Partial, params.History = true, []json.RawMessage{}
	m, err := wire.ParseMessage("", []byte(w.message))
	if err != nil {
		panic("a2a: a message that was stored is not a message: " + err.Error())
	}
	params.Message = json.RawMessage(w.agentNames().message(messageText(m.WithoutParts())))
	if text := jsontext.Compact(params); len(text) <= wire.MaxSealed {
		return text
	}
	bare := wire.Message{MessageID: m.MessageID, Role: m.Role, Parts: []wire.Part{}}
	params.Message, params.options = json.RawMessage(w.agentNames().message(messageText(bare))), options{}
	return jsontext.Compact(params)
}

// plainRequest returns the intent and the params for an agent that knows no A2A.
func plainRequest(e endpoint, m wire.Message) (intent string, params json.RawMessage) {
	intent = e.intent
	var metadata map[string]json.RawMessage
	var named string
	if json.Unmarshal(m.Metadata, &metadata) == nil && json.Unmarshal(metadata[wire.IntentName], &named) == nil &&
		slices.Contains(e.known().Skills, named) {
		intent = named
	}
	for _, p := range m.Parts {
		if len(p.Data) > 0 && p.Data[0] == '{' {
			return intent, p.Data
		}
	}
	return intent, jsontext.Compact(map[string]string{"text": m.Text()})
}

// seal returns the REQUEST of a turn as an envelope. Errors: those of request, and of deliver.Deliveries.Seal.
func (g *Gateway) seal(w work) (relay.Checked, error) {
	request, err := g.request(w)
	if err != nil {
		return relay.Checked{}, err
	}
	return g.deliveries.Seal(w.turn.id, w.endpoint.did, request)
}

// load returns what the REQUEST of a stored turn says.
func load(q relay.Querier, n int64) (w work, err error) {
	if w.turn, err = turnByNumber(q, n); err != nil {
		return w, err
	}
	if w.task, err = taskByNumber(q, w.turn.task); err != nil {
		return w, err
	}
	if w.endpoint, err = endpointByNumber(q, w.turn.endpoint); err != nil {
		return w, err
	}
	c, err := contextByNumber(q, w.task.context)
	if err != nil {
		return w, err
	}
	w.context = c.id
	if w.caller, err = callerOf(q, w.task); err != nil {
		return w, err
	}
	m, err := eventAt(q, w.task.n, w.turn.message)
	if err != nil {
		return w, err
	}
	w.message = m.body
	return w, w.loadHistory(q)
}

// callerOf returns the caller of a task, as its agent sees it.
func callerOf(q relay.Querier, t task) (wire.Caller, error) {
	if t.caller == "" {
		return wire.Caller{Kind: wire.CallerAnonymous}, nil
	}
	if strings.HasPrefix(t.caller, "did:") {
		return wire.Caller{Kind: wire.CallerDID, DID: t.caller}, nil
	}
	n, err := keyNumber(t.caller)
	if err != nil {
		return wire.Caller{}, err
	}
	k, err := keyByNumber(q, n)
	return wire.Caller{Kind: wire.CallerKey, Name: k.name}, err
}

// loadHistory loads the newest messages before the one of the turn that fit into a REQUEST.
func (w *work) loadHistory(q relay.Querier) error {
	if w.turn.number < 2 || w.endpoint.mode == wire.ModeParams {
		return nil
	}
	size := 0
	err := q.Query(func(scan gateway.Scanner) error {
		var e event
		if err := scan(e.fields()...); err != nil {
			return err
		}
		text := w.agentNames().message(e.body)
		if size += len(text); size > wire.MaxSealed {
			w.partial = true
			return errPieceFull
		}
		w.history = append(w.history, text)
		return nil
	}, "SELECT "+eventColumns+" FROM a2a_event WHERE task = ? AND said = 1 AND seq < ? ORDER BY seq DESC", w.task.n,
		w.turn.message)
	slices.Reverse(w.history)
	return ignoreFull(err)
}

// ahead is how many turns wait for an OFFER.
type ahead struct {
	all int64
	of  map[string]int64 // by payer
}

// aheadOf counts the turns of an endpoint that wait for an OFFER.
func aheadOf(q relay.Querier, endpoint int64) (a ahead, err error) {
	a.of = map[string]int64{}
	err = q.Query(func(scan gateway.Scanner) error {
		var payer string
		var n int64
		err := scan(&payer, &n)
		a.of[payer] = n
		a.all += n
		return err
	}, "SELECT payer, COUNT(*) FROM a2a_turn WHERE endpoint = ? AND state = 1 GROUP BY payer", endpoint)
	return a, err
}

// hasRoom reports whether another turn of a caller may be sent to the agent.
func (a ahead) hasRoom(payer string) bool {
	return a.all < deliver.Window && a.of[payer] < maxSentOfOne
}

// NextLane implements deliver.Queue. A lane is an endpoint.
func (g *Gateway) NextLane(q relay.Querier, after int64) (int64, error) {
	return gateway.Number(q, "SELECT endpoint FROM a2a_turn WHERE state = 0 AND endpoint > ? ORDER BY endpoint LIMIT 1", after)
}

// nextTurn returns the turn of an endpoint that is sent next. It belongs to the caller who has the fewest turns that
// wait for an OFFER. 0: no turn waits, or there is no room.
func nextTurn(q relay.Querier, endpoint int64) (next int64, err error) {
	sentBy, err := aheadOf(q, endpoint)
	if err != nil {
		return 0, err
	}
	var payer string
	err = q.Query(func(scan gateway.Scanner) error {
		var by string
		var n int64
		if err := scan(&by, &n); err != nil || !sentBy.hasRoom(by) {
			return err
		}
		if next == 0 || cmp.Or(cmp.Compare(sentBy.of[by], sentBy.of[payer]), cmp.Compare(n, next)) < 0 {
			payer, next = by, n
		}
		return nil
	}, "SELECT payer, MIN(n) FROM a2a_turn WHERE endpoint = ? AND state = 0 GROUP BY payer", endpoint)
	return next, err
}

// Next implements deliver.Queue.
func (g *Gateway) Next(q relay.Querier, endpoint int64) (d deliver.Draft, err error) {
	n, err := nextTurn(q, endpoint)
	if err != nil || n == 0 {
		return d, err
	}
	w, err := load(q, n)
	if err != nil {
		return d, err
	}
	d.Delivery = deliver.Delivery{N: w.turn.n, ID: w.turn.id, Owner: w.endpoint.did}
	d.Request, d.Err = g.request(w)
	return d, nil
}

// Sent implements deliver.Queue.
func (g *Gateway) Sent(o *gateway.Op, d deliver.Draft) (done bool, err error) {
	u, err := turnByNumber(o, d.N)
	if err != nil || u.n == 0 || u.state != deliver.Waiting {
		return false, err
	}
	u.state = deliver.Sent
	return true, updateTurn(o.ExtTx, u)
}

// Fail implements deliver.Queue.
func (g *Gateway) Fail(o *gateway.Op, d deliver.Draft, _ error) error {
	u, err := turnByNumber(o, d.N)
	if err != nil || u.n == 0 || u.state == deliver.Over {
		return err
	}
	t, err := taskByNumber(o, u.task)
	if err != nil {
		return err
	}
	return g.finish(o, t, u, failure(wire.Failed, "The relay could not hand the message to the agent."))
}
