package postgres

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/ledger"
)

// The statements of Write. Each gets all its rows as arrays, one for each column.
const (
	addThreads = "INSERT INTO thread (n, id, client, due, open, state, record) SELECT * FROM " +
		"unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[], $5::boolean[], $6::smallint[], $7::bytea[])"
	updateThreads = "UPDATE thread t SET due = k.due, open = k.open, state = k.state, record = k.record FROM " +
		"unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::smallint[], $5::bytea[]) k (n, due, open, state, record) " +
		"WHERE t.n = k.n"
	// addParticipants has no ON CONFLICT, because that costs one more record of the write-ahead log for each row.
	addParticipants = "INSERT INTO participant (key, party, role, thread) SELECT * FROM " +
		"unnest($1::uuid[], $2::bytea[], $3::smallint[], $4::bigint[]) k (key, party, role, thread) WHERE NOT EXISTS " +
		"(SELECT 1 FROM participant p WHERE p.key = k.key AND p.role = k.role AND p.thread = k.thread)"
	dropThreads      = "DELETE FROM thread t USING unnest($1::bigint[]) k (n) WHERE t.n = k.n"
	dropParticipants = "DELETE FROM participant p USING unnest($1::uuid[], $2::bigint[]) k (key, thread) " +
		"WHERE p.key = k.key AND p.role IN (0, 1) AND p.thread = k.thread"
	addManifests = "INSERT INTO manifest (n, sender, id, seq, ts, expires, recipient, text, intents) SELECT k.seq, k.* FROM " +
		"unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[], $8::bytea[]) " +
		"k (sender, id, seq, ts, expires, recipient, text, intents) " +
		"ON CONFLICT (sender, id) DO UPDATE SET seq = excluded.seq, ts = excluded.ts, expires = excluded.expires, " +
		"recipient = excluded.recipient, text = excluded.text, intents = excluded.intents"
	dropIntents = "DELETE FROM manifest_intent i USING unnest($1::bytea[], $2::bytea[]) k (sender, id), manifest m " +
		"WHERE m.sender = k.sender AND m.id = k.id AND i.n = m.n"
	addIntents = "INSERT INTO manifest_intent (n, intent, sender, recipient) SELECT m.n, k.intent, m.sender, m.recipient " +
		"FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) k (sender, id, intent) " +
		"JOIN manifest m ON m.sender = k.sender AND m.id = k.id ON CONFLICT DO NOTHING"
	addAgents = "INSERT INTO agent (did, seen) SELECT * FROM unnest($1::bytea[], $2::bigint[]) ON CONFLICT DO NOTHING"
	seeAgents = "UPDATE agent a SET seen = k.seen FROM unnest($1::bytea[], $2::bigint[]) k (did, seen) " +
		"WHERE a.did = k.did AND a.seen < k.seen"
)

// Write implements ledger.Tx. It queues the statements. The next round trip sends them: usually the commit, or an
// update that follows in the group.
func (w *writer) Write(c ledger.Changes) error {
	w.begin()
	w.writeThreads(c.Threads)
	w.countThreads(c.Threads, c.Removed)
	w.writeEvents(c.Events)
	if err := w.writeManifests(c.Events); err != nil {
		return err
	}
	if c.Log != nil {
		w.writeLog(w.store.log.Load(), c.Log, c.Events[len(c.Events)-1].Seq)
	}
	w.removeThreads(c.Removed)
	if n := len(c.Events); n > 0 {
		w.last = c.Events[n-1].Seq
	}
	return nil
}

func (w *writer) writeThreads(changes []ledger.Change) {
	var added, updated struct {
		n, due              []int64
		id, client, records [][]byte
		open                []bool
		state               []int16
	}
	var keys [][16]byte
	var parties [][]byte
	var roles []int16
	var numbers []int64
	for _, t := range changes {
		into := &updated
		if t.New {
			into = &added
		}
		into.n, into.due = append(into.n, t.Number), append(into.due, nanos(t.Due))
		into.id, into.client = append(into.id, []byte(t.ID)), append(into.client, []byte(t.Client))
		into.records, into.open = append(into.records, t.Record), append(into.open, t.Open)
		into.state = append(into.state, int16(ledger.StateNumber(t.State)))
		for _, p := range t.Joined {
			role := int16(1)
			if p.Works {
				role = 0
			}
			keys, parties = append(keys, pairKey(p.DID, t.ID)), append(parties, []byte(p.DID))
			roles, numbers = append(roles, role), append(numbers, t.Number)
		}
	}
	if a := added; len(a.n) > 0 {
		w.batch.Queue(addThreads, a.n, a.id, a.client, a.due, a.open, a.state, a.records)
	}
	if u := updated; len(u.n) > 0 {
		w.batch.Queue(updateThreads, u.n, u.due, u.open, u.state, u.records)
	}
	if len(keys) > 0 {
		w.batch.Queue(addParticipants, keys, parties, roles, numbers)
	}
}

