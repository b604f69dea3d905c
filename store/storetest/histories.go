package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// The size of a recorded history.
const (
	historyClients = 16               // clients that post concurrently
	historyOps     = 400              // messages that each client posts; with -short a quarter
	historyThreads = 100              // thread ids; with -short a quarter
	historyCheck   = 10 * time.Second // the longest time for checking a history, on a busy machine
)

// The senders in a history: two owners that send REQUESTs with the same thread ids, and three agents.
var (
	historyOwners = [2]didkey.Key{testKey(11), testKey(12)}
	historyAgents = [3]didkey.Key{testKey(13), testKey(14), testKey(15)}
)

// historyMessage is one message of a history. An owner sends it, or an agent sends it to an owner.
type historyMessage struct {
	thread       int // index of the thread id
	typ          envelope.Type
	owner, agent int // indexes of both parties; an ACCEPT names the agent; REQUEST and CANCEL do not use it
}

// threadModel is the state of one thread id by PROTOCOL §4: the thread of each owner with that id. It deliberately does
// not use package thread, because it checks that package. The checker of histories needs a comparable type.
type threadModel [2]struct {
	open, ended bool    // the REQUEST was sent; the thread has ended
	offers      [3]bool // the agents that have offered
	accepted    int     // index of the accepted agent, plus 1; 0: none yet
}

// step returns the error code with which the relay must answer m, and the state after m. The code is "" for a receipt.
func (c threadModel) step(m historyMessage) (envelope.Code, threadModel) {
	t := &c[m.owner]
	if m.typ == envelope.TypeRequest {
		if t.open {
			return envelope.CodeInvalidTransition, c
		}
		t.open = true
		return "", c
	}
	if !t.open {
		if c[1-m.owner].open {
			return envelope.CodeForbidden, c // only the other owner has a thread with this id
		}
		return envelope.CodeThreadNotFound, c
	}
	pending, early := !t.ended && t.accepted == 0, false
	switch {
	case m.typ == envelope.TypeOffer && pending:
		t.offers[m.agent] = true
	case m.typ == envelope.TypeAccept && pending && t.offers[m.agent]:
		t.accepted = m.agent + 1
	case m.typ == envelope.TypeCancel && !t.ended:
		t.ended = true
	case m.typ == envelope.TypeResult && !t.ended && t.accepted == m.agent+1:
		t.ended = true
	case m.typ == envelope.TypeResult:
		if early = t.accepted == 0 && t.offers[m.agent]; !early && t.accepted != m.agent+1 {
			return envelope.CodeForbidden, c
		}
		return envelope.CodeInvalidTransition, c
	default:
		return envelope.CodeInvalidTransition, c
	}
	return "", c
}

// historyModel adapts threadModel to the checker. Each thread id is checked separately.
var historyModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, historyThreads)
		for _, op := range history {
			n := op.Input.(historyMessage).thread
			parts[n] = append(parts[n], op)
		}
		return parts
	},
	Init: func() any { return threadModel{} },
	Step: func(state, input, output any) (bool, any) {
		want, next := state.(threadModel).step(input.(historyMessage))
		return want == output.(envelope.Code), next
	},
}

// Histories checks linearizability. It lets 16 clients post messages concurrently in threads with 100 ids. Then it
// checks that the answers are the same as if the messages had been posted one by one in some order. post signs and
// posts a message. If post returns an error that is not an *envelope.Error, the test fails. With -short, a history has
// a quarter of the messages and threads.
func Histories(t *testing.T, seed uint64, post func(by didkey.Key, d envelope.Draft) error) {
	t.Helper()
	history := record(t, seed, post)
	began := time.Now()
	if got := porcupine.CheckOperationsTimeout(historyModel, history, time.Minute); got != porcupine.Ok {
		t.Errorf("seed %d: no order of the %d concurrent messages explains their answers: %s", seed, len(history), got)
	}
	if took := time.Since(began); took > historyCheck {
		t.Errorf("seed %d: checking took %v, want at most %v", seed, took, historyCheck)
	}
	answers := map[envelope.Code]int{}
	for _, op := range history {
		answers[op.Output.(envelope.Code)]++
	}
	threads := historyThreads / historyParts()
	if answers[""] < threads || answers[envelope.CodeInvalidTransition] < threads ||
		answers[envelope.CodeForbidden] == 0 {
		t.Errorf("seed %d: the history has too few accepted or rejected messages to test with: %v", seed, answers)
	}
	if porcupine.CheckOperationsTimeout(historyModel, doubleAccept(t, history), time.Minute) != porcupine.Illegal {
		t.Errorf("seed %d: the checker did not notice a second ACCEPT in one thread", seed)
	}
}

