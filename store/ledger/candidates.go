package ledger

import (
	"cmp"
	"slices"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// threadOf returns the loaded thread with this id that belongs to client, as a list of one, or nil if there is none.
func (g *group) threadOf(client didkey.DID, id string) []*groupThread {
	if h := g.threads[thread.Key{Client: client, ID: id}]; h != nil && client != "" {
		return []*groupThread{h}
	}
	return nil
}

// role returns who may send messages of m's type.
func role(m *envelope.Envelope) envelope.Role {
	row, _ := m.Type.Info()
	return row.By
}

// namesThread reports whether the threads that are loaded for m's sender and recipient include every thread that m may
// belong to. Then no search is needed. One of the two is always the client of the thread.
func (g *group) namesThread(m *envelope.Envelope) bool {
	switch role(m) {
	case envelope.RoleOpener:
		return true
	case envelope.RoleClient:
		if len(g.threadOf(m.Sender.ID, m.Thread)) > 0 {
			return true
		}
	}
	return len(g.partyThreads(m)) > 0
}

// partyThreads returns the threads with m's thread id whose client is m's sender or m's recipient. It returns nil if m
// has no recipient.
func (g *group) partyThreads(m *envelope.Envelope) []*groupThread {
	if m.Recipient == "" {
		return nil
	}
	return append(g.threadOf(m.Sender.ID, m.Thread), g.threadOf(m.Recipient, m.Thread)...)
}

// candidates returns the threads that m may belong to, the oldest first. A REQUEST belongs to the sender's own thread.
// A message that only the client may send belongs there too, if the sender has a thread with that id. For other
// messages, candidates returns what search finds; if client and agent may send the message, it adds the sender's own
// thread.
func (g *group) candidates(m *envelope.Envelope) []*groupThread {
	own := g.threadOf(m.Sender.ID, m.Thread)
	switch role(m) {
	case envelope.RoleOpener:
		return own
	case envelope.RoleClient:
		// The sender's own thread is found directly, however many older copies of the id exist.
		if len(own) > 0 {
			return own
		}
	case envelope.RoleParty:
		return oldestFirst(append(own, g.search(m)...))
	}
	return oldestFirst(g.search(m))
}

// search returns the threads that m may belong to: partyThreads if there are any; otherwise the threads in which the
// sender takes part and, for an offer, the threads in which any agent may offer. If there are none of these, search
// returns the oldest threads with the id; thread.Rules.Apply then finds out from them which error m gets.
func (g *group) search(m *envelope.Envelope) []*groupThread {
	if found := g.partyThreads(m); len(found) > 0 {
		return found
	}
	var own, open []*groupThread
	all := g.byID[m.Thread]
	for _, h := range all {
		switch {
		case h.hasParticipant(m.Sender.ID):
			own = append(own, h)
		case role(m) == envelope.RoleOfferer && g.isOpen(h.Thread.Thread):
			open = append(open, h)
		}
	}
	if len(own)+len(open) == 0 {
		return oldest(slices.Clone(all), "")
	}
	return append(oldest(own, m.Sender.ID), oldest(open, "")...)
}

// oldest sorts threads and returns the first MaxCandidates: first the threads whose accepted agent is agent, then by
// age. There may be more because the group also has threads that were loaded for other messages.
func oldest(threads []*groupThread, agent didkey.DID) []*groupThread {
	slices.SortFunc(threads, func(a, b *groupThread) int {
		if works := agent != "" && a.Agent == agent; works != (agent != "" && b.Agent == agent) {
			if works {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Number, b.Number)
	})
	return threads[:min(len(threads), MaxCandidates)]
}

// oldestFirst sorts threads by age and removes repeats.
func oldestFirst(threads []*groupThread) []*groupThread {
	slices.SortFunc(threads, func(a, b *groupThread) int { return cmp.Compare(a.Number, b.Number) })
	return slices.Compact(threads)
}

// hasParticipant reports whether did is one of t.Participants.
func (t *Thread) hasParticipant(did didkey.DID) bool {
	return did == t.Recipient || slices.ContainsFunc(t.Transitions, func(s thread.Transition) bool {
		return s.Type == envelope.TypeOffer && s.By == did
	})
}

// Participants returns the parties of t other than its client, each once: the agent that the REQUEST names, and every
// agent that has offered, including agents whose offers were withdrawn.
func (t *Thread) Participants() []didkey.DID {
	var all []didkey.DID
	if t.Recipient != "" {
		all = append(all, t.Recipient)
	}
	for _, step := range t.Transitions {
		if step.Type == envelope.TypeOffer && !slices.Contains(all, step.By) {
			all = append(all, step.By)
		}
	}
	return all
}
