package hub

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file counts who fills the queue and the history of an agent (G-37). docs/HUB.md ("Limits") has the rules.

// How well an agent knows a source.
const (
	stranger = iota
	heard    // the agent was handed a message of it
	written  // the agent has sent a message to it
)

// peer is a row of hub_peer.
type peer struct {
	agent, source                          int64
	known, queued, kept, keptBytes, usedAt int64
}

const (
	originTable     = "hub_origin"
	originColumns   = "agent, source"
	peerTable       = "hub_peer"
	peerColumns     = "agent, source, known, queued, kept, kept_bytes, used"
	receivedTable   = "hub_received"
	receivedColumns = "agent, message, source"
)

func (p peer) values() []any {
	return []any{p.agent, p.source, p.known, p.queued, p.kept, p.keptBytes, p.usedAt}
}

func (p *peer) fields() []any {
	return []any{&p.agent, &p.source, &p.known, &p.queued, &p.kept, &p.keptBytes, &p.usedAt}
}

// peerOf returns what an agent has to do with a source.
func peerOf(q relay.Querier, agent, source int64) (peer, error) {
	p := peer{agent: agent, source: source}
	err := q.Query(func(scan gateway.Scanner) error { return scan(p.fields()...) },
		"SELECT "+peerColumns+" FROM hub_peer WHERE agent = ? AND source = ?", agent, source)
	return p, err
}

// changePeer applies change to what an agent has to do with a source.
func (o *op) changePeer(agent, source int64, change func(*peer)) error {
	p, err := peerOf(o, agent, source)
	if err != nil {
		return err
	}
	before := p
	change(&p)
	if p == before {
		return nil
	}
	return gateway.Exec(o.ExtTx, "INSERT INTO hub_peer ("+peerColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "+
		"ON CONFLICT (agent, source) DO UPDATE SET known = excluded.known, queued = excluded.queued, kept = excluded.kept, "+
		"kept_bytes = excluded.kept_bytes, used = excluded.used, sum = excluded.sum", gateway.WithSum(peerTable, p.values())...)
}

// use records that p is used, as exactly as is needed.
func (p *peer) use(now int64) {
	if p.usedAt <= now-int64(usedPrecision) {
		p.usedAt = now
	}
}

// sourceOf returns the source of an agent.
func sourceOf(q relay.Querier, agent int64) (int64, error) {
	source := agent
	err := q.Query(func(scan gateway.Scanner) error { return scan(&source) },
		"SELECT source FROM hub_origin WHERE agent = ?", agent)
	return source, err
}

// setSource records the source of a new agent; 0: the agent counts alone.
func (o *op) setSource(agent, source int64) error {
	if source == 0 {
		return nil
	}
	return gateway.Exec(o.ExtTx, "INSERT INTO hub_origin ("+originColumns+", sum) VALUES (?, ?, ?)",
		gateway.WithSum(originTable, []any{agent, source})...)
}

// receivedFrom returns the source of a message in the history of its receiver. found is false for a message that was
// stored by version 0.1.0.
func receivedFrom(q relay.Querier, d delivery) (source int64, found bool, err error) {
	err = q.Query(func(scan gateway.Scanner) error { found = true; return scan(&source) },
		"SELECT source FROM hub_received WHERE agent = ? AND message = ?", d.receiver, d.message)
	return source, found, err
}

// enqueued counts a new message, which is queued.
func (o *op) enqueued(d delivery, source int64) error {
	if err := gateway.Exec(o.ExtTx, "INSERT INTO hub_received ("+receivedColumns+", sum) VALUES (?, ?, ?, ?)",
		gateway.WithSum(receivedTable, []any{d.receiver, d.message, source})...); err != nil {
		return err
	}
	if err := o.changePeer(d.receiver, source, func(p *peer) {
		p.queued++
		p.kept++
		p.keptBytes += d.size
		p.use(o.Now)
	}); err != nil {
		return err
	}
	to, err := sourceOf(o, d.receiver)
	if err != nil {
		return err
	}
	return o.changePeer(d.sender, to, func(p *peer) {
		p.known = written
		p.use(o.Now)
	})
}

// dequeued counts a message that has left the queue.
func (o *op) dequeued(d delivery) error {
	source, found, err := receivedFrom(o, d)
	if err != nil || !found {
		return err
	}
	return o.changePeer(d.receiver, source, func(p *peer) {
		p.queued--
		if d.received() {
			p.known = max(p.known, heard)
		}
	})
}

// dropped counts a message that has left the history of its receiver.
func (o *op) dropped(d delivery) error {
	source, found, err := receivedFrom(o, d)
	if err != nil || !found {
		return err
	}
	if err := gateway.Exec(o.ExtTx, "DELETE FROM hub_received WHERE agent = ? AND message = ?", d.receiver,
		d.message); err != nil {
		return err
	}
	return o.changePeer(d.receiver, source, func(p *peer) {
		p.kept--
		p.keptBytes -= d.size
		if d.state == queued {
			p.queued--
		}
	})
}

// surplus returns messages that leave the full history of an agent next, the first ones first. Strangers have at most half
// of it: if they have more, the messages of the stranger that has most leave it. Otherwise the oldest messages do.
// Messages that are queued for the agent stay.
func (o *op) surplus(u usage) ([]delivery, error) {
	source, found, err := o.largestStranger(u)
	if err != nil {
		return nil, err
	}
	if found {
		rows, err := deliveries(o, "SELECT "+joinedDelivery+" FROM hub_received v JOIN hub_delivery d ON d.message = v.message "+
			"WHERE v.agent = ? AND v.source = ? AND d.state <> 0 AND "+notRequest+" ORDER BY v.message LIMIT ?", u.agent, source, trimBatch)
		if err != nil || len(rows) > 0 {
			return rows, err
		}
	}
	return o.oldest(u.agent, trimBatch)
}

// largestStranger looks at the sources to which an agent never wrote. It returns the one that has most of the agent's
// history. found is false if all of them together have less than half of it.
func (o *op) largestStranger(u usage) (source int64, found bool, err error) {
	var most, kept, bytes int64
	byBytes := u.kept <= maxKept
	err = o.Query(func(scan gateway.Scanner) error {
		var p peer
		if err := scan(p.fields()...); err != nil {
			return err
		}
		kept, bytes = kept+p.kept, bytes+p.keptBytes
		has := p.kept
		if byBytes {
			has = p.keptBytes
		}
		if has > most {
			source, most = p.source, has
		}
		return nil
	}, "SELECT "+peerColumns+" FROM hub_peer WHERE agent = ? AND known < 2 AND kept > 0 ORDER BY source", u.agent)
	if byBytes {
		return source, bytes > maxKeptBytes/2, err
	}
	return source, kept > maxKept/2, err
}

// forgetPeers removes what is known of sources that an agent had nothing to do with for a long time.
func (o *op) forgetPeers() (more bool, err error) {
	removed, err := o.Exec("DELETE FROM hub_peer WHERE (agent, source) IN (SELECT agent, source FROM hub_peer "+
		"WHERE queued = 0 AND kept = 0 AND used < ? ORDER BY used LIMIT ?)", o.Now-int64(unusedAfter), sweepBatch)
	return removed == sweepBatch, err
}
