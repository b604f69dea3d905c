package ledger_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/storetest"
	"github.com/agora-relay/agora/thread"
)

// memory is the smallest possible engine, an example for other engines. It keeps everything in lists and searches them
// from the beginning.
type memory struct {
	*data
	policy relay.Policy
	ledger *ledger.Ledger

	queueMu sync.Mutex // guards queue
	queue   []*posting

	mu sync.Mutex // guards data
}

// data is the database of a memory engine. It is kept when the engine is opened again.
type data struct {
	epoch    uint32
	last     relay.Seq
	events   []ledger.Event
	threads  []*stored
	listings []*listing
	seen     map[didkey.DID]time.Time
	added    chan struct{} // closed and replaced when events are added
}

type stored struct {
	ledger.Row
	joined []ledger.Participant
}

type listing struct {
	ledger.Listed
	sender didkey.DID
	number int64 // the position in the directory, see relay.AgentPage.Next
	event  ledger.Event
}

// posting is a message that waits to be appended, and the channel for its outcome.
type posting struct {
	entry relay.Entry
	done  chan relay.Outcome
}

var _ relay.Store = (*memory)(nil)

// TestMemory checks that the smallest engine passes the suite of all engines.
func TestMemory(t *testing.T) {
	var mu sync.Mutex
	folders := map[string]*data{}
	storetest.Test(t, func(_ context.Context, folder string, policy relay.Policy) (relay.Store, error) {
		if err := policy.Validate(); err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if folders[folder] == nil {
			folders[folder] = &data{epoch: rand.Uint32() | 1, seen: map[didkey.DID]time.Time{}, added: make(chan struct{})}
		}
		return &memory{data: folders[folder], policy: policy.WithDefaults(), ledger: ledger.New(policy)}, nil
	})
}

func (s *memory) Policy() relay.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

func (s *memory) SetInbox(_ context.Context, q relay.Quota) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy.Inbox = q.WithDefaults()
	s.ledger.SetInbox(q)
	return nil
}

// Append implements relay.Store. It stores all messages in the queue as one group.
func (s *memory) Append(_ context.Context, e relay.Entry) (relay.Receipt, error) {
	p := &posting{e, make(chan relay.Outcome, 1)}
	s.queueMu.Lock()
	s.queue = append(s.queue, p)
	s.queueMu.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueMu.Lock()
	group := s.queue
	s.queue = nil
	s.queueMu.Unlock()
	if len(group) > 0 {
		entries := make([]relay.Entry, len(group))
		for i, p := range group {
			entries[i] = p.entry
		}
		outcomes, _, err := s.ledger.Append(s.data, entries)
		if err != nil {
			return relay.Receipt{}, err // this engine never fails, so a thread record must be damaged
		}
		for i, p := range group {
			p.done <- outcomes[i]
		}
	}
	o := <-p.done
	return o.Receipt, o.Err
}

// AppendAll implements relay.Store.
func (s *memory) AppendAll(ctx context.Context, entries []relay.Entry) []relay.Outcome {
	outcomes := make([]relay.Outcome, len(entries))
	for i, e := range entries {
		outcomes[i].Receipt, outcomes[i].Err = s.Append(ctx, e)
	}
	return outcomes
}

// Load implements ledger.Tx.
func (d *data) Load(w ledger.Wanted) (ledger.Found, error) {
	f := ledger.Found{End: relay.Cursor{Epoch: d.epoch, Seq: d.last}}
	for _, e := range d.events {
		if slices.Contains(w.Messages, ledger.MessageKey{Sender: e.Envelope.Sender.ID, ID: e.ID}) {
			m := ledger.Message{MessageKey: ledger.MessageKey{Sender: e.Envelope.Sender.ID, ID: e.ID}, Seq: e.Seq,
				Expires: e.Expires, Body: e.Body}
			if rows := d.rows(func(t *stored) bool { return t.Number == e.Thread }); len(rows) > 0 {
				m.Thread = &rows[0]
			}
			f.Messages = append(f.Messages, m)
		}
	}
	f.Threads = d.rows(func(t *stored) bool { return slices.Contains(w.Threads, t.Key) })
	for _, p := range w.Of {
		f.Of = append(f.Of, d.of(p.ID, p.Party))
	}
	for _, id := range w.Open {
		f.Open = append(f.Open, first(d.rows(func(t *stored) bool { return t.ID == id && t.Open })))
	}
	for _, id := range w.Oldest {
		open := first(d.rows(func(t *stored) bool { return t.ID == id && t.Open }))
		f.Oldest = append(f.Oldest, append(open,
			first(d.rows(func(t *stored) bool { return t.ID == id && !t.Open }))...))
	}
	for _, inbox := range w.Inboxes {
		f.Inboxes = append(f.Inboxes, d.count(inbox))
	}
	for _, l := range w.Listings {
		var all []ledger.Listed
		for _, m := range d.listings {
			if m.sender == l.Sender && m.Expires.After(l.Now) {
				all = append(all, m.Listed)
			}
		}
		f.Listings = append(f.Listings, all)
	}
	return f, nil
}

