package channel

import (
	"errors"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file reads and writes the rows of channels. Each row type has the columns of its table, in their order, without
// the checksum. The functions that find a row return the zero row if there is none. inbox_rows.go has the other tables.

// The counters of the rows' numbers. eventCounter has a number for each channel.
const (
	channelCounter  = "channel_channel"
	partyCounter    = "channel_party"
	deliveryCounter = "channel_delivery"
	attemptCounter  = "channel_attempt"
	inboxCounter    = "channel_inbox"
	requestCounter  = "channel_request"
	outCounter      = "channel_out"
)

// room is a row of channel_channel.
type room struct {
	n                int64
	id               string
	name, context    string
	created, deleted int64
}

const (
	roomTable   = "channel_channel"
	roomColumns = "n, id, name, context, created, deleted"
)

func (c room) values() []any { return []any{c.n, c.id, c.name, c.context, c.created, c.deleted} }

func (c *room) fields() []any {
	return []any{&c.n, &c.id, &c.name, &c.context, &c.created, &c.deleted}
}

// live reports whether the channel exists. The zero room does not.
func (c room) live() bool { return c.n != 0 && c.deleted == 0 }

func roomByID(q relay.Querier, id string) (c room, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(c.fields()...) },
		"SELECT "+roomColumns+" FROM channel_channel WHERE id = ?", id)
	return c, err
}

func roomByNumber(q relay.Querier, n int64) (c room, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(c.fields()...) },
		"SELECT "+roomColumns+" FROM channel_channel WHERE n = ?", n)
	return c, err
}

func insertRoom(tx relay.ExtTx, c room) error {
	return gateway.Exec(tx, "INSERT INTO channel_channel ("+roomColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(roomTable, c.values())...)
}

func updateRoom(tx relay.ExtTx, c room) error {
	return gateway.Exec(tx, "UPDATE channel_channel SET n = ?, id = ?, name = ?, context = ?, created = ?, deleted = ?, "+
		"sum = ? WHERE n = ?", append(gateway.WithSum(roomTable, c.values()), c.n)...)
}

// party is a row of channel_party: a member or a connection of a channel.
type party struct {
	n, channel int64
	name       string
	agent      bool // it is a connection
	url        []byte
	host       string
	mcp        string
	version    int64
	revoked    int64
}

const (
	partyTable   = "channel_party"
	partyColumns = "n, channel, name, agent, url, host, mcp, version, revoked"
)

func (p party) values() []any {
	return []any{p.n, p.channel, p.name, flag(p.agent), p.url, p.host, p.mcp, p.version, p.revoked}
}

func (p *party) fields() []any {
	return []any{&p.n, &p.channel, &p.name, &p.agent, &p.url, &p.host, &p.mcp, &p.version, &p.revoked}
}

// flag is how a column stores a bool.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// urlPlace says where the connection string of a party is stored.
func urlPlace(party int64) gateway.Place {
	return gateway.Place{Table: partyTable, Column: "url", Row: party}
}

func partyByNumber(q relay.Querier, n int64) (p party, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(p.fields()...) },
		"SELECT "+partyColumns+" FROM channel_party WHERE n = ?", n)
	return p, err
}

func partyByName(q relay.Querier, channel int64, name string) (p party, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(p.fields()...) },
		"SELECT "+partyColumns+" FROM channel_party WHERE channel = ? AND name = ?", channel, name)
	return p, err
}

// partiesOf returns the members and connections of a channel, the oldest first.
func partiesOf(q relay.Querier, channel int64) ([]party, error) {
	return parties(q, "SELECT "+partyColumns+" FROM channel_party WHERE channel = ? ORDER BY n", channel)
}

// partiesAfter returns the next members or connections of a channel whose numbers are larger than last.
func partiesAfter(q relay.Querier, channel int64, agents bool, last int64) ([]party, error) {
	return parties(q, "SELECT "+partyColumns+" FROM channel_party WHERE channel = ? AND agent = ? AND n > ? ORDER BY n LIMIT ?",
		channel, flag(agents), last, gateway.PieceRows)
}

// parties returns the rows that a SELECT of partyColumns finds.
func parties(q relay.Querier, text string, args ...any) (all []party, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var p party
		err := scan(p.fields()...)
		all = append(all, p)
		return err
	}, text, args...)
	return all, err
}

func insertParty(tx relay.ExtTx, p party) error {
	return gateway.Exec(tx, "INSERT INTO channel_party ("+partyColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(partyTable, p.values())...)
}

func updateParty(tx relay.ExtTx, p party) error {
	return gateway.Exec(tx, "UPDATE channel_party SET n = ?, channel = ?, name = ?, agent = ?, url = ?, host = ?, mcp = ?, "+
		"version = ?, revoked = ?, sum = ? WHERE n = ?", append(gateway.WithSum(partyTable, p.values()), p.n)...)
}

// presence is a row of channel_presence.
type presence struct {
	party  int64
	status string
	seen   int64
}

const (
	presenceTable   = "channel_presence"
	presenceColumns = "party, status, seen"
)

