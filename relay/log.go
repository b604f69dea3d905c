package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// PublishEvery is how often a relay publishes a checkpoint, if its log has grown.
const PublishEvery = 5 * time.Second

// LogStore is a Store that can keep the log of a relay (docs/PROOFS.md). All methods but KeepLog need a log.
type LogStore interface {
	Remover

	// KeepLog makes the store append a leaf for each message that it accepts from now on, to the log of this relay. If the
	// relay has no log in this epoch, one begins. all are the logs of the store. The number of the relay's is current.
	KeepLog(ctx context.Context, relay didkey.DID) (all []StoredLog, current int64, err error)

	// LogSize returns how many leaves of a log are durable. log is the number of a log here and below.
	LogSize(ctx context.Context, log int64) (int64, error)

	// LogHashes returns n hashes of a level of a log, from the number first on, see proof.LoadTree. It returns fewer if
	// there are fewer.
	LogHashes(ctx context.Context, log int64, level int, first, n int64) ([]proof.Hash, error)

	// LogLeaf returns the leaf of a stored event. log is 0 if the event has none, or its salt is erased.
	LogLeaf(ctx context.Context, event Seq) (log, index int64, leaf proof.Leaf, err error)

	// FirstLeaf returns the lowest index whose leaf is kept, see Policy.LogRetention.
	FirstLeaf(ctx context.Context, log int64) (index int64, err error)

	// Publishes reports whether this node publishes the checkpoints. Only one does.
	Publishes() bool

	// Published returns the last checkpoint of a log that was stored with Publish; empty: none.
	Published(ctx context.Context, log int64) (string, error)

	// Publish replaces the published checkpoint of the present log. It changes nothing if the published one is not before: then another node
	// was faster.
	Publish(ctx context.Context, before, checkpoint string) error
}

// StoredLog is a log that a store has. Only the one of the present relay and epoch grows.
type StoredLog struct {
	Number int64 // 1 or more
	Origin string
	Start  string // the text of leaf 0
}

// Witnesses sign the checkpoints of a log, if these continue the ones that they have signed before (LOG §5).
type Witnesses interface {
	// Len returns how many there are.
	Len() int
	// Held returns the checkpoints that they hold. The relay has signed these. The error says which witnesses do not answer.
	Held(ctx context.Context, o proof.Origin) ([]proof.Checkpoint, error)
	// Cosign returns the signatures of a checkpoint that come within two seconds. prove returns the proof that the
	// checkpoint continues the log with old leaves.
	Cosign(ctx context.Context, c proof.Checkpoint, prove func(ctx context.Context, old int64) ([]proof.Hash, error)) []proof.Signature
}

// relayLog is the log of a relay.
type relayLog struct {
	store     LogStore
	number    int64     // see StoredLog
	witnesses Witnesses // nil: none
	origin    proof.Origin
	start     string       // the text of leaf 0
	minimum   atomic.Int64 // LogStore.FirstLeaf, read with each publication
}

// ErrLogLost is in the error of opening a log that has lost leaves. They are proved already, so the log cannot continue.
var ErrLogLost = errors.New("put the right data folder in place, or restore a backup with agora restore, which begins a new " +
	"log; to begin a new log here, start once with --accept-loss")

// LogInfo describes the log of a relay, in the form of the well-known document (LOG §3).
type LogInfo struct {
	Origin           string  `json:"origin"`
	Start            string  `json:"start"` // the text of leaf 0
	PublishSeconds   float64 `json:"publishSeconds"`
	RetentionSeconds float64 `json:"retentionSeconds"`
	Minimum          int64   `json:"minimum,omitempty"` // lowest index whose leaf is kept; 0: all are
}

// errNoLog is the refusal of everything about the log of a relay without one.
var errNoLog = envelope.Errorf(envelope.CodeNotFound,
	"this relay keeps no log, so it proves nothing; its operator can turn on the log with --transparency on")

// openLog opens the log of the relay. It fails if the log is not the one that was published last.
func (r *Relay) openLog(ctx context.Context, witnesses Witnesses) error {
	store, ok := r.store.(LogStore)
	if !ok {
		return errors.New("this store cannot keep a log; turn off transparency")
	}
	all, current, err := store.KeepLog(ctx, r.DID())
	if err != nil {
		return err
	}
	for _, s := range all {
		l := &relayLog{store: store, number: s.Number, start: s.Start}
		if l.origin, err = proof.ParseOrigin(s.Origin); err != nil {
			return err
		}
		if r.logs = append(r.logs, l); s.Number == current {
			r.transparency = l
		}
	}
	l := r.transparency
	l.witnesses = witnesses
	if err := l.check(ctx, r.log); err != nil {
		return err
	}
	if err := l.publish(ctx, r.key, false); err != nil { // witnesses must not delay a start
		r.log.Error("cannot publish a checkpoint of the log yet", "err", err)
	}
	return nil
}

