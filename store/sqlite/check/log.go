package check

import (
	"crypto/sha256"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/store/ledger"
)

// storedLog is a log of the relay, see docs/PROOFS.md.
type storedLog struct {
	n      int64
	origin string
	start  string // leaf 0
	after  int64  // number of the last event before the log
	first  int64  // index of the first leaf that is kept
	leaves []proof.Hash
	tree   proof.Tree
	nodes  int // complete subtrees above the leaves
}

func (l *storedLog) where() string { return "log " + l.origin }

// Shifts of the keys of log_leaf and log_node, as in package sqlite.
const (
	leafShift  = 40
	nodeShift  = 48
	levelShift = 40
)

// logTrees computes the tree of each log again, and compares the nodes.
func (c *checker) logTrees() error {
	err := c.each(func(scan scanner) error {
		var l storedLog
		err := scan(&l.n, &l.origin, &l.start)
		c.logs = append(c.logs, &l)
		return err
	}, "SELECT n, origin, start FROM log ORDER BY n")
	if err != nil {
		return err
	}
	byNumber := map[int64]*storedLog{}
	for _, l := range c.logs {
		byNumber[l.n] = l
	}
	var last int64 // number of the last event of the rows so far
	err = c.each(func(scan scanner) error {
		var at, seq int64
		var hashes []byte
		if err := scan(&at, &seq, &hashes); err != nil {
			return err
		}
		l, first := byNumber[at>>leafShift], at&(1<<leafShift-1)
		if l != nil && len(l.leaves) == 0 {
			l.after = last
			if err := c.skip(l, first); err != nil {
				return err
			}
		}
		last = seq
		if l == nil || first != l.tree.Size || len(hashes) == 0 || len(hashes)%sha256.Size != 0 {
			c.found(Finding{"log", fmt.Sprintf("the row %d of leaves does not continue a log", at), cureDamage})
			return nil
		}
		return c.grow(l, hashes)
	}, "SELECT at, seq, hashes FROM log_leaf ORDER BY at")
	if err != nil {
		return err
	}
	return c.logStarts()
}

// skip loads the tree of the leaves of l before first, whole tiles that are not kept any more.
func (c *checker) skip(l *storedLog, first int64) (err error) {
	if first == 0 || first%ledger.LogTile != 0 {
		return nil
	}
	l.first = first
	for nodes := first / ledger.LogTile; nodes > 0; nodes /= ledger.LogTile {
		l.nodes += int(nodes)
	}
	l.tree, err = proof.LoadTree(first, func(level int, from, n int64) (hashes []proof.Hash, err error) {
		key := l.n<<nodeShift | int64(level)<<levelShift | from
		err = c.each(func(scan scanner) error {
			var hash []byte
			if err := scan(&hash); err != nil {
				return err
			}
			if len(hash) == sha256.Size {
				hashes = append(hashes, proof.Hash(hash))
			}
			return nil
		}, "SELECT hash FROM log_node WHERE at >= ? AND at < ? ORDER BY at", key, key+n)
		return hashes, err
	})
	if err != nil {
		c.found(Finding{l.where(), err.Error(), cureDamage})
	}
	return nil
}

// grow appends leaves to l and compares the nodes that they complete.
func (c *checker) grow(l *storedLog, hashes []byte) error {
	leaves := make([]proof.Hash, len(hashes)/sha256.Size)
	for i := range leaves {
		leaves[i] = proof.Hash(hashes[i*sha256.Size:][:sha256.Size])
	}
	l.leaves = append(l.leaves, leaves...)
	for _, node := range l.tree.Grow(leaves).Tiled() {
		l.nodes++
		var hash []byte
		err := c.each(func(scan scanner) error { return scan(&hash) }, "SELECT hash FROM log_node WHERE at = ?",
			l.n<<nodeShift|int64(node.Level)<<levelShift|node.N)
		if err != nil {
			return err
		}
		if string(hash) != string(node.Hash[:]) {
			c.found(Finding{l.where(), fmt.Sprintf("node %d of level %d is not that of its leaves", node.N, node.Level), cureDamage})
		}
	}
	return nil
}

// logStarts checks the first leaf of each log, and that there are no further nodes.
func (c *checker) logStarts() error {
	nodes := 0
	for i, l := range c.logs {
		nodes += l.nodes
		start, err := proof.ParseStart(l.start)
		if _, invalid := proof.ParseOrigin(l.origin); err != nil || invalid != nil {
			c.found(Finding{l.where(), "its start or its origin has a wrong form", cureDamage})
			continue
		}
		if len(l.leaves) == 0 || l.first == 0 && l.leaves[0] != tlog.RecordHash([]byte(l.start)) {
			c.found(Finding{l.where(), "leaf 0 is not that of its start", cureDamage})
		}
		if p := start.Previous; (p == nil) != (i == 0) || p != nil && (p.Origin.String() != c.logs[i-1].origin ||
			p.Size != c.logs[i-1].tree.Size || p.Root != c.logs[i-1].tree.Root()) {
			c.found(Finding{l.where(), "it does not begin after the log before it", cureDamage})
		}
	}
	var stored int
	err := c.each(func(scan scanner) error { return scan(&stored) }, "SELECT count(*) FROM log_node")
	if err == nil && stored != nodes {
		c.found(Finding{"log", fmt.Sprintf("%d nodes are stored, but the leaves make %d", stored, nodes), cureDamage})
	}
	return err
}

// checkLeaf returns what is wrong with the leaf of e. request is the hash of the thread's REQUEST, zero if it is not known.
func (c *checker) checkLeaf(e storedEvent, request proof.Hash) []Finding {
	wrong := func(what string) []Finding { return []Finding{{e.where(), what, cureDamage}} }
	if !e.leaf.Valid || len(e.body) == 0 {
		if e.salt != nil {
			return wrong("it has a salt, but no body or no leaf")
		}
		return nil
	}
	var l *storedLog
	for _, other := range c.logs {
		if other.after < e.seq {
			l = other
		}
	}
	leaf := proof.Leaf{Event: sha256.Sum256(e.body), Request: request,
		Received: ledger.Instant(e.received).Truncate(time.Millisecond)}
	if copy(leaf.Salt[:], e.salt) != len(e.salt) || len(e.salt) != len(leaf.Salt) {
		return wrong("the salt of its leaf has a wrong length")
	}
	if l != nil && e.leaf.Int64 < l.first {
		return nil // the leaf is not kept any more
	}
	if l == nil || e.leaf.Int64 < 1 || e.leaf.Int64 >= l.first+int64(len(l.leaves)) ||
		l.leaves[e.leaf.Int64-l.first] != tlog.RecordHash([]byte(leaf.String())) {
		return wrong(fmt.Sprintf("leaf %d of the log is not that of this message", e.leaf.Int64))
	}
	return nil
}

// checkLeaves returns what is wrong with the leaves of t's events.
func (c *checker) checkLeaves(t storedThread) (findings []Finding) {
	r, err := t.Decode()
	if err != nil {
		return nil // check reports it
	}
	for _, e := range t.events {
		findings = append(findings, c.checkLeaf(e, r.Request)...)
		if e.id == r.Transitions[0].ID && didkey.DID(e.sender) == r.Client && r.Request != (proof.Hash{}) &&
			len(e.body) > 0 && r.Request != sha256.Sum256(e.body) {
			findings = append(findings, Finding{t.where(), "its record has the hash of another REQUEST", cureDamage})
		}
	}
	return findings
}
