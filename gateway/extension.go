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

// check reports keys whose rows cannot have been written by this package.
func check(q relay.Querier, found func(where, what string)) error {
	return q.Query(func(scan func(...any) error) error {
		var hash []byte
		var kind string
		var owner, expires int64
		if err := scan(&hash, &kind, &owner, &expires); err != nil {
			return err
		}
		if len(hash) != 32 || !isKind(Kind(kind)) || owner < 0 || expires < 0 {
			found(fmt.Sprintf("key %x", hash),
				fmt.Sprintf("has the kind %q, the owner %d and the expiry %d", kind, owner, expires))
		}
		return nil
	}, "SELECT hash, kind, owner, expires FROM gate_key")
}
