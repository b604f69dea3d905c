package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// directory has the registered agents in memory, by address, in the form in which the lists show them. Everybody may
// ask for these lists, and an agent changes much less often than it is listed. So an agent is read and encoded once per
// change.
type directory struct {
	reading chan struct{} // has an element while changed agents are read, so that a newer row is never replaced by an older one

	mu       sync.Mutex
	changed  map[int64]struct{} // agents whose rows were changed and not read yet
	byNumber map[int64]*entry
	sorted   []*entry        // by address
	bridged  map[string]bool // addresses of agents with a DID
	used     map[int64]int64 // when the use of an agent with a DID was recorded last, since the start
	replied  map[int64]int64 // when the webhook of an agent last replied; without replies before onlineAfter
}

// entry is an agent in the directory. It does not change.
type entry struct {
	n                int64
	address, culture string
	did              didkey.DID // empty: the agent has a key
	listed           []byte     // for GET /discover, as JSON, up to the value of online
	shown            []byte     // for GET /agents, as JSON, as strangers see it
}

func newDirectory() *directory {
	return &directory{reading: make(chan struct{}, 1), changed: map[int64]struct{}{}, byNumber: map[int64]*entry{},
		bridged: map[string]bool{}, used: map[int64]int64{}, replied: map[int64]int64{}}
}

// listed is an agent as GET /discover shows it. Its last member, online, follows.
type listed struct {
	AgentID   string   `json:"agent_id"`
	Culture   *string  `json:"culture"`
	Languages []string `json:"languages"`
}

// newEntry returns the entry of a registered agent.
func newEntry(a agent) *entry {
	l := listed{AgentID: a.address, Languages: languagesOf(a.card)}
	if a.culture != "" {
		l.Culture = &a.culture
	}
	has := a.hasEndpoint()
	return &entry{n: a.n, address: a.address, culture: a.culture, did: a.did,
		listed: append(trimObject(jsontext.Compact(l)), `,"online":`...),
		shown:  jsontext.Compact(newRegistration(a, &has))}
}

// trimObject removes the last bracket of an object.
func trimObject(object []byte) []byte { return object[:len(object)-1] }

// newRegistration returns an agent as answers show it, without its endpoint.
func newRegistration(a agent, hasEndpoint *bool) registration {
	r := registration{AgentID: a.address, Card: json.RawMessage("null"), RegisteredAt: gateway.Stamp(a.registered),
		HasEndpoint: hasEndpoint}
	if a.card != "" {
		r.Card = json.RawMessage(a.card)
	}
	return r
}

func byAddress(e *entry, address string) int { return cmp.Compare(e.address, address) }

// set makes a the row of its agent. deleted says that the agent is not registered any more.
func (d *directory) set(n int64, a agent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.byNumber[n]; old != nil {
		if i, found := slices.BinarySearchFunc(d.sorted, old.address, byAddress); found && d.sorted[i] == old {
			d.sorted = slices.Delete(d.sorted, i, i+1)
		}
		delete(d.byNumber, n)
	}
	if !a.live() {
		delete(d.replied, n)
		delete(d.used, n)
		return
	}
	d.setBridged(a)
	e := newEntry(a)
	d.byNumber[n] = e
	i, taken := slices.BinarySearchFunc(d.sorted, a.address, byAddress)
	if taken { // the agent that had the address was deleted, and that is not read yet
		delete(d.byNumber, d.sorted[i].n)
		d.sorted[i] = e
		return
	}
	d.sorted = slices.Insert(d.sorted, i, e)
}

// mark notes that the row of an agent was changed.
func (d *directory) mark(a agent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed[a.n] = struct{}{}
	d.setBridged(a)
}

// setBridged notes whether the agent with an address has a DID. d.mu is held.
func (d *directory) setBridged(a agent) {
	if a.did != "" && a.live() {
		d.bridged[a.address] = true
	} else {
		delete(d.bridged, a.address)
	}
}

// isBridged reports whether the agent with an address has a DID, as of the last change that is on disk.
func (d *directory) isBridged(address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bridged[address]
}

// take returns some of the changed agents, which are no longer marked.
func (d *directory) take() (some []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.changed {
		if len(some) == gateway.PieceRows {
			break
		}
		delete(d.changed, n)
		some = append(some, n)
	}
	return some
}

