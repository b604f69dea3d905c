package relay

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/replay"
)

const (
	// nonceLifetime is how long a nonce is remembered at least. A token may be used up to a minute before its ts, and
	// is valid until a minute after its ts.
	nonceLifetime = 2 * ReadSkew
	// maxNonces is how many nonces a generation holds. There are two generations, which take 40 MB. This is enough for
	// 4369 reads a second.
	maxNonces = 1 << 19
)

// nonceMemory is a Nonces in the memory of this process. It never forgets a nonce early to make room. So a client that
// fills the memory can stop others from reading for at most two minutes, but can never make a used token valid again. A
// relay with another Nonces still uses a nonceMemory, to check the times of tokens.
type nonceMemory struct {
	started time.Time // rounded down to a millisecond, the precision in which clients write times
	max     int       // how many nonces a generation holds

	mu         sync.Mutex
	latest     time.Time // the latest time that the clock has shown
	fresh, old map[[16]byte]struct{}
	rotatedAt  time.Time // when the fresh generation began
}

func newNonceMemory(now time.Time) *nonceMemory {
	return &nonceMemory{started: now.Truncate(time.Millisecond), latest: now, max: maxNonces,
		fresh: map[[16]byte]struct{}{}, rotatedAt: now}
}

// acceptsTime reports whether a token with this ts may be accepted. Its ts must be within ReadSkew of now, and not
// before the start, because the nonces that were used before the start are not known.
func (t *nonceMemory) acceptsTime(ts, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acceptsTimeLocked(ts, now)
}

// acceptsTimeLocked does the work of acceptsTime. The caller holds t.mu. It compares instants, because a difference
// between two times saturates. The ts must be less than a minute before the latest time that the clock has shown. The
// nonces that are forgotten were used at least two minutes before that time. So if the clock is set back, no used token
// becomes valid again. If the clock is set back by more than replay.StepBack, its time before is taken to have been
// wrong. Otherwise no client could read until the clock has caught up.
func (t *nonceMemory) acceptsTimeLocked(ts, now time.Time) bool {
	if now.After(t.latest) || now.Before(t.latest.Add(-replay.StepBack)) {
		t.latest = now
	}
	return !ts.Before(t.started) && ts.After(t.latest.Add(-ReadSkew)) && ts.Before(now.Add(ReadSkew))
}

// Use implements Nonces. It refuses with CodeUnavailable if there is no room to remember id.
func (t *nonceMemory) Use(_ context.Context, id [16]byte, ts, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.acceptsTimeLocked(ts, now) { // other requests have moved the clock on since this request was first checked
		return ErrReadTime
	}
	if age := t.latest.Sub(t.rotatedAt); age >= nonceLifetime || age < 0 {
		t.fresh, t.old, t.rotatedAt = map[[16]byte]struct{}{}, t.fresh, t.latest
	}
	_, isFresh := t.fresh[id]
	_, isOld := t.old[id]
	if isFresh || isOld {
		return ErrReadUsed
	}
	if len(t.fresh) >= t.max {
		e := envelope.Errorf(envelope.CodeUnavailable, "the relay's memory for used tokens is full; "+
			"sign the request again after the time in Retry-After")
		e.RetryAfter = t.rotatedAt.Add(nonceLifetime).Sub(t.latest)
		return e
	}
	t.fresh[id] = struct{}{}
	return nil
}

// Limits of a generation of readers. There are two generations. The first limit is for all readers, the second one for
// the readers from one network at an open relay.
const (
	maxReaders           = 1 << 14
	maxReadersPerNetwork = 1 << 10
)

// presence remembers who has signed a read in the last minutes. These agents are online (PROTOCOL §6). It is kept only
// in memory. After a restart, an agent is online again with its next poll. If more agents sign reads than presence can
// hold, some of them are shown as offline.
type presence struct {
	mu         sync.Mutex
	fresh, old map[didkey.DID]time.Time
	byNetwork  map[netip.Prefix]int // how many of fresh came from each network
	rotatedAt  time.Time
	unreported map[didkey.DID]time.Time // marked since the last report; nil: reports are not used
}

// mark records that reader has signed a read. It keeps only the minute. An exact time of a poll could show when a
// private message was delivered.
func (p *presence) mark(reader didkey.DID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rotate(now)
	p.add(reader, now)
}

// markFromNetwork does the same as mark, and counts the reader for its network.
func (p *presence) markFromNetwork(reader didkey.DID, network netip.Prefix, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rotate(now)
	if p.hasRoom(reader, network) && p.add(reader, now) {
		p.byNetwork[network]++
	}
}

// wouldMark reports whether markFromNetwork would change anything.
func (p *presence) wouldMark(reader didkey.DID, network netip.Prefix, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rotate(now)
	return !p.fresh[reader].Equal(now.Truncate(time.Minute)) && p.hasRoom(reader, network)
}

// rotate begins a new generation when it is time. The caller holds p.mu.
func (p *presence) rotate(now time.Time) {
	if age := now.Sub(p.rotatedAt); p.fresh == nil || age >= OnlineWithin || age < 0 {
		p.fresh, p.old, p.byNetwork, p.rotatedAt = map[didkey.DID]time.Time{}, p.fresh, map[netip.Prefix]int{}, now
	}
}

// hasRoom reports whether a reader may be marked from this network. The caller holds p.mu.
func (p *presence) hasRoom(reader didkey.DID, network netip.Prefix) bool {
	_, known := p.fresh[reader]
	return known || p.byNetwork[network] < maxReadersPerNetwork
}

// add records a reader and reports whether it is new in this generation. The caller holds p.mu.
func (p *presence) add(reader didkey.DID, now time.Time) (isNew bool) {
	minute := now.Truncate(time.Minute)
	before, known := p.fresh[reader]
	if !known && len(p.fresh) >= maxReaders {
		return false
	}
	p.fresh[reader] = minute
	if p.unreported != nil && !before.Equal(minute) && len(p.unreported) < admission.MaxReported {
		p.unreported[reader] = minute
	}
	return !known
}

// report returns the readers that were marked since the last report. The first call returns nil and starts the
// recording.
func (p *presence) report() (seen map[didkey.DID]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unreported == nil || len(p.unreported) > 0 {
		seen, p.unreported = p.unreported, map[didkey.DID]time.Time{}
	}
	return seen
}

// applyRemote records the readers that other nodes have seen. Those nodes have already counted them for their networks.
func (p *presence) applyRemote(seen map[didkey.DID]time.Time, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rotate(now)
	for reader, at := range seen {
		if at.After(now) { // the clock of the other node is ahead
			at = now
		}
		at = at.Truncate(time.Minute)
		before, known := p.fresh[reader]
		if at.After(before) && (known || len(p.fresh) < maxReaders) {
			p.fresh[reader] = at
		}
	}
}

// lastSeen returns when reader last signed a read. It returns the zero time if that was not recently.
func (p *presence) lastSeen(reader didkey.DID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := p.fresh[reader]; ok {
		return at
	}
	return p.old[reader]
}
