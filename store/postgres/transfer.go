package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/transfer"
)

var _ transfer.Engine = (*Store)(nil)

// moved are the tables of a transfer, with the columns of a row, in the order of Export. where follows the table.
var moved = []struct {
	table   string
	columns []string
	where   string
}{
	{transfer.Events, []string{"seq", "s.did", "e.id", "CASE WHEN recipient <> 0 THEN r.did ELSE '' END", "type", "thread", "ts", "received", "expires",
		"forget", "charged", "network", "body", "leaf", "salt"}, "e JOIN party s ON s.id = e.sender " +
		"LEFT JOIN party r ON r.id = e.recipient WHERE forget > (SELECT swept FROM head) ORDER BY seq"},
	{transfer.Threads, []string{"n", "id", "client", "due", "open", "state", "record"}, "ORDER BY n"},
	{transfer.Participants, []string{"t.id", "party", "role", "thread"}, "p JOIN thread t ON t.n = p.thread"},
	{transfer.Manifests, []string{"n", "sender", "id", "seq", "ts", "expires", "recipient", "text", "intents"}, "ORDER BY n"},
	{transfer.Agents, []string{"did", "seen"}, ""},
	{transfer.Logs, []string{"n", "origin", "start", "published"}, "ORDER BY n"},
	{transfer.Leaves, []string{"log", "first", "latest", "seq", "hashes"}, "ORDER BY log, first"},
	{transfer.Nodes, []string{"log", "level", "n", "hash"}, "ORDER BY log, level, n"},
}

// Export implements transfer.Engine.
func (s *Store) Export(ctx context.Context, emit transfer.Emit) (head transfer.Head, err error) {
	conn, err := pgx.ConnectConfig(ctx, s.config.Copy())
	if err != nil {
		return transfer.Head{}, cleaned(err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			h, err := readHead(ctx, tx)
			if err != nil {
				return err
			}
			head = transfer.Head{Epoch: h.epoch, Last: h.last}
			for _, m := range moved {
				text := "SELECT " + strings.Join(m.columns, ", ") + " FROM " + m.table + " " + m.where
				if err := emitRows(ctx, tx, text, func(row []any) error { return emit(m.table, exported(m.table, row)) }); err != nil {
					return err
				}
			}
			tables, err := s.extensionTables(ctx, tx)
			for table, columns := range tables {
				if err == nil {
					err = emitRows(ctx, tx, "SELECT "+strings.Join(columns, ", ")+" FROM "+table,
						func(row []any) error { return emit(table, row) })
				}
			}
			return err
		})
	return head, err
}

// exported returns a row in the form of package transfer.
func exported(table string, row []any) []any {
	for i, value := range row {
		switch v := value.(type) {
		case bool:
			row[i] = int64(0)
			if v {
				row[i] = int64(1)
			}
		case int16:
			row[i] = int64(v)
		case string:
			row[i] = []byte(v)
		}
	}
	if table == transfer.Participants {
		row[2] = 1 - row[2].(int64) // works
	}
	return row
}

func emitRows(ctx context.Context, tx pgx.Tx, text string, f func([]any) error) error {
	rows, err := tx.Query(ctx, text)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		row, err := rows.Values()
		if err == nil {
			err = f(row)
		}
		if err != nil {
			return err
		}
	}
	return rows.Err()
}

