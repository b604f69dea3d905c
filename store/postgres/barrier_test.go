//go:build postgres

package postgres

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// TestBarrier tests what may happen between the commit of a group and the barrier that makes it durable.
func TestBarrier(t *testing.T) {
	x := startSite(t)
	t.Run("cancelled wait", func(t *testing.T) { testCancelledWait(t, x.schema(t, "cancelled")) })
	t.Run("lost connection", func(t *testing.T) { testLostBarrier(t, x.schema(t, "lost")) })
	t.Run("hidden", func(t *testing.T) { testHidden(t, x.schema(t, "hidden")) })
	t.Run("end of a node", func(t *testing.T) { testNodeEnds(t, x.schema(t, "ends")) })
	t.Run("crash", func(t *testing.T) { testCrash(t, x.schema(t, "crash")) })
}

// testCrash lets two nodes commit messages that build on each other, and crashes the server before the barrier. Nobody
// may have seen them, nobody gets a receipt, and all of them are gone. Other messages get their numbers.
func testCrash(t *testing.T, x site) {
	folder := t.TempDir()
	a := x.open(t, Options{Mark: filepath.Join(folder, "a"), Partition: 2})
	b := x.open(t, Options{Mark: filepath.Join(folder, "b")})
	var start string
	for _, s := range []*Store{a, b} {
		all, _, err := s.KeepLog(t.Context(), key(99).DID())
		must(t, err)
		start = all[0].Start
	}
	delivered := [2]*seen{watchAll(t, a), watchAll(t, b)}
	proofs := &proved{leaves: map[int64]proof.Hash{}}
	asked := request(t, key(1), "t")
	offer := signed(t, key(2), envelope.Draft{Recipient: key(1).DID(), Thread: "t",
		Payload: envelope.Offer{RequestID: "r"}})
	for n := range 5 { // the next message creates a partition, which is lost with it
		proofs.add(t, a, 3, fmt.Sprint("before", n))
	}
	before, outcomes, read := x.commitAndCrash(t, a, b, asked, offer)
	x.exec(t, "ALTER SYSTEM RESET commit_delay", "SELECT pg_reload_conf()")
	for i := range 2 {
		if o := <-outcomes[i]; !errors.Is(o.Err, errUnknown) {
			t.Errorf("a post got %+v, want %v", o, errUnknown)
		}
		if err := <-read; !errors.Is(err, errNoAnswer) {
			t.Errorf("a read got %v, want %v", err, errNoAnswer)
		}
	}
	if got := relay.Seq(x.query(t, "SELECT last FROM head")); got != before {
		t.Fatalf("the last number is %d after the crash, want %d: the server has lost nothing", got, before)
	}
	for _, s := range []*Store{a, b} {
		whileUnreachable(t, func() error { return s.refusal() })
	}
	if _, err := b.Append(t.Context(), offer); envelope.CodeOf(err) != envelope.CodeThreadNotFound {
		t.Errorf("the second message is accepted without the first: %v", err)
	}
	proofs.add(t, a, 4, "other")
	proofs.add(t, b, 5, "another")
	proofs.post(t, a, asked)
	proofs.post(t, b, offer)
	proofs.check(t, start)
	for _, s := range []*Store{a, b} { // while the connection that listens is opened again, a read gets no answer
		for _, err := s.Read(t.Context(), relay.Query{}); errors.Is(err, errNoAnswer); {
			time.Sleep(10 * time.Millisecond) // nothing tells when it is open
			_, err = s.Read(t.Context(), relay.Query{})
		}
	}
	want := ids(t, a)
	for i, s := range []*Store{a, b} {
		found, n := ids(t, s), int(before)+4
		if got := delivered[i].until(t, n); !slices.Equal(found, want) || len(found) != n || len(got) != n ||
			got[n-4] != before+1 {
			t.Errorf("a node shows %v and has delivered %v, want %d messages, the same at both nodes", found, got, n)
		}
	}
}

