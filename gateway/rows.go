package gateway

import (
	"time"

	"github.com/agora-relay/agora/relay"
)

// This file has what all gateways need to read and write rows.

// Scanner is the Scan of a row.
type Scanner = func(...any) error

// WithSum returns the values of a row, followed by their checksum. See Sum.
func WithSum(table string, values []any) []any { return Table{Name: table}.WithSum(values) }

// Exec runs a statement whose number of changed rows does not matter.
func Exec(tx relay.ExtTx, text string, args ...any) error {
	_, err := tx.Exec(text, args...)
	return err
}

// Number returns the number that a SELECT finds, or 0 if it finds no row.
func Number(q relay.Querier, text string, args ...any) (n int64, err error) {
	err = q.Query(func(scan Scanner) error { return scan(&n) }, text, args...)
	return n, err
}

// Numbers returns the numbers that a SELECT finds.
func Numbers(q relay.Querier, text string, args ...any) (all []int64, err error) {
	err = q.Query(func(scan Scanner) error {
		var n int64
		err := scan(&n)
		all = append(all, n)
		return err
	}, text, args...)
	return all, err
}

// Stamp formats a time, in nanoseconds since 1970, as all answers have it: RFC 3339 in UTC, with milliseconds.
func Stamp(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000Z") }
