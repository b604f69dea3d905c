//go:build postgres

package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

func key(n byte) didkey.Key {
	k, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err) // 32 bytes are always a valid seed
	}
	return k
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, place string, o Options) *Store {
	t.Helper()
	s, err := openAt(t.Context(), place, o)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func signed(t testing.TB, by didkey.Key, d envelope.Draft) relay.Entry {
	t.Helper()
	now := time.Now()
	m, err := d.Sign(by, now)
	must(t, err)
	return relay.Entry{Envelope: m, Received: now}
}

func request(t testing.TB, by didkey.Key, thread string) relay.Entry {
	t.Helper()
	return signed(t, by, envelope.Draft{Thread: thread, Payload: envelope.Request{RequestID: "r", Intent: "translate"}})
}

// seen collects what a Watch delivers.
type seen struct {
	mu   sync.Mutex
	seqs []relay.Seq
}

func watchAll(t *testing.T, s *Store) *seen {
	w := &seen{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, relay.Cursor{}, nil, func(events []relay.Posted) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, e := range events {
				w.seqs = append(w.seqs, e.Seq)
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("watch: %v", err)
		}
	})
	return w
}

// until waits until n events have come.
func (w *seen) until(t *testing.T, n int) []relay.Seq {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		got := slices.Clone(w.seqs)
		w.mu.Unlock()
		if len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events have come", len(got), n)
		}
	}
}

// polls stands for the polls that wait at a node: they wait for events to these recipients.
type polls struct {
	mu      sync.Mutex
	waiting map[didkey.DID]chan struct{} // gets a value when the event has come
	passed  int                          // events that were passed on
}

func (p *polls) wanted() (w relay.Wanted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for did := range p.waiting {
		w.Recipients = append(w.Recipients, did)
	}
	return w
}

func (p *polls) publish(events []relay.Posted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed += len(events)
	for _, e := range events {
		if c := p.waiting[e.Envelope.Recipient]; c != nil {
			signal(c)
		}
	}
}

func (p *polls) begin(did didkey.DID) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan struct{}, 1)
	p.waiting[did] = c
	return c
}

func (p *polls) end(did didkey.DID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, did)
}

// watch lets p watch a node.
func (p *polls) watch(t *testing.T, s *Store) {
	p.waiting = map[didkey.DID]chan struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(ctx, relay.Cursor{}, p.wanted, p.publish) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("watch: %v", err)
		}
	})
}

func message(t testing.TB, by didkey.Key, to didkey.DID) relay.Entry {
	t.Helper()
	return signed(t, by, envelope.Draft{Recipient: to, Payload: envelope.Manifest{Name: "m", Description: "m"}})
}

// TestUnwantedEventsAreNotRead checks that a node does not read the events of other nodes that no poll waits for, that it
// counts them as passed on, and that it does read broadcasts and those for recipients who wait.
func TestUnwantedEventsAreNotRead(t *testing.T) {
	place := t.TempDir()
	writing, reading := open(t, place, Options{}), open(t, place, Options{})
	var p polls
	p.watch(t, reading)
	alice, bob := key(1).DID(), key(2).DID()
	post := func(to didkey.DID) relay.Seq {
		t.Helper()
		r, err := writing.Append(t.Context(), message(t, key(3), to))
		must(t, err)
		return r.Cursor.Seq
	}
	count := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.passed
	}
	until := func(seq relay.Seq) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); reading.tail.position() < seq; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("events were passed on up to %d, not %d", reading.tail.position(), seq)
			}
		}
	}
	come := p.begin(alice)
	post(alice)
	<-come // Watch has read what was stored before
	p.end(alice)
	none := func() int {
		before := count()
		for range 5 {
			post(bob)
		}
		until(post(alice))
		return count() - before
	}
	one := func(to didkey.DID) func() int {
		return func() int {
			before, come := count(), p.begin(to)
			defer p.end(to)
			post(bob)
			post(alice)
			until(post(""))
			<-come
			until(post(bob))
			return count() - before
		}
	}
	for _, c := range []struct {
		name string
		run  func() int
		want int
	}{{"nobody", none, 0}, {"alice", one(alice), 1}, {"broadcasts", one(""), 1}} {
		got := c.run()
		// Once a second a node reads all, in case a notification was lost.
		for range 4 {
			if got != c.want {
				got = c.run()
			}
		}
		if got != c.want {
			t.Errorf("%d events were passed on for %s, want %d", got, c.name, c.want)
		}
	}
}

