package admin

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

//go:embed 0001_initial.sql
var initialSchema string

// Extension has the table of the operator's bans.
var Extension = relay.Extension{Name: "admin", Migrations: []string{initialSchema}, Check: check}

// Ban is a client that the operator has banned.
type Ban struct {
	Subject  string     `json:"subject"` // a DID, or a network such as 192.0.2.0/24, in canonical form
	Reason   string     `json:"reason,omitempty"`
	Created  *time.Time `json:"created,omitempty"` // nil: it is a setting of agora serve
	Expires  *time.Time `json:"expires,omitempty"` // nil: never
	Settings bool       `json:"settings,omitempty"`
}

// Limits on bans.
const (
	maxBans   = 10_000
	maxReason = 500 // bytes
)

// ParseSubject returns the canonical form of who is banned: a DID, an address or a network.
func ParseSubject(text string) (string, error) {
	if did, err := didkey.Parse(text); err == nil {
		return string(did), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(text); err == nil {
			prefix, err = addr.Unmap().Prefix(addr.Unmap().BitLen())
		}
	}
	if err != nil || prefix.Addr().Is4In6() || prefix.Addr().Zone() != "" {
		return "", fmt.Errorf("want an address or network such as 192.0.2.7 or 2001:db8::/32, or an identity such as did:key:z6Mk…")
	}
	return prefix.Masked().String(), nil
}

// Nodes lets the nodes of a relay tell each other that the bans have changed. The zero value is for a single node.
type Nodes struct {
	Announce  func(context.Context) error // tells the other nodes
	Announced <-chan struct{}             // gets a value when another node may have changed the bans
}

// Bans are the bans of a relay: those of its settings, and those that the operator has set while it runs. The latter are
// kept in the database, and end when they expire. Several nodes of a relay share them: what is changed at one node is in
// force at the others in a moment, or within a minute if the announcement is lost.
type Bans struct {
	relay *relay.Relay
	nodes Nodes

	mu       sync.Mutex // held while bans change
	settings relay.Bans
	stored   map[string]Ban
	changed  chan struct{} // has room for one; tells Run that the next expiry may be sooner
}

// local is the peer of the operator.
var local = relay.Peer{Local: true, Operator: true}

// OpenBans reads the stored bans, and puts them in force together with those of the settings.
func OpenBans(ctx context.Context, r *relay.Relay, settings relay.Bans, nodes Nodes) (*Bans, error) {
	b := &Bans{relay: r, nodes: nodes, settings: settings, changed: make(chan struct{}, 1)}
	if err := b.load(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// load reads the stored bans, and puts them in force. The caller holds mu, or is the only user.
func (b *Bans) load(ctx context.Context) error {
	stored := map[string]Ban{}
	err := b.relay.View(ctx, local, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var ban Ban
			var created, expires int64
			if err := scan(&ban.Subject, &ban.Reason, &created, &expires); err != nil {
				return err
			}
			ban.setTimes(created, expires)
			stored[ban.Subject] = ban
			return nil
		}, "SELECT subject, reason, created, expires FROM admin_ban")
	})
	if err != nil {
		return err
	}
	b.stored = stored
	b.apply()
	return nil
}

func (b *Ban) setTimes(created, expires int64) {
	at := time.Unix(0, created).UTC()
	b.Created = &at
	if expires != 0 {
		end := time.Unix(0, expires).UTC()
		b.Expires = &end
	}
}

// apply puts the bans in force that have not expired. The caller holds mu, or is the only user.
func (b *Bans) apply() {
	all := relay.Bans{Networks: slices.Clone(b.settings.Networks), Agents: slices.Clone(b.settings.Agents)}
	now := b.relay.Now()
	for subject, ban := range b.stored {
		if ban.Expires != nil && !now.Before(*ban.Expires) {
			continue
		}
		if did, err := didkey.Parse(subject); err == nil {
			all.Agents = append(all.Agents, did)
		} else if network, err := netip.ParsePrefix(subject); err == nil {
			all.Networks = append(all.Networks, network)
		}
	}
	b.relay.Gate().SetBans(all)
}

// SetSettings replaces the bans of the settings.
func (b *Bans) SetSettings(settings relay.Bans) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settings = settings
	b.apply()
}

