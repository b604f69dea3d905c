package a2a

import (
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// This file, rows_task.go, rows_push.go and rows_hook.go read and write the rows of the tables. Each row type has the columns of its table, in their
// order, without the checksum. The functions that find a row return the zero row if there is none.

// The counters of the rows' numbers.
const (
	endpointCounter = "a2a_endpoint"
	keyCounter      = "a2a_key"
	contextCounter  = "a2a_context"
	taskCounter     = "a2a_task"
	turnCounter     = "a2a_turn"
	pushCounter     = "a2a_push"
	hookCounter     = "a2a_hook"
	noticeCounter   = "a2a_notice"
)

// flag is how a column stores a bool.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// find returns the first row that a SELECT finds.
func find[T any](q relay.Querier, fields func(*T) []any, text string, args ...any) (row T, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(fields(&row)...) }, text, args...)
	return row, err
}

// list returns the rows that a SELECT finds.
func list[T any](q relay.Querier, fields func(*T) []any, text string, args ...any) (all []T, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var row T
		err := scan(fields(&row)...)
		all = append(all, row)
		return err
	}, text, args...)
	return all, err
}

// endpoint is a row of a2a_endpoint.
type endpoint struct {
	n                               int64
	did                             didkey.DID
	card                            []byte
	url, facts, name, description   string
	access                          wire.Access
	mode                            wire.Mode
	intent                          string
	listed                          bool
	created, changed, seen, deleted int64
}

const (
	endpointTable   = "a2a_endpoint"
	endpointColumns = "n, did, card, url, facts, name, description, access, mode, intent, listed, created, changed, " +
		"seen, deleted"
)

func (e endpoint) values() []any {
	return []any{e.n, string(e.did), e.card, e.url, e.facts, e.name, e.description, string(e.access), string(e.mode),
		e.intent, flag(e.listed), e.created, e.changed, e.seen, e.deleted}
}

func (e *endpoint) fields() []any {
	return []any{&e.n, (*string)(&e.did), &e.card, &e.url, &e.facts, &e.name, &e.description, (*string)(&e.access),
		(*string)(&e.mode), &e.intent, &e.listed, &e.created, &e.changed, &e.seen, &e.deleted}
}

// endpointOf returns the endpoint of an agent.
func endpointOf(q relay.Querier, did didkey.DID) (endpoint, error) {
	return find(q, (*endpoint).fields, "SELECT "+endpointColumns+" FROM a2a_endpoint WHERE did = ? AND deleted = 0",
		string(did))
}

// endpointByNumber returns an endpoint, also if it was deleted.
func endpointByNumber(q relay.Querier, n int64) (endpoint, error) {
	return find(q, (*endpoint).fields, "SELECT "+endpointColumns+" FROM a2a_endpoint WHERE n = ?", n)
}

func insertEndpoint(tx relay.ExtTx, e endpoint) error {
	return gateway.Exec(tx, "INSERT INTO a2a_endpoint ("+endpointColumns+", sum) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", gateway.WithSum(endpointTable, e.values())...)
}

func updateEndpoint(tx relay.ExtTx, e endpoint) error {
	return gateway.Exec(tx, "UPDATE a2a_endpoint SET n = ?, did = ?, card = ?, url = ?, facts = ?, name = ?, "+
		"description = ?, access = ?, mode = ?, intent = ?, listed = ?, created = ?, changed = ?, seen = ?, deleted = ?, "+
		"sum = ? WHERE n = ?", append(gateway.WithSum(endpointTable, e.values()), e.n)...)
}

// usage is a row of a2a_usage.
type usage struct{ endpoint, ended, bytes int64 }

const (
	usageTable   = "a2a_usage"
	usageColumns = "endpoint, ended, bytes"
)

func (u *usage) fields() []any { return []any{&u.endpoint, &u.ended, &u.bytes} }

func usageOf(q relay.Querier, endpoint int64) (usage, error) {
	return find(q, (*usage).fields, "SELECT "+usageColumns+" FROM a2a_usage WHERE endpoint = ?", endpoint)
}

