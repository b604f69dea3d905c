package httpapi

import (
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/relay"
)

// This file serves the relay's log (docs/PROOFS.md).

const contentText = "text/plain; charset=utf-8"

// writeText sends a complete answer that is not JSON.
func writeText(w http.ResponseWriter, contentType string, body []byte) {
	SetHeader(w, contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	send(w, body)
}

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
	writeText(w, contentText, []byte(text))
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
	writeText(w, contentText, []byte(text))
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
