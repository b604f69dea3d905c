package gateway

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/relay"
)

// This file has what the Checks of all gateways share. A row that was changed may have a value of any type in any
// column.

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
			if sum, ok := t.sumOf(values); !ok || stored != any(sum) {
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
		args = append(append(args, t.Sum(args)), row[:t.Key]...)
		if _, err := r.Exec(statement, args...); err != nil {
			return fmt.Errorf("%s cannot be repaired: %w", where, err)
		}
		r.repaired(where)
	}
	return nil
}

// Relation is a rule about rows that belong together.
type Relation struct {
	Table  string
	What   string // what is wrong with a row that Broken finds
	Broken string // a SELECT of the numbers of the rows that break the rule
}

// CheckRelations calls found for each row that breaks a rule.
func CheckRelations(q relay.Querier, found func(where, what string), rules ...Relation) error {
	for _, rule := range rules {
		if err := q.Query(func(scan Scanner) error {
			var n any
			err := scan(&n)
			if err == nil {
				found(fmt.Sprintf("%s %v", rule.Table, n), rule.What)
			}
			return err
		}, rule.Broken); err != nil {
			return err
		}
	}
	return nil
}

// CheckKeys reports rows of a table that must have a key of this kind and have none. owners is a SELECT of the numbers
// of these rows.
func CheckKeys(q relay.Querier, found func(where, what string), k Kind, table, owners string) error {
	all, err := CheckedNumbers(q, owners)
	if err != nil {
		return err
	}
	for _, n := range all {
		has, err := HasKey(q, k, n, "")
		if err != nil {
			return err
		}
		if !has {
			found(fmt.Sprintf("%s %d", table, n), "has no key in gate_key")
		}
	}
	return nil
}

// CheckCounter reports a counter that would give numbers that are in use. largest is a SELECT of the largest number in
// use, and args are its arguments.
func CheckCounter(
	q relay.Querier, found func(where, what string), counter, largest string, args ...any,
) error {
	used, err := checkedNumber(q, largest, args...)
	if err != nil {
		return err
	}
	last, err := checkedNumber(q, "SELECT value FROM gate_counter WHERE name = ?", counter)
	if err == nil && last < used {
		found(fmt.Sprintf("gate_counter name=%q", counter),
			fmt.Sprintf("its last number is %d, but %d is in use; it would give numbers a second time", last, used))
	}
	return err
}

// CheckedNumbers returns the numbers that a SELECT finds. It leaves out other values, because CheckSums reports them.
func CheckedNumbers(q relay.Querier, text string, args ...any) (all []int64, err error) {
	err = q.Query(func(scan Scanner) error {
		var value any
		err := scan(&value)
		if n, ok := value.(int64); ok {
			all = append(all, n)
		}
		return err
	}, text, args...)
	return all, err
}

// checkedNumber returns the first of CheckedNumbers; 0: there is none.
func checkedNumber(q relay.Querier, text string, args ...any) (n int64, err error) {
	all, err := CheckedNumbers(q, text, args...)
	if len(all) > 0 {
		n = all[0]
	}
	return n, err
}