func presenceOf(q relay.Querier, party int64) (p presence, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(&p.party, &p.status, &p.seen) },
		"SELECT "+presenceColumns+" FROM channel_presence WHERE party = ?", party)
	return p, err
}

func setPresence(tx relay.ExtTx, p presence) error {
	return gateway.Exec(tx, "INSERT INTO channel_presence ("+presenceColumns+", sum) VALUES (?, ?, ?, ?) "+
		"ON CONFLICT (party) DO UPDATE SET status = excluded.status, seen = excluded.seen, sum = excluded.sum",
		gateway.WithSum(presenceTable, []any{p.party, p.status, p.seen})...)
}

// event is a row of channel_event.
type event struct {
	channel, seq int64
	id           string
	ts           int64
	party        int64
	sender       string
	agent        bool
	typ, via     string
	depth        int64
	body         string
}

const (
	eventTable   = "channel_event"
	eventColumns = "channel, seq, id, ts, party, sender, agent, type, via, depth, body"
)

func (e event) values() []any {
	return []any{e.channel, e.seq, e.id, e.ts, e.party, e.sender, flag(e.agent), e.typ, e.via, e.depth, e.body}
}

func (e *event) fields() []any {
	return []any{&e.channel, &e.seq, &e.id, &e.ts, &e.party, &e.sender, &e.agent, &e.typ, &e.via, &e.depth, &e.body}
}

func insertEvent(tx relay.ExtTx, e event) error {
	return gateway.Exec(tx, "INSERT INTO channel_event ("+eventColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(eventTable, e.values())...)
}

// updateBody replaces the body of an event. Nothing else of an event ever changes.
func updateBody(tx relay.ExtTx, e event) error {
	values := gateway.WithSum(eventTable, e.values())
	return gateway.Exec(tx, "UPDATE channel_event SET body = ?, sum = ? WHERE channel = ? AND seq = ?", e.body,
		values[len(values)-1], e.channel, e.seq)
}

// events returns the rows that a SELECT of eventColumns finds.
func events(q relay.Querier, text string, args ...any) (all []event, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var e event
		err := scan(e.fields()...)
		all = append(all, e)
		return err
	}, text, args...)
	return all, err
}

// How many bytes of events an answer has, or one longer event. The answer of a tool is built whole in memory, so it has
// fewer.
const maxPageBytes, maxToolBytes = 1 << 20, 128 << 10

// eventsPage returns the rows that a SELECT of eventColumns finds, up to maxToolBytes. more means that there are further
// ones.
func eventsPage(q relay.Querier, text string, args ...any) (all []event, more bool, err error) {
	size := 0
	err = q.Query(func(scan gateway.Scanner) error {
		var e event
		if err := scan(e.fields()...); err != nil {
			return err
		}
		if size += len(e.body); len(all) > 0 && size > maxToolBytes {
			return errPageFull
		}
		all = append(all, e)
		return nil
	}, text, args...)
	if errors.Is(err, errPageFull) {
		return all, true, nil
	}
	return all, false, err
}

var errPageFull = errors.New("the page is full")

// delivery is a row of channel_delivery.
type delivery struct{ n, channel, seq, party, depth, created int64 }

const (
	deliveryTable   = "channel_delivery"
	deliveryColumns = "n, channel, seq, party, depth, created"
)

func deliveryByNumber(q relay.Querier, n int64) (d delivery, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		return scan(&d.n, &d.channel, &d.seq, &d.party, &d.depth, &d.created)
	}, "SELECT "+deliveryColumns+" FROM channel_delivery WHERE n = ?", n)
	return d, err
}

func insertDelivery(tx relay.ExtTx, d delivery) error {
	return gateway.Exec(tx, "INSERT INTO channel_delivery ("+deliveryColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
		gateway.WithSum(deliveryTable, []any{d.n, d.channel, d.seq, d.party, d.depth, d.created})...)
}

// attempt is a row of channel_attempt.
type attempt struct{ n, delivery, made, used int64 }

const (
	attemptTable   = "channel_attempt"
	attemptColumns = "n, delivery, made, used"
)

func (a attempt) values() []any { return []any{a.n, a.delivery, a.made, a.used} }

func attemptByNumber(q relay.Querier, n int64) (a attempt, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(&a.n, &a.delivery, &a.made, &a.used) },
		"SELECT "+attemptColumns+" FROM channel_attempt WHERE n = ?", n)
	return a, err
}

func insertAttempt(tx relay.ExtTx, a attempt) error {
	return gateway.Exec(tx, "INSERT INTO channel_attempt ("+attemptColumns+", sum) VALUES (?, ?, ?, ?, ?)",
		gateway.WithSum(attemptTable, a.values())...)
}

func updateAttempt(tx relay.ExtTx, a attempt) error {
	return gateway.Exec(tx, "UPDATE channel_attempt SET n = ?, delivery = ?, made = ?, used = ?, sum = ? WHERE n = ?",
		append(gateway.WithSum(attemptTable, a.values()), a.n)...)
}
