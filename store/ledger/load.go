package ledger

import (
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// load asks tx for all that the entries of a group may touch, in three steps at most: what they name, then the threads
// they may mean otherwise and the inboxes they go to, and last, for those that mean none, the threads that tell why.
func (l *Ledger) load(tx Tx, entries []relay.Entry) (*group, error) {
	g := l.empty(len(entries))
	if err := g.loadNamed(tx, entries); err != nil {
		return nil, err
	}
	lost, err := g.loadSearched(tx, entries)
	if err == nil && len(lost) > 0 {
		err = g.loadOldest(tx, entries, lost)
	}
	return g, err
}

// empty returns a group of so many entries before anything is known.
func (l *Ledger) empty(entries int) *group {
	return &group{Ledger: l, known: make(map[MessageKey]known, entries), threads: make(map[thread.Key]*held, entries),
		byID: make(map[string][]*held, entries), listings: map[didkey.DID][]Listed{}, weights: make([]int, entries),
		events: make([]Event, 0, entries)}
}

// loadNamed loads the messages with the entries' ids, and the threads that belong to either end of an entry.
func (g *group) loadNamed(tx Tx, entries []relay.Entry) error {
	w := Wanted{Messages: make([]MessageKey, 0, len(entries)), Threads: make([]thread.Key, 0, len(entries))}
	for i, e := range entries {
		m := e.Envelope
		g.weights[i] = 1
		w.Messages = append(w.Messages, MessageKey{m.Sender.ID, m.ID})
		if m.Type == envelope.TypeManifest {
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
	g.since(found.End)
	for _, row := range found.Threads {
		if _, err := g.hold(row); err != nil {
			return err
		}
	}
	for _, m := range found.Messages {
		k := known{seq: m.Seq, expires: m.Expires, body: m.Body}
		if m.Thread != nil {
			if k.thread, err = g.hold(*m.Thread); err != nil {
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

// since begins behind end. If that is not where the last group ended, others have written, and counts may be too low. No
// count is dropped after this until the group is decided.
func (g *group) since(end relay.Cursor) {
	if g.end = end; end != g.left || len(g.inboxes) >= maxInboxes {
		clear(g.inboxes)
	}
}

// loadSearched loads the threads in which the senders of entries take part, where an entry names none, and counts what
// waits in the inboxes that entries go to. It returns the numbers of the entries that no thread was found for.
func (g *group) loadSearched(tx Tx, entries []relay.Entry) (lost []int, err error) {
	var w Wanted
	var searching []int
	of, open := map[Participation]int{}, map[string]int{} // the places of questions in w
	for i, e := range entries {
		m := e.Envelope
		if m.Type == envelope.TypeManifest || g.isKnown(m) || g.namesThread(m) {
			continue
		}
		searching = append(searching, i)
		ask(of, &w.Of, Participation{m.Thread, m.Sender.ID})
		if m.Type == envelope.TypeOffer {
			ask(open, &w.Open, m.Thread)
		}
	}
	counting := g.uncounted(entries, &w)
	if len(searching) == 0 && len(w.Inboxes) == 0 {
		return nil, nil
	}
	found, err := tx.Load(w)
	if err != nil {
		return nil, err
	}
	for j, i := range counting {
		g.count(w.Inboxes[j], found.Inboxes[j])
		g.weights[i] += found.Inboxes[j].Looked / 32
	}
	for _, i := range searching {
		m := entries[i].Envelope
		rows := found.Of[of[Participation{m.Thread, m.Sender.ID}]]
		if m.Type == envelope.TypeOffer {
			rows = append(rows[:len(rows):len(rows)], found.Open[open[m.Thread]]...)
		}
		if len(rows) == 0 {
			lost = append(lost, i)
		}
		if err := g.holdAll(rows, i); err != nil {
			return nil, err
		}
	}
	return lost, nil
}

// ask adds a question to a list, once, and notes its place.
func ask[Q comparable](places map[Q]int, list *[]Q, question Q) {
	if _, asked := places[question]; !asked {
		places[question] = len(*list)
		*list = append(*list, question)
	}
}

// loadOldest loads the oldest threads with the ids of those entries.
func (g *group) loadOldest(tx Tx, entries []relay.Entry, lost []int) error {
	var w Wanted
	places := map[string]int{}
	for _, i := range lost {
		ask(places, &w.Oldest, entries[i].Envelope.Thread)
	}
	found, err := tx.Load(w)
	if err != nil {
		return err
	}
	for _, i := range lost {
		if err := g.holdAll(found.Oldest[places[entries[i].Envelope.Thread]], i); err != nil {
			return err
		}
	}
	return nil
}

// isKnown reports whether a message of m's sender with m's id is stored.
func (g *group) isKnown(m *envelope.Envelope) bool {
	_, ok := g.known[MessageKey{m.Sender.ID, m.ID}]
	return ok
}

// hold returns the thread of row, decoded once.
func (g *group) hold(row Row) (*held, error) {
	if h := g.threads[row.Key]; h != nil {
		return h, nil
	}
	t, err := row.Decode()
	if err != nil {
		return nil, err
	}
	h := &held{Thread: *t, wasOpen: row.Open}
	g.threads[row.Key] = h
	g.byID[row.ID] = append(g.byID[row.ID], h)
	return h, nil
}

// holdAll holds threads that a search for the entry i has found.
func (g *group) holdAll(rows []Row, i int) error {
	for _, row := range rows {
		if _, err := g.hold(row); err != nil {
			return err
		}
		g.weights[i] += 1 + len(row.Record)/512
	}
	return nil
}
