package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
)

// own is the relay itself. It is the peer of work that no request has started.
var own = relay.Peer{Local: true}

// Core is what the gateways of one relay share.
type Core struct {
	Relay    *relay.Relay
	Key      didkey.Key // gateway.key
	Secrets  Secrets
	Outgoing OutgoingOptions // for NewOutgoing; a gateway may set PerHost
	Build    string          // the program's version
	Log      *slog.Logger

	sourceKey []byte // for Source
}

// CoreOptions are the settings of a Core.
type CoreOptions struct {
	Relay    *relay.Relay    // over a store with Extension
	Key      didkey.Key      // gateway.key
	Operator string          // the operator's key
	Outgoing OutgoingOptions // NewCore sets Origin and UserAgent
	Build    string          // the program's version
	Log      *slog.Logger    // nil: slog.Default
}

// NewCore returns a Core, and brings the shared tables up to date:
//
//   - It records the DID of the gateway key. If the database was used with another one, NewCore fails (G-31).
//   - It stores the hash of the operator's key, in place of an earlier one.
//   - If the database is a restored backup, all counters skip numbers (G-30).
func NewCore(ctx context.Context, o CoreOptions) (*Core, error) {
	if !operatorForm.MatchString(o.Operator) {
		return nil, errors.New("the file operator.key must have one line: op_ and 43 letters, digits, _ or -; " +
			"without the file, the next start creates a new key")
	}
	secrets, err := NewSecrets(o.Key)
	if err != nil {
		return nil, err
	}
	sourceKey, err := o.Key.Derive("agora source key")
	if err != nil {
		return nil, err
	}
	c := &Core{Relay: o.Relay, Key: o.Key, Secrets: secrets, Outgoing: o.Outgoing, Build: o.Build, Log: o.Log,
		sourceKey: sourceKey}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Outgoing.Origin = o.Relay.Origin()
	// A product version cannot contain brackets (RFC 9110 §10.1.5), but that of a development build does.
	c.Outgoing.UserAgent = fmt.Sprintf("agora/%s (+%s)", strings.Trim(o.Build, "()"), o.Relay.Origin())
	err = o.Relay.Update(ctx, own, func(tx relay.ExtTx) error {
		return errors.Join(c.recordDID(tx), c.recordEpoch(tx), recordOperator(tx, o.Operator))
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

var operatorForm = regexp.MustCompile(`^op_[A-Za-z0-9_-]{43}$`)

// Names in gate_meta.
const (
	metaDID   = "did"   // the DID of gateway.key
	metaEpoch = "epoch" // the epoch of the database when its counters were last used
)

var metaTable = Table{Name: "gate_meta", Key: 1, Columns: []string{"name", "value"}}

// meta returns a value of gate_meta; empty: there is none.
func meta(q relay.Querier, name string) (value string, err error) {
	err = q.Query(func(scan func(...any) error) error { return scan(&value) },
		"SELECT value FROM gate_meta WHERE name = ?", name)
	return value, err
}

func setMeta(tx relay.ExtTx, name, value string) error {
	_, err := tx.Exec("INSERT INTO gate_meta (name, value, sum) VALUES (?, ?, ?) "+
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value, sum = excluded.sum",
		name, value, Sum("gate_meta", name, value))
	return err
}

// RecordedDID returns the DID of the gateway.key with which the database was used. It is empty if the database was
// never used with one.
func RecordedDID(q relay.Querier) (didkey.DID, error) {
	did, err := meta(q, metaDID)
	return didkey.DID(did), err
}

// recordDID stores the DID of the gateway key, unless the database was used with another one.
func (c *Core) recordDID(tx relay.ExtTx) error {
	switch recorded, err := RecordedDID(tx); {
	case err != nil:
		return err
	case recorded == "":
		return setMeta(tx, metaDID, string(c.Key.DID()))
	case recorded != c.Key.DID():
		return fmt.Errorf("the file gateway.key has the identity %s, but this database was used with the gateway.key of "+
			"%s, and has secrets that only that key can decrypt; put that file back from a backup", c.Key.DID(), recorded)
	}
	return nil
}

// recordEpoch stores the epoch of the database. If it is not the recorded one, all counters skip numbers.
func (c *Core) recordEpoch(tx relay.ExtTx) error {
	epoch := strconv.FormatUint(uint64(c.Relay.Epoch()), 10)
	recorded, err := meta(tx, metaEpoch)
	if err != nil || recorded == epoch {
		return err
	}
	if recorded != "" {
		if err := skip(tx); err != nil {
			return err
		}
	}
	return setMeta(tx, metaEpoch, epoch)
}

// recordOperator makes key the only key of the operator.
func recordOperator(tx relay.ExtTx, key string) error {
	if err := DropKeys(tx, Operator, 0, ""); err != nil {
		return err
	}
	return AddKey(tx, key, Holder{Kind: Operator})
}

// Run removes what has expired, once a minute, until ctx ends.
func (c *Core) Run(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		for _, s := range sweeps {
			if err := c.sweep(ctx, s); err != nil && ctx.Err() == nil {
				c.Log.Error("expired rows cannot be removed now; the relay tries again in a minute", "table", s.table,
					"err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes the expired rows of one table.
type sweep struct {
	table  string
	keep   time.Duration // how long a row is kept after the time that is stored in it
	due    string        // a SELECT that finds a row if one has a time that is not later than the parameter
	remove func(tx relay.ExtTx, until time.Time, limit int) (removed int64, err error)
}

var sweeps = []sweep{
	{"gate_key", 0, "SELECT 1 FROM gate_key WHERE expires > 0 AND expires <= ? LIMIT 1", sweepKeys},
	{"gate_answer", 0, "SELECT 1 FROM gate_answer WHERE expires <= ? LIMIT 1", sweepAnswers},
	{"gate_outbox", deadLife, "SELECT 1 FROM gate_outbox WHERE dead > 0 AND dead <= ? LIMIT 1", sweepDead},
}

// sweepStep is how many rows one Update removes, so that posts do not wait long.
const sweepStep = 100

func (c *Core) sweep(ctx context.Context, s sweep) error {
	// An Update is written to disk even if it removes nothing. So the relay first looks for something to remove.
	until, due := c.Relay.Now().Add(-s.keep), false
	err := c.Relay.View(ctx, own, func(q relay.Querier) error {
		return q.Query(func(func(...any) error) error { due = true; return nil }, s.due, until.UnixNano())
	})
	for removed := int64(sweepStep); due && err == nil && removed == sweepStep; {
		err = c.Relay.Update(ctx, own, func(tx relay.ExtTx) (err error) {
			removed, err = s.remove(tx, until, sweepStep)
			return err
		})
	}
	return err
}