// commitAndCrash crashes the server when the first message is committed at a, and the second one at b, but neither is
// on its disk. before is the number of the last event that is. outcomes are those of the two messages, and read has
// the answers of two reads that have seen them.
func (x site) commitAndCrash(t *testing.T, a, b *Store, first, second relay.Entry) (
	before relay.Seq, outcomes [2]<-chan relay.Outcome, read <-chan error,
) {
	t.Helper()
	// A durable commit now waits 100 ms before it writes, and keeps others from writing meanwhile.
	x.exec(t, "ALTER SYSTEM SET commit_delay = 100000", "SELECT pg_reload_conf()")
	crash := []uint32{pidOf(t, a), uint32(x.query(t, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"))}
	sendSignal(t, crash[1], syscall.SIGSTOP)
	before = relay.Seq(x.query(t, "SELECT last FROM head"))
	outcomes[0] = appending(t, a, first)
	x.visible(t, before+1)
	sendSignal(t, crash[0], syscall.SIGSTOP)
	outcomes[1] = appending(t, b, second)
	x.visible(t, before+2)
	answers := make(chan error, 2)
	for _, s := range []*Store{a, b} {
		go func() {
			_, err := s.Read(t.Context(), relay.Query{Limit: 9})
			answers <- err
		}()
	}
	time.Sleep(2 * confirmAfter) // each read asks for a commit of its node now
	unanswered(t, "the first message", outcomes[0])
	unanswered(t, "the second message", outcomes[1])
	for _, pid := range crash {
		sendSignal(t, pid, syscall.SIGKILL) // the server ends all connections, and recovers from what is on its disk
	}
	x.accepts(t)
	return before, outcomes, answers
}

// testCancelledWait cancels the wait of a barrier for a standby. The group is then on the primary only. So nothing is
// confirmed, the barrier waits again, and no other group of the node is committed.
func testCancelledWait(t *testing.T, x site) {
	s := x.open(t, Options{})
	pid := pidOf(t, s)
	x.standby(t, "nobody")
	defer x.standby(t, "")
	all := []<-chan relay.Outcome{appending(t, s, request(t, key(1), "t"))}
	began := int64(0)
	for range 2 {
		began = x.waits(t, pid, began)
		x.query(t, "SELECT pg_cancel_backend($1)::int", pid)
	}
	all = append(all, appending(t, s, request(t, key(2), "t")))
	x.waits(t, pid, began)
	unanswered(t, "a message whose barrier was cancelled", all[0])
	if last, _, _ := s.confirmed.get(); last > 0 || x.query(t, "SELECT last FROM head") != 1 {
		t.Errorf("%d is confirmed, %d is committed", last, x.query(t, "SELECT last FROM head"))
	}
	x.standby(t, "")
	for _, done := range all {
		if o := <-done; o.Err != nil {
			t.Error(o.Err)
		}
	}
}

// testLostBarrier ends the connection of a committer while its barrier waits. The message may be stored or not, and the
// same message again is stored once.
func testLostBarrier(t *testing.T, x site) {
	s := x.open(t, Options{})
	x.standby(t, "nobody")
	defer x.standby(t, "")
	pid, e := pidOf(t, s), request(t, key(1), "t")
	done := appending(t, s, e)
	x.waits(t, pid, 0)
	x.query(t, "SELECT pg_terminate_backend($1)::int", pid)
	if o := <-done; !errors.Is(o.Err, errUnknown) {
		t.Errorf("the answer is %+v, want %v", o, errUnknown)
	}
	x.standby(t, "")
	var r relay.Receipt
	whileUnreachable(t, func() (err error) { r, err = s.Append(t.Context(), e); return err })
	if !r.Duplicate || len(ids(t, s)) != 1 {
		t.Errorf("the same message again: %+v", r)
	}
}

// testHidden reads at one node what another node has committed. No read may show it before it is durable.
func testHidden(t *testing.T, x site) {
	o := Options{Extensions: []relay.Extension{items}}
	a, b := x.open(t, o), x.open(t, o)
	_, _, err := b.KeepLog(t.Context(), key(99).DID())
	must(t, err)
	x.standby(t, "nobody")
	defer x.standby(t, "")
	entry := request(t, key(1), "t")
	updated := make(chan error, 1)
	go func() {
		_, err := a.Update(t.Context(), func(tx relay.StoreTx) error {
			_, err := tx.Append(entry)
			return errors.Join(err, add(1, "a")(tx))
		})
		updated <- err
	}()
	x.visible(t, 1)
	reads := map[string]func() error{
		"Read":   func() error { _, err := b.Read(t.Context(), relay.Query{Limit: 9}); return err },
		"Thread": func() error { _, err := b.Thread(t.Context(), thread.Key{ID: "t"}, time.Now()); return err },
		"ThreadsOf": func() error {
			_, err := b.ThreadsOf(t.Context(), thread.Key{ID: "t", Client: key(1).DID()}, key(1).DID(), time.Now())
			return err
		},
		"Agents":    func() error { _, err := b.Agents(t.Context(), relay.AgentQuery{Limit: 9}); return err },
		"Known":     func() error { _, err := b.Known(t.Context(), key(1).DID(), entry.Envelope.ID); return err },
		"LogSize":   func() error { _, err := b.LogSize(t.Context(), 1); return err },
		"LogHashes": func() error { _, err := b.LogHashes(t.Context(), 1, 0, 0, 1); return err },
		"View": func() error {
			_, err := b.View(t.Context(), func(q relay.Querier) error {
				return q.Query(func(func(...any) error) error { return nil }, "SELECT name FROM items_item")
			})
			return err
		},
	}
	answers := make(chan string, len(reads))
	for name, read := range reads {
		go func() { answers <- fmt.Sprint(name, " ", read()) }()
	}
	time.Sleep(4 * confirmAfter)
	if len(answers) > 0 {
		t.Fatal("answered before the event is durable:", <-answers)
	}
	select {
	case err := <-updated:
		t.Fatal("the update was answered before it is durable:", err)
	default:
	}
	x.standby(t, "")
	for range reads {
		if answer := <-answers; !strings.HasSuffix(answer, "<nil>") {
			t.Error(answer)
		}
	}
	must(t, <-updated)
}

// testNodeEnds freezes the connection of a node between its commit and the end of its barrier, as if the node had
// ended. Another node shows the message when its own barrier is durable, and knows it when it is posted again.
func testNodeEnds(t *testing.T, x site) {
	a, b := x.open(t, Options{}), x.open(t, Options{})
	pid, e := pidOf(t, a), request(t, key(1), "t")
	x.standby(t, "nobody")
	done := appending(t, a, e)
	x.waits(t, pid, 0)
	sendSignal(t, pid, syscall.SIGSTOP)
	x.standby(t, "")
	if got := ids(t, b); len(got) != 1 {
		t.Errorf("the other node shows %v", got)
	}
	if r, err := b.Append(t.Context(), e); err != nil || !r.Duplicate {
		t.Errorf("the message again: %+v, %v", r, err)
	}
	unanswered(t, "the message at the node that has ended", done)
	sendSignal(t, pid, syscall.SIGCONT)
	if o := <-done; o.Err != nil {
		t.Error(o.Err)
	}
}

// TestReadOfAnotherServer checks that a read is not confirmed by a server to which the node has connected later: it may
// have other events with these numbers.
func TestReadOfAnotherServer(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	r, err := s.Append(t.Context(), request(t, key(1), "t"))
	must(t, err)
	_, conns, _ := s.confirmed.get()
	must(t, s.confirm(t.Context(), r.Cursor.Seq, conns))
	s.confirmed.renew()
	s.confirmed.raise(r.Cursor.Seq + 1)
	for _, seq := range []relay.Seq{r.Cursor.Seq, r.Cursor.Seq + 1} {
		if err := s.confirm(t.Context(), seq, conns); !errors.Is(err, errNoAnswer) {
			t.Errorf("event %d of an earlier server is confirmed: %v", seq, err)
		}
	}
}
