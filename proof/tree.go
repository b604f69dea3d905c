package proof

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
)

// Tree is what a log must keep to grow: its size and its right edge. The edge has the roots of the complete subtrees, the
// largest first. There is one for each bit that is set in the size.
type Tree struct {
	Size int64
	Edge []Hash
}

// Node is a complete subtree: the one with the number N among those with 2^Level leaves.
type Node struct {
	Level int
	N     int64
	Hash  Hash
}

// Growth is what one commit adds to a tree. It can prove each of its leaves. It is safe for concurrent use.
type Growth struct {
	First int64  // index of the first leaf
	Nodes []Node // the leaves, and the complete subtrees that they complete

	after  Tree
	hashes map[int64]Hash // Nodes, and the edge before, by tlog.StoredHashIndex

	signing    sync.Once
	checkpoint string
	failed     error
}

// Grow appends leaves, at least one, to t. Only the result refers to t as it was.
func (t *Tree) Grow(leaves []Hash) *Growth {
	g := &Growth{First: t.Size, hashes: make(map[int64]Hash, 2*len(leaves)+len(t.Edge))}
	end := t.Size
	for _, hash := range slices.Backward(t.Edge) {
		level, n := lastNode(end)
		g.hashes[tlog.StoredHashIndex(level, n)] = hash
		end -= 1 << level
	}
	t.Edge = slices.Clone(t.Edge)
	for _, hash := range leaves {
		n := t.Size
		g.add(Node{0, n, hash})
		for level := 0; n&1 == 1; level++ {
			hash = tlog.NodeHash(t.Edge[len(t.Edge)-1], hash)
			t.Edge, n = t.Edge[:len(t.Edge)-1], n>>1
			g.add(Node{level + 1, n, hash})
		}
		t.Edge = append(t.Edge, hash)
		t.Size++
	}
	g.after = Tree{t.Size, slices.Clone(t.Edge)}
	return g
}

// tile is how many nodes of one level a node of the next level has (C2SP tlog-tiles).
const tile = 256

// ErrMissing is in the error of LoadTree if there are too few hashes.
var ErrMissing = errors.New("hashes of the log are missing")

// LoadTree returns the tree of a log with this size. read returns n hashes of a level of tlog-tiles, from a number on:
// those of leaves at level 0, and those of complete subtrees with 256^level leaves above.
func LoadTree(size int64, read func(level int, first, n int64) ([]Hash, error)) (t Tree, err error) {
	for level, nodes := 0, size; nodes > 0; level, nodes = level+1, nodes/tile {
		hashes, err := read(level, nodes-nodes%tile, nodes%tile)
		if err != nil {
			return Tree{}, err
		}
		if int64(len(hashes)) != nodes%tile {
			return Tree{}, fmt.Errorf("%w: level %d has %d hashes of its last tile, not %d", ErrMissing, level, len(hashes), nodes%tile)
		}
		var part Tree
		if len(hashes) > 0 {
			part.Grow(hashes)
		}
		t.Edge = append(part.Edge, t.Edge...)
	}
	t.Size = size
	return t, nil
}

// Tiled returns the nodes of g that are stored: the complete subtrees with 256^Level leaves, above the leaves. Their
// Level is a level of tlog-tiles.
func (g *Growth) Tiled() (nodes []Node) {
	const bits = 8 // 2^bits = tile
	for _, n := range g.Nodes {
		if n.Level > 0 && n.Level%bits == 0 {
			nodes = append(nodes, Node{n.Level / bits, n.N, n.Hash})
		}
	}
	return nodes
}

// lastNode returns the smallest complete subtree of the edge of a tree with this size.
func lastNode(size int64) (level int, n int64) {
	for size&1 == 0 {
		level, size = level+1, size>>1
	}
	return level, size - 1
}

func (g *Growth) add(n Node) {
	g.Nodes = append(g.Nodes, n)
	g.hashes[tlog.StoredHashIndex(n.Level, n.N)] = n.Hash
}

// Root returns the root of t, which must have a leaf.
func (t Tree) Root() Hash {
	root := t.Edge[len(t.Edge)-1]
	for _, left := range slices.Backward(t.Edge[:len(t.Edge)-1]) {
		root = tlog.NodeHash(left, root)
	}
	return root
}

// path returns the path from a leaf of g to the root of the tree after g.
func (g *Growth) path(index int64) ([]Hash, error) {
	return tlog.ProveRecord(g.after.Size, index, tlog.HashReaderFunc(func(indexes []int64) ([]Hash, error) {
		hashes := make([]Hash, len(indexes))
		for i, at := range indexes {
			hashes[i] = g.hashes[at]
		}
		return hashes, nil
	}))
}

// Prove returns the text of the proof of a leaf of g with this index and text. The log is o, and key is the key of
// o.DID. All proofs of g have one checkpoint, that of the tree after g. The first call signs it (LOG L-11).
func (g *Growth) Prove(key didkey.Key, o Origin, index int64, leaf string) (string, error) {
	g.signing.Do(func() {
		var c Checkpoint
		c, g.failed = SignCheckpoint(key, o, g.after.Size, g.after.Root())
		g.checkpoint = c.String()
	})
	if g.failed != nil {
		return "", g.failed
	}
	path, err := g.path(index)
	if err != nil {
		return "", err
	}
	p := Proof{Extra: leaf, Index: index, Path: path}
	return p.text(g.checkpoint), nil
}

// SignCheckpoint returns the checkpoint of a log, signed by its relay. key is the key of o.DID.
func SignCheckpoint(key didkey.Key, o Origin, size int64, root Hash) (Checkpoint, error) {
	c := Checkpoint{Origin: o, Size: size, Root: root}
	signature, err := key.Sign([]byte(c.Body()))
	if err != nil {
		return Checkpoint{}, err
	}
	c.Signatures = []Signature{{o.String(), hashOfKey(o.String(), typeNote, o.DID.PublicKey()), signature}}
	return c, nil
}
