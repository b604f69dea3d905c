package sqlite

import (
	"encoding/json"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// Write implements ledger.Tx.
func (w *writer) Write(c ledger.Changes) error {
	with := map[int64]relay.Seq{} // the last event of each thread in c
	for _, e := range c.Events {
		with[e.Thread] = e.Seq
	}
	var alone []int64
	for _, t := range c.Threads {
		if err := w.writeThread(t); err != nil {
			return err
		}
		if seq := with[t.Number]; seq > 0 {
			w.noteThread(seq, t)
		} else {
			w.store.tail.changeThread(t.Number, t.Open)
			alone = append(alone, t.Number)
		}
	}
	for _, e := range c.Events {
		if err := w.writeEvent(e); err != nil {
			return err
		}
	}
	if c.Log != nil {
		if err := w.writeLog(w.store.log.Load(), c.Log, w.last); err != nil {
			return err
		}
	}
	for _, r := range c.Removed {
		if err := w.removeThread(r); err != nil {
			return err
		}
	}
	// A restart would not find these threads by the events that are not merged. Nothing but Open and Due has changed.
	return w.indexThreads(alone)
}

func (w *writer) writeThread(t ledger.Change) (err error) {
	if t.New {
		_, err = w.stmts.addThread.Exec(t.Number, t.ID, string(t.Client), nanos(t.Due), t.Open,
			ledger.StateNumber(t.State), t.Record)
	} else {
		_, err = w.stmts.updateThread.Exec(nanos(t.Due), t.Open, ledger.StateNumber(t.State), t.Record, t.Number)
	}
	return err
}

// noteThread adds a thread that changed together with the event seq to the tail.
func (w *writer) noteThread(seq relay.Seq, t ledger.Change) {
	note := changedThread{id: t.ID, due: nanos(t.Due), open: t.Open, own: t.New || t.Open != t.Was.Open}
	roles := map[didkey.DID][]int{}
	if t.New {
		roles[""], roles[t.Client] = []int{0}, []int{schema.RoleClient}
	}
	for _, p := range t.Joined {
		roles[p.DID] = append(roles[p.DID], roleOf(p))
	}
	w.store.tail.addThread(seq, t.Number, note, roles)
}

func roleOf(p ledger.Participant) int {
	if p.Works {
		return schema.RoleWorker
	}
	return schema.RolePartner
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
	var leaf, salt any
	if e.Leaf != nil {
		leaf, salt = e.LeafIndex, e.Leaf.Salt[:]
	}
	_, err = w.stmts.addEvent.Exec(e.Seq, sender, m.ID, recipient, string(m.Type), e.Thread,
		nanos(e.TS), nanos(e.Received), nanos(e.Expires), nanos(e.Forget), e.Charge, e.Network, leaf, salt, e.Body)
	if err != nil {
		return err
	}
	w.last = e.Seq
	w.store.tail.add(tailRow{seq: e.Seq, sender: sender, recipient: recipient, by: m.Sender.ID, to: m.Recipient, id: m.ID,
		thread: e.Thread, ts: nanos(e.TS), forget: nanos(e.Forget)})
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
