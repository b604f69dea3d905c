package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// Log is a reader of a relay's log (docs/PROOFS.md). It trusts nothing that the relay has not signed.
type Log struct {
	Origin proof.Origin
	Start  string // the text of leaf 0, as the relay's document has it; empty: unknown

	client *Client
	ctx    context.Context // of the calls of the methods that package tlog makes

	mu    sync.Mutex
	tiles map[tlog.Tile][]byte
}

// Log returns a reader of the relay's log. ctx is for all its requests. Errors: CodeNotFound if the relay keeps no log.
func (c *Client) Log(ctx context.Context) (*Log, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	var document struct {
		Log *struct{ Origin, Start string } `json:"log"`
	}
	if err := json.Unmarshal(info.JSON, &document); err != nil {
		return nil, err
	}
	if document.Log == nil {
		return nil, envelope.Errorf(envelope.CodeNotFound, "this relay keeps no log")
	}
	l := &Log{Start: document.Log.Start, client: c, ctx: ctx, tiles: map[tlog.Tile][]byte{}}
	if l.Origin, err = proof.ParseOrigin(document.Log.Origin); err != nil {
		return nil, err
	}
	if l.Origin.DID != info.DID {
		return nil, errors.New("client: the log in the relay's document is that of another relay")
	}
	return l, nil
}

// Earlier returns a reader of another log of the same relay.
func (l *Log) Earlier(epoch uint32) *Log {
	return &Log{Origin: proof.Origin{DID: l.Origin.DID, Epoch: epoch}, client: l.client, ctx: l.ctx, tiles: map[tlog.Tile][]byte{}}
}

func (l *Log) read(path string, limit int) (text string, err error) {
	err = l.client.conn.Read(l.ctx, fmt.Sprintf("/log/%08x/%s", l.Origin.Epoch, path), nil, wire.Spec{Text: &text, Limit: limit})
	return text, err
}

// Checkpoint reads the published checkpoint and checks its signatures. It returns who else has signed it.
func (l *Log) Checkpoint(witnesses ...*proof.Witness) (*proof.Checkpoint, []proof.Cosigned, error) {
	text, err := l.read("checkpoint", proof.MaxBytes)
	if err != nil {
		return nil, nil, err
	}
	c, err := proof.ParseCheckpoint(text)
	if err == nil && c.Origin != l.Origin {
		err = errors.New("it is of another log")
	}
	var cosigned []proof.Cosigned
	if err == nil {
		cosigned, err = c.Verify(witnesses...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("client: the published checkpoint: %w", err)
	}
	return &c, cosigned, nil
}

// ErrNoTile is in the error of a method of Log if the relay does not have the hashes that it needs: leaves are kept for
// a limited time.
var ErrNoTile = errors.New("the relay does not have these hashes of its log any more, or not yet")

// Prove returns the proof of a leaf with this text and index, under the checkpoint c.
func (l *Log) Prove(c *proof.Checkpoint, index int64, leaf string) (*proof.Proof, error) {
	path, err := tlog.ProveRecord(c.Size, index, l.hashes(c))
	return &proof.Proof{Extra: leaf, Index: index, Path: path, Checkpoint: *c}, err
}

// Prefix returns the root of the first size leaves of the log of c, and the proof that c continues it.
func (l *Log) Prefix(c *proof.Checkpoint, size int64) (root proof.Hash, path []proof.Hash, err error) {
	if root, err = tlog.TreeHash(size, l.hashes(c)); err == nil && size < c.Size {
		path, err = tlog.ProveTree(c.Size, size, l.hashes(c))
	}
	return root, path, err
}

// hashes reads hashes of the tree of c, and compares them with its root.
func (l *Log) hashes(c *proof.Checkpoint) tlog.HashReader {
	return tlog.TileHashReader(tlog.Tree{N: c.Size, Hash: c.Root}, l)
}

// tileHeight is the height of tiles (C2SP tlog-tiles).
const tileHeight = 8

// Height implements tlog.TileReader.
func (l *Log) Height() int { return tileHeight }

// ReadTiles implements tlog.TileReader.
func (l *Log) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	all := make([][]byte, len(wanted))
	for i, tile := range wanted {
		l.mu.Lock()
		all[i] = l.tiles[tile]
		l.mu.Unlock()
		if all[i] != nil {
			continue
		}
		size := tile.W * tlog.HashSize
		text, err := l.read(tilePath(tile), size)
		if failed, ok := errors.AsType[*wire.Failure](err); ok && failed.Status == http.StatusNotFound {
			err = ErrNoTile
		}
		if err == nil && len(text) != size {
			err = errors.New("client: the relay answers with a tile of a wrong size")
		}
		if err != nil {
			return nil, err
		}
		all[i] = []byte(text)
	}
	return all, nil
}

// tilePath returns the path of a tile below that of its log.
func tilePath(t tlog.Tile) string {
	return "tile/" + t.Path()[len(fmt.Sprintf("tile/%d/", tileHeight)):]
}

// SaveTiles implements tlog.TileReader. It keeps the tiles that were compared with the root.
func (l *Log) SaveTiles(tiles []tlog.Tile, data [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, tile := range tiles {
		if len(l.tiles) < maxTiles {
			l.tiles[tile] = data[i]
		}
	}
}

// maxTiles is how many tiles a Log keeps in memory, 8 KiB each.
const maxTiles = 4096

// maxWitnesses is how many names of witnesses are read from a checkpoint.
const maxWitnesses = 16

// witnesses returns the names of those that have signed the relay's published checkpoint, without the relay. They are
// not verified: that needs the keys of the witnesses.
func (c *Client) witnesses(ctx context.Context) (names []string) {
	l, err := c.Log(ctx)
	if err != nil {
		return nil
	}
	text, err := l.read("checkpoint", proof.MaxBytes)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 3 && words[0] == "—" && words[1] != l.Origin.String() && len(names) < maxWitnesses {
			names = append(names, words[1])
		}
	}
	return names
}
