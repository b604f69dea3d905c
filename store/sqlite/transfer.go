package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/store/transfer"
)

var _ transfer.Engine = (*Store)(nil)

// exports are the statements of Export, by table.
var exports = []struct{ table, text string }{
	{transfer.Events, "SELECT e.seq, s.did, e.id, ifnull(r.did, ''), e.type, e.thread, e.ts, e.received, e.expires, e.forget, " +
		"e.charged, e.network, e.body, e.leaf, e.salt FROM event e JOIN party s ON s.id = e.sender LEFT JOIN party r ON r.id = e.recipient " +
		"WHERE length(e.body) > 0 OR e.expires < 0 ORDER BY e.seq"},
	{transfer.Threads, "SELECT n, id, client, due, open, state, record FROM thread ORDER BY n"},
	{transfer.Participants, "SELECT id, party, role = 3, thread FROM thread_role WHERE role > 2"},
	{transfer.Manifests, "SELECT m.n, s.did, m.id, m.seq, m.ts, m.expires, ifnull(r.did, ''), m.text, m.intents " +
		"FROM manifest m JOIN party s ON s.id = m.sender LEFT JOIN party r ON r.id = m.recipient ORDER BY m.n"},
	{transfer.Agents, "SELECT p.did, p.seen FROM party p WHERE p.id IN (SELECT sender FROM manifest)"},
	{transfer.Logs, "SELECT n, origin, start, published FROM log ORDER BY n"},
	{transfer.Leaves, "SELECT at >> 40, at & 0xffffffffff, latest, seq, hashes FROM log_leaf ORDER BY at"},
	{transfer.Nodes, "SELECT at >> 48, at >> 40 & 0xff, at & 0xffffffffff, hash FROM log_node ORDER BY at"},
}

// Export implements transfer.Engine.
func (s *Store) Export(ctx context.Context, emit transfer.Emit) (head transfer.Head, err error) {
	if err := s.mergeAll(ctx); err != nil {
		return transfer.Head{}, err
	}
	tx, err := s.readDB.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return transfer.Head{}, err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	head = transfer.Head{Epoch: s.epoch}
	if err := tx.QueryRowContext(ctx, schema.LastNumber).Scan(&head.Last); err != nil {
		return head, err
	}
	for _, x := range exports {
		err := emitRows(ctx, tx, x.text, func(row []any) error {
			for i, value := range row {
				if text, ok := value.(string); ok {
					row[i] = []byte(text)
				}
			}
			return emit(x.table, row)
		})
		if err != nil {
			return head, err
		}
	}
	tables, err := s.extensionTables(ctx, tx)
	for table, columns := range tables {
		if err == nil {
			err = emitRows(ctx, tx, "SELECT "+columns+" FROM "+table, func(row []any) error {
				if i := slices.IndexFunc(row, hasNUL); i >= 0 {
					return errNUL(ctx, tx, table, strings.Split(columns, ", "), row, i)
				}
				return emit(table, row)
			})
		}
	}
	return head, err
}

// moved is the name of the row of the table meta that says where the relay was moved to.
const moved = "moved"

// MarkMoved implements transfer.Engine.
func (s *Store) MarkMoved(ctx context.Context, to string) error {
	return s.task(ctx, func(w *writer) error {
		return w.transact(func() error {
			_, err := w.conn.ExecContext(ctx, "DELETE FROM meta WHERE name = ?", moved)
			if err == nil && to != "" {
				_, err = w.conn.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES (?, ?)", moved, to)
			}
			return err
		})
	})
}

// MovedTo implements transfer.Engine.
func (s *Store) MovedTo(ctx context.Context) (to string, err error) {
	err = s.readDB.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = ?", moved).Scan(&to)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return to, err
}

// hasNUL reports whether a value is a text with U+0000. PostgreSQL cannot store it.
func hasNUL(value any) bool {
	text, ok := value.(string)
	return ok && strings.IndexByte(text, 0) >= 0
}

