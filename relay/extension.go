package relay

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Extension is a part of the relay that keeps tables of its own in the store's database, such as a gateway. A store is
// opened with its extensions. Their tables are covered by everything that covers the store's own: transactions, backup,
// the limit of size, and `agora check`.
type Extension struct {
	// Name is lower-case letters. The names of the extension's tables and indexes begin with it and an underscore.
	Name string
	// Migrations are SQL scripts. Each is run once, in its order, in a transaction of its own, when the store is opened.
	// A script that was released is never changed; a change is another script.
	Migrations []string
	// Check calls found for each thing that is wrong in the extension's tables. `agora check` calls it; no relay need run.
	// nil: `agora check` looks only whether the pages, tables and indexes are sound.
	Check func(q Querier, found func(where, what string)) error
}

var extensionName = regexp.MustCompile(`^[a-z]{1,32}$`)

// ValidateExtensions returns why a store cannot be opened with these extensions.
func ValidateExtensions(all []Extension) error {
	names := map[string]bool{}
	for _, x := range all {
		if !extensionName.MatchString(x.Name) || names[x.Name] {
			return fmt.Errorf("an extension cannot be named %q; a name has 1 to 32 letters from a to z, "+
				"and no other extension has the same", x.Name)
		}
		names[x.Name] = true
	}
	return nil
}

// Extender is a Store that has room for extensions. An engine without SQL need not be one.
type Extender interface {
	Store

	// Update runs f in a transaction, in the order of the calls of Append and Update. All of f's changes become durable
	// together, or none does: f's error undoes them, and nothing of anybody else's. Update returns f's error. took is how
	// long the store's writer was busy with f. f may be run twice. The time it has is bounded.
	// Refusals: those of Store.Append for a store that takes nothing in.
	Update(ctx context.Context, f func(StoreTx) error) (took time.Duration, err error)

	// View runs f on one state of the database. It changes nothing.
	View(ctx context.Context, f func(Querier) error) (took time.Duration, err error)
}

// Querier reads the tables of an extension.
type Querier interface {
	// Query calls row for each row of a SELECT, until it returns an error. scan is that of database/sql.Rows.
	Query(row func(scan func(...any) error) error, text string, args ...any) error
}

// StoreTx is the transaction of an Update.
type StoreTx interface {
	Querier
	// Exec runs a statement and returns how many rows it has changed.
	Exec(text string, args ...any) (rows int64, err error)
	// Append is as Store.Append. A refusal changes nothing, and the transaction goes on.
	Append(Entry) (Receipt, error)
}

// Checked is an envelope that has passed what Post asks of one before it is stored.
type Checked struct{ entry Entry }

// Envelope returns the envelope; nil for the zero Checked.
func (c Checked) Envelope() *envelope.Envelope { return c.entry.Envelope }

// Check does what Post does with a body before it is stored: it admits, parses, and verifies. The envelope can then be
// appended in an Update, as long as its ts is fresh. It counts as a post of its sender and of from.
// Refusals: those of Post but for the Store's.
func (r *Relay) Check(from Peer, body []byte) (Checked, error) {
	if err := r.draining(); err != nil {
		return Checked{}, err
	}
	entry, err := r.accept(from, body)
	return Checked{entry}, err
}

// ExtTx is the transaction of Relay.Update. It must not be used after the function it was given to has returned.
type ExtTx struct {
	tx    StoreTx
	relay *Relay
}

// Append stores an envelope that arrives now, as Post does. terms are those of the thread that it opens, if it opens one.
// A refusal changes nothing, and the transaction goes on. The refusal is for the envelope's sender: it may tell of threads
// that nobody else may see.
// Refusals: CodeStaleTimestamp and CodeExpired if it waited too long since Check, those of Store.Append.
func (t ExtTx) Append(c Checked, terms thread.Terms) (Receipt, error) {
	e := c.entry
	if e.Envelope == nil {
		return Receipt{}, errors.New("an envelope that Check has not returned cannot be stored")
	}
	if terms.PendingTimeout < 0 || terms.ActiveTimeout < 0 {
		return Receipt{}, errors.New("the timeouts of a thread cannot be negative")
	}
	// An id is remembered from now on, so the ts has to be fresh now, or a copy of an old message would pass for new.
	e.Received, e.Terms = t.relay.now(), terms
	if err := t.relay.policy.Window.Check(e.Envelope.TS, e.Envelope.TTL, e.Received); err != nil {
		return Receipt{}, err
	}
	return t.tx.Append(e)
}

// Exec runs a statement on the extension's tables and returns how many rows it has changed.
func (t ExtTx) Exec(text string, args ...any) (rows int64, err error) {
	return t.tx.Exec(text, args...)
}

// Query is Querier's.
func (t ExtTx) Query(row func(scan func(...any) error) error, text string, args ...any) error {
	return t.tx.Query(row, text, args...)
}

// errNoExtensions is for a relay over a store that is no Extender.
var errNoExtensions = errors.New("this store has no room for extensions")

// Update runs f in one transaction of the store, in the order of all posts. What f appends and writes becomes durable
// together, and is delivered like any post. If f returns an error or panics, nothing of it is stored; the posts of others
// are. f runs in the store's writer, and all posts wait for it. So it does no I/O and takes well under a millisecond. It
// may be run twice. The time it takes is charged to from.
//
// Errors: f's, CodeRateLimited if from owes for what it has posted, CodeUnavailable.
func (r *Relay) Update(ctx context.Context, from Peer, f func(ExtTx) error) error {
	store, ok := r.store.(Extender)
	if !ok {
		return errNoExtensions
	}
	if err := r.draining(); err != nil {
		return err
	}
	if !from.Local {
		turn := from.origin()
		if err := r.writing.take(ctx, turn); err != nil {
			return err
		}
		defer r.writing.leave(turn)
		if err := r.owesPosts(from); err != nil {
			return err
		}
	}
	took, err := store.Update(ctx, func(tx StoreTx) error { return f(ExtTx{tx, r}) })
	r.chargeWork(from, took)
	return err
}

// View runs f on one state of the database, when it is from's turn among those who read. f changes nothing. The time it
// takes is charged to from.
// Errors: f's, CodeRateLimited if from owes for what it has read.
func (r *Relay) View(ctx context.Context, from Peer, f func(Querier) error) (err error) {
	store, ok := r.store.(Extender)
	if !ok {
		return errNoExtensions
	}
	w := work{peer: from}
	if err := r.begin(ctx, &w); err != nil {
		return err
	}
	var took time.Duration
	defer func() { r.end(&w, took) }()
	took, err = store.View(ctx, f)
	return err
}

// Watch calls f with every event that is stored behind after, in order, as Store.Watch does, until ctx ends.
func (r *Relay) Watch(ctx context.Context, after Cursor, f func([]Posted)) error {
	return r.store.Watch(ctx, after, f)
}
