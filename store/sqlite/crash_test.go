package sqlite

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/thread"
)

// appendForever is a child that completes threads in several goroutines. It prints each receipt. It runs until it is
// killed.
func appendForever(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{mergeEvents: 16, mergeSlice: 1}) // so that it is killed during merges
	if err != nil {
		return err
	}
	failed := make(chan error)
	for n := range 4 {
		go func() {
			for {
				if err := converse(ctx, s, 2*n); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// converse takes one thread from its REQUEST to its RESULT and prints the receipts.
func converse(ctx context.Context, s *Store, n int) error {
	client, agent := key(n), key(n+1)
	id, now := envelope.NewID("thread", time.Now()), time.Now()
	for i, d := range []envelope.Draft{
		{Recipient: agent.DID(), Payload: envelope.Request{RequestID: "r", Intent: "translate"}},
		{Recipient: client.DID(), Payload: envelope.Offer{RequestID: "r"}},
		{Recipient: agent.DID(), Payload: envelope.Accept{RequestID: "r"}},
		{Recipient: client.DID(), Payload: envelope.Result{RequestID: "r", Status: "success"}},
	} {
		by := client
		if i%2 == 1 {
			by = agent
		}
		d.Thread = id
		m, err := d.Sign(by, now)
		if err != nil {
			return err
		}
		receipt, err := s.Append(ctx, relay.Entry{Envelope: m, Received: now})
		if err != nil {
			return err
		}
		// one write, so a line is never cut
		fmt.Fprintf(os.Stdout, "%d %s\n", receipt.Cursor.Seq, receipt.ID)
	}
	return nil
}

// TestKill kills a child many times. Every event acknowledged before the kill must be stored once, and each thread must
// agree with its events.
func TestKill(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	path := filepath.Join(t.TempDir(), "agora.db")
	acknowledged := map[relay.Seq]string{}
	var before relay.Cursor
	for range rounds {
		child := start(t, "append", path)
		for range 20 + rand.Intn(150) {
			var seq relay.Seq
			var id string
			if _, err := fmt.Fscanln(child.lines, &seq, &id); err != nil {
				t.Fatalf("reading the child's receipt: %v; its standard error is %q", err, child.errors.String())
			}
			acknowledged[seq] = id
		}
		must(t, child.Process.Kill())
		out, _ := child.rest() // ends with an error because the child was killed
		for line := range strings.Lines(out) {
			var seq relay.Seq
			var id string
			if _, err := fmt.Sscanln(line, &seq, &id); err != nil {
				t.Fatalf("the child's receipt %q: %v", line, err)
			}
			acknowledged[seq] = id
		}
		text, err := os.ReadFile(path + markSuffix)
		must(t, err)
		for seq := range acknowledged {
			if m, ok := dbfile.ParseMark(string(text)); !ok || m.Seq < seq {
				t.Errorf("event %d was acknowledged before it was in the mark: %q", seq, text)
			}
		}

		s := openAt(t, path)
		there := map[relay.Seq]string{}
		ids := map[string]bool{}
		for _, e := range events(t, s) {
			there[e.Seq] = e.ID
			if ids[e.ID] {
				t.Errorf("%s is stored twice", e.ID)
			}
			ids[e.ID] = true
		}
		for seq, id := range acknowledged {
			if there[seq] != id {
				t.Errorf("event %d was acknowledged as %q, but %q is stored", seq, id, there[seq])
			}
		}
		before = checkThreads(t, s, before)
		wantIntact(t, path, time.Now())
		must(t, s.Close())
	}
	t.Logf("%d receipts", len(acknowledged))
}

// checkThreads compares the events after a cursor with their threads. It returns the cursor of the last event.
func checkThreads(t *testing.T, s *Store, after relay.Cursor) relay.Cursor {
	t.Helper()
	page, err := s.Read(t.Context(), relay.Query{After: after, Expired: true, Limit: 1 << 20})
	must(t, err)
	steps := map[thread.Key][]string{}
	for _, e := range page.Events {
		m, err := envelope.Parse(e.Body, 0)
		must(t, err)
		k := thread.Key{ID: m.Thread, Client: m.Sender.ID}
		if m.Type == envelope.TypeOffer || m.Type == envelope.TypeResult {
			k.Client = m.Recipient
		}
		steps[k] = append(steps[k], m.ID)
	}
	states := []thread.State{thread.Pending, thread.Pending, thread.Active, thread.Completed}
	for k, ids := range steps {
		got, err := s.Thread(t.Context(), k, time.Now())
		must(t, err)
		var recorded []string
		for _, step := range got.Transitions {
			recorded = append(recorded, step.ID)
		}
		if !slices.Equal(recorded, ids) || got.State != states[len(ids)-1] {
			t.Errorf("thread %s is %s with the steps %q, but its events are %q", k.ID, got.State, recorded, ids)
		}
	}
	return page.Cursor
}