func (w *writer) writeEvents(events []ledger.Event) {
	n := len(events)
	if n == 0 {
		return
	}
	// Usually the sweep has created the partitions long before.
	for s := &w.store.sweeper; s.ready < int64(events[n-1].Seq)/s.size; s.ready++ {
		w.batch.Queue(addPartition, s.ready+1)
	}
	var r eventRows
	for i, e := range events {
		m := e.Envelope
		var leaf *int64 // nil: NULL
		var salt []byte
		if e.Leaf != nil {
			leaf, salt = &events[i].LeafIndex, e.Leaf.Salt[:]
		}
		r.leaf, r.salt = append(r.leaf, leaf), append(r.salt, salt)
		r.seq, r.thread = append(r.seq, int64(e.Seq)), append(r.thread, e.Thread)
		r.ts, r.received = append(r.ts, nanos(e.TS)), append(r.received, nanos(e.Received))
		// After the clock was set back, a new event could count as removed already.
		r.expires, r.forget = append(r.expires, nanos(e.Expires)), append(r.forget, max(nanos(e.Forget), w.swept+1))
		r.charged, r.network = append(r.charged, e.Charge), append(r.network, e.Network)
		r.sender, r.id = append(r.sender, []byte(m.Sender.ID)), append(r.id, []byte(m.ID))
		r.recipient, r.kind = append(r.recipient, []byte(m.Recipient)), append(r.kind, []byte(m.Type))
		r.body = append(r.body, e.Body)
	}
	r.queue(w.batch, w.parties)
}

// writeManifests puts the listings of events into the directory, and records when the agents in it were heard from.
func (w *writer) writeManifests(events []ledger.Event) error {
	var senders, ids, recipients, texts, lists, intentSenders, intentIDs, intents [][]byte
	var seqs, ts, expires []int64
	seen, listed := map[didkey.DID]int64{}, map[didkey.DID]bool{}
	for _, e := range events {
		sender := e.Envelope.Sender.ID
		if !e.Unseen {
			seen[sender] = max(seen[sender], nanos(e.Received))
		}
		if e.Listing == nil {
			continue
		}
		listed[sender] = true
		senders, ids = append(senders, []byte(sender)), append(ids, []byte(e.Listing.ID))
		seqs, ts, expires = append(seqs, int64(e.Seq)), append(ts, nanos(e.TS)), append(expires, nanos(e.Expires))
		recipients, texts = append(recipients, []byte(e.Envelope.Recipient)), append(texts, []byte(e.Listing.Text))
		list, err := json.Marshal(e.Listing.Intents)
		if err != nil {
			return err
		}
		lists = append(lists, list)
		for _, intent := range e.Listing.Intents {
			intentSenders, intentIDs = append(intentSenders, []byte(sender)), append(intentIDs, []byte(e.Listing.ID))
			intents = append(intents, hashOf(intent))
		}
	}
	if len(ids) > 0 {
		var dids [][]byte
		for did := range listed {
			dids = append(dids, []byte(did))
		}
		w.batch.Queue(addManifests, senders, ids, seqs, ts, expires, recipients, texts, lists)
		w.batch.Queue(dropIntents, senders, ids)
		w.batch.Queue(addIntents, intentSenders, intentIDs, intents)
		w.batch.Queue(addAgents, dids, make([]int64, len(dids)))
	}
	if len(seen) > 0 {
		var dids [][]byte
		var times []int64
		for did, at := range seen {
			dids, times = append(dids, []byte(did)), append(times, at)
		}
		w.batch.Queue(seeAgents, dids, times)
	}
	return nil
}

// hashOf returns the form in which the table manifest_intent has an intent.
func hashOf(intent string) []byte {
	hash := sha256.Sum256([]byte(intent))
	return hash[:]
}

func (w *writer) removeThreads(removed []ledger.Removal) {
	if len(removed) == 0 {
		return
	}
	var numbers, of []int64
	var keys [][16]byte
	for _, r := range removed {
		numbers = append(numbers, r.Number)
		for _, did := range r.Participants {
			keys, of = append(keys, pairKey(did, r.ID)), append(of, r.Number)
		}
	}
	if len(keys) > 0 {
		w.batch.Queue(dropParticipants, keys, of)
	}
	w.batch.Queue(dropThreads, numbers)
}
