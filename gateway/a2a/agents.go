package a2a

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file lists the endpoints that strangers can find.

// Limits of GET {B}/agents.
const (
	defaultAgents = 50
	maxAgents     = 100
	maxSearch     = 200 // bytes of q
)

// shownAgent is an endpoint as strangers see it.
type shownAgent struct {
	DID         didkey.DID `json:"did"`
	Name        string     `json:"name"`
	Description string     `json:"description"`
	URL         string     `json:"url"`
	Online      bool       `json:"online"`
}

// search is what a request looks for.
type search struct {
	text         string
	after, limit int64
}

func parseSearch(r *http.Request) (s search, err error) {
	p, err := gateway.Parameters(r, "q", "limit", "cursor")
	if err != nil {
		return s, err
	}
	s = search{text: strings.ToLower(p["q"]), limit: defaultAgents}
	if len(s.text) > maxSearch {
		return s, gateway.Invalid("q must have at most %d bytes", maxSearch)
	}
	if text, given := p["limit"]; given {
		if s.limit, err = strconv.ParseInt(text, 10, 64); err != nil || s.limit < 1 || s.limit > maxAgents {
			return s, gateway.Invalid("limit must be a whole number from 1 to %d", maxAgents)
		}
	}
	if text, given := p["cursor"]; given {
		if s.after, err = strconv.ParseInt(text, 10, 64); err != nil || s.after < 0 {
			return s, gateway.Invalid("cursor must be the cursor of an earlier answer")
		}
	}
	return s, nil
}

// getAgents is the handler of GET {B}/agents. It examines a bounded number of endpoints. If fewer of them match than the
// caller wants, the page is short, and hasMore says that the search continues at the cursor.
func (g *Gateway) getAgents(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	s, err := parseSearch(r)
	if err != nil {
		return err
	}
	agents := []shownAgent{}
	hasMore := false
	if err := g.Relay.View(r.Context(), from, func(q relay.Querier) error {
		agents, hasMore = agents[:0], false
		examined, next := 0, s.after
		err := q.Query(func(scan gateway.Scanner) error {
			var n int64
			var a shownAgent
			if err := scan(&n, (*string)(&a.DID), &a.Name, &a.Description, &a.URL); err != nil {
				return err
			}
			if examined++; int64(len(agents)) == s.limit || examined > gateway.PieceRows {
				hasMore = true
				return errPieceFull
			}
			next = n
			words := strings.ToLower(a.Name + "\n" + a.Description + "\n" + string(a.DID))
			if a.URL == g.address(a.DID).Base() && strings.Contains(words, s.text) {
				agents = append(agents, a)
			}
			return nil
		}, "SELECT n, did, name, description, url FROM a2a_endpoint WHERE deleted = 0 AND listed = 1 AND n > ? ORDER BY n LIMIT ?",
			s.after, gateway.PieceRows+1)
		if s.after = next; err != nil {
			return ignoreFull(err)
		}
		return nil
	}); err != nil {
		return err
	}
	for i := range agents {
		if agents[i].Online, err = g.online(r.Context(), from, agents[i].DID); err != nil {
			return err
		}
	}
	return httpapi.WriteJSON(w, http.StatusOK, struct {
		OK      bool         `json:"ok"`
		Agents  []shownAgent `json:"agents"`
		Cursor  string       `json:"cursor"`
		HasMore bool         `json:"hasMore"`
	}{true, agents, strconv.FormatInt(s.after, 10), hasMore})
}
