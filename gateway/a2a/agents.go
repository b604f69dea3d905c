package a2a

import (
	"context"
	"fmt"
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

// search is what a request looks for, and how far it has got.
type search struct {
	text          string
	after, limit  int64 // the last endpoint that was examined, and how many more may be shown
	rows          int64 // how many more may be examined
	done, hasMore bool  // nothing more is shown; there may be more after it
}

func parseSearch(r *http.Request) (s search, err error) {
	p, err := gateway.Parameters(r, "q", "limit", "cursor")
	if err != nil {
		return s, err
	}
	s = search{text: strings.ToLower(p["q"]), limit: defaultAgents, rows: gateway.PieceRows}
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
	return httpapi.WriteList(w, httpapi.List{Head: `{"ok":true,"agents":[`, Tail: func() string {
		return fmt.Sprintf(`],"cursor":"%d","hasMore":%t}`+"\n", s.after, s.hasMore)
	}, Elements: gateway.Parts(r.Context(), g.Core, from, func() (part []byte, more bool, err error) {
		found, next, err := g.nextAgents(r.Context(), from, s)
		if err != nil {
			return nil, false, err
		}
		s = next
		var p gateway.Piece
		for _, a := range found {
			p.Add(a)
		}
		return p.Text(), !s.done, nil
	})})
}

// nextAgents returns the next endpoints that match: at most pieceBytes, or one.
func (g *Gateway) nextAgents(ctx context.Context, from relay.Peer, s search) (found []shownAgent, next search, err error) {
	if err := g.Relay.View(ctx, from, func(q relay.Querier) error {
		found, next = nil, s
		next.done = true
		size := 0
		return ignoreFull(q.Query(func(scan gateway.Scanner) error {
			var n int64
			var a shownAgent
			if err := scan(&n, (*string)(&a.DID), &a.Name, &a.Description, &a.URL); err != nil {
				return err
			}
			if size += len(a.Name) + len(a.Description); len(found) > 0 && size > pieceBytes {
				next.done = false
				return errPieceFull
			}
			if next.limit == 0 || next.rows == 0 {
				next.hasMore = true
				return errPieceFull
			}
			next.rows--
			next.after = n
			words := strings.ToLower(a.Name + "\n" + a.Description + "\n" + string(a.DID))
			if a.URL == g.address(a.DID).Base() && strings.Contains(words, s.text) {
				found = append(found, a)
				next.limit--
			}
			return nil
		}, "SELECT n, did, name, description, url FROM a2a_endpoint WHERE deleted = 0 AND listed = 1 AND n > ? ORDER BY n LIMIT ?",
			s.after, s.rows+1))
	}); err != nil {
		return nil, s, err
	}
	for i := range found {
		if found[i].Online, err = g.online(ctx, from, found[i].DID); err != nil {
			return nil, s, err
		}
	}
	return found, next, nil
}
