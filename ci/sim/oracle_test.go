package sim

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
)

// allowedStepBack is how far a relay's clock may be set back without harm.
const allowedStepBack = replay.StepBack

func makeFolder(path string) error { return os.Mkdir(path, 0o700) }

// oracle knows what the relay has said, and checks that it stays true:
//
//   - a message that was acknowledged or delivered stays stored, once, with its number, until it expires;
//   - a message that was refused for good, or as not stored, is not stored;
//   - each stored message was posted by somebody, except for the relay's notices;
//   - each proof is consistent with the log in the database, and no two proofs are evidence against the relay;
//   - each reader gets each message for it once, in order, also through crashes.
type oracle struct {
	*testing.T
	clock *clock
	key   didkey.Key // of the relay, which signs notices and checkpoints

	mu    sync.Mutex // the pollers also call delivered
	posts []*post
	byID  map[string]*post
	known map[relay.Seq]fact // everything that a receipt or a delivery has shown
	seq   map[string]relay.Seq
	epoch uint32

	logs   bool                 // the relay keeps a log
	leaves map[int64]proof.Hash // of the proofs, by index
	roots  map[int64]proof.Hash // of the checkpoints, by size

	statements []*proof.Statement
}

// fact is a stored event.
type fact struct {
	id        string
	recipient didkey.DID
	expires   time.Time
	delivered bool
	removed   bool // by the operator, or an attempt to do so failed
}

// post is a message and what its sender knows.
type post struct {
	envelope *envelope.Envelope
	talk     *talk
	unknown  bool // an attempt ended so that it may be stored
	updated  bool // an Update has stored it, and added a row
	seq      relay.Seq

	maybePosted, maybeUpdated bool // how it was attempted, if that is unknown
}

func newOracle(t *testing.T, c *clock, key didkey.Key) *oracle {
	return &oracle{T: t, clock: c, key: key, leaves: map[int64]proof.Hash{}, roots: map[int64]proof.Hash{},
		byID: map[string]*post{}, known: map[relay.Seq]fact{}, seq: map[string]relay.Seq{}}
}

// post adds a message that will be posted.
func (o *oracle) post(e *envelope.Envelope, t *talk) *post {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &post{envelope: e, talk: t}
	o.posts = append(o.posts, p)
	o.byID[e.ID] = p
	return p
}

// again returns a message that was posted before, or nil.
func (o *oracle) again(random *rand.Rand) *post {
	if len(o.posts) == 0 || random.IntN(6) > 0 {
		return nil
	}
	if all := o.unsettled(); len(all) > 0 {
		return all[random.IntN(len(all))]
	}
	return o.posts[len(o.posts)-1-random.IntN(min(len(o.posts), 50))]
}

// unsettled returns the messages of which no one knows whether they are stored.
func (o *oracle) unsettled() (all []*post) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.posts {
		if p.unknown && p.seq == 0 {
			all = append(all, p)
		}
	}
	return all
}

// alive reports whether an event that expires then has never been expired by the relay's clock.
func (o *oracle) alive(expires time.Time) bool { return o.clock.latest.Load() < expires.UnixNano() }

// answered checks the answer to an attempt to post p.
func (o *oracle) answered(p *post, receipt relay.Receipt, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := p.envelope.ID
	if err == nil {
		if p.seq != 0 && !receipt.Duplicate {
			o.Errorf("%s was stored as event %d, and again as %d", id, p.seq, receipt.Cursor.Seq)
		}
		if receipt.Duplicate && p.seq == 0 && !p.unknown && o.seq[id] == 0 {
			o.Errorf("%s is a duplicate, but no attempt to post it can have stored it", id)
		}
		p.seq = receipt.Cursor.Seq
		o.proved(p, receipt)
		o.learn(receipt.Cursor.Seq, fact{id: id, recipient: p.envelope.Recipient, expires: receipt.ExpiresAt})
		return
	}
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		o.Errorf("posting %s: %v", id, err)
		return
	}
	switch code := refusal.Code; {
	case refusal.Details[envelope.DetailReason] == envelope.ReasonRemoved:
		if f, ok := o.known[o.seq[id]]; !ok || !f.removed {
			o.Errorf("%s: %v, but nobody has removed it", id, err)
		}
	case code == envelope.CodeInternal:
		o.Errorf("posting %s: %v", id, err)
	case code.Info().Settles:
		if p.seq != 0 {
			o.Errorf("%s is stored as event %d, but was refused: %v", id, p.seq, err)
		}
		p.unknown = false
	case code.Retryable() && !refusal.NothingStored():
		p.unknown, p.maybePosted = true, true
	}
}

// unanswered notes that p may be stored.
func (o *oracle) unanswered(p *post) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p.unknown = true
}