// use adds to what an endpoint uses.
func use(tx relay.ExtTx, endpoint, ended, bytes int64) error {
	u, err := usageOf(tx, endpoint)
	if err != nil {
		return err
	}
	u.ended, u.bytes = u.ended+ended, u.bytes+bytes
	return gateway.Exec(tx, "INSERT INTO a2a_usage ("+usageColumns+", sum) VALUES (?, ?, ?, ?) "+
		"ON CONFLICT (endpoint) DO UPDATE SET ended = excluded.ended, bytes = excluded.bytes, sum = excluded.sum",
		gateway.WithSum(usageTable, []any{endpoint, u.ended, u.bytes})...)
}

// callerKey is a row of a2a_key.
type callerKey struct {
	n, endpoint      int64
	name             string
	created, deleted int64
}

const (
	keyTable   = "a2a_key"
	keyColumns = "n, endpoint, name, created, deleted"
)

func (k callerKey) values() []any { return []any{k.n, k.endpoint, k.name, k.created, k.deleted} }

func (k *callerKey) fields() []any { return []any{&k.n, &k.endpoint, &k.name, &k.created, &k.deleted} }

func keyByNumber(q relay.Querier, n int64) (callerKey, error) {
	return find(q, (*callerKey).fields, "SELECT "+keyColumns+" FROM a2a_key WHERE n = ?", n)
}

func keyByName(q relay.Querier, endpoint int64, name string) (callerKey, error) {
	return find(q, (*callerKey).fields, "SELECT "+keyColumns+" FROM a2a_key WHERE endpoint = ? AND name = ? AND deleted = 0",
		endpoint, name)
}

// keysOf returns the keys of an endpoint.
func keysOf(q relay.Querier, endpoint int64) ([]callerKey, error) {
	return list(q, (*callerKey).fields, "SELECT "+keyColumns+" FROM a2a_key WHERE endpoint = ? AND deleted = 0 "+
		"ORDER BY n LIMIT ?", endpoint, maxKeys)
}

func insertKey(tx relay.ExtTx, k callerKey) error {
	return gateway.Exec(tx, "INSERT INTO a2a_key ("+keyColumns+", sum) VALUES (?, ?, ?, ?, ?, ?)",
		gateway.WithSum(keyTable, k.values())...)
}

func updateKey(tx relay.ExtTx, k callerKey) error {
	return gateway.Exec(tx, "UPDATE a2a_key SET n = ?, endpoint = ?, name = ?, created = ?, deleted = ?, sum = ? WHERE n = ?",
		append(gateway.WithSum(keyTable, k.values()), k.n)...)
}

// conversation is a row of a2a_context.
type conversation struct {
	n            int64
	id           string
	endpoint     int64
	caller, name string
	shared       bool
}

const (
	contextTable   = "a2a_context"
	contextColumns = "n, id, endpoint, caller, name, shared"
)

func (c *conversation) fields() []any {
	return []any{&c.n, &c.id, &c.endpoint, &c.caller, &c.name, &c.shared}
}

func contextByNumber(q relay.Querier, n int64) (conversation, error) {
	return find(q, (*conversation).fields, "SELECT "+contextColumns+" FROM a2a_context WHERE n = ?", n)
}

// sharedContext returns the conversation of a caller with this contextId.
func sharedContext(q relay.Querier, endpoint int64, caller, name string) (conversation, error) {
	return find(q, (*conversation).fields, "SELECT "+contextColumns+" FROM a2a_context WHERE endpoint = ? AND caller = ? "+
		"AND name = ? AND shared = 1", endpoint, caller, name)
}

func insertContext(tx relay.ExtTx, c conversation) error {
	return gateway.Exec(tx, "INSERT INTO a2a_context ("+contextColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(contextTable, []any{c.n, c.id, c.endpoint, c.caller, c.name, flag(c.shared)})...)
}
