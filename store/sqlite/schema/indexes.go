package schema

import (
	"context"
	"database/sql"
	"strings"
)

// Index is a table that finds events by some of their columns. It has a row for each event up to Merged that meets Where.
type Index struct {
	Table   string
	Columns string // also the order of the rows
	Where   string // condition for the row of an event e; empty: all events
}

// Indexes are the indexes of the table event.
var Indexes = [...]Index{
	{"event_sent", "sender, id, seq", ""},
	{"event_asked", "recipient, seq", "e.charged = 0"},
	{"event_unasked", "recipient, seq, network, expires, charged", "e.charged > 0"},
	{"event_thread", "thread, seq", "e.thread > 0"},
	{"event_ts", "ts, recipient, seq", ""},
	{"event_forget", "forget, seq", ""},
}

// Condition returns Where, or a condition that is always true.
func (x Index) Condition() string {
	if x.Where == "" {
		return "true"
	}
	return x.Where
}

// Fill returns the statement that writes the rows of some events. Its argument is a JSON array of their numbers. Rows that
// exist stay.
func (x Index) Fill() string {
	return "INSERT OR IGNORE INTO " + x.Table + " SELECT e." + strings.ReplaceAll(x.Columns, ", ", ", e.") +
		" FROM json_each(?) k CROSS JOIN event e ON e.seq = k.value WHERE " + x.Condition()
}

// Merged is an expression: the number of the event up to which the indexes are complete.
const Merged = "(SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'merged')"

// SetMerged is the statement that stores Merged. Its argument is the number.
const SetMerged = "INSERT INTO meta (name, value) VALUES ('merged', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"

// execer is an *sql.Tx or an *sql.Conn in a transaction.
type execer interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
}

// FillIndexes fills the empty indexes with the rows of all events. Call it in the transaction that stored these events.
func FillIndexes(ctx context.Context, tx execer) error {
	for _, x := range Indexes {
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+x.Table+" SELECT "+x.Columns+" FROM event e WHERE "+x.Condition()+
			" ORDER BY "+x.Columns); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO thread_due SELECT due, n FROM thread ORDER BY due, n"); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO meta (name, value) SELECT 'merged', ifnull(max(seq), 0) FROM event WHERE true "+
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value")
	return err
}