// remove lets the operator remove an event.
func (o *oracle) remove(random *rand.Rand, r *relay.Relay) {
	o.mu.Lock()
	seqs := slices.Sorted(maps.Keys(o.known))
	o.mu.Unlock()
	if len(seqs) == 0 {
		return
	}
	seq := seqs[random.IntN(len(seqs))]
	_, err := r.Remove(o.Context(), seq)
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.known[seq]
	f.removed = f.removed || envelope.CodeOf(err) != envelope.CodeNotFound // perhaps, after another error
	o.known[seq] = f
	if refusal, ok := errors.AsType[*envelope.Error](err); err != nil && !ok {
		o.Errorf("removing event %d: %v", seq, refusal)
	}
}

// proved checks the proof of a receipt, and keeps what it says.
func (o *oracle) proved(p *post, receipt relay.Receipt) {
	l := receipt.Logged
	if (l == nil) != (receipt.Duplicate || !o.logs) {
		o.Errorf("%s has the leaf %v, duplicate: %v", p.envelope.ID, l, receipt.Duplicate)
	}
	if l == nil {
		return
	}
	text, err := l.Growth.Prove(o.key, proof.Origin{DID: o.key.DID(), Epoch: receipt.Cursor.Epoch}, l.Index, l.Leaf)
	var v *proof.Verified
	read := &proof.Proof{}
	if err == nil {
		read, err = proof.Parse(text)
	}
	if err == nil {
		v, err = read.Verify()
	}
	if err == nil {
		err = v.CheckMessage(p.envelope, o.key.DID())
	}
	if err != nil {
		o.Errorf("the proof of %s: %v", p.envelope.ID, err)
	}
	o.statements = append(o.statements, &proof.Statement{Proof: read, Verified: v, Event: p.envelope})
	o.leaves[l.Index], o.roots[read.Checkpoint.Size] = tlog.RecordHash([]byte(l.Leaf)), read.Checkpoint.Root
}

// blameless checks that the proofs give no evidence against the relay.
func (o *oracle) blameless() {
	for _, e := range proof.Compare(o.statements, nil) {
		found, err := e.Verify()
		o.Errorf("the relay has contradicted itself: %s (%v)", found.Text, err)
	}
}

// log compares the log in the database with all proofs.
func (o *oracle) log(s *sqlite.Store) {
	var tree proof.Tree
	proved := 0
	if _, err := s.View(o.Context(), func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var hashes []byte
			if err := scan(&hashes); err != nil {
				return err
			}
			for hash := range slices.Chunk(hashes, len(proof.Hash{})) {
				if want, ok := o.leaves[tree.Size]; ok && want != proof.Hash(hash) {
					o.Errorf("leaf %d is not that of its proof", tree.Size)
				} else if ok {
					proved++
				}
				tree.Grow([]proof.Hash{proof.Hash(hash)})
				if want, ok := o.roots[tree.Size]; ok && want != tree.Root() {
					o.Errorf("the root at size %d is not that of its checkpoint", tree.Size)
				}
			}
			return nil
		}, "SELECT hashes FROM log_leaf ORDER BY at")
	}); err != nil {
		o.Fatalf("reading the log: %v", err)
	}
	if proved != len(o.leaves) {
		o.Errorf("%d of %d proved leaves are in the log of size %d", proved, len(o.leaves), tree.Size)
	}
}

// learn notes that event seq is f.
func (o *oracle) learn(seq relay.Seq, f fact) {
	if before, ok := o.known[seq]; ok && before.id != f.id {
		o.Errorf("event %d was %s and is now %s", seq, before.id, f.id)
	}
	// A thread can be opened again when everything about it is forgotten. Then its notice has the same id as before.
	if before, ok := o.seq[f.id]; ok && before != seq && (o.byID[f.id] != nil || o.alive(o.known[before].expires)) {
		o.Errorf("%s was event %d and is now %d", f.id, before, seq)
	}
	f.delivered, f.removed = f.delivered || o.known[seq].delivered, f.removed || o.known[seq].removed
	o.known[seq], o.seq[f.id] = f, seq
}

// delivered checks the events of a page that a has got. The poll began at the time began.
func (o *oracle) delivered(a *agent, events []relay.Event, began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock.now()
	for _, e := range events {
		m, err := envelope.Parse(e.Body, 0)
		if err != nil || m.ID != e.ID || m.Recipient != a.did {
			o.Errorf("event %d is for %s, but was delivered to %s (%v)", e.Seq, m.Recipient, a.did, err)
			continue
		}
		if !e.Expires.After(began) && !e.Expires.After(now) {
			o.Errorf("event %d was delivered after it had expired", e.Seq)
		}
		if e.Seq <= a.last {
			o.Errorf("event %d was delivered after event %d, to the same reader", e.Seq, a.last)
		}
		a.last = e.Seq
		o.stored(e, m)
		o.learn(e.Seq, fact{id: e.ID, recipient: m.Recipient, expires: e.Expires, delivered: true})
	}
}