// check fails if the log does not continue the one that was published last, and those that witnesses hold (LOG L-14,
// L-22).
func (l *relayLog) check(ctx context.Context, log *slog.Logger) error {
	var held []proof.Checkpoint
	if l.witnesses != nil {
		var failed error
		if held, failed = l.witnesses.Held(ctx, l.origin); failed != nil {
			log.Warn("a log that was rolled back may not be noticed", "err", failed)
		}
	}
	_, c, err := l.published(ctx)
	if err != nil {
		return err
	}
	size, err := l.store.LogSize(ctx, l.number) // after the witnesses were asked
	if err == nil && c != nil {
		err = l.continues(ctx, size, *c, "this relay has published")
	}
	for _, c := range held {
		if err == nil {
			err = l.continues(ctx, size, c, "a witness holds")
		}
	}
	return err
}

// continues fails if the log, which has this size, is not a continuation of c.
func (l *relayLog) continues(ctx context.Context, size int64, c proof.Checkpoint, holder string) error {
	if size < c.Size {
		return fmt.Errorf("the log has lost leaves: it has %d, and the checkpoint that %s has %d; %w", size, holder, c.Size, ErrLogLost)
	}
	first, err := l.store.FirstLeaf(ctx, l.number)
	if err != nil || first > c.Size-c.Size%tileLeaves {
		return err // the last leaves of this tree are not kept any more
	}
	tree, err := l.tree(ctx, c.Size)
	if err == nil && tree.Root() != c.Root {
		err = fmt.Errorf("the first %d leaves of the log are not those of the checkpoint that %s; %w", c.Size, holder, ErrLogLost)
	}
	return err
}

// published returns the published checkpoint as text and parsed; nil: there is none.
func (l *relayLog) published(ctx context.Context) (text string, c *proof.Checkpoint, err error) {
	if text, err = l.store.Published(ctx, l.number); err != nil || text == "" {
		return "", nil, err
	}
	parsed, err := proof.ParseCheckpoint(text)
	return text, &parsed, err
}

// tree returns the tree of the first size leaves.
func (l *relayLog) tree(ctx context.Context, size int64) (proof.Tree, error) {
	return proof.LoadTree(size, func(level int, first, n int64) ([]proof.Hash, error) {
		return l.store.LogHashes(ctx, l.number, level, first, n)
	})
}

// checkpoint returns a new checkpoint of the first size leaves.
func (l *relayLog) checkpoint(ctx context.Context, key didkey.Key, size int64) (proof.Checkpoint, error) {
	tree, err := l.tree(ctx, size)
	if err != nil {
		return proof.Checkpoint{}, err
	}
	return proof.SignCheckpoint(key, l.origin, size, tree.Root())
}

// publish publishes a checkpoint if the log has grown, or if it was published without the signatures of witnesses. What
// is published never shrinks. With ask, witnesses sign it first.
func (l *relayLog) publish(ctx context.Context, key didkey.Key, ask bool) error {
	first, err := l.store.FirstLeaf(ctx, l.number)
	if err != nil {
		return err
	}
	l.minimum.Store(first)
	if !l.store.Publishes() {
		return nil
	}
	ask = ask && l.witnesses != nil
	before, last, err := l.published(ctx)
	if err != nil {
		return err
	}
	size, err := l.store.LogSize(ctx, l.number)
	if err != nil || last != nil && (size < last.Size || size == last.Size && (!ask || len(last.Signatures) > l.witnesses.Len())) {
		return err
	}
	c, err := l.checkpoint(ctx, key, size)
	if err != nil {
		return err
	}
	if ask {
		signed := l.witnesses.Cosign(ctx, c, func(ctx context.Context, old int64) ([]proof.Hash, error) {
			return l.consistency(ctx, c, old)
		})
		c.Signatures = append(c.Signatures, signed...)
		if last != nil && size == last.Size && len(c.Signatures) <= len(last.Signatures) {
			return nil
		}
	}
	return l.store.Publish(ctx, before, c.String())
}

// consistency returns the proof that c continues the log with old leaves.
func (l *relayLog) consistency(ctx context.Context, c proof.Checkpoint, old int64) ([]proof.Hash, error) {
	if old < 1 || old >= c.Size {
		return nil, nil
	}
	return tlog.ProveTree(c.Size, old, tlog.TileHashReader(tlog.Tree{N: c.Size, Hash: c.Root}, tiles{l, ctx}))
}

