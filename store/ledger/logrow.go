package ledger

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
)

// ErrLogLost is the error of opening a log whose newest leaves are missing. The next leaf would get an index that is
// proved already.
var ErrLogLost = fmt.Errorf("the log lacks the leaves of the newest events; %w", relay.ErrLogLost)

// ErrLogFollowed is the error of opening a log after another one has begun: nothing is appended to it any more (LOG L-1).
var ErrLogFollowed = errors.New("in this database, the log of another relay has begun after that of this relay's key, and an " +
	"ended log cannot continue; to begin a new log, start once with --new-epoch")

// LogTile is how many leaves a full tile has (C2SP tlog-tiles).
const LogTile = 256

// LogRow is a row of the table log_leaf: leaves of one tile. A commit adds one row for each tile that it touches. When a
// tile is full, one row replaces its rows.
type LogRow struct {
	First  int64     // index of the first leaf
	Latest int64     // Log.Latest in nanoseconds, after the row; 0: none
	Last   relay.Seq // number of the last event whose leaf it has
	Hashes []byte    // of the leaves
}

// hashSize is the size of a leaf hash.
const hashSize = int64(len(proof.Hash{}))

// Rows returns c as rows. last is the number of its last event.
func (c *LogChange) Rows(last relay.Seq) (rows []LogRow) {
	r := LogRow{First: c.First, Last: last}
	if !c.Latest.IsZero() {
		r.Latest = Nanos(c.Latest)
	}
	for _, hash := range c.Leaves {
		if r.Hashes = append(r.Hashes, hash[:]...); r.End()%LogTile == 0 {
			rows = append(rows, r)
			r.First, r.Hashes = r.End(), nil
		}
	}
	if len(r.Hashes) > 0 {
		rows = append(rows, r)
	}
	return rows
}

// End returns the index after the last leaf of r.
func (r LogRow) End() int64 { return r.First + int64(len(r.Hashes))/hashSize }

// Full reports whether r is a full tile.
func (r LogRow) Full() bool { return r.End()-r.First == LogTile }

// Fills reports whether r is the last of several rows of a full tile, which one row should replace. first is the index
// of the tile's first leaf.
func (r LogRow) Fills() (first int64, ok bool) {
	return r.End() - LogTile, r.End()%LogTile == 0 && !r.Full()
}

// Leaves returns the hashes of r with the indexes from first to end, without end.
func (r LogRow) Leaves(first, end int64) (hashes []proof.Hash) {
	for i := max(first, r.First); i < min(end, r.End()); i++ {
		hashes = append(hashes, proof.Hash(r.Hashes[(i-r.First)*hashSize:][:hashSize]))
	}
	return hashes
}

// LoadLog returns the log whose last row is r. For read see proof.LoadTree.
func LoadLog(r LogRow, read func(level int, first, n int64) ([]proof.Hash, error)) (log Log, err error) {
	if r.Latest > 0 {
		log.Latest = Instant(r.Latest)
	}
	if log.Tree, err = proof.LoadTree(r.End(), read); errors.Is(err, proof.ErrMissing) {
		err = fmt.Errorf("%w: %w", ErrLogLost, err)
	}
	return log, err
}

// NewLog returns the text of leaf 0 of a new log, and the change that appends it. before is the log before it; nil: none.
func NewLog(began time.Time, before *proof.Previous) (start string, c *LogChange) {
	start = proof.Start{Began: began, Previous: before}.String()
	leaves := []proof.Hash{tlog.RecordHash([]byte(start))}
	return start, &LogChange{Growth: new(proof.Tree).Grow(leaves), Leaves: leaves}
}

// PreviousLog describes the log before a new one. err is the error of reading it. If the loss of its leaves was
// accepted, the result is nil.
func PreviousLog(origin string, log Log, err error) (*proof.Previous, error) {
	if errors.Is(err, ErrLogLost) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o, err := proof.ParseOrigin(origin)
	if err != nil {
		return nil, err
	}
	return &proof.Previous{Origin: o, Size: log.Tree.Size, Root: log.Tree.Root()}, nil
}

// FollowLog appends the leaves of a row that another node has stored, as far as they are new. Rows must be given in
// their order. The ledger must not have decided anything in the open transaction.
func (l *Ledger) FollowLog(r LogRow) error {
	size := l.log.Tree.Size
	if r.First > size || len(r.Hashes) == 0 {
		return fmt.Errorf("the leaves from %d on do not continue the log, which has %d", r.First, size)
	}
	if r.End() > size {
		l.log.Tree.Grow(r.Leaves(size, r.End()))
	}
	if latest := Instant(r.Latest); latest.After(l.log.Latest) {
		l.log.Latest = latest
	}
	return nil
}

// LogSize returns how many leaves the ledger's log has; 0: it keeps none.
func (l *Ledger) LogSize() int64 {
	if l.log == nil {
		return 0
	}
	return l.log.Tree.Size
}

// LeafOf returns the leaf of a stored event. thread is its thread; a row without a record: none.
func LeafOf(body, salt []byte, received int64, thread Row) (leaf proof.Leaf, err error) {
	if len(thread.Record) > 0 {
		t, err := thread.Decode()
		if err != nil {
			return leaf, err
		}
		leaf.Request = t.Request
	}
	if copy(leaf.Salt[:], salt) != len(salt) {
		return leaf, errors.New("the salt of a leaf is too long")
	}
	leaf.Event, leaf.Received = sha256.Sum256(body), Instant(received).Truncate(time.Millisecond)
	return leaf, nil
}
