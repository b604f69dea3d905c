package hub

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file reads and writes the rows of the hub's tables. Each row type has the columns of its table, in their order,
// without the checksum.

// agent is a row of hub_agent.
type agent struct {
	n                     int64
	address               string
	culture, card         string
	endpoint              []byte // encrypted
	registered, deletedAt int64
	did                   didkey.DID // empty: the agent has a key
}

const (
	agentTable   = "hub_agent"
	agentColumns = "n, address, culture, card, endpoint, registered, deleted, did"
)

// agents describes the table. Agents of earlier versions have no DID.
var agents = gateway.Table{Name: agentTable, Key: 1, Columns: strings.Split(agentColumns, ", "), Added: 1}

func (a agent) values() []any {
	return []any{a.n, a.address, a.culture, a.card, a.endpoint, a.registered, a.deletedAt, string(a.did)}
}

func (a *agent) fields() []any {
	return []any{&a.n, &a.address, &a.culture, &a.card, &a.endpoint, &a.registered, &a.deletedAt, &a.did}
}

// live reports whether the agent is registered. The zero agent is not.
func (a agent) live() bool { return a.n != 0 && a.deletedAt == 0 }

// hasEndpoint reports whether the hub calls the agent, or sends it REQUESTs.
func (a agent) hasEndpoint() bool { return len(a.endpoint) > 0 || a.did != "" }

// agentByAddress returns the agent that was registered last with this address, deleted or not. If there is none, it
// returns the zero agent.
func agentByAddress(q relay.Querier, address string) (a agent, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(a.fields()...) },
		"SELECT "+agentColumns+" FROM hub_agent WHERE address = ? ORDER BY n DESC LIMIT 1", address)
	return a, err
}

// agentByNumber returns the zero agent if there is none with this number.
func agentByNumber(q relay.Querier, n int64) (a agent, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(a.fields()...) },
		"SELECT "+agentColumns+" FROM hub_agent WHERE n = ?", n)
	return a, err
}

func insertAgent(tx relay.ExtTx, a agent) error {
	return gateway.Exec(tx, "INSERT INTO hub_agent ("+agentColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		agents.WithSum(a.values())...)
}

func updateAgent(tx relay.ExtTx, a agent) error {
	return gateway.Exec(tx, "UPDATE hub_agent SET n = ?, address = ?, culture = ?, card = ?, endpoint = ?, registered = ?, "+
		"deleted = ?, did = ?, sum = ? WHERE n = ?", append(agents.WithSum(a.values()), a.n)...)
}

// usage is a row of hub_use. framed is neverFramed if the agent has sent or received a message, but none on a stream.
type usage struct {
	agent                               int64
	used, replied, framed, streamEnded  int64
	kept, keptBytes, queued, queueBytes int64
}

// neverFramed is a time before all messages. With it, the row is not in the index hub_use_idle.
const neverFramed = 1

const (
	usageTable   = "hub_use"
	usageColumns = "agent, used, replied, framed, stream_ended, kept, kept_bytes, queued, queued_bytes"
)

func (u usage) values() []any {
	return []any{u.agent, u.used, u.replied, u.framed, u.streamEnded, u.kept, u.keptBytes, u.queued, u.queueBytes}
}

func (u *usage) fields() []any {
	return []any{&u.agent, &u.used, &u.replied, &u.framed, &u.streamEnded, &u.kept, &u.keptBytes, &u.queued,
		&u.queueBytes}
}

// usageOf returns the zero usage if the agent has no row, which means that it was removed.
func usageOf(q relay.Querier, agent int64) (u usage, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(u.fields()...) },
		"SELECT "+usageColumns+" FROM hub_use WHERE agent = ?", agent)
	return u, err
}

func insertUsage(tx relay.ExtTx, u usage) error {
	return gateway.Exec(tx, "INSERT INTO hub_use ("+usageColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(usageTable, u.values())...)
}

// changeUsage applies change to the row of an agent, if there is one.
func changeUsage(tx relay.ExtTx, agent int64, change func(*usage)) error {
	u, err := usageOf(tx, agent)
	if err != nil || u.agent == 0 {
		return err
	}
	change(&u)
	return gateway.Exec(tx, "UPDATE hub_use SET agent = ?, used = ?, replied = ?, framed = ?, stream_ended = ?, kept = ?, "+
		"kept_bytes = ?, queued = ?, queued_bytes = ?, sum = ? WHERE agent = ?",
		append(gateway.WithSum(usageTable, u.values()), agent)...)
}

// message is a row of hub_message.
type message struct {
	n                    int64
	trace                string
	sender               int64
	senderID             string
	receiver             int64
	receiverID, envelope string
	ts                   int64
	depth                int64 // how many replies came before it
}

const (
	messageTable   = "hub_message"
	messageColumns = "n, trace, sender, sender_id, receiver, receiver_id, envelope, ts, depth"
	// joinedColumns are the columns of a message and of its delivery, in a join of hub_message m and hub_delivery d.
	joinedColumns = "m.n, m.trace, m.sender, m.sender_id, m.receiver, m.receiver_id, m.envelope, m.ts, m.depth, " +
		joinedDelivery
)