// publishing publishes checkpoints until ctx ends, and a last one then.
func (r *Relay) publishing(ctx context.Context) {
	tick := time.NewTicker(PublishEvery)
	defer tick.Stop()
	failing := false
	for ended := false; ; {
		err := r.transparency.publish(context.WithoutCancel(ctx), r.key, true)
		if err != nil && !failing {
			r.log.Error("cannot publish a checkpoint of the log; trying again every few seconds", "err", err)
		}
		if failing = err != nil; ended {
			return
		}
		select {
		case <-ctx.Done():
			ended = true // publish what has come since
		case <-tick.C:
		}
	}
}

// Log describes the relay's log. ok is false if it keeps none.
func (r *Relay) Log() (info LogInfo, ok bool) {
	if r.transparency == nil {
		return LogInfo{}, false
	}
	l := r.transparency
	return LogInfo{Origin: l.origin.String(), Start: l.start, PublishSeconds: PublishEvery.Seconds(),
		RetentionSeconds: r.policy.LogKept().Seconds(), Minimum: l.minimum.Load()}, true
}

// Checkpoint returns the published checkpoint of the log with this epoch. Errors: CodeNotFound.
func (r *Relay) Checkpoint(ctx context.Context, p Peer, epoch string) (text string, err error) {
	l, err := r.logOf(epoch)
	if err != nil {
		return "", err
	}
	err = r.newReader(p).timedSlice(ctx, func(ctx context.Context) error {
		text, err = l.store.Published(ctx, l.number)
		return err
	})
	return text, err
}

// logOf returns the log with this epoch.
func (r *Relay) logOf(epoch string) (*relayLog, error) {
	if r.transparency == nil {
		return nil, errNoLog
	}
	for _, l := range slices.Backward(r.logs) {
		if epoch == fmt.Sprintf("%08x", l.origin.Epoch) {
			return l, nil
		}
	}
	return nil, envelope.Errorf(envelope.CodeNotFound, "this relay has no log with this epoch; the well-known document names "+
		"its log")
}

// Tile returns a tile of the log with this epoch (C2SP tlog-tiles). path is LEVEL/N or LEVEL/N.p/WIDTH. Errors:
// CodeNotFound, CodeInvalidRequest.
func (r *Relay) Tile(ctx context.Context, p Peer, epoch, path string) ([]byte, error) {
	l, err := r.logOf(epoch)
	if err != nil {
		return nil, err
	}
	t, err := tlog.ParseTilePath(fmt.Sprintf("tile/%d/%s", tileHeight, path))
	if err != nil || t.L < 0 {
		return nil, envelope.Errorf(envelope.CodeNotFound, "there is no such tile; its path is tile/LEVEL/N or "+
			"tile/LEVEL/N.p/WIDTH (C2SP tlog-tiles)")
	}
	var data []byte
	err = r.newReader(p).timedSlice(ctx, func(ctx context.Context) error {
		size, err := l.store.LogSize(ctx, l.number) // what is not durable could change
		if err == nil && size>>(tileHeight*t.L) >= t.N<<tileHeight+int64(t.W) {
			data, err = l.tile(ctx, t)
		}
		return err
	})
	if err == nil && data == nil {
		err = envelope.Errorf(envelope.CodeNotFound, "the log has not grown to this tile yet")
	}
	return data, err
}

// tileHeight is the height of tiles: 2^tileHeight hashes.
const (
	tileHeight = 8
	tileLeaves = 1 << tileHeight
)

// tile returns the hashes of a tile, nil if the log is not so large.
func (l *relayLog) tile(ctx context.Context, t tlog.Tile) (data []byte, err error) {
	if t.N > math.MaxInt64>>tileHeight {
		return nil, nil
	}
	hashes, err := l.store.LogHashes(ctx, l.number, t.L, t.N<<tileHeight, int64(t.W))
	if err != nil || len(hashes) < t.W {
		return nil, err
	}
	for _, hash := range hashes {
		data = append(data, hash[:]...)
	}
	return data, nil
}

// errNoTile is the error of reading a tile whose leaves are not kept any more.
var errNoTile = errors.New("the tile is not kept")

// tiles reads the tiles of a log for package tlog.
type tiles struct {
	*relayLog
	ctx context.Context
}

func (t tiles) Height() int { return tileHeight }

func (t tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	all := make([][]byte, len(wanted))
	for i, one := range wanted {
		var err error
		if all[i], err = t.tile(t.ctx, one); err == nil && all[i] == nil {
			err = errNoTile
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (t tiles) SaveTiles([]tlog.Tile, [][]byte) {}
