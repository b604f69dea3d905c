package a2a

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// task is a row of a2a_task.
type task struct {
	n                              int64
	id                             string
	endpoint                       int64
	caller, payer                  string
	context                        int64
	state                          wire.State
	statusAt, statusSeq, seq, turn int64
	open                           bool
	artifacts, bytes               int64
	direct                         bool
	created, ended                 int64
}

const (
	taskTable   = "a2a_task"
	taskColumns = "n, id, endpoint, caller, payer, context, state, status_at, status_seq, seq, turn, open, artifacts, bytes, " +
		"direct, created, ended"
)

func (t task) values() []any {
	return []any{t.n, t.id, t.endpoint, t.caller, t.payer, t.context, string(t.state), t.statusAt, t.statusSeq, t.seq,
		t.turn, flag(t.open), t.artifacts, t.bytes, flag(t.direct), t.created, t.ended}
}

func (t *task) fields() []any {
	return []any{&t.n, &t.id, &t.endpoint, &t.caller, &t.payer, &t.context, (*string)(&t.state), &t.statusAt,
		&t.statusSeq, &t.seq, &t.turn, &t.open, &t.artifacts, &t.bytes, &t.direct, &t.created, &t.ended}
}

func taskByID(q relay.Querier, id string) (task, error) {
	return find(q, (*task).fields, "SELECT "+taskColumns+" FROM a2a_task WHERE id = ?", id)
}

func taskByNumber(q relay.Querier, n int64) (task, error) {
	return find(q, (*task).fields, "SELECT "+taskColumns+" FROM a2a_task WHERE n = ?", n)
}

func insertTask(tx relay.ExtTx, t task) error {
	return gateway.Exec(tx, "INSERT INTO a2a_task ("+taskColumns+", sum) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", gateway.WithSum(taskTable, t.values())...)
}

func updateTask(tx relay.ExtTx, t task) error {
	return gateway.Exec(tx, "UPDATE a2a_task SET n = ?, id = ?, endpoint = ?, caller = ?, payer = ?, context = ?, state = ?, "+
		"status_at = ?, status_seq = ?, seq = ?, turn = ?, open = ?, artifacts = ?, bytes = ?, direct = ?, created = ?, "+
		"ended = ?, sum = ? WHERE n = ?", append(gateway.WithSum(taskTable, t.values()), t.n)...)
}

// turn is a row of a2a_turn.
type turn struct {
	n              int64
	id             string
	endpoint, task int64
	number         int64
	payer          string
	state          deliver.State
	message        int64
	options        string
	asked          int64
	accepted       int64
	proof          string
}

const (
	turnTable   = "a2a_turn"
	turnColumns = "n, id, endpoint, task, turn, payer, state, message, options, asked, accepted, proof"
)

func (t turn) values() []any {
	return []any{t.n, t.id, t.endpoint, t.task, t.number, t.payer, int64(t.state), t.message, t.options, t.asked, t.accepted,
		t.proof}
}

func (t *turn) fields() []any {
	return []any{&t.n, &t.id, &t.endpoint, &t.task, &t.number, &t.payer, &t.state, &t.message, &t.options, &t.asked,
		&t.accepted, &t.proof}
}

func turnByID(q relay.Querier, id string) (turn, error) {
	return find(q, (*turn).fields, "SELECT "+turnColumns+" FROM a2a_turn WHERE id = ?", id)
}

func turnByNumber(q relay.Querier, n int64) (turn, error) {
	return find(q, (*turn).fields, "SELECT "+turnColumns+" FROM a2a_turn WHERE n = ?", n)
}

// turnOf returns the newest turn of a task.
func turnOf(q relay.Querier, t task) (turn, error) {
	return find(q, (*turn).fields, "SELECT "+turnColumns+" FROM a2a_turn WHERE task = ? AND turn = ?", t.n, t.turn)
}

func insertTurn(tx relay.ExtTx, t turn) error {
	return gateway.Exec(tx, "INSERT INTO a2a_turn ("+turnColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(turnTable, t.values())...)
}

func updateTurn(tx relay.ExtTx, t turn) error {
	return gateway.Exec(tx, "UPDATE a2a_turn SET n = ?, id = ?, endpoint = ?, task = ?, turn = ?, payer = ?, state = ?, "+
		"message = ?, options = ?, asked = ?, accepted = ?, proof = ?, sum = ? WHERE n = ?",
		append(gateway.WithSum(turnTable, t.values()), t.n)...)
}

// The kinds of events.
const (
	said     = iota // a message of the caller
	status          // a state
	artifact        // a part of an artifact
)

// The flags of events.
const (
	appended = 1 << iota // the parts follow those that came before
	last                 // no more parts come
	endsTurn             // the status ends the turn
)

// event is a row of a2a_event.
type event struct {
	task, seq, turn, kind, at int64
	state                     wire.State
	said                      bool
	artifact, flags           int64
	body, parts               string
}

const (
	eventTable   = "a2a_event"
	eventColumns = "task, seq, turn, kind, at, state, said, artifact, flags, body, parts"
)

func (e event) values() []any {
	return []any{e.task, e.seq, e.turn, e.kind, e.at, string(e.state), flag(e.said), e.artifact, e.flags, e.body, e.parts}
}

func (e *event) fields() []any {
	return []any{&e.task, &e.seq, &e.turn, &e.kind, &e.at, (*string)(&e.state), &e.said, &e.artifact, &e.flags, &e.body,
		&e.parts}
}

func eventAt(q relay.Querier, task, seq int64) (event, error) {
	return find(q, (*event).fields, "SELECT "+eventColumns+" FROM a2a_event WHERE task = ? AND seq = ?", task, seq)
}

func insertEvent(tx relay.ExtTx, e event) error {
	return gateway.Exec(tx, "INSERT INTO a2a_event ("+eventColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(eventTable, e.values())...)
}

// size is how much an event counts for the limits of its task and endpoint.
func (e event) size() int64 { return int64(len(e.body)+len(e.parts)) + 100 }

// piece is a row of a2a_artifact.
type piece struct {
	task, place int64
	id          string
	base        int64
}

const (
	artifactTable   = "a2a_artifact"
	artifactColumns = "task, place, id, base"
)

func (p *piece) fields() []any { return []any{&p.task, &p.place, &p.id, &p.base} }

func artifactByID(q relay.Querier, task int64, id string) (piece, error) {
	return find(q, (*piece).fields, "SELECT "+artifactColumns+" FROM a2a_artifact WHERE task = ? AND id = ?", task, id)
}

func setArtifact(tx relay.ExtTx, p piece) error {
	return gateway.Exec(tx, "INSERT INTO a2a_artifact ("+artifactColumns+", sum) VALUES (?, ?, ?, ?, ?) "+
		"ON CONFLICT (task, place) DO UPDATE SET base = excluded.base, sum = excluded.sum",
		gateway.WithSum(artifactTable, []any{p.task, p.place, p.id, p.base})...)
}
