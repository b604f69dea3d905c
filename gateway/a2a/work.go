package a2a

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file has what agents call while they work on a turn: they read all of it, and send progress.

// errTurn refuses a turn of another agent in the same way as one that does not exist.
var errTurn = gateway.Forbidden("this DID has no turn with this id; use the URL in work of the REQUEST")

// turnFor returns a turn of an agent, with its task. Errors: errTurn.
func turnFor(q relay.Querier, r *http.Request, agent didkey.DID) (u turn, t task, err error) {
	if u, err = turnByID(q, mux.Vars(r)["turn"]); err != nil {
		return u, t, err
	}
	e, err := endpointByNumber(q, u.endpoint)
	if err != nil {
		return u, t, err
	}
	if u.n == 0 || e.did != agent || e.deleted != 0 {
		return u, t, errTurn
	}
	if t, err = taskByNumber(q, u.task); err == nil && t.endpoint == 0 {
		err = errTurn
	}
	return u, t, err
}

// getWork returns the handler of GET {work}.
func (g *Gateway) getWork(main bool) httpapi.Handler {
	return g.Signed(main, gateway.MaxBody,
		func(w http.ResponseWriter, r *http.Request, from relay.Peer, agent didkey.DID, _ []byte) error {
			var text workText
			if err := g.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
				text, err = newWorkText(q, r, agent)
				return err
			}); err != nil {
				return err
			}
			return httpapi.WriteList(w, httpapi.List{Raw: true, Head: `{"ok":true,"state":` + quote(string(text.task.state)),
				Elements: gateway.Parts(r.Context(), g.Core, from, func() (part []byte, more bool, err error) {
					now := text
					err = g.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
						now = text
						part, more, err = now.next(q)
						return err
					})
					text = now
					return part, more, err
				}), Tail: func() string { return "}\n" }})
		})
}

// workText makes the text of all of a turn, in pieces.
type workText struct {
	taskText
	turn    turn
	work    work
	message bool // the message of the caller is written
}

func newWorkText(q relay.Querier, r *http.Request, agent didkey.DID) (x workText, err error) {
	u, t, err := turnFor(q, r, agent)
	if err != nil {
		return x, err
	}
	if x.work, err = load(q, u.n); err != nil {
		return x, err
	}
	x.turn = u
	x.taskText = taskText{task: t, names: names{x.work.context, t.id}, view: view{artifacts: true}, stage: beginArtifacts}
	return x, nil
}

// next returns the next piece.
func (x *workText) next(q relay.Querier) (text []byte, more bool, err error) {
	if !x.message {
		x.message = true
		return []byte(`,"message":` + x.work.agentNames().message(x.work.message)), true, nil
	}
	for len(text) < pieceBytes && err == nil {
		switch x.stage {
		case beginArtifacts, inArtifacts:
			if x.stage == beginArtifacts && x.task.artifacts == 0 {
				text = append(text, `,"artifacts":[]`...)
			}
			text, _, err = x.step(q, text)
		case beginHistory:
			x.at, x.begun, x.stage = 0, false, inHistory
			text = append(text, `,"history":[`...)
		case inHistory:
			text, err = x.earlier(q, text)
		default:
			return text, false, nil
		}
	}
	return text, true, err
}

// step makes one step of the text of the task.
func (x *workText) step(q relay.Querier, text []byte) ([]byte, bool, error) {
	if x.stage == inArtifacts {
		text, err := x.nextArtifacts(q, text)
		return text, true, err
	}
	if x.stage = beginHistory; x.task.artifacts > 0 {
		x.stage = inArtifacts
		text = append(text, `,"artifacts":[`...)
	}
	return text, true, nil
}

// earlier appends some messages before the one of the turn.
func (x *workText) earlier(q relay.Querier, text []byte) ([]byte, error) {
	rows, more, err := messagesAfter(q, x.task.n, x.at, x.turn.message-1)
	for _, e := range rows {
		if x.at = e.seq; x.begun {
			text = append(text, ',')
		}
		text = append(text, x.work.agentNames().message(e.body)...)
		x.begun = true
	}
	if !more {
		text = append(text, ']')
		x.stage = endTask
	}
	return text, err
}

// postProgress returns the handler of POST {work}/events.
func (g *Gateway) postProgress(main bool) httpapi.Handler {
	return g.Signed(main, wire.MaxProgress,
		func(w http.ResponseWriter, r *http.Request, from relay.Peer, agent didkey.DID, body []byte) error {
			if err := g.Relay.Gate().ChargeBody(from, len(body)); err != nil {
				return err
			}
			var events []wire.Progress
			if err := g.Relay.Gate().Checking(from, func() error {
				canonical, err := wire.Body(body, wire.MaxProgress)
				if err == nil {
					events, err = wire.ParseProgress(canonical)
				}
				return err
			}); err != nil {
				return inRelayCodes(err)
			}
			ctx := context.WithoutCancel(r.Context())
			var t task
			err := g.Update(ctx, from, func(o *gateway.Op) (err error) {
				t, err = g.progress(o, r, agent, events)
				return err
			})
			if errors.Is(err, errFull) {
				full := failure(wire.Failed, "The agent has sent more than a task can keep.")
				err = cmp.Or(g.end(ctx, from, t, full, "the task has no room for more", nil), errFull)
			}
			if err != nil {
				return err
			}
			return httpapi.WriteJSON(w, http.StatusOK, struct {
				OK  bool  `json:"ok"`
				Seq int64 `json:"seq"`
			}{true, t.seq})
		})
}

// inRelayCodes returns an error of A2A as one of the relay.
func inRelayCodes(err error) error {
	if e, known := errorOf(err); known && e.HTTP == 0 {
		return gateway.Invalid("%s", e.Message)
	}
	return err
}

// errFull refuses progress for which the task has no room.
var errFull error = envelope.TooLarge(0, wire.MaxTask)

// progress stores the events of an agent. Errors: errTurn, CodeConflict, errFull.
func (g *Gateway) progress(o *gateway.Op, r *http.Request, agent didkey.DID, events []wire.Progress) (task, error) {
	u, t, err := turnFor(o, r, agent)
	if err != nil {
		return t, err
	}
	if u.state != deliver.Accepted {
		return t, gateway.Conflict("this turn has ended, or the agent's offer is not accepted yet")
	}
	for _, e := range events {
		if e.Status != nil {
			err = t.setStatus(o, e.Status.State, e.Status.Message, 0)
		} else {
			err = t.addArtifact(o, *e.Artifact)
		}
		if err == nil && t.bytes > g.taskBytes {
			err = errFull
		}
		if err != nil {
			return t, err
		}
	}
	return t, g.save(o, t)
}
