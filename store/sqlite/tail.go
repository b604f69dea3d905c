package sqlite

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/thread"
)

// tail finds the events that are stored but not yet merged into the indexes. The writer changes it. Readers use it under
// its lock. A reader must ask it before its snapshot of the database begins: an event that the tail does not know then is
// merged in the snapshot. What the tail knows may be merged already, or be removed, or not be committed. So a reader must
// check the rows of the events.
type tail struct {
	mu      sync.RWMutex
	frozen  *part // is being merged; nil: none
	growing *part
	undone  []undoStep // of the open transaction, for undo
}

// undoStep takes back a change that came with the event seq.
type undoStep struct {
	seq relay.Seq
	f   func()
}

// part is a range of events. Lists have the numbers of events in their order.
type part struct {
	rows       []tailRow // in the order of seq
	sent       map[ledger.MessageKey]relay.Seq
	senders    map[didkey.DID]*partyList
	recipients map[didkey.DID]*partyList
	threads    map[int64][]relay.Seq
	roles      map[roleKey][]role
	changed    map[int64]*changedThread
	due        int64 // Expire must look at one of the events or threads at this time, or later
}

// roleKey finds threads with an id by a party. The empty party finds all of them.
type roleKey struct {
	id    string
	party didkey.DID
}

// role is the part of a party in a thread, see schema.RoleClient. For the empty party it is 0.
type role struct {
	role   int
	thread int64
	state  *changedThread
}

// changedThread is a thread that has events in a part.
type changedThread struct {
	id   string
	due  int64
	open bool
	own  bool // the thread is new, or open has changed
}

// partyList has the events of one party. All rows share the string did.
type partyList struct {
	did  didkey.DID
	seqs []relay.Seq
}

// tailRow has the columns of an event by which the indexes are sorted.
type tailRow struct {
	seq               relay.Seq
	sender, recipient int64
	by, to            didkey.DID // the DIDs of sender and recipient
	id                string
	thread            int64
	ts, forget        int64
}

func newPart() *part {
	return &part{sent: map[ledger.MessageKey]relay.Seq{}, senders: map[didkey.DID]*partyList{},
		recipients: map[didkey.DID]*partyList{}, threads: map[int64][]relay.Seq{},
		roles: map[roleKey][]role{}, changed: map[int64]*changedThread{}, due: math.MaxInt64}
}

// listOf returns the list of did and adds an empty one if there is none.
func listOf(lists map[didkey.DID]*partyList, did didkey.DID) *partyList {
	l := lists[did]
	if l == nil {
		// A copy, because did may be a part of a large text, such as an envelope.
		l = &partyList{did: didkey.DID(strings.Clone(string(did)))}
		lists[l.did] = l
	}
	return l
}

// add adds an event with the next number.
func (t *tail) add(r tailRow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.growing
	sender, recipient := listOf(p.senders, r.by), listOf(p.recipients, r.to)
	r.by, r.to, r.id = sender.did, recipient.did, strings.Clone(r.id)
	sender.seqs, recipient.seqs = append(sender.seqs, r.seq), append(recipient.seqs, r.seq)
	if r.thread != 0 {
		p.threads[r.thread] = append(p.threads[r.thread], r.seq)
	}
	p.sent[ledger.MessageKey{Sender: r.by, ID: r.id}] = r.seq
	p.rows = append(p.rows, r)
	p.due = min(p.due, r.forget)
}

// begin begins a transaction.
func (t *tail) begin() { t.undone = t.undone[:0] }

// addThread adds a thread that changed together with the event seq. roles are those that parties got in it.
func (t *tail) addThread(seq relay.Seq, n int64, c changedThread, roles map[didkey.DID][]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.growing
	state := p.changed[n]
	if state == nil {
		state = &changedThread{id: strings.Clone(c.id)}
		p.changed[n] = state
		t.undone = append(t.undone, undoStep{seq, func() { delete(p.changed, n) }})
	}
	was := *state
	t.undone = append(t.undone, undoStep{seq, func() { *state = was }})
	state.due, state.own = c.due, c.own || was.own
	t.setOpen(seq, n, c.open)
	p.due = min(p.due, c.due)
	for did, all := range roles {
		k := roleKey{state.id, didkey.DID(strings.Clone(string(did)))}
		had := len(p.roles[k])
		for _, r := range all {
			p.roles[k] = append(p.roles[k], role{r, n, state})
		}
		t.undone = append(t.undone, undoStep{seq, func() {
			if p.roles[k] = p.roles[k][:had]; had == 0 {
				delete(p.roles, k)
			}
		}})
	}
}

// setOpen tells the tail whether a thread is open to any agent now. The merge reads it from the table. If seq is above
// the seq of every event, no event came with the change. The caller holds the lock.
func (t *tail) setOpen(seq relay.Seq, n int64, open bool) {
	for _, p := range t.parts() {
		if state := p.changed[n]; state != nil {
			was := state.open
			state.open = open
			t.undone = append(t.undone, undoStep{seq, func() { state.open = was }})
		}
	}
}

// changeThread tells the tail that a thread has changed without an event. Its rows in the indexes are up to date.
func (t *tail) changeThread(n int64, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setOpen(math.MaxInt64, n, open)
}

