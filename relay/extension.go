package relay

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Extension is a part of the relay, such as a gateway, that keeps its own tables in the store's database. A store is
// opened with its extensions. Whatever covers the store's own tables also covers theirs: transactions, backup, the size
// limit, and `agora check`.
type Extension struct {
	// Name has only lower-case letters and digits, and begins with a letter. The names of the extension's tables and indexes begin with Name and an
	// underscore.
	Name string
	// Migrations are SQL scripts. When the store is opened, it runs each script that it has not run before, in order,
	// each in its own transaction. Never change a script that was released; add another script instead.
	Migrations []string
	// Check calls found for each error in the extension's tables. `agora check` calls it; the relay need not run. If
	// Check is nil, `agora check` only checks that the pages, tables and indexes are sound.
	Check func(q Querier, found func(where, what string)) error
}

var extensionName = regexp.MustCompile(`^[a-z][a-z0-9]{0,31}$`)

// ValidateExtensions returns an error if a store cannot be opened with these extensions.
func ValidateExtensions(all []Extension) error {
	names := map[string]bool{}
	for _, x := range all {
		if !extensionName.MatchString(x.Name) || names[x.Name] {
			return fmt.Errorf("an extension cannot have the name %q; use 1 to 32 letters from a to z or digits, "+
				"and a different name for each extension", x.Name)
		}
		names[x.Name] = true
	}
	return nil
}

// Extender is a Store that supports extensions. An engine without SQL need not implement it.
type Extender interface {
	Store

	// Update runs f in a transaction. Calls of Append and Update take effect in the order of the calls. All changes of
	// f become durable together, or none of them does. If f returns an error, all its changes are undone, and no
	// others. Update returns f's error. took is how long the store's writer was busy with f. f may be run twice. The
	// time for f is limited: if f takes longer, its changes are undone, and Update refuses with envelope.NotStored, even
	// while f is still running. Other refusals: those of Store.Append while the store accepts no writes.
	Update(ctx context.Context, f func(StoreTx) error) (took time.Duration, err error)

	// Govern runs f like Update, for what the operator does. While the disk is full and Update refuses, it uses the room
	// that the store holds back.
	Govern(ctx context.Context, f func(StoreTx) error) (took time.Duration, err error)

	// Room returns a refusal if the database has so little room left that only the relay's own messages may use it; nil:
	// extensions may use it too. Refusals: CodeUnavailable.
	Room() error

	// View runs f on one state of the database. f changes nothing. If ctx ends, the statement that runs is interrupted,
	// and Query returns ctx's error. took is also set with an error.
	View(ctx context.Context, f func(Querier) error) (took time.Duration, err error)
}

// Querier reads the tables of an extension.
type Querier interface {
	// Query calls row for each row of a SELECT, until row returns an error. scan is the Scan of database/sql.Rows.
	Query(row func(scan func(...any) error) error, text string, args ...any) error
}

// StoreTx is the transaction of an Update.
type StoreTx interface {
	Querier
	// Exec runs a statement and returns how many rows it changed.
	Exec(text string, args ...any) (rows int64, err error)
	// Append works like Store.Append. A refusal changes nothing, and the transaction continues.
	Append(Entry) (Receipt, error)
}

// Checked is an envelope that has passed all checks that Post makes before it stores an envelope.
type Checked struct{ entry Entry }

// Envelope returns the envelope. It returns nil for the zero Checked.
func (c Checked) Envelope() *envelope.Envelope { return c.entry.Envelope }

// Check does all that Post does with a body before it is stored: it applies the limits, parses, verifies, and asks the
// Screen. After that, an Update can append the envelope, as long as its ts is fresh. The envelope counts as a post of its
// sender and of from. Refusals: those of Post, except for those of the Store.
func (r *Relay) Check(from Peer, body []byte) (Checked, error) {
	if err := r.draining(); err != nil {
		return Checked{}, err
	}
	entry, err := r.prepare(from, body)
	if err == nil {
		err = r.screenNow(from, entry.Envelope)
	}
	if err != nil {
		return Checked{}, err
	}
	return Checked{entry}, nil
}

// ExtTx is the transaction of Relay.Update. It must not be used after the function that received it has returned.
type ExtTx struct {
	tx    StoreTx
	relay *Relay
}

// Append stores an envelope as Post does, with now as its time of arrival. If the envelope opens a thread, that
// thread gets these terms. A copy of another relay's message opens none. A refusal changes nothing, and the
// transaction continues. Show a refusal only to the sender of the envelope, because it may describe threads that
// others may not see. Refusals: CodeStaleTimestamp or CodeExpired if too much time has passed since Check, and those
// of Store.Append.
func (t ExtTx) Append(c Checked, terms thread.Terms) (Receipt, error) {
	e := c.entry
	if e.Envelope == nil {
		return Receipt{}, errors.New("the envelope does not come from Check; pass a Checked that Check has returned")
	}
	if terms.PendingTimeout < 0 || terms.ActiveTimeout < 0 {
		return Receipt{}, errors.New("the timeouts of a thread cannot be negative; use 0 for the default")
	}
	// The store remembers an id from now on. So the ts must be fresh now. Otherwise a copy of an old message could be
	// accepted as new.
	// The quota of the recipient's inbox holds for all envelopes of extensions, no matter who asked the extension.
	e.Received, e.Terms, e.Local = t.relay.now(), terms, false
	if err := t.relay.checkTime(e); err != nil {
		return Receipt{}, err
	}
	return t.tx.Append(e)
}

