package ledger

import (
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// load loads everything that the entries of a group need, with at most three calls of Tx.Load:
//
//  1. the messages with the entries' ids, the threads that the entries name, and the senders' manifests;
//  2. the threads that the senders take part in, for entries that name no thread, and the counts of inboxes;
//  3. the oldest threads with the thread id, for entries for which step 2 found no thread. They decide which error the
//     sender gets.
func (l *Ledger) load(tx Tx, entries []relay.Entry) (*group, error) {
	g := l.newGroup(len(entries))
	if err := g.loadNamed(tx, entries); err != nil {
		return nil, err
	}
	unmatched, err := g.loadSearched(tx, entries)
	if err == nil && len(unmatched) > 0 {
		err = g.loadOldest(tx, entries, unmatched)
	}
	return g, err
}

// newGroup returns an empty group with room for this number of entries.
func (l *Ledger) newGroup(entries int) *group {
	return &group{Ledger: l, known: make(map[MessageKey]known, entries),
		threads: make(map[thread.Key]*groupThread, entries), byID: make(map[string][]*groupThread, entries),
		listings: map[didkey.DID][]Listed{}, weights: make([]int, entries), events: make([]Event, 0, entries)}
}

// loadNamed loads the messages with the entries' ids, the threads whose client is the sender or the recipient of an
// entry, and the manifests of senders that list one.
func (g *group) loadNamed(tx Tx, entries []relay.Entry) error {
	w := Wanted{Messages: make([]MessageKey, 0, len(entries)), Threads: make([]thread.Key, 0, len(entries)),
		Since: g.lastEnd}
	for i, e := range entries {
		m := e.Envelope
		g.weights[i] = 1
		w.Messages = append(w.Messages, MessageKey{m.Sender.ID, m.ID})
		if !hasThread(e) {
			if e.Listing != nil {
				w.Listings = append(w.Listings, Listings{m.Sender.ID, e.Received})
			}
			continue
		}
		w.Threads = append(w.Threads, thread.Key{Client: m.Sender.ID, ID: m.Thread})
		if m.Recipient != "" && m.Type != envelope.TypeRequest {
			w.Threads = append(w.Threads, thread.Key{Client: m.Recipient, ID: m.Thread})
		}
	}
	found, err := tx.Load(w)
	if err != nil {
		return err
	}
	g.startAfter(found)
	for _, row := range found.Threads {
		if _, err := g.addRow(row); err != nil {
			return err
		}
	}
	for _, m := range found.Messages {
		k := known{seq: m.Seq, expires: m.Expires, body: m.Body, removed: m.Removed}
		if m.Thread != nil {
			if k.thread, err = g.addRow(*m.Thread); err != nil {
				return err
			}
		}
		g.known[m.MessageKey] = k
	}
	for i, wanted := range w.Listings {
		g.listings[wanted.Sender] = found.Listings[i]
	}
	return nil
}

// startAfter makes the group start after found.End. If the last group ended at another cursor, another writer has stored
// events, and the cached counts of inboxes may be too low. startAfter adds these events to the counts if they are known.
// Otherwise it drops all counts. It also drops them if the cache has become too large. After this, no count is dropped
// until the group is decided.
func (g *group) startAfter(found Found) {
	g.end = found.End
	if len(g.inboxes) >= maxInboxes || g.end != g.lastEnd && !found.Counted {
		clear(g.inboxes)
		return
	}
	for _, a := range found.Arrivals {
		g.addToInbox(inboxKey{a.Recipient, a.Network}, a.Charge, a.Expires)
	}
}

// loadSearched loads the threads in which the sender takes part, for each entry that names no thread. It also counts
// the inboxes that may become full. It returns the indexes of the entries for which no thread was found.
func (g *group) loadSearched(tx Tx, entries []relay.Entry) (unmatched []int, err error) {
	var w Wanted
	var searching []int
	of, open := map[Participation]int{}, map[string]int{} // the index of each lookup in w.Of and w.Open
	for i, e := range entries {
		m := e.Envelope
		if !hasThread(e) || g.isKnown(m) || g.namesThread(m) {
			continue
		}
		searching = append(searching, i)
		addOnce(of, &w.Of, Participation{m.Thread, m.Sender.ID})
		if m.Type == envelope.TypeOffer {
			addOnce(open, &w.Open, m.Thread)
		}
	}
	counting := g.inboxesToCount(entries, &w)
	if len(searching) == 0 && len(w.Inboxes) == 0 {
		return nil, nil
	}
	found, err := tx.Load(w)
	if err != nil {
		return nil, err
	}
	for j, i := range counting {
		g.setCount(w.Inboxes[j], found.Inboxes[j])
		g.weights[i] += found.Inboxes[j].Examined / 32
	}
	for _, i := range searching {
		m := entries[i].Envelope
		rows := found.Of[of[Participation{m.Thread, m.Sender.ID}]]
		if m.Type == envelope.TypeOffer {
			rows = append(rows[:len(rows):len(rows)], found.Open[open[m.Thread]]...)
		}
		if len(rows) == 0 {
			unmatched = append(unmatched, i)
		}
		if err := g.addRows(rows, i); err != nil {
			return nil, err
		}
	}
	return unmatched, nil
}

// addOnce appends a lookup to list unless the list has it already. indexes maps each lookup to its index in list.
func addOnce[Q comparable](indexes map[Q]int, list *[]Q, lookup Q) {
	if _, asked := indexes[lookup]; !asked {
		indexes[lookup] = len(*list)
		*list = append(*list, lookup)
	}
}

// loadOldest loads the oldest threads with the thread ids of the entries whose indexes are in unmatched.
func (g *group) loadOldest(tx Tx, entries []relay.Entry, unmatched []int) error {
	var w Wanted
	indexes := map[string]int{}
	for _, i := range unmatched {
		addOnce(indexes, &w.Oldest, entries[i].Envelope.Thread)
	}
	found, err := tx.Load(w)
	if err != nil {
		return err
	}
	for _, i := range unmatched {
		if err := g.addRows(found.Oldest[indexes[entries[i].Envelope.Thread]], i); err != nil {
			return err
		}
	}
	return nil
}

// isKnown reports whether a message with m's sender and m's id is stored, or is accepted in this group.
func (g *group) isKnown(m *envelope.Envelope) bool {
	_, ok := g.known[MessageKey{m.Sender.ID, m.ID}]
	return ok
}

// addRow returns the group's thread for row. It decodes the record and adds the thread to the group on the first call.
func (g *group) addRow(row Row) (*groupThread, error) {
	if h := g.threads[row.Key]; h != nil {
		return h, nil
	}
	t, err := row.Decode()
	if err != nil {
		return nil, err
	}
	h := stored(t, row)
	g.threads[row.Key] = h
	g.byID[row.ID] = append(g.byID[row.ID], h)
	return h, nil
}

// stored returns a thread that is stored as row.
func stored(t *Thread, row Row) *groupThread {
	row.Record = nil
	return &groupThread{Thread: *t, was: row}
}

// addRows adds the threads that were found for the entry with index i.
func (g *group) addRows(rows []Row, i int) error {
	for _, row := range rows {
		if _, err := g.addRow(row); err != nil {
			return err
		}
		g.weights[i] += 1 + len(row.Record)/512
	}
	return nil
}
