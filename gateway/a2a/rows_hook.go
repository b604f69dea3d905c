package a2a

import (
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// hook is a row of a2a_hook.
type hook struct {
	n       int64
	id      string
	owner   didkey.DID
	label   string
	created int64
}

const (
	hookTable   = "a2a_hook"
	hookColumns = "n, id, owner, label, created"
)

func (h *hook) fields() []any { return []any{&h.n, &h.id, (*string)(&h.owner), &h.label, &h.created} }

func hookByNumber(q relay.Querier, n int64) (hook, error) {
	return find(q, (*hook).fields, "SELECT "+hookColumns+" FROM a2a_hook WHERE n = ?", n)
}

func hookByID(q relay.Querier, id string) (hook, error) {
	return find(q, (*hook).fields, "SELECT "+hookColumns+" FROM a2a_hook WHERE id = ?", id)
}

// hooksOf returns the hooks of an agent, at most maxHooks.
func hooksOf(q relay.Querier, owner didkey.DID) ([]hook, error) {
	return list(q, (*hook).fields, "SELECT "+hookColumns+" FROM a2a_hook WHERE owner = ? ORDER BY n", string(owner))
}

func insertHook(tx relay.ExtTx, h hook) error {
	return gateway.Exec(tx, "INSERT INTO a2a_hook ("+hookColumns+", sum) VALUES (?, ?, ?, ?, ?, ?)",
		gateway.WithSum(hookTable, []any{h.n, h.id, string(h.owner), h.label, h.created})...)
}

// notice is a row of a2a_notice.
type notice struct {
	n       int64
	id      string
	hook    int64
	subject []byte
	source  int64
	created int64
	done    bool
}

const (
	noticeTable   = "a2a_notice"
	noticeColumns = "n, id, hook, subject, source, created, done"
)

func (x notice) values() []any {
	return []any{x.n, x.id, x.hook, x.subject, x.source, x.created, flag(x.done)}
}

func (x *notice) fields() []any {
	return []any{&x.n, &x.id, &x.hook, &x.subject, &x.source, &x.created, &x.done}
}

func noticeByID(q relay.Querier, id string) (notice, error) {
	return find(q, (*notice).fields, "SELECT "+noticeColumns+" FROM a2a_notice WHERE id = ?", id)
}

// noticeBySubject returns an event that a hook got with this subject.
func noticeBySubject(q relay.Querier, hook int64, subject []byte) (notice, error) {
	return find(q, (*notice).fields, "SELECT "+noticeColumns+" FROM a2a_notice WHERE hook = ? AND subject = ? LIMIT 1",
		hook, subject)
}

func insertNotice(tx relay.ExtTx, x notice) error {
	return gateway.Exec(tx, "INSERT INTO a2a_notice ("+noticeColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(noticeTable, x.values())...)
}

func updateNotice(tx relay.ExtTx, x notice) error {
	return gateway.Exec(tx, "UPDATE a2a_notice SET n = ?, id = ?, hook = ?, subject = ?, source = ?, created = ?, done = ?, "+
		"sum = ? WHERE n = ?", append(gateway.WithSum(noticeTable, x.values()), x.n)...)
}
