package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// The keys that sign the messages of the suite. Every test starts with a store that has no messages from them.
var (
	alice, bob, carol, dave = testKey(1), testKey(2), testKey(3), testKey(4)
	node                    = testKey(5) // the key of the relay, which signs the notices of timeouts
)

func testKey(n byte) didkey.Key {
	key, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err) // cannot happen: any 32 bytes are a valid seed
	}
	return key
}

// noon is the time at which every test begins.
var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

// everything is a limit for queries. It is higher than the number of events that any test stores.
const everything = 1 << 20

// tb has the methods that *testing.T and *rapid.T have in common.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
	Cleanup(func())
}

// fixture is a store and the clock of a test. Its methods fail the test if the store returns an unexpected error or
// result.
type fixture struct {
	tb
	relay.Store
	open   Opener
	folder string
	policy relay.Policy
	now    time.Time
}

func newFixture(t *testing.T, open Opener, policy relay.Policy) *fixture {
	t.Helper()
	return fixtureAt(t, open, t.TempDir(), policy)
}

func fixtureAt(t tb, open Opener, folder string, policy relay.Policy) *fixture {
	t.Helper()
	f := &fixture{tb: t, open: open, folder: folder, policy: policy, now: noon}
	f.reopen()
	t.Cleanup(f.close)
	return f
}

// close closes the store if it is an io.Closer.
func (f *fixture) close() {
	f.Helper()
	if c, ok := f.Store.(io.Closer); ok {
		if err := c.Close(); err != nil {
			f.Errorf("close: %v", err)
		}
	}
	f.Store = nil
}

// reopen closes the store and opens it again with f.policy.
func (f *fixture) reopen() {
	f.Helper()
	f.close()
	store, err := f.open(f.Context(), f.folder, f.policy)
	f.must(err)
	f.Store = store
}

// must ends the test if err is not nil.
func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// advance moves the clock by d, backwards if d is negative.
func (f *fixture) advance(d time.Duration) { f.now = f.now.Add(d) }

// entry signs d with the key by. The time of the signature and of the arrival is now.
func (f *fixture) entry(by didkey.Key, d envelope.Draft) relay.Entry {
	f.Helper()
	m, err := d.Sign(by, f.now)
	f.must(err)
	return relay.Entry{Envelope: m, Received: f.now}
}

// append stores e and returns the receipt. It ends the test if the store returns an error.
func (f *fixture) append(e relay.Entry) relay.Receipt {
	f.Helper()
	receipt, err := f.Append(f.Context(), e)
	if err != nil {
		f.Fatalf("append %s %s: %v", e.Envelope.Type, e.Envelope.ID, err)
	}
	return receipt
}

// post signs d now, and stores it like append.
func (f *fixture) post(by didkey.Key, d envelope.Draft) relay.Receipt {
	f.Helper()
	return f.append(f.entry(by, d))
}

// refused appends e and checks that the store returns an error with this code.
func (f *fixture) refused(e relay.Entry, code envelope.Code) {
	f.Helper()
	receipt, err := f.Append(f.Context(), e)
	if codeOf(err) != code {
		f.Errorf("append %s %s: receipt %+v, error %v; want the error %s", e.Envelope.Type, e.Envelope.ID, receipt, err, code)
	}
}

// codeOf returns the code of an *envelope.Error. It returns "" for other errors and for nil.
func codeOf(err error) envelope.Code {
	if refusal, ok := errors.AsType[*envelope.Error](err); ok {
		return refusal.Code
	}
	return ""
}

// read returns the result of Store.Read. It ends the test on an error.
func (f *fixture) read(q relay.Query) relay.Page {
	f.Helper()
	page, err := f.Read(f.Context(), q)
	f.must(err)
	return page
}

// stored returns all events that are stored and match filter, including expired ones.
func (f *fixture) stored(filter relay.Filter) []relay.Event {
	f.Helper()
	return f.read(relay.Query{Filter: filter, Expired: true, Limit: everything}).Events
}