// rows returns the threads for which f returns true, in the order of their numbers.
func (d *data) rows(f func(*stored) bool) (rows []ledger.Row) {
	for _, t := range d.threads {
		if f(t) {
			rows = append(rows, t.Row)
		}
	}
	return rows
}

func first(rows []ledger.Row) []ledger.Row { return rows[:min(len(rows), ledger.MaxCandidates)] }

// of returns the threads with an id in which party takes part: first the threads in which its offer was accepted.
func (d *data) of(id string, party didkey.DID) []ledger.Row {
	with := func(works bool) []ledger.Row {
		return d.rows(func(t *stored) bool {
			return t.ID == id && slices.Contains(t.joined, ledger.Participant{DID: party, Works: works})
		})
	}
	return first(append(with(true), with(false)...))
}

func (d *data) count(asked ledger.Inbox) (c ledger.Count) {
	for _, e := range d.events {
		if e.Envelope.Recipient != asked.Recipient || asked.Network != ledger.AllNetworks && e.Network != asked.Network ||
			e.Charge == 0 || !e.Expires.After(asked.Now) {
			continue
		}
		c.Events++
		c.Bytes += e.Charge
		if c.First.IsZero() || e.Expires.Before(c.First) {
			c.First = e.Expires
		}
	}
	return c
}

// Write implements ledger.Tx.
func (d *data) Write(c ledger.Changes) error {
	for _, t := range c.Threads {
		if t.New {
			d.threads = append(d.threads, &stored{Row: t.Row, joined: t.Joined})
			continue
		}
		for _, s := range d.threads {
			if s.Number != t.Number {
				continue
			}
			s.Row = t.Row
			for _, p := range t.Joined {
				if !slices.Contains(s.joined, p) {
					s.joined = append(s.joined, p)
				}
			}
		}
	}
	for _, e := range c.Events {
		d.events, d.last = append(d.events, e), e.Seq
		if !e.Unseen && e.Received.After(d.seen[e.Envelope.Sender.ID]) {
			d.seen[e.Envelope.Sender.ID] = e.Received
		}
		if e.Listing != nil {
			d.list(e)
		}
	}
	for _, r := range c.Removed {
		d.threads = slices.DeleteFunc(d.threads, func(t *stored) bool { return t.Number == r.Number })
	}
	if len(c.Events) > 0 {
		close(d.added)
		d.added = make(chan struct{})
	}
	return nil
}

func (d *data) list(e ledger.Event) {
	m := &listing{ledger.Listed{ID: e.Listing.ID, TS: e.TS, Expires: e.Expires}, e.Envelope.Sender.ID, int64(e.Seq), e}
	for i, old := range d.listings {
		if old.sender == m.sender && old.ID == m.ID {
			m.number = old.number
			d.listings[i] = m
			return
		}
	}
	d.listings = append(d.listings, m)
}

// Expire implements relay.Store.
func (s *memory) Expire(_ context.Context, now time.Time, notices relay.Notices) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		due := s.rows(func(t *stored) bool { return !t.Due.After(now) })
		slices.SortStableFunc(due, func(a, b ledger.Row) int { return a.Due.Compare(b.Due) })
		due = due[:min(len(due), ledger.ExpireThreads)]
		if len(due) == 0 {
			break
		}
		if _, _, err := s.ledger.Expire(s.data, due, now, notices, 1<<30); err != nil {
			return err
		}
	}
	s.events = slices.DeleteFunc(s.events, func(e ledger.Event) bool { return !e.Forget.After(now) })
	s.listings = slices.DeleteFunc(s.listings, func(m *listing) bool { return !m.Expires.After(now) })
	return nil
}