// Add stores a ban and puts it in force. It replaces an earlier ban of the same subject. expires is zero for a ban
// without end. When Add has returned, the polls and streams of the banned client end, and no further post of it is
// accepted.
func (b *Bans) Add(ctx context.Context, subject, reason string, expires time.Time) (Ban, error) {
	subject, err := ParseSubject(subject)
	if err != nil {
		return Ban{}, invalid("%v", err)
	}
	now := b.relay.Now()
	switch {
	case len(reason) > maxReason:
		return Ban{}, invalid("the reason may have at most %d bytes", maxReason)
	case !expires.IsZero() && !expires.After(now):
		return Ban{}, invalid("the ban would have expired already")
	case subject == string(b.relay.DID()):
		return Ban{}, invalid("this is the identity of the relay itself")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.stored[subject]; !known && len(b.stored) >= maxBans {
		return Ban{}, invalid("there are %d bans already; remove some, or ban larger networks", maxBans)
	}
	var end int64
	if !expires.IsZero() {
		end = expires.UnixNano()
	}
	ban := Ban{Subject: subject, Reason: reason}
	ban.setTimes(now.UnixNano(), end)
	err = b.relay.Update(ctx, local, func(tx relay.ExtTx) error {
		_, err := tx.Exec("INSERT INTO admin_ban (subject, reason, created, expires) VALUES (?, ?, ?, ?) ON CONFLICT (subject) "+
			"DO UPDATE SET reason = excluded.reason, created = excluded.created, expires = excluded.expires",
			subject, reason, now.UnixNano(), end)
		return err
	})
	if err != nil {
		return Ban{}, err
	}
	b.stored[subject] = ban
	b.apply()
	b.wake()
	b.announce(ctx)
	return ban, nil
}

// Remove ends a ban. Errors: CodeNotFound if the operator has not set it.
func (b *Bans) Remove(ctx context.Context, subject string) error {
	subject, err := ParseSubject(subject)
	if err != nil {
		return invalid("%v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.load(ctx); err != nil { // another node may have set the ban
		return err
	}
	if _, known := b.stored[subject]; !known {
		if b.isSetting(subject) {
			return invalid("this ban is a setting of agora serve; remove it from --ban and reload")
		}
		return envelope.Errorf(envelope.CodeNotFound, "there is no ban of exactly this; agora admin bans lists them")
	}
	if err := b.drop(ctx, "DELETE FROM admin_ban WHERE subject = ?", subject); err != nil {
		return err
	}
	b.announce(ctx)
	return nil
}

// announce tells the other nodes that the bans have changed. If it fails, they look within a minute.
func (b *Bans) announce(ctx context.Context) {
	if b.nodes.Announce != nil {
		_ = b.nodes.Announce(ctx) // the store has logged it
	}
}

// drop removes stored bans with a statement. The caller holds mu.
func (b *Bans) drop(ctx context.Context, text string, args ...any) error {
	err := b.relay.Update(ctx, local, func(tx relay.ExtTx) error {
		_, err := tx.Exec(text, args...)
		return err
	})
	if err != nil {
		return err
	}
	return b.load(ctx)
}

func (b *Bans) isSetting(subject string) bool {
	return slices.Contains(b.settings.Agents, didkey.DID(subject)) ||
		slices.ContainsFunc(b.settings.Networks, func(n netip.Prefix) bool { return n.Masked().String() == subject })
}

// List returns all bans that are in force: those of the settings first, then the newest.
func (b *Bans) List() []Ban {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := []Ban{}
	for _, did := range b.settings.Agents {
		all = append(all, Ban{Subject: string(did), Settings: true})
	}
	for _, network := range b.settings.Networks {
		all = append(all, Ban{Subject: network.Masked().String(), Settings: true})
	}
	var stored []Ban
	now := b.relay.Now()
	for _, ban := range b.stored {
		if ban.Expires == nil || now.Before(*ban.Expires) {
			stored = append(stored, ban)
		}
	}
	slices.SortFunc(stored, func(x, y Ban) int { return y.Created.Compare(*x.Created) })
	return append(all, stored...)
}

func (b *Bans) wake() {
	select {
	case b.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// maxSleep is how long Run sleeps at most, in case the clock is set.
const maxSleep = time.Minute

// Run ends bans when they expire, and looks for those of other nodes, until ctx ends.
func (b *Bans) Run(ctx context.Context) {
	for {
		timer := time.NewTimer(b.dropExpired(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-b.changed:
			timer.Stop()
		case <-b.nodes.Announced:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// dropExpired ends the bans that have expired, and returns when to look again. If the database does not work now, the
// bans that are known stay as they are, and their rows are removed later.
func (b *Bans) dropExpired(ctx context.Context) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.relay.Now()
	failed := b.load(ctx)
	if _, expired := b.untilNext(now); expired {
		// The statement names no subject: another node may have banned an expired one again.
		failed = b.drop(ctx, "DELETE FROM admin_ban WHERE expires > 0 AND expires <= ?", now.UnixNano())
	}
	left, _ := b.untilNext(now)
	if failed != nil {
		b.apply() // without those that have expired
		return min(left, time.Second)
	}
	return left
}

// untilNext returns how long it takes until the next ban expires, at most maxSleep. expired means that one has expired.
func (b *Bans) untilNext(now time.Time) (left time.Duration, expired bool) {
	left = maxSleep
	for _, ban := range b.stored {
		switch {
		case ban.Expires == nil:
		case now.Before(*ban.Expires):
			left = min(left, ban.Expires.Sub(now))
		default:
			expired = true
		}
	}
	return left, expired
}

// check reports the bans that no relay has written.
func check(q relay.Querier, found func(where, what string)) error {
	return q.Query(func(scan func(...any) error) error {
		var subject, reason string
		var created, expires int64
		if err := scan(&subject, &reason, &created, &expires); err != nil {
			return err
		}
		canonical, err := ParseSubject(subject)
		if err != nil || canonical != subject || len(reason) > maxReason || expires != 0 && expires <= created {
			found(fmt.Sprintf("admin_ban subject=%q", subject), "is not a ban that a relay has stored")
		}
		return nil
	}, "SELECT subject, reason, created, expires FROM admin_ban")
}

func invalid(format string, args ...any) error {
	return envelope.Errorf(envelope.CodeInvalidRequest, format, args...)
}
