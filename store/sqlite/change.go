package sqlite

import (
	"encoding/json"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/ledger"
)

// Write implements ledger.Tx.
func (w *writer) Write(c ledger.Changes) error {
	for _, t := range c.Threads {
		if err := w.writeThread(t); err != nil {
			return err
		}
	}
	for _, e := range c.Events {
		if err := w.writeEvent(e); err != nil {
			return err
		}
	}
	left := parties{}
	for _, r := range c.Removed {
		if err := w.removeThread(r, left); err != nil {
			return err
		}
	}
	return w.removeParties(left)
}

// The ranks of participants. The thread in which an agent works comes first, so that no number of threads that name it
// can hide that one.
const rankWorks, rankOther = 0, 1

func (w *writer) writeThread(t ledger.Change) (err error) {
	if t.New {
		var client int64
		if client, err = w.intern(t.Client); err != nil {
			return err
		}
		_, err = w.stmts.addThread.Exec(t.Number, t.ID, client, nanos(t.Due), t.Open, t.Record)
	} else {
		_, err = w.stmts.updateThread.Exec(nanos(t.Due), t.Open, t.Record, t.Number)
	}
	if err != nil {
		return err
	}
	for _, p := range t.Joined {
		party, err := w.intern(p.DID)
		if err != nil {
			return err
		}
		rank := rankOther
		if p.Works {
			rank = rankWorks
		}
		if _, err := w.stmts.addParticipant.Exec(party, t.ID, rank, t.Number); err != nil {
			return err
		}
	}
	return nil
}

// writeEvent adds the event, and the manifest if it is one.
func (w *writer) writeEvent(e ledger.Event) error {
	m := e.Envelope
	sender, err := w.intern(m.Sender.ID)
	if err != nil {
		return err
	}
	recipient, err := w.intern(m.Recipient)
	if err != nil {
		return err
	}
	_, err = w.stmts.addEvent.Exec(e.Seq, sender, m.ID, recipient, string(m.Type), e.Thread,
		nanos(e.TS), nanos(e.Received), nanos(e.Expires), nanos(e.Forget), e.Body, e.Charge, e.Network)
	if err != nil {
		return err
	}
	w.last = e.Seq
	if e.Listing != nil {
		intents, err := json.Marshal(e.Listing.Intents)
		if err != nil {
			return err
		}
		if _, err := w.stmts.addManifest.Exec(sender, e.Listing.ID, e.Seq, nanos(e.TS), nanos(e.Expires), string(intents), e.Listing.Text, recipient); err != nil {
			return err
		}
		w.agents[sender] = struct{}{}
	}
	if _, ok := w.agents[sender]; ok && !e.Unseen {
		_, err = w.stmts.seen.Exec(nanos(e.Received), sender)
	}
	return err
}

// parties is a set of identities by their numbers.
type parties map[int64]struct{}

func (p parties) add(w *writer, did didkey.DID) (int64, error) {
	id, err := w.party(did)
	p[id] = struct{}{}
	return id, err
}

// removeThread removes a record, and adds those who took part to left.
func (w *writer) removeThread(r ledger.Removal, left parties) error {
	if _, err := left.add(w, r.Client); err != nil {
		return err
	}
	for _, did := range r.Participants {
		agent, err := left.add(w, did)
		if err != nil {
			return err
		}
		if _, err := w.stmts.dropParticipant.Exec(agent, r.ID, r.Number); err != nil {
			return err
		}
	}
	_, err := w.stmts.dropThread.Exec(r.Number)
	return err
}
