package gateway

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
)

// Sum returns the checksum of a row of a table. values are all columns except sum, in the order of the table. Each is
// an int64, an int, a string or a []byte. Sum panics if a value has another type.
func Sum(table string, values ...any) int64 { return Table{Name: table}.Sum(values) }

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
	// Added is how many of the last columns are numbers or texts that a later migration has added. They are 0 or empty in rows
	// that were stored before, and the sums of these rows do not have them. So zeros and empty texts at the end of a row are
	// not part of its sum.
	Added int
}

// NewTable returns the description of a table. columns are separated by ", ".
func NewTable(name string, key int, columns string) Table {
	return Table{Name: name, Key: key, Columns: strings.Split(columns, ", ")}
}

// Sum returns the checksum of a row. values are all columns except sum.
func (t Table) Sum(values []any) int64 {
	sum, ok := t.sumOf(values)
	if !ok {
		panic(fmt.Sprintf("gateway: a row of %s has a value that is neither a number, a text nor bytes", t.Name))
	}
	return sum
}

// WithSum returns the values of a row, followed by their checksum.
func (t Table) WithSum(values []any) []any { return append(values, t.Sum(values)) }

func (t Table) sumOf(values []any) (sum int64, ok bool) {
	for n := t.Added; n > 0 && (values[len(values)-1] == any(int64(0)) || values[len(values)-1] == any("")); n-- {
		values = values[:len(values)-1]
	}
	return sumOf(t.Name, values)
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