// Exec runs a statement on the extension's tables and returns how many rows it changed. It refuses a text among args that
// no engine can store, with CodeInvalidRequest: one with U+0000, or one that is not UTF-8 (G-35).
func (t ExtTx) Exec(text string, args ...any) (rows int64, err error) {
	if err := checkTexts(args); err != nil {
		return 0, err
	}
	return t.tx.Exec(text, args...)
}

// Query works like Querier.Query, and refuses what Exec refuses.
func (t ExtTx) Query(row func(scan func(...any) error) error, text string, args ...any) error {
	return checkedQuerier{t.tx}.Query(row, text, args...)
}

// checkedQuerier is a Querier that refuses texts which no engine can store, see ExtTx.Exec.
type checkedQuerier struct{ q Querier }

func (c checkedQuerier) Query(row func(scan func(...any) error) error, text string, args ...any) error {
	if err := checkTexts(args); err != nil {
		return err
	}
	return c.q.Query(row, text, args...)
}

// checkTexts refuses texts that PostgreSQL does not take. SQLite would take them, and then the data could not be moved.
func checkTexts(args []any) error {
	for _, arg := range args {
		if text, ok := arg.(string); ok && (strings.IndexByte(text, 0) >= 0 || !utf8.ValidString(text)) {
			return envelope.Errorf(envelope.CodeInvalidRequest,
				"a text of the request has the character U+0000, or is not UTF-8; correct it")
		}
	}
	return nil
}

// UpdateStore runs f in one transaction of a store that no relay serves, for commands of the operator. f must not call
// Append. f may be run twice. Errors: f's error, CodeUnavailable.
func UpdateStore(ctx context.Context, store Extender, f func(ExtTx) error) error {
	_, err := store.Update(ctx, func(tx StoreTx) error { return f(ExtTx{tx: tx}) })
	return err
}

// errNoExtensions is the error for a store that is not an Extender.
var errNoExtensions = errors.New("this store does not support extensions; use one that implements relay.Extender")

// Update runs f in one transaction of the store. Updates and posts take effect one after the other, in the order in
// which they come. All that f appends and writes becomes durable together, and the events are delivered like those of
// any post. If f returns an error or panics, nothing of it is stored; the posts of others are. f runs in the store's
// writer, and all posts wait for it. So f must not do I/O, and must take well under a millisecond. f may be run twice.
// The time that it takes is charged to from. What the operator does also works on a full disk.
//
// The room for extensions ends before the room for messages. Then Update refuses clients, and only the relay itself and
// its operator can still change the tables of extensions, for example to remove what has expired (G-36).
//
// Errors: f's error, CodeRateLimited if from is in debt for its posts, CodeForbidden if from is banned, CodeUnavailable.
func (r *Relay) Update(ctx context.Context, from Peer, f func(ExtTx) error) error {
	store, ok := r.store.(Extender)
	if !ok {
		return errNoExtensions
	}
	if err := r.draining(); err != nil && !(from.Operator && err == ErrPaused) {
		return err
	}
	if !from.Local {
		if _, err := r.gate.TakeWrite(ctx, from); err != nil {
			r.gate.NoteRefusal(from, from.Reader, err)
			return err
		}
		defer r.gate.ReleaseWrite(from)
		if err := r.gate.CheckPostDebt(from); err != nil {
			return err
		}
	}
	if err := r.gate.CheckPeer(from); err != nil { // it may have been banned since its request was admitted
		return err
	}
	if from.IsClient() {
		if err := store.Room(); err != nil {
			return err
		}
	}
	update := store.Update
	if from.Operator {
		update = store.Govern
	}
	took, err := update(ctx, func(tx StoreTx) error { return f(ExtTx{tx, r}) })
	r.gate.ChargeWork(from, took)
	return err
}

// viewTime is how long a View of a remote client may take. What a gateway shows must need much less: its statements find
// rows by an index, and read totals from counters.
const viewTime = time.Second

// errViewTime is the refusal of a View that takes longer than viewTime.
var errViewTime = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 5 * time.Second,
	Message: "this read took the relay's database too long; ask for less, or try again in a few seconds"}

// View runs f on one state of the database. f changes nothing. View waits for a turn of from, like other reads. At least
// one of the read slots is never used by a View, so Views cannot keep the relay's own reads waiting. If from is remote
// and f takes longer than viewTime, its statement is interrupted. All the time that f takes is charged to from, as a
// debt if it is more than from has left. Errors: f's error, CodeUnavailable if f took too long, CodeRateLimited if from
// is in debt for its reads, CodeForbidden if from is banned.
func (r *Relay) View(ctx context.Context, from Peer, f func(Querier) error) (err error) {
	store, ok := r.store.(Extender)
	if !ok {
		return errNoExtensions
	}
	if err := r.gate.TakeView(ctx, from); err != nil {
		return err
	}
	var took time.Duration
	defer func() { r.gate.ReleaseView(from, took) }()
	if err := r.gate.CheckPeer(from); err != nil { // a long answer has many parts, and from may have been banned meanwhile
		return err
	}
	limited := ctx
	if !from.Local {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, viewTime)
		defer cancel()
	}
	took, err = store.View(limited, func(q Querier) error { return f(checkedQuerier{q}) })
	if errors.Is(err, context.DeadlineExceeded) && limited.Err() != nil && ctx.Err() == nil {
		return errViewTime
	}
	return err
}

// Watch calls f with every event that is stored after the given cursor, in order, until ctx ends. It works like
// Store.Watch.
func (r *Relay) Watch(ctx context.Context, after Cursor, f func([]Posted)) error {
	return r.store.Watch(ctx, after, nil, f)
}
