package hub

import (
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// This file has the rows of the REQUESTs to agents with a DID.

// request is a row of hub_request.
type request struct {
	message          int64
	id               string
	did              didkey.DID
	sender, receiver int64
	state            deliver.State
	made             int64
}

const (
	requestTable   = "hub_request"
	requestColumns = "message, id, did, sender, receiver, state, made"
)

func (r request) values() []any {
	return []any{r.message, r.id, string(r.did), r.sender, r.receiver, int64(r.state), r.made}
}

func (r *request) fields() []any {
	return []any{&r.message, &r.id, &r.did, &r.sender, &r.receiver, &r.state, &r.made}
}

// delivery returns a request as a delivery.
func (r request) delivery() deliver.Delivery {
	return deliver.Delivery{N: r.message, ID: r.id, Owner: r.did, State: r.state}
}

// requests returns the rows that a SELECT of requestColumns finds.
func requests(q relay.Querier, text string, args ...any) (all []request, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var r request
		err := scan(r.fields()...)
		all = append(all, r)
		return err
	}, text, args...)
	return all, err
}

// oneRequest returns the first of the rows that a SELECT of requestColumns finds, or the zero request.
func oneRequest(q relay.Querier, text string, args ...any) (request, error) {
	all, err := requests(q, text, args...)
	if err != nil || len(all) == 0 {
		return request{}, err
	}
	return all[0], nil
}

func requestOf(q relay.Querier, message int64) (request, error) {
	return oneRequest(q, "SELECT "+requestColumns+" FROM hub_request WHERE message = ?", message)
}

func insertRequest(tx relay.ExtTx, r request) error {
	return gateway.Exec(tx, "INSERT INTO hub_request ("+requestColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(requestTable, r.values())...)
}

func updateRequest(tx relay.ExtTx, r request) error {
	return gateway.Exec(tx, "UPDATE hub_request SET message = ?, id = ?, did = ?, sender = ?, receiver = ?, state = ?, made = ?, "+
		"sum = ? WHERE message = ?", append(gateway.WithSum(requestTable, r.values()), r.message)...)
}

// dropRequest forgets the request of a message whose delivery has ended, or that a stream or a poll has handed out.
func (o *op) dropRequest(message int64) error {
	removed, err := o.Exec("DELETE FROM hub_request WHERE message = ?", message)
	if removed > 0 {
		o.Then(o.hub.requests.Wake)
	}
	return err
}

// isRequest reports whether a message was sent as a REQUEST. No stream or poll hands it out then, and only the answer of the
// agent confirms it (B-8).
func isRequest(q relay.Querier, message int64) (bool, error) {
	n, err := gateway.Number(q, "SELECT message FROM hub_request WHERE message = ? AND state > 0", message)
	return n != 0, err
}

// notRequest is the condition that a delivery d is not a REQUEST.
const notRequest = "NOT EXISTS (SELECT 1 FROM hub_request r WHERE r.message = d.message AND r.state > 0)"

// deliveriesOf returns a function that finds the open requests that a SELECT of requestColumns finds.
func deliveriesOf(text string, args ...any) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) (all []deliver.Delivery, err error) {
		rows, err := requests(q, text, args...)
		for _, r := range rows {
			all = append(all, r.delivery())
		}
		return all, err
	}
}

// requestsTo finds the open requests to the agent with an address, if the caller may act for it. So nobody else makes the hub
// sign for them.
func requestsTo(address string, c caller) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) ([]deliver.Delivery, error) {
		if !isAddress(address) {
			return nil, nil
		}
		a, err := agentByAddress(q, address)
		if err != nil || !a.live() || !c.operator && !c.owns(a) {
			return nil, err
		}
		return deliveriesOf("SELECT "+requestColumns+" FROM hub_request WHERE receiver = ? AND state > 0", a.n)(q)
	}
}

// requestFor finds the request of a message, which is named by its id or its trace_id.
func requestFor(id string) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) ([]deliver.Delivery, error) {
		m, _, err := messageByID(q, id)
		if err != nil || m.n == 0 {
			return nil, err
		}
		return deliveriesOf("SELECT "+requestColumns+" FROM hub_request WHERE message = ?", m.n)(q)
	}
}