// end returns the cursor after the last event.
func (f *fixture) end() relay.Cursor {
	f.Helper()
	return f.read(relay.Query{}).Cursor
}

// thread returns alice's thread with this id as it is now.
func (f *fixture) thread(id string) thread.Thread {
	f.Helper()
	t, err := f.Thread(f.Context(), thread.Key{Client: alice.DID(), ID: id}, f.now)
	f.must(err)
	return t
}

// state checks the current state of alice's thread with this id.
func (f *fixture) state(id string, want thread.State) {
	f.Helper()
	if t := f.thread(id); t.State != want {
		f.Errorf("thread %s has the state %s, want %s", id, t.State, want)
	}
}

// noThread checks that the store does not have alice's thread with this id.
func (f *fixture) noThread(id string) {
	f.Helper()
	t, err := f.Thread(f.Context(), thread.Key{Client: alice.DID(), ID: id}, f.now)
	if codeOf(err) != envelope.CodeThreadNotFound {
		f.Errorf("thread %+v, error %v; want the error %s", t, err, envelope.CodeThreadNotFound)
	}
}

// expire calls Store.Expire with the current time. It fails the test if a thread times out.
func (f *fixture) expire() {
	f.Helper()
	f.must(f.Expire(f.Context(), f.now, func(t thread.Thread, _ time.Time) []*envelope.Envelope {
		f.Errorf("Expire asked for notices of thread %s, but no thread should time out here", t.ID)
		return nil
	}))
}

// snapshot returns as text everything that a reader can see in the store: all events, the end, the directory, and the
// threads with these ids. Tests compare such texts.
func (f *fixture) snapshot(threads ...string) string {
	f.Helper()
	agents, err := f.Agents(f.Context(), relay.AgentQuery{Now: f.now, Limit: everything})
	f.must(err)
	var known []thread.Thread
	for _, id := range threads {
		t, err := f.Thread(f.Context(), thread.Key{ID: id}, f.now)
		if codeOf(err) != envelope.CodeThreadNotFound {
			f.must(err)
			known = append(known, t)
		}
	}
	return f.text(map[string]any{"events": f.stored(relay.Filter{}), "end": f.end(), "agents": agents, "threads": known})
}

// text returns v as JSON. Tests compare such texts.
func (f *fixture) text(v any) string {
	f.Helper()
	data, err := json.Marshal(v)
	f.must(err)
	return string(data)
}

// equal checks that got and want have the same JSON form. what names the values in the failure message.
func (f *fixture) equal(what string, got, want any) {
	f.Helper()
	if g, w := f.text(got), f.text(want); g != w {
		f.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// Payloads of the messages of the suite. The functions in, to, withID and withTTL make drafts from them.
var (
	request = envelope.Request{RequestID: "req", Intent: "translate"}
	offer   = envelope.Offer{RequestID: "req"}
	accept  = envelope.Accept{RequestID: "req"}
	result  = envelope.Result{RequestID: "req", Status: "success"}
	failure = envelope.Failure{RequestID: "req", Code: envelope.AgentInternal, Message: "no"}
	cancel  = envelope.Cancel{RequestID: "req"}
)

// in returns a draft with payload p in a thread.
func in(thread string, p envelope.Payload) envelope.Draft {
	return envelope.Draft{Thread: thread, Payload: p}
}

// to returns d with a recipient.
func to(recipient didkey.Key, d envelope.Draft) envelope.Draft {
	d.Recipient = recipient.DID()
	return d
}

// withID returns d with a message id.
func withID(id string, d envelope.Draft) envelope.Draft {
	d.ID = id
	return d
}

// withTTL returns d with a ttl.
func withTTL(ttl time.Duration, d envelope.Draft) envelope.Draft {
	d.TTL = ttl
	return d
}

// manifest returns a MANIFEST message with this manifest id. It belongs to no thread, and without a relay.Listing it
// does not appear in the directory. Tests use it as the simplest kind of message.
func manifest(id string) envelope.Draft {
	return envelope.Draft{Payload: envelope.Manifest{ID: id, Intents: []envelope.Intent{}}}
}
