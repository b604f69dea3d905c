package gateway

import (
	_ "embed"
	"fmt"

	"github.com/agora-relay/agora/relay"
)

//go:embed 0001_initial.sql
var initialSchema string

// Extension has the tables that all gateways share. They exist whether gateways are on or not, so flags never change
// the schema.
var Extension = relay.Extension{Name: "gate", Migrations: []string{initialSchema}, Check: check}

// check reports the rows that the relay has not written, and those that are missing.
func check(q relay.Querier, found func(where, what string)) error {
	if err := CheckSums(q, found, keyTable, counterTable, metaTable, answerTable, outboxTable); err != nil {
		return err
	}
	if err := checkStart(q, found); err != nil {
		return err
	}
	return CheckCounter(q, found, outboxCounter, "SELECT MAX(n) FROM gate_outbox")
}

// checkStart reports what is missing of the rows that NewCore writes. A database that was never used with a gateway has
// none of them.
func checkStart(q relay.Querier, found func(where, what string)) error {
	rows, err := checkedNumber(q, "SELECT (SELECT COUNT(*) FROM gate_key) + (SELECT COUNT(*) FROM gate_meta) + "+
		"(SELECT COUNT(*) FROM gate_counter)")
	if err != nil || rows == 0 {
		return err
	}
	const missing = "is missing; every start of a gateway writes this row"
	for _, name := range []string{metaDID, metaEpoch} {
		value, err := meta(q, name)
		if err != nil {
			return err
		}
		if value == "" {
			found(fmt.Sprintf("gate_meta name=%q", name), missing)
		}
	}
	operator, err := HasKey(q, Operator, 0, "")
	if err == nil && !operator {
		found(fmt.Sprintf("gate_key kind=%q", Operator), missing)
	}
	return err
}
