package ledger

import (
	"cmp"
	"slices"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// own returns the thread with an id that belongs to a client.
func (g *group) own(client didkey.DID, id string) []*held {
	if h := g.threads[thread.Key{Client: client, ID: id}]; h != nil && client != "" {
		return []*held{h}
	}
	return nil
}

// namesThread reports whether the threads of m's two ends are all that m may mean. One of a message's two ends is
// always the client.
func (g *group) namesThread(m *envelope.Envelope) bool {
	switch m.Type {
	case envelope.TypeRequest:
		return true
	case envelope.TypeAccept, envelope.TypeCancel:
		if len(g.own(m.Sender.ID, m.Thread)) > 0 {
			return true
		}
	}
	return len(g.ends(m)) > 0
}

// ends returns the threads of the sender and of the recipient, if m has one.
func (g *group) ends(m *envelope.Envelope) []*held {
	if m.Recipient == "" {
		return nil
	}
	return append(g.own(m.Sender.ID, m.Thread), g.own(m.Recipient, m.Thread)...)
}

// candidates returns the threads that m may mean, oldest first: of a client its own; else those of m's two ends; else
// those in which the sender takes part and, for an OFFER, those in which any agent may offer; else the oldest, from
// which the rules tell why m is refused.
func (g *group) candidates(m *envelope.Envelope) []*held {
	own := g.own(m.Sender.ID, m.Thread)
	switch m.Type {
	case envelope.TypeRequest:
		return own
	case envelope.TypeAccept, envelope.TypeCancel:
		// No number of copies made before may stand in its way.
		if len(own) > 0 {
			return own
		}
	case envelope.TypeError:
		// Both a client and an agent send it.
		return oldestFirst(append(own, g.others(m)...))
	}
	return oldestFirst(g.others(m))
}

func (g *group) others(m *envelope.Envelope) []*held {
	if found := g.ends(m); len(found) > 0 {
		return found
	}
	var own, open []*held
	all := g.byID[m.Thread]
	for _, h := range all {
		switch {
		case h.hasParticipant(m.Sender.ID):
			own = append(own, h)
		case m.Type == envelope.TypeOffer && g.isOpen(h.Thread.Thread):
			open = append(open, h)
		}
	}
	if len(own)+len(open) == 0 {
		return oldest(slices.Clone(all), "")
	}
	return append(oldest(own, m.Sender.ID), oldest(open, "")...)
}

// oldest returns the first MaxCandidates of threads, those in which agent works before the others. A group may have
// loaded more for other messages.
func oldest(threads []*held, agent didkey.DID) []*held {
	slices.SortFunc(threads, func(a, b *held) int {
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

// oldestFirst sorts threads by age and leaves each in once.
func oldestFirst(threads []*held) []*held {
	slices.SortFunc(threads, func(a, b *held) int { return cmp.Compare(a.Number, b.Number) })
	return slices.Compact(threads)
}

// hasParticipant reports whether did is one of Participants.
func (t *Thread) hasParticipant(did didkey.DID) bool {
	return did == t.Recipient || slices.ContainsFunc(t.Transitions, func(s thread.Transition) bool {
		return s.Type == envelope.TypeOffer && s.By == did
	})
}

// Participants returns who takes part in t besides its client, each once: the agent that the REQUEST names, and each
// that has offered.
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
