package ledger

import (
	"crypto/rand"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
)

// Log is what a ledger keeps of a log (docs/PROOFS.md).
type Log struct {
	Tree   proof.Tree
	Latest time.Time // the latest arrival in the log; zero: none
}

// LogChange is what a group adds to the log. Its first leaf has the index Growth.First.
type LogChange struct {
	*proof.Growth
	Leaves []proof.Hash
	Latest time.Time // Log.Latest after the group
}

// logStep is the log before a group of the open transaction.
type logStep struct {
	end relay.Seq // number of the last event before the group
	log Log
}

// KeepLog makes the ledger append a leaf to a log for each message that it accepts from now on.
func (l *Ledger) KeepLog(log Log) { l.log = &log }

// undoLog undoes the groups with events after end.
func (l *Ledger) undoLog(end relay.Seq) {
	for n := len(l.logSteps); n > 0 && l.logSteps[n-1].end >= end; n-- {
		*l.log = l.logSteps[n-1].log
		l.logSteps = l.logSteps[:n-1]
	}
}

// errClockSetBack rejects messages while the clock is so far back that their leaves would be evidence against the relay.
var errClockSetBack = envelope.NotStored("the relay's clock was set back by more than 15 minutes, so its log cannot "+
	"continue; nothing was stored", time.Minute)

// checkLog refuses e if its leaf would have a time too far before that of an earlier leaf.
func (g *group) checkLog(e relay.Entry) error { return g.CheckClock(e.Received) }

// CheckClock returns an error if the log cannot continue, because the clock was set back too far. now is its time.
func (l *Ledger) CheckClock(now time.Time) error {
	if l.log != nil && now.Before(l.log.Latest.Add(-replay.StepBack)) {
		return errClockSetBack
	}
	return nil
}

// addLeaf gives the last event of g a leaf. hash is that of its envelope, or zero. h is the event's thread; nil: none.
// isNew says that the event opens it.
func (g *group) addLeaf(hash proof.Hash, h *groupThread, isNew bool) {
	if g.log == nil {
		return
	}
	e := &g.events[len(g.events)-1]
	if hash == (proof.Hash{}) {
		hash = e.Envelope.Hash()
	}
	leaf := &proof.Leaf{Event: hash, Received: e.Received.UTC().Truncate(time.Millisecond)}
	if isNew {
		h.Request = leaf.Event
	}
	if h != nil {
		leaf.Request = h.Request
	}
	e.Leaf = leaf
}

// growLog appends the leaves of g to the log. It returns nil if there are none.
func (g *group) growLog() *LogChange {
	if g.log == nil || len(g.events) == 0 {
		return nil
	}
	g.logSteps = append(g.logSteps, logStep{g.events[0].Seq - 1, *g.log})
	c := &LogChange{Latest: g.log.Latest, Leaves: make([]proof.Hash, len(g.events))}
	texts := make([]string, len(g.events))
	salts := make([]byte, len(g.events)*len(proof.Leaf{}.Salt))
	rand.Read(salts) // never fails (crypto/rand)
	for i := range g.events {
		e := &g.events[i]
		salts = salts[copy(e.Leaf.Salt[:], salts):]
		texts[i] = e.Leaf.String()
		c.Leaves[i] = tlog.RecordHash([]byte(texts[i]))
		e.LeafIndex = g.log.Tree.Size + int64(i)
		if e.Leaf.Received.After(c.Latest) {
			c.Latest = e.Leaf.Received
		}
	}
	c.Growth = g.log.Tree.Grow(c.Leaves)
	g.log.Latest = c.Latest
	for i, o := range g.owners {
		o.Receipt.Logged = &relay.Logged{Index: g.events[i].LeafIndex, Leaf: texts[i], Growth: c.Growth}
	}
	return c
}