// messages describes the table. Messages of earlier versions have the depth 0.
var messages = gateway.Table{Name: messageTable, Key: 1, Columns: strings.Split(messageColumns, ", "), Added: 1}

func (m message) values() []any {
	return []any{m.n, m.trace, m.sender, m.senderID, m.receiver, m.receiverID, m.envelope, m.ts, m.depth}
}

func (m *message) fields() []any {
	return []any{&m.n, &m.trace, &m.sender, &m.senderID, &m.receiver, &m.receiverID, &m.envelope, &m.ts, &m.depth}
}

func insertMessage(tx relay.ExtTx, m message) error {
	return gateway.Exec(tx, "INSERT INTO hub_message ("+messageColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		messages.WithSum(m.values())...)
}

// updateEnvelope replaces the row of a message. Only its envelope ever changes.
func updateEnvelope(tx relay.ExtTx, m message) error {
	values := messages.WithSum(m.values())
	return gateway.Exec(tx, "UPDATE hub_message SET envelope = ?, sum = ? WHERE n = ?", m.envelope, values[len(values)-1], m.n)
}

// state is how far a delivery is.
type state int64

const (
	queued state = iota
	sent
	delivered
	failed
)

func (s state) String() string { return [...]string{"queued", "sent", "delivered", "failed"}[s] }

// final reports whether the state never changes again.
func (s state) final() bool { return s >= delivered }

// How a message was handed out.
const (
	viaStream  = "sse"
	viaPoll    = "poll"
	viaWebhook = "webhook"
	viaRequest = "agora" // as a REQUEST
)

// delivery is a row of hub_delivery.
type delivery struct {
	message, sender, receiver int64
	size                      int64
	state                     state
	via                       string
	handed, acked             int64
	result                    string
}

const (
	deliveryTable   = "hub_delivery"
	deliveryColumns = "message, sender, receiver, size, state, via, handed, acked, result"
	// joinedDelivery are the same columns in a join where the table has the name d.
	joinedDelivery = "d.message, d.sender, d.receiver, d.size, d.state, d.via, d.handed, d.acked, d.result"
)

func (d delivery) values() []any {
	return []any{d.message, d.sender, d.receiver, d.size, int64(d.state), d.via, d.handed, d.acked, d.result}
}

func (d *delivery) fields() []any {
	return []any{&d.message, &d.sender, &d.receiver, &d.size, &d.state, &d.via, &d.handed, &d.acked, &d.result}
}

// received reports whether the receiver was given the message, by a stream, a poll or an attempt at its webhook.
func (d delivery) received() bool { return d.handed > 0 }

func insertDelivery(tx relay.ExtTx, d delivery) error {
	return gateway.Exec(tx, "INSERT INTO hub_delivery ("+deliveryColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(deliveryTable, d.values())...)
}

func updateDelivery(tx relay.ExtTx, d delivery) error {
	return gateway.Exec(tx, "UPDATE hub_delivery SET message = ?, sender = ?, receiver = ?, size = ?, state = ?, via = ?, "+
		"handed = ?, acked = ?, result = ?, sum = ? WHERE message = ?",
		append(gateway.WithSum(deliveryTable, d.values()), d.message)...)
}

// deliveries returns the rows that a SELECT of deliveryColumns finds.
func deliveries(q relay.Querier, text string, args ...any) (all []delivery, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var d delivery
		err := scan(d.fields()...)
		all = append(all, d)
		return err
	}, text, args...)
	return all, err
}

// queuedFor returns the messages that are queued for an agent, the oldest first.
func queuedFor(q relay.Querier, agent int64) ([]delivery, error) {
	return deliveries(q, "SELECT "+deliveryColumns+" FROM hub_delivery WHERE receiver = ? AND state = 0 "+
		"ORDER BY message", agent)
}

// deliveryOf returns the delivery of a message. If the message was removed, it returns the zero delivery.
func deliveryOf(q relay.Querier, message int64) (d delivery, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(d.fields()...) },
		"SELECT "+deliveryColumns+" FROM hub_delivery WHERE message = ?", message)
	return d, err
}

// result is what is known of a delivery beside its state. It is the JSON of the column result.
type result struct {
	Code     string          `json:"code,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	Response json.RawMessage `json:"response,omitempty"` // the receiver's reply; null: it was not one of the protocol
}

// text returns the RFC 8785 form of r. Its members are written in the order of their names.
func (r result) text() string {
	if r.Code == "" && r.Detail == "" && r.Response == nil {
		return ""
	}
	return string(jsontext.Compact(r))
}

// decodeResult returns the content of the column result.
func (d delivery) decodeResult() (r result) {
	if d.result != "" {
		// The hub has written this text. `agora check` finds a text that was changed.
		_ = json.Unmarshal([]byte(d.result), &r)
	}
	return r
}

// The counters of the numbers of agents and messages.
const (
	agentCounter   = "hub_agent"
	messageCounter = "hub_message"
)

const (
	entryTable   = "hub_entry"
	clockTable   = "hub_clock"
	clockColumns = "id, ts"
)

func insertEntry(tx relay.ExtTx, agent, message int64) error {
	return gateway.Exec(tx, "INSERT INTO hub_entry (agent, message, sum) VALUES (?, ?, ?)",
		gateway.WithSum(entryTable, []any{agent, message})...)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
