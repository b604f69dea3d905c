package channel

import (
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// This file reads and writes the rows of inboxes, as rows.go does for channels.

// inbox is a row of channel_inbox.
type inbox struct {
	n                int64
	id               string
	owner            didkey.DID
	label            string
	created, deleted int64
}

const (
	inboxTable   = "channel_inbox"
	inboxColumns = "n, id, owner, label, created, deleted"
)

func (i inbox) values() []any {
	return []any{i.n, i.id, string(i.owner), i.label, i.created, i.deleted}
}

func (i *inbox) fields() []any {
	return []any{&i.n, &i.id, (*string)(&i.owner), &i.label, &i.created, &i.deleted}
}

// live reports whether the inbox exists. The zero inbox does not.
func (i inbox) live() bool { return i.n != 0 && i.deleted == 0 }

// inboxes returns the rows that a SELECT of inboxColumns finds.
func inboxes(q relay.Querier, text string, args ...any) (all []inbox, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var i inbox
		err := scan(i.fields()...)
		all = append(all, i)
		return err
	}, text, args...)
	return all, err
}

func inboxByNumber(q relay.Querier, n int64) (i inbox, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(i.fields()...) },
		"SELECT "+inboxColumns+" FROM channel_inbox WHERE n = ?", n)
	return i, err
}

func inboxByID(q relay.Querier, id string) (i inbox, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(i.fields()...) },
		"SELECT "+inboxColumns+" FROM channel_inbox WHERE id = ?", id)
	return i, err
}

func insertInbox(tx relay.ExtTx, i inbox) error {
	return gateway.Exec(tx, "INSERT INTO channel_inbox ("+inboxColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(inboxTable, i.values())...)
}

func updateInbox(tx relay.ExtTx, i inbox) error {
	return gateway.Exec(tx, "UPDATE channel_inbox SET n = ?, id = ?, owner = ?, label = ?, created = ?, deleted = ?, "+
		"sum = ? WHERE n = ?", append(gateway.WithSum(inboxTable, i.values()), i.n)...)
}

// The states of the thread of a request. They are the states of deliver without Waiting, so each is less by 1.
const (
	_ deliver.State = iota // it waits for an OFFER
	accepted
	over
)

// request is a row of channel_request: a delivery that an inbox got.
type request struct {
	n        int64
	id       string
	inbox    int64
	subject  []byte
	callback []byte
	version  int64
	created  int64
	state    deliver.State // minus deliver.Sent
	answered bool
	idle     bool
	ended    int64
	source   int64 // which network sent it, see gateway.Core.Source
}

const (
	requestTable   = "channel_request"
	requestColumns = "n, id, inbox, subject, callback, version, created, state, answered, idle, ended, source"
)

// requests describes the table. Rows of version 0.1.0 have no source.
var requests = gateway.Table{Name: requestTable, Key: 1, Columns: strings.Split(requestColumns, ", "), Added: 1}

func (r request) values() []any {
	return []any{r.n, r.id, r.inbox, r.subject, r.callback, r.version, r.created, int64(r.state), flag(r.answered), flag(r.idle),
		r.ended, r.source}
}

func (r *request) fields() []any {
	return []any{&r.n, &r.id, &r.inbox, &r.subject, &r.callback, &r.version, &r.created, &r.state, &r.answered, &r.idle,
		&r.ended, &r.source}
}

// callbackPlace says where the callback of a request is stored.
func callbackPlace(request int64) gateway.Place {
	return gateway.Place{Table: requestTable, Column: "callback", Row: request}
}

func requestByNumber(q relay.Querier, n int64) (r request, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+requestColumns+" FROM channel_request WHERE n = ?", n)
	return r, err
}

func requestByID(q relay.Querier, id string) (r request, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+requestColumns+" FROM channel_request WHERE id = ?", id)
	return r, err
}

// requestBySubject returns the newest request of an inbox with this subject.
func requestBySubject(q relay.Querier, inbox int64, subject []byte) (r request, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+requestColumns+" FROM channel_request WHERE inbox = ? AND subject = ? ORDER BY n DESC LIMIT 1",
		inbox, subject)
	return r, err
}

func insertRequest(tx relay.ExtTx, r request) error {
	return gateway.Exec(tx, "INSERT INTO channel_request ("+requestColumns+", sum) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", requests.WithSum(r.values())...)
}

func updateRequest(tx relay.ExtTx, r request) error {
	return gateway.Exec(tx, "UPDATE channel_request SET n = ?, id = ?, inbox = ?, subject = ?, callback = ?, version = ?, "+
		"created = ?, state = ?, answered = ?, idle = ?, ended = ?, source = ?, sum = ? WHERE n = ?",
		append(requests.WithSum(r.values()), r.n)...)
}

// outgoing is a row of channel_out: an event that waits to be sent to a service.
type outgoing struct {
	n         int64
	id        string
	request   int64
	lifecycle bool
	body      []byte
	created   int64
}

const (
	outTable   = "channel_out"
	outColumns = "n, id, request, lifecycle, body, created"
)

func (o *outgoing) fields() []any {
	return []any{&o.n, &o.id, &o.request, &o.lifecycle, &o.body, &o.created}
}

// bodyPlace says where the body of an outgoing event is stored.
func bodyPlace(out int64) gateway.Place {
	return gateway.Place{Table: outTable, Column: "body", Row: out}
}

func outByNumber(q relay.Querier, n int64) (o outgoing, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(o.fields()...) },
		"SELECT "+outColumns+" FROM channel_out WHERE n = ?", n)
	return o, err
}

func insertOut(tx relay.ExtTx, o outgoing) error {
	return gateway.Exec(tx, "INSERT INTO channel_out ("+outColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(outTable, []any{o.n, o.id, o.request, flag(o.lifecycle), o.body, o.created})...)
}
