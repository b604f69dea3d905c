package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
)

// This file serves the relay's log and its witness (docs/PROOFS.md).

const contentText = "text/plain; charset=utf-8"

func (a *api) getProof(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	p, err := parseParams(r, "sender", "id")
	if err != nil {
		return err
	}
	sender, err := p.did("sender")
	if err != nil {
		return err
	}
	if sender == "" || p["id"] == "" {
		return invalid("name the message by its sender and its id")
	}
	text, err := a.relay.ProofOf(r.Context(), from, sender, p["id"])
	if err != nil {
		return err
	}
	write(w, http.StatusOK, contentText, []byte(text))
	return nil
}

func (a *api) getCheckpoint(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if err := noParams(r); err != nil {
		return err
	}
	text, err := a.relay.Checkpoint(r.Context(), from, mux.Vars(r)["epoch"])
	if err != nil {
		return err
	}
	write(w, http.StatusOK, contentText, []byte(text))
	return nil
}

func (a *api) getTile(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if err := noParams(r); err != nil {
		return err
	}
	vars := mux.Vars(r)
	data, err := a.relay.Tile(r.Context(), from, vars["epoch"], vars["tile"])
	if err != nil {
		return err
	}
	SetHeader(w, "application/octet-stream")
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable") // a tile never changes
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	send(w, data)
	return nil
}

// errNoWitness is the answer of a relay that is no witness.
var errNoWitness = envelope.Errorf(envelope.CodeNotFound, "this relay is no witness; its operator can name the relays whose "+
	"logs it should watch with --peer")

// addCheckpoint lets the relay's witness sign a checkpoint (C2SP tlog-witness).
func (a *api) addCheckpoint(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if err := noParams(r); err != nil {
		return err
	}
	if a.options.Witness == nil {
		return errNoWitness
	}
	body, err := ReadBody(w, r, proof.MaxSubmission)
	if err != nil {
		return err
	}
	signed, err := a.options.Witness.Add(r.Context(), from, body)
	if conflict, ok := errors.AsType[*witness.Conflict](err); ok {
		write(w, http.StatusConflict, "text/x.tlog.size", fmt.Append(nil, conflict.Size, "\n"))
		return nil
	}
	if inconsistent, ok := errors.AsType[*witness.Inconsistent](err); ok {
		return ErrorAnswer{Status: http.StatusUnprocessableEntity, Body: errorBody{Error: envelope.CodeInvalidRequest,
			Message: inconsistent.Error()}}.Write(w)
	}
	if err != nil {
		return err
	}
	write(w, http.StatusOK, contentText, []byte(signed))
	return nil
}

// getCosigned serves the last checkpoint of a log that the relay's witness has signed.
func (a *api) getCosigned(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if err := noParams(r); err != nil {
		return err
	}
	if a.options.Witness == nil {
		return errNoWitness
	}
	text, err := a.options.Witness.Checkpoint(r.Context(), from, mux.Vars(r)["hash"])
	if err != nil {
		return err
	}
	write(w, http.StatusOK, contentText, []byte(text))
	return nil
}
