package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// This file fills the indexes of events and threads. A new row of an index belongs anywhere in it, so adding it at once
// would change one page of every index for each post. So the writer only stores events and threads, and remembers them
// in the tail. When the tail has grown, it becomes a batch: it is sorted once for each index, and each later
// transaction writes a slice of it. Neighbours in an index come in one slice, so they share pages.

// mergeEvents is how many events are merged at a time on a large disk, see limitSize.
const mergeEvents = 16_384

// minSlice is how many index rows each transaction writes at least while a batch is merged.
const minSlice = 64

// merge is a batch that is being merged.
type merge struct {
	part  *part
	last  relay.Seq     // of the batch
	ready chan struct{} // closed when the fields below are set
	steps []mergeStep
	ids   []uint64 // hashes of the batch's ids
	total int      // of all steps
	at    int      // how much of total is merged
	done  int      // at after the last commit
}

// mergeStep fills one index, or two with the same order. The list has numbers of events or threads in the order of the
// index. Their rows are read from the tables event and thread when they are merged, so they are up to date.
type mergeStep struct {
	list    []int64
	joined  []joined // instead of a list
	fillers []filler
}

// filler is a statement that writes index rows for a list.
type filler func(*statements) *sql.Stmt

// joined is a row of thread_role that has a party other than the client.
type joined struct {
	roleKey
	role
}

// eventFiller fills the index with this number in schema.Indexes.
func eventFiller(index int) filler { return func(s *statements) *sql.Stmt { return s.fill[index] } }

// eventOrders compare events as the index of the same position in schema.Indexes sorts them. An index without an order
// has the order of the index before.
var eventOrders = [len(schema.Indexes)]func(a, b *tailRow) int{
	func(a, b *tailRow) int { return cmp.Or(cmp.Compare(a.sender, b.sender), strings.Compare(a.id, b.id)) },
	func(a, b *tailRow) int {
		return cmp.Or(cmp.Compare(a.recipient, b.recipient), cmp.Compare(a.seq, b.seq))
	},
	nil,
	func(a, b *tailRow) int { return cmp.Or(cmp.Compare(a.thread, b.thread), cmp.Compare(a.seq, b.seq)) },
	func(a, b *tailRow) int {
		return cmp.Or(cmp.Compare(a.ts, b.ts), cmp.Compare(a.recipient, b.recipient), cmp.Compare(a.seq, b.seq))
	},
	func(a, b *tailRow) int { return cmp.Or(cmp.Compare(a.forget, b.forget), cmp.Compare(a.seq, b.seq)) },
}

// sort sets the steps. It runs in its own goroutine. The writer changes only states of the batch's threads meanwhile.
func (m *merge) sort(dues, own []changedKey) {
	defer close(m.ready)
	rows := make([]*tailRow, len(m.part.rows))
	for i := range m.part.rows {
		rows[i] = &m.part.rows[i]
	}
	for i, order := range eventOrders {
		if order == nil {
			last := &m.steps[len(m.steps)-1]
			last.fillers = append(last.fillers, eventFiller(i))
			continue
		}
		slices.SortFunc(rows, order)
		list := make([]int64, len(rows))
		for j, r := range rows {
			list[j] = int64(r.seq)
		}
		m.steps = append(m.steps, mergeStep{list: list, fillers: []filler{eventFiller(i)}})
	}
	slices.SortFunc(dues, func(a, b changedKey) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.thread, b.thread)) })
	slices.SortFunc(own, func(a, b changedKey) int { return cmp.Or(strings.Compare(a.id, b.id), cmp.Compare(a.thread, b.thread)) })
	m.steps = append(m.steps, mergeStep{list: numbers(dues), fillers: dueFillers},
		mergeStep{list: numbers(own), fillers: ownFillers})
	var others []joined
	for k, list := range m.part.roles {
		for _, r := range list {
			if r.role > schema.RoleClient {
				others = append(others, joined{k, r})
			}
		}
	}
	slices.SortFunc(others, func(a, b joined) int {
		return cmp.Or(strings.Compare(a.id, b.id), strings.Compare(string(a.party), string(b.party)), a.role.compare(b.role))
	})
	m.steps = append(m.steps, mergeStep{joined: others})
	for _, s := range m.steps {
		m.total += s.len()
	}
	m.ids = m.part.hashes()
}