// after returns the next agents behind an address. more means that others follow.
func (d *directory) after(address string) (some []*entry, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, found := slices.BinarySearchFunc(d.sorted, address, byAddress)
	if found {
		i++
	}
	end := min(i+gateway.PieceRows, len(d.sorted))
	return slices.Clone(d.sorted[i:end]), end < len(d.sorted)
}

// reply notes that the webhook of an agent has replied.
func (d *directory) reply(n, now int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replied[n] = now
}

// forgetReplies forgets the replies before a time.
func (d *directory) forgetReplies(before int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, at := range d.replied {
		if at < before {
			delete(d.replied, n)
		}
	}
}

// repliedSince reports whether the webhook of an agent has replied since a time.
func (d *directory) repliedSince(n, since int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.replied[n] > since
}

// present returns some agents with a DID that are online, and whose use was not recorded since a time.
func (d *directory) present(since int64, most int, online func(didkey.DID) bool) (some []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, e := range d.byNumber {
		if len(some) == most {
			break
		}
		if e.did != "" && d.used[n] <= since && online(e.did) {
			some = append(some, n)
		}
	}
	return some
}

// recorded notes that the use of agents was recorded.
func (d *directory) recorded(agents []int64, now int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range agents {
		d.used[n] = now
	}
}

// load reads all registered agents.
func (h *Hub) load(ctx context.Context) error {
	since := h.now().Add(-onlineAfter).UnixNano()
	for last, more := int64(0), true; more; {
		var some []agent
		if err := h.Relay.View(ctx, self, func(q relay.Querier) error {
			some = nil
			return q.Query(func(scan gateway.Scanner) error {
				var a agent
				var replied int64
				err := scan(append(a.fields(), &replied)...)
				if replied > since {
					h.directory.reply(a.n, replied)
				}
				some = append(some, a)
				return err
			}, "SELECT a.n, a.address, a.culture, a.card, a.endpoint, a.registered, a.deleted, a.did, u.replied FROM hub_agent a "+
				"JOIN hub_use u ON u.agent = a.n WHERE a.deleted = 0 AND a.n > ? ORDER BY a.n LIMIT ?", last, gateway.PieceRows)
		}); err != nil {
			return err
		}
		for _, a := range some {
			h.directory.set(a.n, a)
			last = a.n
		}
		more = len(some) == gateway.PieceRows
	}
	return nil
}

// refresh reads the agents that were changed. The changes of all requests that were answered before are in the directory
// when it returns.
func (h *Hub) refresh(ctx context.Context) error {
	d := h.directory
	select {
	case d.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.reading }()
	for some := d.take(); len(some) > 0; some = d.take() {
		rows := make([]agent, len(some))
		if err := h.Relay.View(ctx, self, func(q relay.Querier) (err error) {
			for i, n := range some {
				if rows[i], err = agentByNumber(q, n); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, n := range some {
				d.changed[n] = struct{}{}
			}
			return err
		}
		for i, n := range some {
			d.set(n, rows[i])
		}
	}
	return nil
}

// isOnline reports whether an agent has a stream, or a webhook that has replied in the last onlineAfter. An agent with a DID
// is also online if the relay has heard from it (B-13).
func (h *Hub) isOnline(n int64, did didkey.DID) bool {
	return h.streams.has(n) || did != "" && h.requests.Online(did) || h.directory.repliedSince(n, h.now().Add(-onlineAfter).UnixNano())
}

// listAgents returns the elements of a list of registered agents, by address. add adds an agent, if it belongs to the list.
func (h *Hub) listAgents(
	ctx context.Context, from relay.Peer, add func(q relay.Querier, e *entry, p *gateway.Piece) error,
) gateway.Elements {
	return gateway.List(ctx, h.Core, from, "", func(q relay.Querier, at string, p *gateway.Piece) (string, bool, error) {
		some, more := h.directory.after(at)
		done, err := gateway.AddRows(p, some, func(e *entry) error { return add(q, e, p) })
		if done > 0 {
			at = some[done-1].address
		}
		return at, more || done < len(some), err
	})
}

// listHead is the beginning of a list in the usual form of answers.
const listHead = `{"success":true,"data":[`

// listTail returns the end of such a list.
func (h *Hub) listTail(hasMore bool) string {
	metadata := h.metadata()
	metadata.HasMore = hasMore
	return `],"metadata":` + string(jsontext.Compact(metadata)) + "}\n"
}