// stored checks that somebody has posted e.
func (o *oracle) stored(e relay.Event, m *envelope.Envelope) {
	p := o.byID[e.ID]
	switch {
	case p == nil && m.Sender.ID != o.key.DID():
		o.Errorf("event %d is %s, which nobody has posted", e.Seq, e.ID)
	case p != nil && !bytes.Equal(e.Body, p.envelope.Canonical()):
		o.Errorf("event %d is not what was posted as %s", e.Seq, e.ID)
	}
}

// audit compares all of the store with what is known.
func (o *oracle) audit(s *sqlite.Store, d *Disk, path string) {
	o.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	there := map[relay.Seq]bool{}
	rows := o.rows(s)
	o.log(s)
	q := relay.Query{Expired: true, Removed: true, Limit: 100}
	for more := true; more; {
		page, err := s.Read(o.Context(), q)
		if err != nil {
			o.Fatalf("reading the store: %v", err)
		}
		if o.epoch != 0 && page.Cursor.Epoch != o.epoch {
			o.Errorf("the epoch was %x and is %x", o.epoch, page.Cursor.Epoch)
		}
		o.epoch = page.Cursor.Epoch
		for _, e := range page.Events {
			there[e.Seq] = true
			o.storedNow(e, rows)
		}
		q.After, more = page.Cursor, page.More
	}
	for seq, f := range o.known {
		if !there[seq] && o.alive(f.expires) {
			o.Errorf("event %d (%s) is missing", seq, f.id)
		}
	}
	for _, p := range o.posts {
		if p.unknown && o.seq[p.envelope.ID] == 0 && o.alive(p.envelope.TS.Add(p.envelope.TTL)) {
			p.unknown, p.maybePosted, p.maybeUpdated = false, false, false // it is not stored
		}
	}
	for id, seq := range rows {
		if o.seq[id] != seq {
			o.Errorf("an Update has stored %s as event %d, but it is event %d", id, seq, o.seq[id])
		}
	}
	if err := o.check(path); err != nil && !d.dead() {
		o.Errorf("check: %v", err)
	}
}

// check checks a database.
func (o *oracle) check(path string) error {
	report, err := check.Database(o.Context(), path, check.Options{Now: o.clock.now(),
		Extensions: extensions, Found: func(f check.Finding) { o.Errorf("check: %s", f) }})
	o.Logf("%s: %d events, %d threads", o.clock.now().Format(time.DateTime), report.Events, report.Threads)
	return err
}

// rows returns the messages that Updates have stored.
func (o *oracle) rows(s *sqlite.Store) map[string]relay.Seq {
	rows := map[string]relay.Seq{}
	if _, err := s.View(o.Context(), func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var id string
			var seq int64
			err := scan(&id, &seq)
			rows[id] = relay.Seq(seq)
			return err
		}, "SELECT id, seq FROM sim_message")
	}); err != nil {
		o.Fatalf("reading the rows of Updates: %v", err)
	}
	return rows
}

// storedNow checks one event of the store. rows are the messages that Updates have stored, see rows.
func (o *oracle) storedNow(e relay.Event, rows map[string]relay.Seq) {
	f := fact{id: e.ID, expires: e.Expires}
	if p := o.byID[e.ID]; p != nil {
		if p.seq == 0 && !p.unknown {
			o.Errorf("event %d is %s, but every attempt to post it was refused", e.Seq, e.ID)
		}
		_, updated := rows[e.ID]
		if p.updated && !updated || p.seq == 0 && updated != p.maybeUpdated && !(p.maybeUpdated && p.maybePosted) {
			o.Errorf("half of an Update is missing: event %d (%s) is stored, and its row: %v", e.Seq, e.ID, updated)
		}
		p.seq, p.updated, p.maybeUpdated, p.maybePosted = e.Seq, updated, false, false
		f.recipient = p.envelope.Recipient
	}
	if f.removed = !e.Removed.IsZero(); f.removed {
		f.expires = o.known[e.Seq].expires
		if before, ok := o.known[e.Seq]; ok && !before.removed {
			o.Errorf("event %d (%s) was removed, but not by the operator", e.Seq, e.ID)
		}
	}
	if len(e.Body) > 0 { // a full disk cuts bodies of what has expired
		m, err := envelope.Parse(e.Body, 0)
		if err != nil {
			o.Errorf("event %d: %v", e.Seq, err)
			return
		}
		f.recipient = m.Recipient
		o.stored(e, m)
	}
	o.learn(e.Seq, f)
}

// allDelivered checks that the readers have got everything that they could get.
func (o *oracle) allDelivered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for seq, f := range o.known {
		if f.recipient != "" && !f.delivered && !f.removed && o.alive(f.expires) {
			o.Errorf("event %d (%s) was not delivered", seq, f.id)
		}
	}
}
