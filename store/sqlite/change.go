package sqlite

import (
	"encoding/json"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/schema"
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
	for _, r := range c.Removed {
		if err := w.removeThread(r); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) writeThread(t ledger.Change) (err error) {
	if t.New {
		_, err = w.stmts.addThread.Exec(t.Number, t.ID, string(t.Client), nanos(t.Due), t.Open,
			ledger.StateNumber(t.State), t.Record)
		if err == nil {
			_, err = w.stmts.addRoles.Exec(t.ID, schema.OwnRole(t.Open), t.Number, string(t.Client))
		}
	} else {
		_, err = w.stmts.updateThread.Exec(nanos(t.Due), t.Open, ledger.StateNumber(t.State), t.Record, t.Number)
		if err == nil && t.Open != t.WasOpen {
			_, err = w.stmts.updateRole.Exec(schema.OwnRole(t.Open), t.ID, schema.OwnRole(t.WasOpen), t.Number)
		}
	}
	for _, p := range t.Joined {
		if err != nil {
			return err
		}
		role := schema.RolePartner
		if p.Works {
			role = schema.RoleWorker
		}
		_, err = w.stmts.addRole.Exec(t.ID, string(p.DID), role, t.Number)
	}
	return err
}

// writeEvent inserts the event. If it lists a manifest, writeEvent also inserts or replaces that manifest.
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
		if _, err := w.stmts.addManifest.Exec(sender, e.Listing.ID, e.Seq, nanos(e.TS), nanos(e.Expires),
			string(intents), e.Listing.Text, recipient); err != nil {
			return err
		}
		w.agents[sender] = struct{}{}
	}
	if _, ok := w.agents[sender]; ok && !e.Unseen {
		_, err = w.stmts.seen.Exec(nanos(e.Received), sender)
	}
	return err
}

// parties is a set of identities' numbers.
type parties map[int64]struct{}

// removeThread removes a thread's record and its rows in thread_role.
func (w *writer) removeThread(r ledger.Removal) error {
	for _, did := range append([]didkey.DID{"", r.Client}, r.Participants...) {
		if _, err := w.stmts.dropRoles.Exec(r.ID, string(did), r.Number); err != nil {
			return err
		}
	}
	_, err := w.stmts.dropThread.Exec(r.Number)
	return err
}