// extensionTables returns the tables of all extensions, and the names of their columns in the order of their bytes.
func (s *Store) extensionTables(ctx context.Context, tx pgx.Tx) (map[string][]string, error) {
	tables := map[string][]string{}
	for _, x := range s.options.Extensions {
		rows, err := tx.Query(ctx, "SELECT table_name::text, column_name::text FROM information_schema.columns "+
			"WHERE table_schema = current_schema() AND starts_with(table_name, $1)", x.Name+"_")
		if err != nil {
			return nil, err
		}
		var table, column string
		if _, err := pgx.ForEachRow(rows, []any{&table, &column}, func() error {
			tables[table] = append(tables[table], column)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	for _, columns := range tables {
		slices.Sort(columns)
	}
	return tables, nil
}

// movedTo is the name of the setting that says where the relay was moved to.
const movedTo = "moved"

// MarkMoved implements transfer.Engine.
func (s *Store) MarkMoved(ctx context.Context, to string) error {
	if err := s.Forget(ctx, movedTo); err != nil || to == "" {
		return err
	}
	_, err := s.Share(ctx, movedTo, []byte(to))
	return err
}

// MovedTo implements transfer.Engine.
func (s *Store) MovedTo(ctx context.Context) (string, error) {
	to, err := s.Setting(ctx, movedTo)
	return string(to), err
}

// importRows is how many rows are sent together.
const importRows = 500

// importer collects rows of one table and sends them with COPY.
type importer struct {
	ctx     context.Context
	tx      pgx.Tx
	size    int64               // of a partition
	tables  map[string][]string // of extensions
	columns map[string][]string
	table   string
	rows    [][]any
	ready   map[int64]bool // partitions that exist
	parties parties
}

// Import implements transfer.Engine.
func (s *Store) Import(ctx context.Context, produce func(transfer.Emit) (transfer.Head, error)) (err error) {
	conn, err := pgx.ConnectConfig(ctx, s.config.Copy())
	if err != nil {
		return cleaned(err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var last int64
		if err := tx.QueryRow(ctx, "SELECT last FROM head FOR UPDATE").Scan(&last); err != nil {
			return err
		}
		if last > 0 {
			return errors.New("the database has messages; move into a new database or schema")
		}
		tables, err := s.extensionTables(ctx, tx)
		if err != nil {
			return err
		}
		i := &importer{ctx: ctx, tx: tx, size: s.sweeper.size, tables: tables, columns: map[string][]string{},
			ready: map[int64]bool{}, parties: parties{}}
		for _, m := range moved {
			i.columns[m.table] = m.columns
		}
		i.columns[transfer.Participants] = []string{"key", "party", "role", "thread"}
		for table := range tables { // migrations may have added rows
			if _, err := tx.Exec(ctx, "DELETE FROM "+table); err != nil {
				return err
			}
		}
		head, err := produce(i.add)
		if err == nil {
			err = i.flush()
		}
		if err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, "UPDATE head SET epoch = $1, last = $2, swept = 0", int64(head.Epoch), head.Last); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT span_fill()")
		return err
	})
}

func (i *importer) add(table string, row []any) error {
	if table != i.table || len(i.rows) >= importRows {
		if err := i.flush(); err != nil {
			return err
		}
		i.table = table
	}
	switch table {
	case transfer.Events:
		if n := row[0].(int64) / i.size; !i.ready[n] {
			if _, err := i.tx.Exec(i.ctx, addPartition, n); err != nil {
				return err
			}
			i.ready[n] = true
		}
	case transfer.Threads:
		row = slices.Clone(row)
		row[4] = row[4].(int64) == 1
	case transfer.Participants:
		row = []any{pairKey(didkey.DID(row[1].([]byte)), string(row[0].([]byte))), row[1], 1 - row[2].(int64), row[3]}
	}
	i.rows = append(i.rows, row)
	return nil
}

func (i *importer) flush() error {
	if len(i.rows) == 0 {
		return nil
	}
	if i.table == transfer.Events {
		return i.flushEvents()
	}
	columns, ok := i.columns[i.table]
	if !ok {
		if columns, ok = i.tables[i.table]; !ok {
			return fmt.Errorf("the table %s is not known here", i.table)
		}
	}
	copyInto := func(table string, columns []string, rows [][]any) error {
		_, err := i.tx.CopyFrom(i.ctx, pgx.Identifier{table}, columns, pgx.CopyFromRows(rows))
		return err
	}
	err := copyInto(i.table, columns, i.rows)
	switch {
	case err != nil:
	case i.table == transfer.Manifests:
		var intents [][]any
		for _, row := range i.rows {
			var all []string
			if err := json.Unmarshal(row[8].([]byte), &all); err != nil {
				return err
			}
			slices.Sort(all)
			for _, intent := range slices.Compact(all) {
				intents = append(intents, []any{row[0], hashOf(intent), row[1], row[6]})
			}
		}
		err = copyInto("manifest_intent", []string{"n", "intent", "sender", "recipient"}, intents)
	}
	i.rows = i.rows[:0]
	return err
}

// flushEvents sends rows of the table event with the statements of the writer, which give the parties their numbers.
func (i *importer) flushEvents() error {
	var r eventRows
	for _, row := range i.rows {
		for column, into := range map[int]*[]int64{0: &r.seq, 5: &r.thread, 6: &r.ts, 7: &r.received, 8: &r.expires, 9: &r.forget,
			10: &r.charged, 11: &r.network} {
			*into = append(*into, row[column].(int64))
		}
		for column, into := range map[int]*[][]byte{1: &r.sender, 2: &r.id, 3: &r.recipient, 4: &r.kind, 12: &r.body} {
			*into = append(*into, row[column].([]byte))
		}
		leaf, salt := (*int64)(nil), []byte(nil) // NULL
		if n, ok := row[13].(int64); ok {
			leaf = &n
		}
		if text, ok := row[14].([]byte); ok {
			salt = text
		}
		r.leaf, r.salt = append(r.leaf, leaf), append(r.salt, salt)
	}
	i.rows = i.rows[:0]
	batch := &pgx.Batch{}
	r.queue(batch, i.parties)
	return i.tx.SendBatch(i.ctx, batch).Close()
}
