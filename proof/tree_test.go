package proof

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
)

// storedTree has all hashes of a tree, as package tlog stores them.
type storedTree []Hash

func (s *storedTree) ReadHashes(indexes []int64) (hashes []Hash, err error) {
	for _, i := range indexes {
		hashes = append(hashes, (*s)[i])
	}
	return hashes, nil
}

// TestGroupProofs compares roots, paths and nodes with those of package tlog, for all sizes to 1,000 (LOG L-11, L-14).
func TestGroupProofs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	var tree Tree
	var stored storedTree
	for tree.Size < 1000 {
		before := Tree{tree.Size, slices.Clone(tree.Edge)}
		var leaves []Hash
		for range 1 + random.IntN(13) {
			leaves = append(leaves, tlog.RecordHash(fmt.Append(nil, tree.Size+int64(len(leaves)))))
		}
		g := tree.Grow(leaves)
		for i, leaf := range leaves {
			more, err := tlog.StoredHashesForRecordHash(before.Size+int64(i), leaf, &stored)
			if err != nil {
				t.Fatal(err)
			}
			stored = append(stored, more...)
		}
		root, err := tlog.TreeHash(tree.Size, &stored)
		if err != nil || tree.Root() != root || g.First != before.Size || tree.Size != before.Size+int64(len(leaves)) {
			t.Fatalf("the root at size %d is %s, want %s (%v)", tree.Size, tree.Root(), root, err)
		}
		for _, n := range g.Nodes {
			if stored[tlog.StoredHashIndex(n.Level, n.N)] != n.Hash {
				t.Errorf("node %d of level %d is %s", n.N, n.Level, n.Hash)
			}
		}
		if want := len(stored) - int(tlog.StoredHashCount(before.Size)); len(g.Nodes) != want {
			t.Errorf("%d nodes, want %d", len(g.Nodes), want)
		}
		for i := range leaves {
			want, err := tlog.ProveRecord(tree.Size, g.First+int64(i), &stored)
			got, failed := g.path(g.First + int64(i))
			if err != nil || failed != nil || !slices.Equal(got, []Hash(want)) {
				t.Fatalf("leaf %d of %d: %v, %v, %v", g.First+int64(i), tree.Size, got, failed, err)
			}
		}
	}
}

// TestUndoneGrowth checks that a tree that was copied before it grew is as before.
func TestUndoneGrowth(t *testing.T) {
	var tree Tree
	tree.Grow(make([]Hash, 11))
	before, root := tree, tree.Root()
	tree.Grow(make([]Hash, 5))
	again := before
	if before.Root() != root || again.Grow(make([]Hash, 5)).after.Root() != tree.Root() {
		t.Error("the copy has changed")
	}
}

// TestSignedProof checks a proof that is made from a Growth.
func TestSignedProof(t *testing.T) {
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	o := Origin{key.DID(), 0x0a0b0c0d}
	leaf := Leaf{Event: Hash{1}, Request: Hash{2}}
	var tree Tree
	g := tree.Grow([]Hash{tlog.RecordHash([]byte(Start{}.String())), tlog.RecordHash([]byte(leaf.String()))})
	text, err := g.Prove(key, o, 1, leaf.String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.Verify()
	if err != nil || v.Origin != o || v.Leaf != leaf || v.Size != 2 {
		t.Errorf("%+v, %v", v, err)
	}
}

// BenchmarkGroupProofs makes the proofs of a group, with their share of the signature (LOG §9).
func BenchmarkGroupProofs(b *testing.B) {
	key, err := didkey.Generate()
	if err != nil {
		b.Fatal(err)
	}
	o := Origin{key.DID(), 1}
	for _, n := range []int{1, 13, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tree := Tree{Size: 1_000_000}
			for size := tree.Size; size > 0; size &= size - 1 {
				tree.Edge = append(tree.Edge, Hash{byte(size)})
			}
			leaf := Leaf{Event: Hash{1}, Request: Hash{2}}
			for range b.N {
				leaves := make([]Hash, n)
				for i := range leaves {
					leaves[i] = tlog.RecordHash([]byte(leaf.String()))
				}
				g := tree.Grow(leaves)
				for i := range leaves {
					if _, err := g.Prove(key, o, g.First+int64(i), leaf.String()); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/proof")
		})
	}
}

// TestLoadTree loads trees from the hashes that a store keeps (LOG L-13, L-14).
func TestLoadTree(t *testing.T) {
	levels := map[int][]Hash{}
	read := func(level int, first, n int64) ([]Hash, error) { return levels[level][first : first+n], nil }
	var tree Tree
	random := rand.New(rand.NewPCG(2, 0))
	for tree.Size < 140_000 {
		n := 1 + random.IntN(300)
		if tree.Size == 512 {
			n = tile*tile - 512
		}
		leaves := make([]Hash, n)
		for i := range leaves {
			leaves[i] = tlog.RecordHash(fmt.Append(nil, tree.Size+int64(i)))
		}
		levels[0] = append(levels[0], leaves...)
		for _, n := range tree.Grow(leaves).Tiled() {
			if int64(len(levels[n.Level])) != n.N {
				t.Fatalf("node %d of level %d comes after %d others", n.N, n.Level, len(levels[n.Level]))
			}
			levels[n.Level] = append(levels[n.Level], n.Hash)
		}
		if tree.Size > 1000 && random.IntN(20) > 0 && tree.Size%tile != 0 {
			continue
		}
		got, err := LoadTree(tree.Size, read)
		if err != nil || got.Size != tree.Size || !slices.Equal(got.Edge, tree.Edge) {
			t.Fatalf("the tree of size %d is loaded as %v (%v)", tree.Size, got, err)
		}
	}
	if len(levels[2]) != 2 {
		t.Errorf("%d nodes of level 2", len(levels[2]))
	}
	if _, err := LoadTree(5, func(int, int64, int64) ([]Hash, error) { return nil, nil }); err == nil {
		t.Error("a tree is loaded without its leaves")
	}
}