func (s mergeStep) len() int { return len(s.list) + len(s.joined) }

// changedKey is what sorts a changed thread.
type changedKey struct {
	thread, due int64
	id          string
}

func numbers(threads []changedKey) []int64 {
	list := make([]int64, len(threads))
	for i, t := range threads {
		list[i] = t.thread
	}
	return list
}

// Statements for lists of threads.
var (
	dueFillers = []filler{func(s *statements) *sql.Stmt { return s.fillDue }}
	ownFillers = []filler{func(s *statements) *sql.Stmt { return s.dropFormerRole },
		func(s *statements) *sql.Stmt { return s.fillOwnRole }, func(s *statements) *sql.Stmt { return s.fillClient }}
)

// batchSize returns how many events are merged at a time.
func (w *writer) batchSize() int { return int(cmp.Or(int64(w.store.options.mergeEvents), w.batch)) }

// startMerge begins to merge all events of the tail. No batch must be being merged.
func (w *writer) startMerge() {
	if f := w.ids.filter; f == nil || f.room < 0 {
		w.readIDs()
	}
	p := w.store.tail.freeze()
	w.merge = &merge{part: p, last: p.rows[len(p.rows)-1].seq, ready: make(chan struct{})}
	var dues, own []changedKey
	for n, t := range p.changed {
		k := changedKey{n, t.due, t.id}
		if dues = append(dues, k); t.own {
			own = append(own, k)
		}
	}
	w.store.workers.Go(func() { w.merge.sort(dues, own) })
}

// mergeGroup merges a slice in the transaction of a group with this many new events. The slices are so large that a batch
// is merged before the next one is half full.
func (w *writer) mergeGroup(events int) error {
	m := w.merge
	if m == nil {
		return nil
	}
	if len(w.store.tail.growing.rows) < w.batchSize() {
		select {
		case <-m.ready:
		default:
			return nil // the next group will find it sorted
		}
	}
	<-m.ready // total is known now
	return w.mergeSlice(max(cmp.Or(w.store.options.mergeSlice, minSlice), 2*events*m.total/w.batchSize()))
}

// mergeSlice merges the next n index rows of the batch, which is sorted, in the open transaction. With the last ones,
// it stores that the batch is merged.
func (w *writer) mergeSlice(n int) error {
	m := w.merge
	from := m.at
	for _, s := range m.steps {
		if from >= s.len() {
			from -= s.len()
			continue
		}
		until := min(from+n, s.len())
		if err := w.mergeStep(s, from, until); err != nil {
			return err
		}
		m.at, n, from = m.at+until-from, n-(until-from), 0
		if n == 0 {
			break
		}
	}
	if m.at < m.total {
		return nil
	}
	_, err := w.stmts.setMerged.Exec(strconv.FormatInt(int64(m.last), 10))
	return err
}

func (w *writer) mergeStep(s mergeStep, from, until int) error {
	if s.joined == nil {
		return w.fill(s.list[from:until], s.fillers)
	}
	for _, r := range s.joined[from:until] {
		if _, err := w.stmts.addRole.Exec(r.id, string(r.party), r.role.role, r.thread); err != nil {
			return err
		}
	}
	return nil
}

// fill runs statements for a list of numbers.
func (w *writer) fill(list []int64, fillers []filler) error {
	if len(list) == 0 {
		return nil
	}
	w.list = appendList(w.list[:0], list)
	for _, stmt := range fillers {
		if _, err := stmt(&w.stmts).Exec(string(w.list)); err != nil {
			return err
		}
	}
	return nil
}

// indexThreads writes the index rows that follow from Due and Open of threads.
func (w *writer) indexThreads(threads []int64) error {
	return errors.Join(w.fill(threads, dueFillers), w.fill(threads, ownFillers))
}

// reindex writes the rows of events that were changed, as far as the indexes have reached.
func (w *writer) reindex(events []int64) error {
	reached := w.merged
	if w.merge != nil {
		reached = w.merge.last
	}
	events = slices.DeleteFunc(events, func(seq int64) bool { return seq > int64(reached) })
	for i := range schema.Indexes {
		if err := w.fill(events, []filler{eventFiller(i)}); err != nil {
			return err
		}
	}
	return nil
}