// TestPollsMissNothing lets polls begin at one node while their messages are posted at another one. A poll first waits,
// and then reads what is stored. It must find its message in one of the two ways.
func TestPollsMissNothing(t *testing.T) {
	place := t.TempDir()
	writing, reading := open(t, place, Options{}), open(t, place, Options{})
	var p polls
	p.watch(t, reading)
	woken := 0
	for i := range 300 {
		to := key(byte(i%250 + 1)).DID()
		entry := message(t, key(byte(i/250+251)), to)
		var posting sync.WaitGroup
		var posted relay.Receipt
		posting.Go(func() {
			var err error
			if posted, err = writing.Append(t.Context(), entry); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Duration(i%50) * 100 * time.Microsecond)
		come := p.begin(to)
		page, err := reading.Read(t.Context(), relay.Query{Filter: relay.Filter{Recipient: to, Sender: entry.Envelope.Sender.ID}, Limit: 1})
		must(t, err)
		if len(page.Events) == 0 {
			woken++
			select {
			case <-come:
			case <-time.After(time.Minute):
				t.Fatalf("the poll of recipient %d has missed its message", i)
			}
		}
		p.end(to)
		posting.Wait()
		if posted.Cursor.Seq == 0 {
			t.Fatal("nothing was posted")
		}
	}
	if woken == 0 || woken == 300 {
		t.Errorf("%d of 300 polls were woken; the test must see both ways", woken)
	}
}

// TestNodesAgree lets three nodes store messages at the same time. Each node must see all of them once, in the same
// order, without a gap.
func TestNodesAgree(t *testing.T) {
	place := t.TempDir()
	const each, callers = 40, 4
	var nodes [3]*Store
	var watches [3]*seen
	for i := range nodes {
		nodes[i] = open(t, place, Options{Partition: 100})
		watches[i] = watchAll(t, nodes[i])
	}
	var posts sync.WaitGroup
	for i, node := range nodes {
		for c := range callers {
			by := key(byte(10*i + c + 1))
			posts.Go(func() {
				var last relay.Seq
				for n := range each {
					r, err := node.Append(t.Context(), request(t, by, fmt.Sprintf("t%d", n)))
					if err != nil || r.Cursor.Seq <= last {
						t.Errorf("append after %d: %+v, %v", last, r, err)
						return
					}
					last = r.Cursor.Seq
					page, err := nodes[(i+1)%3].Read(t.Context(), relay.Query{After: r.Cursor, Limit: 1})
					if err != nil {
						t.Errorf("another node does not know the cursor of an event that was just stored: %+v, %v", page, err)
					}
				}
			})
		}
	}
	posts.Wait()
	all := len(nodes) * callers * each
	var want []relay.Seq
	for n := range all {
		want = append(want, relay.Seq(n+1))
	}
	for i, w := range watches {
		if got := w.until(t, all); !slices.Equal(got, want) {
			t.Errorf("node %d has seen %v, want 1 to %d", i, got, all)
		}
	}
}

// TestOneNodeAccepts lets two nodes store an ACCEPT for the same thread at the same time. One of them must win.
func TestOneNodeAccepts(t *testing.T) {
	place := t.TempDir()
	nodes := []*Store{open(t, place, Options{}), open(t, place, Options{})}
	alice, bob := key(1), key(2)
	for n := range 20 {
		id := fmt.Sprint("t", n)
		_, err := nodes[0].Append(t.Context(), request(t, alice, id))
		must(t, err)
		_, err = nodes[1].Append(t.Context(), signed(t, bob, envelope.Draft{Recipient: alice.DID(), Thread: id,
			Payload: envelope.Offer{RequestID: "r"}}))
		must(t, err)
		errs := make([]error, 8)
		var posts sync.WaitGroup
		for i := range errs {
			e := signed(t, alice, envelope.Draft{Recipient: bob.DID(), Thread: id, Payload: envelope.Accept{RequestID: "r"}})
			posts.Go(func() { _, errs[i] = nodes[i%2].Append(t.Context(), e) })
		}
		posts.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if envelope.CodeOf(err) != envelope.CodeInvalidTransition {
				t.Error(err)
			}
		}
		if won != 1 {
			t.Fatalf("%d ACCEPTs have won, want 1", won)
		}
	}
}