// historyParts returns the divisor of the size of a history.
func historyParts() int {
	if testing.Short() {
		return 4
	}
	return 1
}

// record posts the messages that seed determines. It returns the messages with their answers and times.
func record(t *testing.T, seed uint64, post func(by didkey.Key, d envelope.Draft) error) []porcupine.Operation {
	t.Helper()
	began := time.Now()
	histories := make([][]porcupine.Operation, historyClients)
	var clients sync.WaitGroup
	for n := range historyClients {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(n)))
			for i := range historyOps / historyParts() {
				m := drawMessage(random, i)
				by, d := m.draft()
				op := porcupine.Operation{ClientId: n, Input: m, Call: int64(time.Since(began))}
				err := post(by, d)
				op.Return, op.Output = int64(time.Since(began)), codeOf(err)
				if err != nil && codeOf(err) == "" {
					t.Errorf("client %d: %v", n, err)
					return
				}
				histories[n] = append(histories[n], op)
			}
		})
	}
	clients.Wait()
	var all []porcupine.Operation
	for _, h := range histories {
		all = append(all, h...)
	}
	return all
}

// drawMessage draws the i-th message of a client. At any time, all clients use the same few thread ids, so that their
// messages conflict.
func drawMessage(random *rand.Rand, i int) historyMessage {
	m := historyMessage{thread: (i*historyThreads/historyOps + random.IntN(3)) % historyThreads,
		agent: random.IntN(len(historyAgents))}
	if random.IntN(5) == 0 {
		m.owner = 1
	}
	types := []envelope.Type{envelope.TypeRequest, envelope.TypeOffer, envelope.TypeOffer, envelope.TypeAccept,
		envelope.TypeAccept, envelope.TypeAccept, envelope.TypeResult, envelope.TypeResult, envelope.TypeCancel}
	m.typ = types[random.IntN(len(types))]
	return m
}

// draft returns the sender's key and the draft of m.
func (m historyMessage) draft() (didkey.Key, envelope.Draft) {
	owner, agent := historyOwners[m.owner], historyAgents[m.agent]
	d := in(fmt.Sprint("race", m.thread), request)
	switch m.typ {
	case envelope.TypeOffer:
		d.Payload = offer
	case envelope.TypeAccept:
		d.Payload = accept
		return owner, to(agent, d)
	case envelope.TypeResult:
		d.Payload = result
	case envelope.TypeCancel:
		d.Payload = cancel
		return owner, d
	default:
		return owner, d
	}
	return agent, to(owner, d)
}

// doubleAccept returns a wrong history, in which a relay accepted a second ACCEPT in one thread. It changes the answer
// to one rejected ACCEPT of history to a receipt.
func doubleAccept(t *testing.T, history []porcupine.Operation) []porcupine.Operation {
	t.Helper()
	won := map[[2]int]bool{} // thread and owner
	for _, op := range history {
		if m := op.Input.(historyMessage); m.typ == envelope.TypeAccept && op.Output == envelope.Code("") {
			won[[2]int{m.thread, m.owner}] = true
		}
	}
	faulty := append([]porcupine.Operation(nil), history...)
	for i, op := range faulty {
		if m := op.Input.(historyMessage); m.typ == envelope.TypeAccept && op.Output != envelope.Code("") &&
			won[[2]int{m.thread, m.owner}] {
			faulty[i].Output = envelope.Code("")
			return faulty
		}
	}
	t.Fatal("no thread of the history has an accepted and a rejected ACCEPT")
	return nil
}

// testHistories runs Histories with the Append of a store.
func testHistories(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	Histories(t, 1, func(by didkey.Key, d envelope.Draft) error {
		_, err := f.Append(f.Context(), f.entry(by, d))
		return err
	})
}
