// Package transfer moves everything that a store keeps into a store of another engine, and checks the copy. The copy
// has the same epoch and the same numbers, so the cursors of readers stay valid. No relay may use either store
// meanwhile.
package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/agora-relay/agora/relay"
)

// Head says where a store is.
type Head struct {
	Epoch uint32
	Last  relay.Seq // the highest number used
}

// Tables of a store, and what a row of each has, in order. Identities, ids and other texts of the tables are []byte,
// numbers and times int64. A table of an extension has its columns in the order of their names, with the values int64,
// string, []byte and nil. Events whose bodies were cut on a full disk are not moved: they have expired.
const (
	Events       = "event"       // seq, sender, id, recipient, type, thread, ts, received, expires, forget, charged, network, body, leaf, salt
	Threads      = "thread"      // n, id, client, due, open, state, record
	Participants = "participant" // id, party, works, thread
	Manifests    = "manifest"    // n, sender, id, seq, ts, expires, recipient, text, intents as JSON
	Agents       = "agent"       // did, seen
	Logs         = "log"         // n, origin, start, published
	Leaves       = "log_leaf"    // log, first, latest, seq, hashes
	Nodes        = "log_node"    // log, level, n, hash
)

// Emit takes one row of a table.
type Emit func(table string, row []any) error

// Engine is a store that can be moved.
type Engine interface {
	// Export calls emit with every row, as of one moment.
	Export(ctx context.Context, emit Emit) (Head, error)
	// Import stores the rows that produce emits in a store that has nothing, in one transaction. The store must be closed
	// and opened again afterwards. produce returns the head of the source.
	Import(ctx context.Context, produce func(Emit) (Head, error)) error
	// MarkMoved records where the relay was moved to. An empty place removes the mark.
	MarkMoved(ctx context.Context, to string) error
	// MovedTo returns where the relay was moved to; empty: it was not.
	MovedTo(ctx context.Context) (string, error)
}

// Tally has the number of rows of a table, and a digest that does not depend on their order.
type Tally struct {
	Rows   int64
	Digest [sha256.Size]byte
}

// Tallies are the tallies of all tables that have rows, by their names.
type Tallies map[string]Tally

// Count returns an Emit that counts each row and then passes it on. next may be nil.
func (t Tallies) Count(next Emit) Emit {
	return func(table string, row []any) error {
		hash := digest(row)
		tally := t[table]
		tally.Rows++
		for i := range hash {
			tally.Digest[i] ^= hash[i]
		}
		t[table] = tally
		if next == nil {
			return nil
		}
		return next(table, row)
	}
}

// digest returns the hash of a row. Each value is written with its type and its length.
func digest(row []any) [sha256.Size]byte {
	var b []byte
	text := func(kind byte, value string) {
		b = append(binary.AppendUvarint(append(b, kind), uint64(len(value))), value...)
	}
	for _, value := range row {
		switch v := value.(type) {
		case nil:
			b = append(b, 'n')
		case int64:
			b = binary.AppendVarint(append(b, 'i'), v)
		case string:
			text('t', v)
		case []byte:
			text('b', string(v))
		default:
			text('?', fmt.Sprintf("%T %v", v, v)) // equal only to itself
		}
	}
	return sha256.Sum256(b)
}

// Move copies from into to, and reads to again to check that it has the same. reopen closes and opens to. Then it marks
// from as moved to place. It returns what was copied.
func Move(ctx context.Context, from, to Engine, place string, reopen func() (Engine, error)) (Head, Tallies, error) {
	head, copied, err := copyAll(ctx, from, to, reopen)
	if err == nil {
		err = from.MarkMoved(ctx, place)
	}
	return head, copied, err
}

func copyAll(ctx context.Context, from, to Engine, reopen func() (Engine, error)) (Head, Tallies, error) {
	copied, found := Tallies{}, Tallies{}
	var head Head
	err := to.Import(ctx, func(emit Emit) (_ Head, err error) {
		head, err = from.Export(ctx, copied.Count(emit))
		return head, err
	})
	if err != nil {
		return head, copied, err
	}
	if to, err = reopen(); err != nil {
		return head, copied, err
	}
	end, err := to.Export(ctx, found.Count(nil))
	switch {
	case err != nil:
		return head, copied, err
	case end != head:
		return head, copied, fmt.Errorf("the copy ends at %v, the original at %v", end, head)
	}
	for _, table := range slices.Sorted(maps.Keys(copied)) {
		if copied[table] != found[table] {
			return head, copied, fmt.Errorf("the table %s of the copy differs: %d rows, the original has %d", table,
				found[table].Rows, copied[table].Rows)
		}
	}
	if len(found) != len(copied) {
		return head, copied, fmt.Errorf("the copy has rows in %d tables, the original in %d", len(found), len(copied))
	}
	return head, copied, nil
}