// TestRemoveReachesAllNodes removes a message at one node while polls wait at another one. No read and no poll that
// begins later may have it, at any node.
func TestRemoveReachesAllNodes(t *testing.T) {
	place := t.TempDir()
	nodes := []*Store{open(t, place, Options{}), open(t, place, Options{})}
	before := watchAll(t, nodes[1])
	var all []relay.Seq
	for n := range 3 {
		r, err := nodes[n%2].Append(t.Context(), request(t, key(1), fmt.Sprint("t", n)))
		must(t, err)
		all = append(all, r.Cursor.Seq)
	}
	before.until(t, 3)
	removed, err := nodes[0].Remove(t.Context(), all[1:2], time.Now())
	if err != nil || !slices.Equal(removed, all[1:2]) {
		t.Fatalf("removed %v, %v", removed, err)
	}
	want := []relay.Seq{all[0], all[2]}
	for i, node := range nodes {
		page, err := node.Read(t.Context(), relay.Query{Now: time.Now(), Limit: 9})
		must(t, err)
		var read []relay.Seq
		for _, e := range page.Events {
			read = append(read, e.Seq)
		}
		if got := watchAll(t, node).until(t, 2); !slices.Equal(read, want) || !slices.Equal(got, want) {
			t.Errorf("node %d: read %v and watched %v, want %v", i, read, got, want)
		}
	}
	last, err := nodes[0].Append(t.Context(), request(t, key(1), "t3"))
	must(t, err)
	if got := before.until(t, 4); got[3] != last.Cursor.Seq {
		t.Errorf("the poll that waited has %v, want %d at the end", got, last.Cursor.Seq)
	}
}

// TestQuotaCountsOtherNodes checks that a node does not rely on its own count of an inbox after another node has
// stored messages in it.
func TestQuotaCountsOtherNodes(t *testing.T) {
	place := t.TempDir()
	o := Options{Policy: relay.Policy{Inbox: relay.Quota{Events: 4, Bytes: -1}}}
	nodes := []*Store{open(t, place, o), open(t, place, o)}
	bob := key(9).DID()
	for n := range 5 {
		e := signed(t, key(byte(n+1)), envelope.Draft{Recipient: bob, Payload: envelope.Request{Intent: "x"}})
		_, err := nodes[n%2].Append(t.Context(), e)
		if want := n == 4; want != (envelope.CodeOf(err) == envelope.CodeRateLimited) {
			t.Fatalf("message %d: %v", n+1, err)
		}
	}
}

// TestPolicyIsShared checks that a node with another policy does not start while others run, and that it does
// afterwards.
func TestPolicyIsShared(t *testing.T) {
	place := t.TempDir()
	a := open(t, place, Options{})
	open(t, place, Options{})
	other := Options{Policy: relay.Policy{ThreadRetention: time.Hour}}
	if s, err := openAt(t.Context(), place, other); !errors.Is(err, ErrPolicy) {
		t.Fatalf("a node with another policy: %v, %v", s, err)
	}
	must(t, a.Close())
	if s, err := openAt(t.Context(), place, other); !errors.Is(err, ErrPolicy) {
		t.Fatalf("while one node still runs: %v, %v", s, err)
	}
}

// TestLeaseMoves checks that one node has the lease, and that another one gets it when that node ends.
func TestLeaseMoves(t *testing.T) {
	place := t.TempDir()
	a, b := open(t, place, Options{}), open(t, place, Options{})
	if !a.Leads() || b.Leads() {
		t.Fatalf("the first node leads: %v, the second: %v", a.Leads(), b.Leads())
	}
	must(t, a.Close())
	for deadline := time.Now().Add(time.Minute); !b.Leads(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no node has the lease ten seconds after its holder has ended")
		}
	}
	if a.Leads() {
		t.Error("a node that was closed leads")
	}
}