// undo removes the events after last, and what came with them. They were not committed, so they are not frozen.
func (t *tail) undo(last relay.Seq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := len(t.undone); n > 0 && t.undone[n-1].seq > last; n-- {
		t.undone[n-1].f()
		t.undone = t.undone[:n-1]
	}
	p := t.growing
	for len(p.rows) > 0 && p.rows[len(p.rows)-1].seq > last {
		r := p.rows[len(p.rows)-1]
		p.rows = p.rows[:len(p.rows)-1]
		dropLast(p.senders, r.by)
		dropLast(p.recipients, r.to)
		if list := p.threads[r.thread]; len(list) > 1 {
			p.threads[r.thread] = list[:len(list)-1]
		} else {
			delete(p.threads, r.thread)
		}
		delete(p.sent, ledger.MessageKey{Sender: r.by, ID: r.id})
	}
}

func dropLast(lists map[didkey.DID]*partyList, did didkey.DID) {
	l := lists[did]
	if l.seqs = l.seqs[:len(l.seqs)-1]; len(l.seqs) == 0 {
		delete(lists, did)
	}
}

// freeze makes the growing part the frozen one and returns it. There must be no frozen part.
func (t *tail) freeze() *part {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen, t.growing = t.growing, newPart()
	return t.frozen
}

// drop drops the frozen part, which is merged.
func (t *tail) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = nil
}

// parts returns the parts, the older one first. The caller holds the lock or is the writer.
func (t *tail) parts() []*part {
	if t.frozen == nil {
		return []*part{t.growing}
	}
	return []*part{t.frozen, t.growing}
}

// len returns the number of unmerged events. Only the writer calls it.
func (t *tail) len() (n int) {
	for _, p := range t.parts() {
		n += len(p.rows)
	}
	return n
}

// due returns the earliest time at which Expire must look at an unmerged event or its thread. Only the writer calls it.
func (t *tail) due() int64 {
	first := int64(math.MaxInt64)
	for _, p := range t.parts() {
		first = min(first, p.due)
	}
	return first
}

// rolesOf returns the roles of a party in threads with an id, sorted by role and then by age.
func (t *tail) rolesOf(k roleKey) (all []role) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.parts() {
		all = append(all, p.roles[k]...)
	}
	slices.SortFunc(all, role.compare)
	return slices.CompactFunc(all, func(a, b role) bool { return a.compare(b) == 0 })
}

func (r role) compare(o role) int {
	return cmp.Or(cmp.Compare(r.role, o.role), cmp.Compare(r.thread, o.thread))
}

// oldest returns the oldest threads with an id, at most limit of those that are open to any agent and of those that are
// not. A part lists them by age, and the parts follow each other.
func (t *tail) oldest(id string, limit int) (open, closed []int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.parts() {
		for _, r := range p.roles[roleKey{id: id}] {
			switch {
			case r.state.open && len(open) < limit:
				open = append(open, r.thread)
			case !r.state.open && len(closed) < limit:
				closed = append(closed, r.thread)
			case len(open) == limit && len(closed) == limit:
				return open, closed
			}
		}
	}
	return open, closed
}

// threadOf returns the number of a client's thread, 0 if the tail does not know it.
func (t *tail) threadOf(k thread.Key) int64 {
	for _, r := range t.rolesOf(roleKey{k.ID, k.Client}) {
		if r.role == schema.RoleClient {
			return r.thread
		}
	}
	return 0
}

// find returns the number of a message.
func (t *tail) find(k ledger.MessageKey) (seq relay.Seq, found bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.parts() {
		if seq, found = p.sent[k]; found {
			return seq, true
		}
	}
	return 0, false
}

// names reports whether an event names a party. Only the writer calls it.
func (t *tail) names(did didkey.DID) bool {
	return slices.ContainsFunc(t.parts(), func(p *part) bool { return p.senders[did] != nil || p.recipients[did] != nil })
}

// hasThread reports whether a thread has an event. Only the writer calls it.
func (t *tail) hasThread(n int64) bool {
	return slices.ContainsFunc(t.parts(), func(p *part) bool { return p.threads[n] != nil })
}

// span is a range of numbers, without after and with until.
type span struct{ after, until relay.Seq }

// within returns the part of a list that is in the range.
func (s span) within(list []relay.Seq) []relay.Seq {
	return list[firstAfter(list, s.after):max(firstAfter(list, s.after), firstAfter(list, s.until))]
}

// firstAfter returns the index of the first number above seq.
func firstAfter(list []relay.Seq, seq relay.Seq) int {
	i, _ := slices.BinarySearch(list, seq+1)
	return i
}

// A tailKey returns one list of events of a part.
type tailKey func(*part) []relay.Seq

func tailSender(did didkey.DID) tailKey {
	return func(p *part) []relay.Seq {
		if l := p.senders[did]; l != nil {
			return l.seqs
		}
		return nil
	}
}

// tailRecipient is the key of an inbox. The empty recipient has the broadcasts.
func tailRecipient(did didkey.DID) tailKey {
	return func(p *part) []relay.Seq {
		if l := p.recipients[did]; l != nil {
			return l.seqs
		}
		return nil
	}
}

func tailThread(n int64) tailKey {
	return func(p *part) []relay.Seq { return p.threads[n] }
}

// tailTS looks at every row, because few queries ask for one ts.
func tailTS(ts int64) tailKey {
	return func(p *part) (list []relay.Seq) {
		for _, r := range p.rows {
			if r.ts == ts {
				list = append(list, r.seq)
			}
		}
		return list
	}
}

// events returns copies of the lists of keys within the range. The lists have one element per key.
func (t *tail) events(in span, keys []tailKey) [][]relay.Seq {
	t.mu.RLock()
	defer t.mu.RUnlock()
	lists := make([][]relay.Seq, len(keys))
	for i, key := range keys {
		for _, p := range t.parts() {
			lists[i] = append(lists[i], in.within(key(p))...)
		}
	}
	return lists
}
