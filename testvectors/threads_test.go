package testvectors_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/testvectors"
	"github.com/agora-relay/agora/thread"
)

var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

// message builds the message that a vector describes. The roles serve as identifiers, because the state machine only
// compares identifiers and does not parse them.
func message(v testvectors.ThreadMessage) *envelope.Envelope {
	e := &envelope.Envelope{ID: "m", Type: envelope.Type(v.Type), Sender: envelope.Party{ID: didkey.DID(v.By)},
		Recipient: didkey.DID(v.To), Thread: "t"}
	e.RequestID = map[string]string{"": "req", "other": "another", "none": ""}[v.RequestID]
	e.Payload = []byte("{}")
	if row, _ := e.Type.Info(); v.Payload != "incomplete" && row.Needs != nil {
		e.Payload = []byte(`{"` + strings.Join(row.Needs, `":"x","`) + `":"x"}`)
	}
	return e
}

// apply applies one message to the threads of one id, as a store does.
func apply(threads []thread.Thread, m *envelope.Envelope, now time.Time) ([]thread.Thread, thread.Thread, error) {
	next, chosen, err := (thread.Rules{}).Apply(threads, m, now)
	switch {
	case err != nil:
	case chosen < 0:
		threads = append(threads, next)
	default:
		threads[chosen] = next
	}
	return threads, next, err
}

func TestThreads(t *testing.T) {
	for _, v := range testvectors.Threads() {
		t.Run(v.Name, func(t *testing.T) {
			var threads []thread.Thread
			var err error
			for i, m := range v.History {
				if threads, _, err = apply(threads, message(m), noon); err != nil {
					t.Fatalf("message %d of the history: %v", i, err)
				}
			}
			now := noon.Add(time.Duration(v.Elapsed) * time.Second)
			state := thread.Open
			if len(threads) > 0 {
				state = (thread.Rules{}).At(threads[0], now).State
			}
			if string(state) != v.State || len(threads) > 1 {
				t.Fatalf("the history leads to %s and %d threads, not to %s", state, len(threads), v.State)
			}
			_, next, err := apply(threads, message(v.Message), now)
			wantCode(t, err, v.Code)
			if string(next.State) != v.StateAfter {
				t.Errorf("the state is %s, want %s", next.State, v.StateAfter)
			}
		})
	}
}

// clock is a relay's clock that the steps of a conversation set.
type clock struct{ nanos atomic.Int64 }

func (c *clock) set(to time.Time) { c.nanos.Store(to.UnixNano()) }

func (c *clock) now() time.Time { return time.Unix(0, c.nanos.Load()).UTC() }

// localPeer is the peer of tests. It has no rate limits.
var localPeer = relay.Peer{Local: true}

// newRelay returns a relay with a new database and the public URL https://relay.example. Its Run is not called: no test
// waits for events, and timeouts are decided at every transition, without the sweeper.
func newRelay(t *testing.T) (*relay.Relay, relay.Store, *clock) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{}
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Origin: "https://relay.example", Now: c.now,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return r, store, c
}

func TestConversations(t *testing.T) {
	for _, v := range testvectors.Conversations() {
		t.Run(v.Name, func(t *testing.T) {
			r, store, clock := newRelay(t)
			stored := 0
			for i, step := range v.Steps {
				clock.set(instant(t, step.Now))
				receipt, err := r.Post(t.Context(), localPeer, step.Body)
				if codeOf(err) != step.Code {
					t.Fatalf("step %d: %v, want code %q", i, err, step.Code)
				}
				if err != nil {
					continue
				}
				if !step.Duplicate {
					stored++
				}
				got := testvectors.ConversationStep{State: string(receipt.State), Client: string(receipt.Thread.Client), Duplicate: receipt.Duplicate}
				if got.Duplicate != step.Duplicate || step.State != "" && got.State != step.State || step.Client != "" && got.Client != step.Client {
					t.Fatalf("step %d: %+v, want %+v", i, got, step)
				}
			}
			page, err := store.Read(t.Context(), relay.Query{Now: clock.now(), Expired: true, Limit: 1000})
			if err != nil || len(page.Events) != stored {
				t.Errorf("%d events are stored, %v; want %d", len(page.Events), err, stored)
			}
		})
	}
}

// TestConversationsAreWellFormed checks that the body of every step parses and verifies. So if a step is refused,
// the reason is not the form of the message, but its age, its manifest or the messages before it.
func TestConversationsAreWellFormed(t *testing.T) {
	for _, v := range testvectors.Conversations() {
		for i, step := range v.Steps {
			e, err := envelope.Parse(step.Body, 0)
			if err == nil {
				err = e.Verify()
			}
			if err != nil {
				t.Errorf("%s, step %d: %v", v.Name, i, err)
			}
		}
	}
}

func TestThreadTableIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range testvectors.Threads() {
		seen[fmt.Sprint(v.State, " ", v.Request, " ", v.Message.By, " ", v.Message.Type)] = true
	}
	roles := map[string][]string{"broadcast": {"client", "agent", "rival", "withdrawn", "stranger"}, "named": {"client", "agent", "stranger"}}
	for request, who := range roles {
		for _, by := range who {
			for _, typ := range []string{"REQUEST", "OFFER", "ACCEPT", "CANCEL", "RESULT", "ERROR"} {
				for _, state := range []string{"PENDING", "ACTIVE", "COMPLETED", "ERROR"} {
					if cell := fmt.Sprint(state, " ", request, " ", by, " ", typ); !seen[cell] {
						t.Errorf("no vector for the cell %s", cell)
					}
				}
			}
		}
	}
}
