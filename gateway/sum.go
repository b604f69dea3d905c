package gateway

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/relay"
)

// Sum returns the checksum of a row of a table. values are all columns except sum, in the order of the table. Each is
// an int64, an int, a string or a []byte. Sum panics if a value has another type.
func Sum(table string, values ...any) int64 {
	sum, ok := sumOf(table, values)
	if !ok {
		panic(fmt.Sprintf("gateway: a row of %s has a value that is neither a number, a text nor bytes", table))
	}
	return sum
}

// sumOf returns the checksum of a row: the first 8 bytes of the SHA-256 of the table's name and the values. Each value
// is preceded by its type and its length, so no two rows have the same bytes.
func sumOf(table string, values []any) (sum int64, ok bool) {
	row := appendValue(nil, 's', table)
	for _, value := range values {
		switch v := value.(type) {
		case int64:
			row = binary.BigEndian.AppendUint64(append(row, 'i'), uint64(v))
		case int:
			row = binary.BigEndian.AppendUint64(append(row, 'i'), uint64(v))
		case string:
			row = appendValue(row, 's', v)
		case []byte:
			row = appendValue(row, 'b', v)
		default:
			return 0, false
		}
	}
	hash := sha256.Sum256(row)
	return int64(binary.BigEndian.Uint64(hash[:])), true
}

func appendValue[T string | []byte](row []byte, kind byte, value T) []byte {
	return append(binary.BigEndian.AppendUint64(append(row, kind), uint64(len(value))), value...)
}

// Table describes a table for CheckSums.
type Table struct {
	Name    string
	Key     int      // the first Key columns are the primary key; a finding names the row by them
	Columns []string // all columns except sum, in the order in which Sum gets them
}

// NewTable returns the description of a table. columns are separated by ", ".
func NewTable(name string, key int, columns string) Table {
	return Table{Name: name, Key: key, Columns: strings.Split(columns, ", ")}
}

// CheckSums calls found for each row of the tables whose sum does not fit its columns. Such a row was not written by
// the relay (G-28). It also calls found for a row that has U+0000 in a text. Early versions stored such rows (G-35).
func CheckSums(q relay.Querier, found func(where, what string), tables ...Table) error {
	for _, t := range tables {
		var repairs [][]any
		values := make([]any, len(t.Columns))
		into := make([]any, 0, len(values)+1)
		for i := range values {
			into = append(into, &values[i])
		}
		var stored any // it may have been changed to anything
		into = append(into, &stored)
		err := q.Query(func(scan func(...any) error) error {
			if err := scan(into...); err != nil {
				return err
			}
			if sum, ok := sumOf(t.Name, values); !ok || stored != any(sum) {
				found(t.row(values), "the row does not fit its checksum, so something other than the relay has changed it")
			} else if column := t.withNUL(values); column != "" {
				found(t.row(values), "the text in the column "+column+" has the character U+0000, which PostgreSQL cannot store; "+
					"agora check --repair replaces it")
				repairs = append(repairs, slices.Clone(values))
			}
			return nil
		}, "SELECT "+strings.Join(t.Columns, ", ")+", sum FROM "+t.Name)
		if r, repairing := q.(repairer); repairing && err == nil {
			err = r.repair(t, repairs)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withNUL returns the first column of a row that has U+0000 in a text; empty: there is none.
func (t Table) withNUL(values []any) string {
	for i, value := range values {
		if text, ok := value.(string); ok && strings.IndexByte(text, 0) >= 0 {
			return t.Columns[i]
		}
	}
	return ""
}

// RepairTexts replaces U+0000 by U+FFFD in all texts of the tables that the checks of extensions pass to CheckSums. It
// leaves out rows that do not fit their checksum. It calls repaired for each row.
func RepairTexts(tx relay.StoreTx, all []relay.Extension, repaired func(where string)) error {
	for _, x := range all {
		if x.Check == nil {
			continue
		}
		if err := x.Check(repairer{tx, repaired}, func(string, string) {}); err != nil {
			return err
		}
	}
	return nil
}

// repairer is the Querier with which CheckSums also repairs texts.
type repairer struct {
	relay.StoreTx
	repaired func(where string)
}

func (r repairer) repair(t Table, rows [][]any) error {
	for _, row := range rows {
		where, args := t.row(row), slices.Clone(row)
		for i, value := range args {
			if text, ok := value.(string); ok {
				args[i] = strings.ReplaceAll(text, "\x00", "\uFFFD")
			}
		}
		statement := "UPDATE " + t.Name + " SET " + strings.Join(t.Columns, " = ?, ") + " = ?, sum = ? WHERE " +
			strings.Join(t.Columns[:t.Key], " = ? AND ") + " = ?"
		args = append(append(args, Sum(t.Name, args...)), row[:t.Key]...)
		if _, err := r.Exec(statement, args...); err != nil {
			return fmt.Errorf("%s cannot be repaired: %w", where, err)
		}
		r.repaired(where)
	}
	return nil
}

// row names a row by its primary key.
func (t Table) row(values []any) string {
	name := t.Name
	for i, value := range values[:t.Key] {
		format := " %s=%v"
		switch value.(type) {
		case []byte:
			format = " %s=%x"
		case string:
			format = " %s=%q"
		}
		name += fmt.Sprintf(format, t.Columns[i], value)
	}
	return name
}