// appendList appends numbers to b as a JSON array, for inList.
func appendList[N ~int64](b []byte, numbers []N) []byte {
	b = append(b, '[')
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return append(b, ']')
}

// inList selects the numbers of a list made by appendList. The list is an argument.
const inList = "(SELECT value FROM json_each(?))"

// mergeCommitted is called after each commit.
func (w *writer) mergeCommitted() {
	m := w.merge
	if m == nil {
		return
	}
	if m.done = m.at; m.done > 0 && m.done == m.total {
		w.merged, w.merge = m.last, nil
		w.ids.add(m.ids)
		w.store.tail.drop()
	}
}

// mergeUndone is called after each rollback.
func (w *writer) mergeUndone() {
	if w.merge != nil {
		w.merge.at = w.merge.done
	}
}

// mergeDue merges a slice of n rows in the open transaction if something that is not merged is due at now. more reports
// that it did. Then the caller must commit and call it again, before it removes events or looks for threads that are due.
func (w *writer) mergeDue(now time.Time, n int) (more bool, err error) {
	if w.store.tail.due() > nanos(now) {
		return false, nil
	}
	return w.mergeAny(n)
}

// mergeAny is like mergeDue for all events. It may use the room that limitSize leaves for merges. A merge never begins
// with events of the open transaction: if they were undone, other events would get their numbers.
func (w *writer) mergeAny(n int) (more bool, err error) {
	if w.merge == nil {
		if w.store.tail.len() == 0 {
			return false, nil
		}
		if w.last > w.begun {
			return true, nil
		}
		w.startMerge()
	}
	if err := w.setMaxPages(w.maxPages + w.mergeRoom + urgentPages); err != nil {
		return false, err
	}
	<-w.merge.ready
	err = w.mergeSlice(n)
	return true, errors.Join(err, w.setMaxPages(w.maxPages))
}

// loadTail reads the events that are not merged, and their threads. Their roles may be in the tables already.
func (w *writer) loadTail(ctx context.Context) error {
	var merged int64
	if err := w.conn.QueryRowContext(ctx, "SELECT ifnull("+schema.Merged+", 0)").Scan(&merged); err != nil {
		return err
	}
	w.merged = relay.Seq(merged)
	err := eachRow(func(scan scanner) error {
		var r tailRow
		err := scan(&r.seq, &r.sender, &r.by, &r.recipient, &r.to, &r.id, &r.thread, &r.ts, &r.forget)
		if err == nil {
			w.store.tail.add(r)
		}
		return err
	}, func() (*sql.Rows, error) {
		return w.conn.QueryContext(ctx, "SELECT e.seq, e.sender, s.did, e.recipient, ifnull(r.did, ''), e.id, e.thread, e.ts, e.forget "+
			"FROM event e JOIN party s ON s.id = e.sender LEFT JOIN party r ON r.id = e.recipient WHERE e.seq > ? ORDER BY e.seq", merged)
	})
	if err != nil {
		return err
	}
	return eachRow(func(scan scanner) error {
		row, err := scanThread(scan)
		if err != nil {
			return err
		}
		t, err := row.Decode()
		if err != nil {
			return err
		}
		roles := map[didkey.DID][]int{"": {0}, row.Client: {schema.RoleClient}}
		for _, did := range t.Participants() {
			roles[did] = append(roles[did], schema.RolePartner)
		}
		if t.Agent != "" {
			roles[t.Agent] = append(roles[t.Agent], schema.RoleWorker)
		}
		w.store.tail.addThread(0, row.Number, changedThread{id: row.ID, due: nanos(row.Due), open: row.Open, own: true}, roles)
		return nil
	}, func() (*sql.Rows, error) {
		return w.conn.QueryContext(ctx, anyThread+"t.n IN (SELECT thread FROM event WHERE seq > ?) ORDER BY t.n", merged)
	})
}

// mergeAll merges all events, in small transactions.
func (s *Store) mergeAll(ctx context.Context) error {
	for more := true; more; {
		err := s.task(ctx, func(w *writer) error {
			return w.transact(func() (err error) {
				more, err = w.mergeAny(expireEvents)
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
