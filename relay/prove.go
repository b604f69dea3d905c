package relay

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// Prove adds its proof to the receipt of a new message, unless the relay keeps no log. Post does so by itself. If it
// fails, the message is stored all the same.
func (r *Relay) Prove(receipt *Receipt) {
	if receipt.Logged == nil || r.transparency == nil {
		return
	}
	var err error
	l := receipt.Logged
	if receipt.Proof, err = l.Growth.Prove(r.key, r.transparency.origin, l.Index, l.Leaf); err != nil {
		r.log.Error("cannot make the proof of a message; its sender can read it later", "id", receipt.ID, "err", err)
	}
}

// errNoProof is the refusal of ProofOf for a message without a proof, and for one that the reader may not see.
var errNoProof = envelope.Errorf(envelope.CodeNotFound,
	"there is no proof of such a message: it is not stored here, is not yours to see, or has no leaf in the log")

// ProofOf returns the proof of a stored message. Errors: CodeNotFound; CodeUnauthorized if only parties may see
// messages and the read is not signed.
func (r *Relay) ProofOf(ctx context.Context, p Peer, sender didkey.DID, id string) (text string, err error) {
	if r.transparency == nil {
		return "", errNoLog
	}
	if err := r.draining(); err != nil {
		return "", err
	}
	viewer := r.viewer(p)
	err = r.newReader(p).timedSlice(ctx, func(ctx context.Context) error {
		seq, err := r.transparency.store.Known(ctx, sender, id)
		if err != nil || seq == 0 {
			return err
		}
		page, err := r.store.Read(ctx, Query{Filter: Filter{Viewer: viewer}, After: Cursor{r.Epoch(), seq - 1}, Until: seq,
			Expired: true, Headers: true, Limit: 1})
		if err != nil || len(page.Events) == 0 {
			return err
		}
		number, index, leaf, err := r.transparency.store.LogLeaf(ctx, seq)
		i := slices.IndexFunc(r.logs, func(l *relayLog) bool { return l.number == number })
		if err != nil || i < 0 {
			return err
		}
		text, err = r.logs[i].prove(ctx, r.key, index, leaf.String())
		return err
	})
	switch {
	case err != nil || text != "":
		return text, err
	case viewer.Limited && viewer.DID == "":
		return "", unauthorized(envelope.ReasonUnsigned, "this relay proves a directed message only to its parties; "+
			"sign the "+
			"read with the key of one of them (PROTOCOL §8)")
	}
	return "", errNoProof
}

// prove returns the proof of a leaf: under the published checkpoint if that has the leaf, else under a new one. The
// text is empty if the leaves beside it are not kept any more, or if key is not the log's key.
func (l *relayLog) prove(ctx context.Context, key didkey.Key, index int64, leaf string) (string, error) {
	_, c, err := l.published(ctx)
	if err == nil && (c == nil || index >= c.Size) {
		if l.origin.DID != key.DID() {
			return "", nil
		}
		var size int64
		if size, err = l.store.LogSize(ctx, l.number); err == nil {
			var next proof.Checkpoint
			next, err = l.checkpoint(ctx, key, size)
			c = &next
		}
	}
	if err != nil {
		return "", err
	}
	path, err := tlog.ProveRecord(c.Size, index, tlog.TileHashReader(tlog.Tree{N: c.Size, Hash: c.Root}, tiles{l, ctx}))
	if errors.Is(err, errNoTile) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return (&proof.Proof{Extra: leaf, Index: index, Path: path, Checkpoint: *c}).String(), nil
}