// TestFrozenLeaderLosesTheLease keeps the leader from asking for its lease, as if its process were frozen. Another node
// must lead within ten seconds, and never both. Before the first one notices, it may not change what gateways have.
func TestFrozenLeaderLosesTheLease(t *testing.T) {
	place := t.TempDir()
	a, b := open(t, place, Options{}), open(t, place, Options{})
	a.lease.mu.Lock() // its goroutine waits for this
	began := time.Now()
	for !b.Leads() {
		if a.Leads() && time.Since(began) > leaseTrust+leaseEvery {
			t.Fatal("the frozen node still relies on its lease")
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("no other node leads after ten seconds")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if a.Leads() {
		t.Error("both nodes lead")
	}
	if _, err := a.Update(t.Context(), func(relay.StoreTx) error { return nil }); !errors.Is(err, errNoLease) {
		t.Errorf("an update at the node that was frozen: %v", err)
	}
	a.lease.mu.Unlock()
	if _, err := b.Update(t.Context(), func(relay.StoreTx) error { return nil }); err != nil {
		t.Errorf("an update at the leader: %v", err)
	}
}

// direct runs f with its own connection to the schema of place.
func direct(t testing.TB, place string, f func(*pgx.Conn) error) {
	t.Helper()
	dsn, err := dsnOf(t.Context(), place)
	must(t, err)
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer conn.Close(context.Background())
	must(t, f(conn))
}

// terminate ends the connections of a store whose last statement is like pattern. It returns how many.
func terminate(t testing.TB, place, pattern string) (n int) {
	t.Helper()
	direct(t, place, func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "+
			"WHERE application_name = 'agora' AND query LIKE $1", pattern).Scan(&n)
	})
	return n
}

// TestLostConnections ends all connections of a node. It must then store, read, deliver and sweep without any help.
func TestLostConnections(t *testing.T) {
	place := t.TempDir()
	a, b := open(t, place, Options{}), open(t, place, Options{})
	w := watchAll(t, b)
	_, err := a.Append(t.Context(), request(t, key(1), "before"))
	must(t, err)
	w.until(t, 1)
	if n := terminate(t, place, "%"); n < 6 {
		t.Fatalf("%d connections were ended, want at least those for writing, listening and the lease of two nodes", n)
	}
	whileUnreachable(t, func() error {
		_, err := a.Append(t.Context(), request(t, key(1), "after"))
		return err
	})
	w.until(t, 2)
	for !a.Leads() && !b.Leads() {
		time.Sleep(10 * time.Millisecond) // ends with the time of the tests
	}
	whileUnreachable(t, func() error { return a.Expire(t.Context(), time.Now(), nil) })
}

// whileUnreachable repeats f while it fails because the server cannot be reached. Any other error fails the test.
func whileUnreachable(t *testing.T, f func() error) {
	t.Helper()
	for err := f(); err != nil; err = f() {
		if e, ok := errors.AsType[*envelope.Error](err); !ok || !e.NothingStored() || e.RetryAfter <= 0 {
			t.Fatalf("while the connection is lost: %v", err)
		}
		time.Sleep(10 * time.Millisecond) // the node looks for the server by itself; nothing tells when it has found it
	}
}

// TestMissingEventsAreNoticed takes events away, as the promotion of a standby without them does. The node must not
// continue with the same cursors.
func TestMissingEventsAreNoticed(t *testing.T) {
	place := t.TempDir()
	s := open(t, place, Options{})
	for n := range 3 {
		_, err := s.Append(t.Context(), request(t, key(1), fmt.Sprint("t", n)))
		must(t, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(t.Context(), relay.Cursor{}, nil, func([]relay.Posted) {}) }()
	direct(t, place, func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), "BEGIN; UPDATE head SET last = 2; DELETE FROM event WHERE seq = 3; COMMIT")
		return err
	})
	terminate(t, place, "%")
	if err := <-ended; !errors.Is(err, errMissing) {
		t.Errorf("watch: %v", err)
	}
	if _, err := s.Append(t.Context(), request(t, key(2), "t")); err == nil {
		t.Error("a message was stored after the loss of others")
	}
}
