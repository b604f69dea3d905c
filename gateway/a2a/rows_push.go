package a2a

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// push is a row of a2a_push.
type push struct {
	n, task     int64
	id          string
	config      []byte
	version     int64
	begins      int64
	done, until int64
}

const (
	pushTable   = "a2a_push"
	pushColumns = "n, task, id, config, version, begins, done, until"
)

func (p push) values() []any {
	return []any{p.n, p.task, p.id, p.config, p.version, p.begins, p.done, p.until}
}

func (p *push) fields() []any {
	return []any{&p.n, &p.task, &p.id, &p.config, &p.version, &p.begins, &p.done, &p.until}
}

// configPlace says where the secrets of a push configuration are stored.
func configPlace(n int64) gateway.Place {
	return gateway.Place{Table: pushTable, Column: "config", Row: n}
}

func pushByNumber(q relay.Querier, n int64) (push, error) {
	return find(q, (*push).fields, "SELECT "+pushColumns+" FROM a2a_push WHERE n = ?", n)
}

func pushByID(q relay.Querier, task int64, id string) (push, error) {
	return find(q, (*push).fields, "SELECT "+pushColumns+" FROM a2a_push WHERE task = ? AND id = ?", task, id)
}

// pushesOf returns the push configurations of a task, at most maxPushes.
func pushesOf(q relay.Querier, task int64) ([]push, error) {
	return list(q, (*push).fields, "SELECT "+pushColumns+" FROM a2a_push WHERE task = ?", task)
}

func insertPush(tx relay.ExtTx, p push) error {
	return gateway.Exec(tx, "INSERT INTO a2a_push ("+pushColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(pushTable, p.values())...)
}

func updatePush(tx relay.ExtTx, p push) error {
	return gateway.Exec(tx, "UPDATE a2a_push SET n = ?, task = ?, id = ?, config = ?, version = ?, begins = ?, done = ?, "+
		"until = ?, sum = ? WHERE n = ?", append(gateway.WithSum(pushTable, p.values()), p.n)...)
}