// Read implements relay.Store.
func (s *memory) Read(_ context.Context, q relay.Query) (relay.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := relay.Page{Cursor: relay.Cursor{Epoch: s.epoch, Seq: s.last}}
	if q.After != (relay.Cursor{}) && (q.After.Epoch != s.epoch || q.After.Seq > s.last) {
		return relay.Page{}, relay.ErrUnknownCursor
	}
	events, low, high, end := slices.All(s.events), q.After.Seq, q.Until, s.last
	switch {
	case q.Limit <= 0:
		return page, nil
	case q.Backward:
		events, low, high, end = slices.Backward(s.events), q.Until-1, q.After.Seq, 0
	case high <= 0:
		high = s.last
	}
	size, examined := 0, 0
	for _, e := range events {
		if e.Seq <= low || e.Seq > high {
			continue
		}
		if q.MaxExamined > 0 && examined == q.MaxExamined {
			page.More, page.Partial = true, true
			return page, nil
		}
		examined++
		if !s.matches(e, q) {
			page.Cursor.Seq = q.Behind(e.Seq)
			continue
		}
		size += e.Size
		if len(page.Events) == q.Limit || q.MaxBytes > 0 && len(page.Events) > 0 && size > q.MaxBytes {
			page.More, page.Cursor.Seq = true, q.Behind(page.Events[len(page.Events)-1].Seq)
			return page, nil
		}
		event := e.Event
		if q.Headers {
			event.Body = nil
		}
		page.Events, page.Cursor.Seq = append(page.Events, event), q.Behind(e.Seq)
	}
	page.Cursor.Seq = end
	return page, nil
}

func (s *memory) matches(e ledger.Event, q relay.Query) bool {
	ofClient := q.Client == "" || q.Thread == "" ||
		len(s.rows(func(t *stored) bool { return t.Number == e.Thread && t.Client == q.Client })) > 0
	return q.Match(e.Envelope) && ofClient && (q.Expired || e.Expires.After(q.Now)) &&
		(q.TS.IsZero() || e.TS.Equal(q.TS)) &&
		(q.NewerThan.IsZero() || e.TS.After(q.NewerThan) || e.Received.After(q.NewerThan))
}

// Thread implements relay.Store.
func (s *memory) Thread(_ context.Context, k thread.Key, now time.Time) (thread.Thread, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.rows(func(t *stored) bool { return t.ID == k.ID && (k.Client == "" || t.Client == k.Client) })
	if len(rows) == 0 {
		return thread.Thread{}, thread.ErrNotFound
	}
	return ledger.At(rows[0], s.policy.Rules, now)
}

// ThreadsOf implements relay.Store.
func (s *memory) ThreadsOf(_ context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.rows(func(t *stored) bool { return t.ID == k.ID && t.Client == cmp.Or(k.Client, party) })
	if k.Client == "" {
		rows = append(rows, s.of(k.ID, party)...)
	}
	return ledger.OfParty(rows, party, s.policy.Rules, now)
}

// Agents implements relay.Store.
func (s *memory) Agents(_ context.Context, q relay.AgentQuery) (relay.AgentPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := relay.AgentPage{Next: q.After}
	size := 0
	for _, m := range s.listings {
		a := relay.Agent{DID: m.sender, LastSeen: s.seen[m.sender], Manifest: m.event.Body}
		a.Mirrored = m.event.Network == relay.MirrorNetwork
		if a.LastSeen.IsZero() {
			a.LastSeen = time.Unix(0, 0) // as the engines store it
		}
		switch {
		case m.number <= q.After, !m.Expires.After(q.Now), q.DID != "" && q.DID != m.sender,
			q.Intent != "" && !slices.Contains(m.event.Listing.Intents, q.Intent),
			!strings.Contains(m.event.Listing.Text, q.Text),
			!q.OnlineSince.IsZero() && q.IsOnline(a) == q.OfflineOnly, !q.Viewer.Sees(m.sender, m.event.Envelope.Recipient):
			continue
		}
		size += len(a.Manifest)
		if len(page.Agents) == q.Limit || q.MaxExamined > 0 && q.DID == "" && len(page.Agents) == q.MaxExamined ||
			q.MaxBytes > 0 && len(page.Agents) > 0 && size > q.MaxBytes {
			page.More = true
			break
		}
		page.Agents, page.Next = append(page.Agents, a), m.number
	}
	return page, nil
}

// Watch implements relay.Store.
func (s *memory) Watch(ctx context.Context, after relay.Cursor, _ func() relay.Wanted, f func([]relay.Posted)) error {
	for {
		s.mu.Lock()
		if after != (relay.Cursor{}) && (after.Epoch != s.epoch || after.Seq > s.last) {
			s.mu.Unlock()
			return relay.ErrUnknownCursor
		}
		var posted []relay.Posted
		for _, e := range s.events {
			if e.Seq > after.Seq {
				posted = append(posted, e.Posted)
			}
		}
		added := s.added
		after = relay.Cursor{Epoch: s.epoch, Seq: s.last}
		s.mu.Unlock()
		if len(posted) > 0 {
			f(posted)
		}
		select {
		case <-added:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
