package gateway

import (
	_ "embed"

	"github.com/agora-relay/agora/relay"
)

//go:embed 0001_initial.sql
var initialSchema string

// Extension has the tables that all gateways share. They exist whether gateways are on or not, so flags never change
// the schema.
var Extension = relay.Extension{Name: "gate", Migrations: []string{initialSchema}, Check: check}

// check reports the rows that the relay has not written.
func check(q relay.Querier, found func(where, what string)) error {
	return CheckSums(q, found, keyTable, counterTable, metaTable, answerTable, outboxTable)
}
