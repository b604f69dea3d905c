package a2a

import (
	"context"

	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file keeps proofs: signatures of agents over what they did in a turn (docs/A2A.md, "Proofs").

// checkProof drops the proof of an outcome that does not verify. It reads the whole task, so it must not be called
// in an Update. finish drops the proof if the task has changed since.
func (g *Gateway) checkProof(ctx context.Context, u turn, e endpoint, out *outcome) error {
	proof := out.proof
	out.proof = nil
	if proof == nil {
		return nil
	}
	var t task
	var text taskText
	var request event
	if err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if t, err = taskByNumber(q, u.task); err != nil {
			return err
		}
		if text, err = newText(q, t, view{artifacts: true}); err == nil {
			request, err = eventAt(q, t.n, u.message)
		}
		return err
	}); err != nil {
		return err
	}
	if t.endpoint == 0 || len(jsontext.Compact(proof)) > wire.MaxProof {
		return nil
	}
	var whole []byte
	for part, err := range g.texts(ctx, self, text) {
		if err != nil {
			return err
		}
		whole = append(whole, part...)
	}
	err := g.Relay.Gate().Checking(self, func() error {
		known, err := wire.ParseTask("", whole)
		if err != nil {
			return err
		}
		proven := wire.Proven{Task: t.id, Turn: int(u.number), State: out.state, Artifacts: wire.Merge(known.Artifacts, out.artifacts),
			Message: out.message}
		if proven.Request, err = wire.ParseMessage("", []byte(request.body)); err != nil {
			return err
		}
		return proven.Verify(*proof, e.did)
	})
	if err != nil {
		g.Log.Warn("the proof of an agent is dropped, because it does not verify", "turn", u.id, "err", err)
		return nil
	}
	out.proof, out.proven = proof, t.seq
	return nil
}

// proofOf returns the metadata of a task with the proof of its last turn that has ended, with a comma before it; empty: it
// has none.
func proofOf(q relay.Querier, t task) (string, error) {
	last := t.turn
	if t.open {
		last--
	}
	u, err := find(q, (*turn).fields, "SELECT "+turnColumns+" FROM a2a_turn WHERE task = ? AND turn = ?", t.n, last)
	if err != nil || u.proof == "" {
		return "", err
	}
	return `,"metadata":{` + quote(wire.ProofURI) + ":" + u.proof + "}", nil
}

// prove stores the proof of an outcome with its turn. before is the task before the outcome.
func (u *turn) prove(before task, out outcome) {
	if out.proof != nil && out.proven == before.seq {
		u.proof = string(jsontext.Compact(out.proof))
	}
}
