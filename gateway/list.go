package gateway

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// Bounds of a piece of a list. A piece takes a turn among the reads of all addresses, so it must be short.
const (
	pieceBytes = 32 << 10
	// PieceRows is how many rows a piece may examine.
	PieceRows = 256
)

// Piece collects the elements of one piece of a list, as JSON with commas between them.
type Piece struct{ text []byte }

// Add encodes an element.
func (p *Piece) Add(v any) { p.AddText(jsontext.Compact(v)) }

// AddText adds the JSON text of an element, in one or more parts.
func (p *Piece) AddText(parts ...[]byte) {
	if len(p.text) > 0 {
		p.text = append(p.text, ',')
	}
	for _, part := range parts {
		p.text = append(p.text, part...)
	}
}

// Text returns the elements, with commas between them.
func (p *Piece) Text() []byte { return p.text }

// Full reports whether the piece has enough elements. A further element belongs to the next piece.
func (p *Piece) Full() bool { return len(p.text) >= pieceBytes }

// AddRows calls add for one row after the other, until the piece is full. It returns how many rows are done.
func AddRows[T any](p *Piece, rows []T, add func(T) error) (done int, err error) {
	for ; done < len(rows) && !p.Full(); done++ {
		if err := add(rows[done]); err != nil {
			return done, err
		}
	}
	return done, nil
}

// Elements are the elements of an httpapi.List.
type Elements = iter.Seq2[[]byte, error]

// List yields the elements of a list for httpapi.WriteList. Each list of a gateway that can have more than a few elements
// is sent in this way (G-33). read is called for one piece after the other, until more is false. It begins at the cursor
// at, adds elements to p until p is full, and returns the cursor of the next piece. It examines at most PieceRows rows. It
// may be called again with the same cursor.
//
// Each call of read is one View. So the time for reading and for encoding is charged to from, and from waits for
// its turn before each piece. The rest is as for Parts.
func List[C any](
	ctx context.Context, c *Core, from relay.Peer, at C,
	read func(q relay.Querier, at C, p *Piece) (next C, more bool, err error),
) Elements {
	return Parts(ctx, c, from, func() (part []byte, more bool, err error) {
		var piece Piece
		var next C
		err = c.Relay.View(ctx, from, func(q relay.Querier) (err error) {
			piece.text = piece.text[:0]
			next, more, err = read(q, at, &piece)
			return err
		})
		if err == nil {
			at = next
		}
		return piece.text, more, err
	})
}

// Parts yields the elements of a list whose pieces are more than Views. next returns the elements of the next piece, with
// commas between them. What is sent is charged to from. If from is in debt in the middle of the list, the list waits until
// it is not. The list ends with an error when ctx ends, which is when the client has left.
func Parts(ctx context.Context, c *Core, from relay.Peer, next func() (part []byte, more bool, err error)) Elements {
	return func(yield func([]byte, error) bool) {
		unpaid := 0
		for first, more := true, true; more; first = false {
			var part []byte
			step := func() (err error) {
				part, more, err = next()
				return err
			}
			err := ctx.Err()
			switch {
			case err != nil:
			case first:
				err = step()
			default:
				err = c.RetryLater(ctx, step)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			unpaid += len(part)
			c.Relay.Gate().ChargeAnswer(from, unpaid/admission.AnswerUnit)
			unpaid %= admission.AnswerUnit
			if len(part) > 0 && !yield(part, nil) {
				return
			}
		}
	}
}

// Encoded yields values that are already in memory, each encoded when it is its turn to be sent.
func Encoded[T any](values []T) Elements {
	return func(yield func([]byte, error) bool) {
		for _, v := range values {
			if !yield(jsontext.Compact(v), nil) {
				return
			}
		}
	}
}

// IsTemporary reports whether the relay refused a read only for the moment.
func IsTemporary(err error) bool {
	e, ok := errors.AsType[*envelope.Error](err)
	return ok && e.RetryAfter > 0
}

// Pauses of RetryLater.
const (
	shortestWait = 10 * time.Millisecond
	longestWait  = 5 * time.Second
)

// RetryLater calls f again while f is refused only for the moment. It is for the parts of an answer that has begun,
// because such an answer cannot be refused any more. Errors: those of f and of ctx.
func (c *Core) RetryLater(ctx context.Context, f func() error) error {
	for {
		err := f()
		e, refused := errors.AsType[*envelope.Error](err)
		if !refused || e.RetryAfter <= 0 || c.Relay.Health() != nil {
			return err
		}
		wait := time.NewTimer(min(max(e.RetryAfter, shortestWait), longestWait))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
	}
}
