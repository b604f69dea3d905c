//go:build postgres

package postgres

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
)

// proved collects the proofs of several nodes.
type proved struct {
	mu     sync.Mutex
	proofs []string
	leaves map[int64]proof.Hash
}

// add posts a REQUEST at a node and keeps its proof.
func (p *proved) add(t *testing.T, node *Store, by byte, thread string) {
	t.Helper()
	p.post(t, node, request(t, key(by), thread))
}

// post posts a message that is not stored yet at a node, and keeps its proof.
func (p *proved) post(t *testing.T, node *Store, e relay.Entry) {
	t.Helper()
	receipt, err := node.Append(t.Context(), e)
	if err != nil || receipt.Duplicate {
		t.Errorf("%+v, %v", receipt, err)
		return
	}
	l := receipt.Logged
	text, err := l.Growth.Prove(key(99), proof.Origin{DID: key(99).DID(), Epoch: node.epoch}, l.Index, l.Leaf)
	if err != nil {
		t.Error(err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proofs, p.leaves[l.Index] = append(p.proofs, text), tlog.RecordHash([]byte(l.Leaf))
}

// check checks that each index has one leaf, and that each proof is valid and has the root of these leaves.
func (p *proved) check(t *testing.T, start string) {
	t.Helper()
	p.leaves[0] = tlog.RecordHash([]byte(start))
	var tree proof.Tree
	roots := map[int64]proof.Hash{}
	for i := range int64(len(p.proofs) + 1) {
		leaf, ok := p.leaves[i]
		if !ok {
			t.Fatalf("no message has the leaf %d", i)
		}
		tree.Grow([]proof.Hash{leaf})
		roots[tree.Size] = tree.Root()
	}
	for _, text := range p.proofs {
		parsed, err := proof.Parse(text)
		must(t, err)
		if _, err = parsed.Verify(); err != nil || parsed.Checkpoint.Root != roots[parsed.Checkpoint.Size] {
			t.Errorf("the proof of leaf %d of %d is of another tree, %v", parsed.Index, parsed.Checkpoint.Size, err)
		}
	}
}

// TestNodesLog lets three nodes append to one log at the same time, one of them only after the others have filled many
// tiles. There must be one tree (LOG L-15). A node that has lost its connection continues it (LOG L-14).
func TestNodesLog(t *testing.T) {
	place := t.TempDir()
	var nodes [3]*Store
	var start string
	for i := range nodes {
		nodes[i] = open(t, place, Options{})
		all, _, err := nodes[i].KeepLog(t.Context(), key(99).DID())
		must(t, err)
		start = all[0].Start
	}
	p := &proved{leaves: map[int64]proof.Hash{}}
	together := func(nodes []*Store, round, each int) {
		var posts sync.WaitGroup
		for i, node := range nodes {
			for caller := range 4 {
				posts.Go(func() {
					for n := range each {
						p.add(t, node, byte(10*i+caller+1), fmt.Sprintf("t%d-%d", round, n))
					}
				})
			}
		}
		posts.Wait()
	}
	together(nodes[:], 1, 30)
	together(nodes[:2], 2, 100)
	together(nodes[:], 3, 5)
	must(t, nodes[1].task(t.Context(), func(w *writer) error {
		w.lost(errUnreachable)
		return nil
	}))
	together([]*Store{nodes[0], nodes[2]}, 5, 5)
	for deadline := time.Now().Add(time.Minute); nodes[1].down.Load() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the node does not connect again")
		}
	}
	together(nodes[:], 4, 5)
	p.check(t, start)
	for _, node := range nodes {
		if size, err := node.LogSize(t.Context(), 1); size != int64(len(p.leaves)) || err != nil {
			t.Errorf("a node sees %d leaves of %d, %v", size, len(p.leaves), err)
		}
	}
}

// TestFarBehind checks that a node reads the tree again if others have appended more than it reads in one round trip.
func TestFarBehind(t *testing.T) {
	place := t.TempDir()
	var nodes [2]*Store
	var start string
	for i := range nodes {
		nodes[i] = open(t, place, Options{})
		all, _, err := nodes[i].KeepLog(t.Context(), key(99).DID())
		must(t, err)
		start = all[0].Start
	}
	p := &proved{leaves: map[int64]proof.Hash{}}
	for n := range 255 { // single rows
		p.add(t, nodes[0], 1, fmt.Sprint("a", n))
	}
	for n := range 300 {
		p.add(t, nodes[0], 1, fmt.Sprint("b", n))
	}
	must(t, nodes[0].task(t.Context(), func(w *writer) error { // as many rows as if tiles were not merged
		_, err := w.conn.Exec(t.Context(), "INSERT INTO log_leaf SELECT log, first + i, latest, seq, substr(hashes, 32 * i + 1, 32) "+
			"FROM log_leaf, generate_series(1, 255) i WHERE first % 256 = 0 AND length(hashes) = 8192; "+
			"UPDATE log_leaf SET hashes = substr(hashes, 1, 32) WHERE length(hashes) = 8192")
		return err
	}))
	p.add(t, nodes[1], 2, "c")
	p.check(t, start)
}

// TestOneLogPublishes checks that only the node with the lease publishes (LOG L-15).
func TestOneLogPublishes(t *testing.T) {
	place := t.TempDir()
	leader, other := open(t, place, Options{}), open(t, place, Options{})
	for _, s := range []relay.LogStore{leader, other} {
		_, _, err := s.KeepLog(t.Context(), key(99).DID())
		must(t, err)
	}
	must(t, other.Publish(t.Context(), "", "other"))
	must(t, leader.Publish(t.Context(), "", "leader"))
	if found, err := other.Published(t.Context(), 1); found != "leader" || err != nil {
		t.Errorf("%q is published, %v", found, err)
	}
}
