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
	historyClients = 16 // that post at the same time
	historyOps     = 400
	historyThreads = 100
	historyCheck   = time.Second // what checking one may take
)

// The parts in a history: two who send REQUESTs with the same thread ids, and three agents.
var (
	historyOwners = [2]didkey.Key{person(11), person(12)}
	historyAgents = [3]didkey.Key{person(13), person(14), person(15)}
)

// said is one message of a history: an owner's own, or an agent's to an owner.
type said struct {
	thread       int
	typ          envelope.Type
	owner, agent int // of ACCEPT: whom it names; of REQUEST and CANCEL agent means nothing
}

// chatter is a thread id as PROTOCOL §4 tells it, on purpose without package thread: what became of each owner's thread
// of that id. It is comparable.
type chatter [2]struct {
	open, ended bool
	offers      [3]bool
	accepted    int // agent's number from 1; 0: none yet
}

// step says how the relay must answer m, and what holds afterwards. "" is a receipt.
func (c chatter) step(m said) (envelope.Code, chatter) {
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
			return envelope.CodeForbidden, c // of all threads with this id none is theirs
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

// chatterModel is chatter for the checker: each thread id has a history of its own.
var chatterModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, historyThreads)
		for _, op := range history {
			n := op.Input.(said).thread
			parts[n] = append(parts[n], op)
		}
		return parts
	},
	Init: func() any { return chatter{} },
	Step: func(state, input, output any) (bool, any) {
		want, next := state.(chatter).step(input.(said))
		return want == output.(envelope.Code), next
	},
}

// Histories lets 16 clients race over 100 thread ids through post and checks that their answers are those of some order
// in which the messages came one by one (linearizability). post signs and posts a message; an error that is no refusal
// ends the test.
func Histories(t *testing.T, seed uint64, post func(by didkey.Key, d envelope.Draft) error) {
	t.Helper()
	history := record(t, seed, post)
	began := time.Now()
	if got := porcupine.CheckOperationsTimeout(chatterModel, history, time.Minute); got != porcupine.Ok {
		t.Errorf("seed %d: the answers to %d racing messages fit no order of them: %s", seed, len(history), got)
	}
	if took := time.Since(began); took > historyCheck {
		t.Errorf("seed %d: checking took %v", seed, took)
	}
	answers := map[envelope.Code]int{}
	for _, op := range history {
		answers[op.Output.(envelope.Code)]++
	}
	if answers[""] < historyThreads || answers[envelope.CodeInvalidTransition] < historyThreads || answers[envelope.CodeForbidden] == 0 {
		t.Errorf("seed %d: a history of little interest: %v", seed, answers)
	}
	if porcupine.CheckOperationsTimeout(chatterModel, doubleAccept(t, history), time.Minute) != porcupine.Illegal {
		t.Errorf("seed %d: a second ACCEPT of one thread went unnoticed", seed)
	}
}

// record plays the messages of seed and returns who was answered what, and when.
func record(t *testing.T, seed uint64, post func(by didkey.Key, d envelope.Draft) error) []porcupine.Operation {
	t.Helper()
	began := time.Now()
	histories := make([][]porcupine.Operation, historyClients)
	var clients sync.WaitGroup
	for n := range historyClients {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(n)))
			for i := range historyOps {
				m := say(random, i)
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

// say draws the i-th message of a client. All clients are at the same few threads at the same time.
func say(random *rand.Rand, i int) said {
	m := said{thread: (i*historyThreads/historyOps + random.IntN(3)) % historyThreads, agent: random.IntN(len(historyAgents))}
	if random.IntN(5) == 0 {
		m.owner = 1
	}
	types := []envelope.Type{envelope.TypeRequest, envelope.TypeOffer, envelope.TypeOffer, envelope.TypeAccept, envelope.TypeAccept,
		envelope.TypeAccept, envelope.TypeResult, envelope.TypeResult, envelope.TypeCancel}
	m.typ = types[random.IntN(len(types))]
	return m
}

func (m said) draft() (didkey.Key, envelope.Draft) {
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

// doubleAccept returns the history as a relay would have left it that let one refused ACCEPT win beside the first.
func doubleAccept(t *testing.T, history []porcupine.Operation) []porcupine.Operation {
	t.Helper()
	won := map[[2]int]bool{} // thread and owner
	for _, op := range history {
		if m := op.Input.(said); m.typ == envelope.TypeAccept && op.Output == envelope.Code("") {
			won[[2]int{m.thread, m.owner}] = true
		}
	}
	faulty := append([]porcupine.Operation(nil), history...)
	for i, op := range faulty {
		if m := op.Input.(said); m.typ == envelope.TypeAccept && op.Output != envelope.Code("") && won[[2]int{m.thread, m.owner}] {
			faulty[i].Output = envelope.Code("")
			return faulty
		}
	}
	t.Fatal("no two ACCEPTs met")
	return nil
}

func testHistories(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	Histories(t, 1, func(by didkey.Key, d envelope.Draft) error {
		_, err := f.Append(f.Context(), f.entry(by, d))
		return err
	})
}
