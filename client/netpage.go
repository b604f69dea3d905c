package client

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/client/internal/mark"
	"github.com/agora-relay/agora/envelope"
)

// errNetCursor is the error for a cursor that no page of a Network has had.
var errNetCursor = errors.New("client: the cursor is not that of a page of several relays")

// Agents returns a page of the directories of all given relays: first the pages of the first relay, then those of the
// next one, without the manifests that an earlier relay has too. A page may have fewer agents than the limit. A relay
// that does not answer is left out and logged. Errors: the error of the last relay, if none of the rest answers; ctx's
// error.
func (n *Network) Agents(ctx context.Context, q AgentQuery) (AgentPage, error) {
	number, cursor, both := strings.Cut(q.Cursor, " ")
	at, err := strconv.Atoi(number)
	if q.Cursor != "" && (err != nil || !both || at < 0) {
		return AgentPage{}, errNetCursor
	}
	answered := false
	for idle := 0; at < len(n.given) && idle < maxIdlePages; idle++ {
		p := n.given[at]
		q.Cursor = cursor
		page, failed := p.Agents(ctx, q)
		answered, err = answered || failed == nil, failed
		found := n.withoutKnown(ctx, q, page.Agents, n.given[:at])
		if ctx.Err() != nil { // a relay that was cut off would be left out
			return AgentPage{}, ctx.Err()
		}
		if page.HasMore && page.Cursor != "" && page.Cursor != cursor {
			cursor = page.Cursor
		} else {
			at, cursor = at+1, ""
		}
		if failed != nil {
			n.log.Warn("the directory of a relay cannot be read", "relay", p.conn.Base, "error", failed)
		}
		if len(found) > 0 {
			return AgentPage{Agents: found, HasMore: at < len(n.given), Cursor: strconv.Itoa(at) + " " + cursor}, nil
		}
	}
	if !answered {
		return AgentPage{}, err
	}
	return AgentPage{}, nil
}

// withoutKnown returns the agents whose manifests these relays do not show for the same query.
func (n *Network) withoutKnown(ctx context.Context, q AgentQuery, agents []Agent, earlier []*Client) []Agent {
	known := make([]map[mark.Mark]bool, len(agents))
	for i, a := range agents {
		known[i] = map[mark.Mark]bool{}
		rows, errs := askAll(earlier, func(p *Client) (Agent, error) { return p.Agent(ctx, a.ID) })
		for j, row := range rows {
			for _, e := range row.Manifests {
				known[i][mark.Of(e)] = errs[j] == nil && (row.Online || !q.Online)
			}
		}
	}
	var found []Agent
	for i, a := range agents {
		if !known[i][mark.Of(a.Manifests[0])] {
			found = append(found, a)
		}
	}
	return found
}

// pagePlace is the cursor of a page of Network.Events.
type pagePlace struct {
	At   map[string]string `json:"at"`   // the cursors of the relays, by URL
	Seen []mark.Mark       `json:"seen"` // the last events, which another relay may show later
}

// maxPlaceSeen is how many events a pagePlace remembers.
const maxPlaceSeen = 1000

// Events returns a page of the events that the given relays have, each event once: first those of the first relay. It
// does the same as Client.Events, for several relays, and the limit holds for the whole page. A relay that does not
// answer is left out and logged: its events come in a later page. A relay that does not know its part of the cursor
// begins again with its oldest event. Errors: the error of the last relay, if none answers.
func (n *Network) Events(ctx context.Context, filter Filter, cursor string, limit int) (EventPage, error) {
	place := pagePlace{At: map[string]string{}}
	if cursor != "" && json.Unmarshal([]byte(cursor), &place) != nil || place.At == nil {
		return EventPage{}, errNetCursor
	}
	pages, errs := askAll(n.given, func(p *Client) (EventPage, error) {
		page, err := p.Events(ctx, filter, place.At[p.conn.Base], limit)
		if refusal, ok := errors.AsType[*envelope.Error](err); ok && refusal.Reason() == envelope.ReasonUnknownCursor {
			n.log.Warn("a relay has lost its data; its oldest events are read again", "relay", p.conn.Base)
			return p.Events(ctx, filter, "", limit)
		}
		return page, err
	})
	var all EventPage
	answered := false
	for i, page := range pages {
		if errs[i] != nil {
			n.log.Warn("the events of a relay cannot be read", "relay", n.given[i].conn.Base, "error", errs[i])
			continue
		}
		answered = true
		page.Events = slices.DeleteFunc(page.Events, func(e *envelope.Envelope) bool {
			return slices.Contains(place.Seen, mark.Of(e))
		})
		if len(all.Events) > 0 && len(all.Events)+len(page.Events) > limit {
			all.HasMore = true // this relay comes in the next page
			continue
		}
		place.At[n.given[i].conn.Base] = page.Cursor
		for _, e := range page.Events {
			place.Seen = append(place.Seen, mark.Of(e))
		}
		all.Events, all.Received = append(all.Events, page.Events...), all.Received+page.Received
		all.HasMore = all.HasMore || page.HasMore
	}
	if !answered {
		return EventPage{}, errs[len(errs)-1]
	}
	place.Seen = place.Seen[max(0, len(place.Seen)-maxPlaceSeen):]
	text, err := json.Marshal(place)
	all.Cursor = string(text)
	return all, err
}
