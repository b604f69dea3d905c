package gateway

import (
	"fmt"

	"github.com/agora-relay/agora/relay"
)

// This file has what the Checks of all gateways share. A row that was changed may have a value of any type in any
// column.

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