// errNUL returns an error that names a row of an extension with U+0000 in the column with this index.
func errNUL(ctx context.Context, q queryer, table string, columns []string, row []any, column int) error {
	name := table
	err := eachRow(func(scan scanner) error {
		var key string
		err := scan(&key)
		if i := slices.Index(columns, key); i >= 0 {
			name += fmt.Sprintf(" %s=%v", key, row[i])
		}
		return err
	}, func() (*sql.Rows, error) {
		return q.QueryContext(ctx, "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", table)
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: the text in the column %s has the character U+0000, which PostgreSQL cannot store; stop the relay, "+
		"run agora check --repair, and migrate again", name, columns[column])
}

// emitRows passes the values of each row of a query to f.
func emitRows(ctx context.Context, tx *sql.Tx, text string, f func([]any) error) error {
	rows, err := tx.QueryContext(ctx, text)
	if err != nil {
		return err
	}
	columns, err := rows.Columns()
	for err == nil && rows.Next() {
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err = rows.Scan(into...); err == nil {
			for i, value := range row {
				if b, ok := value.([]byte); ok && b == nil {
					row[i] = []byte{} // the driver returns an empty BLOB as nil slice, and NULL as nil
				}
			}
			err = f(row)
		}
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

type queryer interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// extensionTables returns the tables of all extensions, and the names of their columns in order.
func (s *Store) extensionTables(ctx context.Context, q queryer) (map[string]string, error) {
	tables := map[string]string{}
	for _, x := range s.options.Extensions {
		err := eachRow(func(scan scanner) error {
			var table, columns string
			err := scan(&table, &columns)
			tables[table] = columns
			return err
		}, func() (*sql.Rows, error) {
			return q.QueryContext(ctx, "SELECT t.name, group_concat(c.name, ', ' ORDER BY c.name) FROM sqlite_schema t, "+
				"pragma_table_info(t.name) c WHERE t.type = 'table' AND t.name GLOB ? || '_*' GROUP BY t.name", x.Name)
		})
		if err != nil {
			return nil, err
		}
	}
	return tables, nil
}

// Import implements transfer.Engine.
func (s *Store) Import(ctx context.Context, produce func(transfer.Emit) (transfer.Head, error)) error {
	if s.head.Load() > 0 {
		return fmt.Errorf("%s has messages; move into a new data folder", s.path)
	}
	return s.task(ctx, func(w *writer) error {
		return w.transact(func() error {
			tables, err := s.extensionTables(ctx, w.conn)
			if err != nil {
				return err
			}
			for table := range tables { // migrations may have added rows
				if _, err := w.conn.ExecContext(ctx, "DELETE FROM "+table); err != nil {
					return err
				}
			}
			head, err := produce(func(table string, row []any) error { return w.importRow(ctx, tables, table, row) })
			if err != nil {
				return err
			}
			if _, err := w.conn.ExecContext(ctx, "UPDATE meta SET value = ? WHERE name = 'epoch'",
				fmt.Sprintf("%08x", head.Epoch)); err != nil {
				return err
			}
			if _, err = w.stmts.keepLast.ExecContext(ctx, head.Last); err != nil {
				return err
			}
			return schema.FillIndexes(ctx, w.conn)
		})
	})
}

// importRow stores one row.
func (w *writer) importRow(ctx context.Context, tables map[string]string, table string, row []any) (err error) {
	text := func(i int) string { return string(row[i].([]byte)) }
	number := func(i int) int64 { return row[i].(int64) }
	party := func(i int) int64 {
		id, failed := w.intern(didkey.DID(text(i)))
		err = errors.Join(err, failed)
		return id
	}
	run := func(stmt *sql.Stmt, args ...any) error {
		if err == nil {
			_, err = stmt.ExecContext(ctx, args...)
		}
		return err
	}
	switch table {
	case transfer.Events:
		return run(w.stmts.addEvent, number(0), party(1), text(2), party(3), text(4), number(5), number(6), number(7), number(8),
			number(9), number(10), number(11), row[13], row[14], row[12])
	case transfer.Threads:
		open := number(4) == 1
		err := run(w.stmts.addThread, number(0), text(1), text(2), number(3), open, number(5), row[6])
		if err != nil {
			return err
		}
		return w.fill([]int64{number(0)}, ownFillers)
	case transfer.Participants:
		return run(w.stmts.addRole, text(0), text(1), schema.RolePartner-number(2), number(3))
	case transfer.Manifests:
		if !json.Valid(row[8].([]byte)) {
			return errors.New("the intents of a manifest are not JSON")
		}
		sender, recipient := party(1), party(6)
		if err == nil {
			_, err = w.conn.ExecContext(ctx, "INSERT INTO manifest (n, sender, id, seq, ts, expires, recipient, text, intents) "+
				"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", number(0), sender, text(2), number(3), number(4), number(5), recipient,
				text(7), text(8))
		}
		return err
	case transfer.Agents:
		return run(w.stmts.seen, number(1), party(0))
	case transfer.Logs:
		_, err = w.conn.ExecContext(ctx, "INSERT INTO log (n, origin, start, published) VALUES (?, ?, ?, ?)", number(0), text(1),
			text(2), text(3))
		return err
	case transfer.Leaves:
		return run(w.stmts.addLeaves, number(0)<<leafShift|number(1), number(2), number(3), row[4])
	case transfer.Nodes:
		return run(w.stmts.addNode, number(0)<<nodeShift|number(1)<<levelShift|number(2), row[3])
	}
	columns, known := tables[table]
	if !known {
		return fmt.Errorf("the table %s is not known here", table)
	}
	marks := strings.Repeat(", ?", len(row))[2:]
	_, err = w.conn.ExecContext(ctx, "INSERT INTO "+table+" ("+columns+") VALUES ("+marks+")", row...)
	return err
}
