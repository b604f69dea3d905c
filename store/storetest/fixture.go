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

// The people of the suite. Each store meets them for the first time.
var (
	alice, bob, carol, dave = person(1), person(2), person(3), person(4)
	node                    = person(5) // the relay itself, which signs the notices of timeouts
)

func person(n byte) didkey.Key {
	key, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err) // 32 bytes are a seed
	}
	return key
}

// noon is when every test begins.
var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

// everything is more events than any test of the suite stores.
const everything = 1 << 20

// tb is a *testing.T or a *rapid.T.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
	Cleanup(func())
}

// fixture is a store and a clock. Its methods end the test where the store does not do what they say.
type fixture struct {
	tb
	relay.Store
	open   Opener
	place  string
	policy relay.Policy
	now    time.Time
}

func newFixture(t *testing.T, open Opener, policy relay.Policy) *fixture {
	t.Helper()
	return fixtureAt(t, open, t.TempDir(), policy)
}

func fixtureAt(t tb, open Opener, place string, policy relay.Policy) *fixture {
	t.Helper()
	f := &fixture{tb: t, open: open, place: place, policy: policy, now: noon}
	f.reopen()
	t.Cleanup(f.close)
	return f
}

func (f *fixture) close() {
	f.Helper()
	if c, ok := f.Store.(io.Closer); ok {
		if err := c.Close(); err != nil {
			f.Errorf("close: %v", err)
		}
	}
	f.Store = nil
}

func (f *fixture) reopen() {
	f.Helper()
	f.close()
	store, err := f.open(f.Context(), f.place, f.policy)
	f.must(err)
	f.Store = store
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// pass moves the clock.
func (f *fixture) pass(d time.Duration) { f.now = f.now.Add(d) }

// entry is a message signed by somebody now, as it reaches the store now.
func (f *fixture) entry(by didkey.Key, d envelope.Draft) relay.Entry {
	f.Helper()
	m, err := d.Sign(by, f.now)
	f.must(err)
	return relay.Entry{Envelope: m, Received: f.now}
}

// append stores e.
func (f *fixture) append(e relay.Entry) relay.Receipt {
	f.Helper()
	receipt, err := f.Append(f.Context(), e)
	if err != nil {
		f.Fatalf("%s %s: %v", e.Envelope.Type, e.Envelope.ID, err)
	}
	return receipt
}

// post stores a message signed now.
func (f *fixture) post(by didkey.Key, d envelope.Draft) relay.Receipt {
	f.Helper()
	return f.append(f.entry(by, d))
}

// refused offers e to the store, which must refuse it with code.
func (f *fixture) refused(e relay.Entry, code envelope.Code) {
	f.Helper()
	receipt, err := f.Append(f.Context(), e)
	if codeOf(err) != code {
		f.Errorf("%s %s: receipt %+v, error %v; want %s", e.Envelope.Type, e.Envelope.ID, receipt, err, code)
	}
}

// codeOf returns the code of a refusal, "" for another error and for none.
func codeOf(err error) envelope.Code {
	if refusal, ok := errors.AsType[*envelope.Error](err); ok {
		return refusal.Code
	}
	return ""
}

func (f *fixture) read(q relay.Query) relay.Page {
	f.Helper()
	page, err := f.Read(f.Context(), q)
	f.must(err)
	return page
}

// stored returns all that is kept and matches, expired or not.
func (f *fixture) stored(filter relay.Filter) []relay.Event {
	f.Helper()
	return f.read(relay.Query{Filter: filter, Expired: true, Limit: everything}).Events
}

func (f *fixture) end() relay.Cursor {
	f.Helper()
	return f.read(relay.Query{}).Cursor
}

// thread returns alice's thread as of now.
func (f *fixture) thread(id string) thread.Thread {
	f.Helper()
	t, err := f.Thread(f.Context(), thread.Key{Client: alice.DID(), ID: id}, f.now)
	f.must(err)
	return t
}

func (f *fixture) state(id string, want thread.State) {
	f.Helper()
	if t := f.thread(id); t.State != want {
		f.Errorf("thread %s is %s, want %s", id, t.State, want)
	}
}

// noThread checks that nothing is known of alice's thread.
func (f *fixture) noThread(id string) {
	f.Helper()
	t, err := f.Thread(f.Context(), thread.Key{Client: alice.DID(), ID: id}, f.now)
	if codeOf(err) != envelope.CodeThreadNotFound {
		f.Errorf("thread %+v, error %v; want %s", t, err, envelope.CodeThreadNotFound)
	}
}

// expire lets the store do what is due now; no thread may end by it.
func (f *fixture) expire() {
	f.Helper()
	f.must(f.Expire(f.Context(), f.now, func(t thread.Thread, _ time.Time) []*envelope.Envelope {
		f.Errorf("notices asked for of thread %s", t.ID)
		return nil
	}))
}

// snapshot is everything a reader can see of the store, to compare by; of the threads, those with these ids.
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

// text is a value to compare by.
func (f *fixture) text(v any) string {
	f.Helper()
	data, err := json.Marshal(v)
	f.must(err)
	return string(data)
}

func (f *fixture) equal(what string, got, want any) {
	f.Helper()
	if g, w := f.text(got), f.text(want); g != w {
		f.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// What people say in the suite; in and to make drafts of it.
var (
	request = envelope.Request{RequestID: "req", Intent: "translate"}
	offer   = envelope.Offer{RequestID: "req"}
	accept  = envelope.Accept{RequestID: "req"}
	result  = envelope.Result{RequestID: "req", Status: "success"}
	failure = envelope.Failure{RequestID: "req", Code: envelope.AgentInternal, Message: "no"}
	cancel  = envelope.Cancel{RequestID: "req"}
)

func in(thread string, p envelope.Payload) envelope.Draft {
	return envelope.Draft{Thread: thread, Payload: p}
}

func to(whom didkey.Key, d envelope.Draft) envelope.Draft {
	d.Recipient = whom.DID()
	return d
}

func named(id string, d envelope.Draft) envelope.Draft {
	d.ID = id
	return d
}

func lasting(ttl time.Duration, d envelope.Draft) envelope.Draft {
	d.TTL = ttl
	return d
}

// manifest is a message that belongs to no thread and shows up in no directory: the plainest there is.
func manifest(id string) envelope.Draft {
	return envelope.Draft{Payload: envelope.Manifest{ID: id, Intents: []envelope.Intent{}}}
}
