package deal

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

var start = time.Unix(1_770_000_000, 0)

func keyOf(client string, n int) Key {
	return Key{Client: didkey.DID(client), Root: envelope.Hash{byte(n), byte(n >> 8)}}
}

func placeOf(n byte) Place {
	return Place{Relay: didkey.DID(fmt.Sprint("relay", n)), Thread: fmt.Sprint("t", n), Accept: envelope.Hash{n},
		First: n == 0}
}

// TestBook checks what an agent does after each ACCEPT of a job (RELAYS R-18).
func TestBook(t *testing.T) {
	k := keyOf("c", 1)
	accepts := func(b *Book, n byte, want Action) {
		t.Helper()
		if got := b.Accept(k, placeOf(n), 0, start); got != want {
			t.Errorf("ACCEPT in thread %d: action %d, want %d", n, got, want)
		}
	}
	b := &Book{}
	b.Offered(k, json.RawMessage(`{"n":1}`), start.Add(time.Hour))
	b.Offered(k, json.RawMessage(`{"n":2}`), start.Add(time.Hour))
	if j, _ := b.Job(k); string(j.Terms) != `{"n":1}` {
		t.Errorf("the terms have changed to %s", j.Terms)
	}
	accepts(b, 0, Work)
	accepts(b, 0, Work)
	accepts(b, 1, Work)
	accepts(b, 0, Ignore) // an older thread
	if b.Ended(k, placeOf(0), start) {
		t.Error("the end of an older thread stops the work")
	}
	b.Finish(k, Outcome{Type: envelope.TypeResult}, start)
	accepts(b, 1, Answer)
	accepts(b, 2, Answer)
	accepts(b, 1, Answer) // nobody knows whether it is older
	if j, ok := b.At("relay2", "t2", "c"); !ok || j.Key != k {
		t.Error("the job is not found by its newest thread")
	}
	for n := range byte(2 * maxEarlier) {
		b.Accept(k, placeOf(n+3), 0, start)
	}
	if j, _ := b.Job(k); len(j.Earlier) != maxEarlier {
		t.Errorf("a job remembers %d older threads", len(j.Earlier))
	}

	cancelled := &Book{}
	cancelled.Offered(k, nil, start)
	accepts(cancelled, 0, Work)
	if !cancelled.Ended(k, placeOf(0), start) {
		t.Error("a CANCEL in the newest thread does not stop the work")
	}
	accepts(cancelled, 1, Work) // the work had not begun
	if _, may := cancelled.Begin(k, 3); !may || !cancelled.Ended(k, placeOf(1), start) {
		t.Error("the work does not begin, or does not stop")
	}
	accepts(cancelled, 2, Refuse)
}

// TestBegin checks that a job is begun as often as allowed, also if an older record has begun it.
func TestBegin(t *testing.T) {
	k, b := keyOf("c", 1), &Book{}
	b.Accept(k, placeOf(0), 1, start)
	for want := 2; want <= 3; want++ {
		if n, may := b.Begin(k, 3); n != want || !may {
			t.Errorf("begun %d times, %v; want %d", n, may, want)
		}
	}
	if _, may := b.Begin(k, 3); may {
		t.Error("the work begins a fourth time")
	}
	b.Undo(k)
	if n, may := b.Begin(k, 3); n != 3 || !may {
		t.Error("an attempt that the agent itself has interrupted counts")
	}
}

// TestBookIsBounded: jobs without an ACCEPT make room for others, first those that were offered first. Accepted jobs
// are not forgotten before they are over (RELAYS R-18).
func TestBookIsBounded(t *testing.T) {
	forgotten := 0
	b := &Book{Changed: func(_ *Job, gone bool) {
		if gone {
			forgotten++
		}
	}}
	for n := range MaxOfClient + 1 {
		b.Offered(keyOf("c", n), nil, start)
	}
	if _, ok := b.Job(keyOf("c", 0)); ok || forgotten != 1 {
		t.Errorf("a client has more than %d jobs", MaxOfClient)
	}
	for n := range MaxOfClient {
		b.Accept(keyOf("c", n+1), placeOf(0), 0, start)
	}
	if b.HasRoom(keyOf("c", 999)) || !b.HasRoom(keyOf("c", 1)) || !b.HasRoom(keyOf("other", 1)) {
		t.Error("a client with the most accepted jobs gets an offer, or others do not")
	}
	for n := range MaxJobs {
		k := keyOf(fmt.Sprint("client", n), n)
		b.Offered(k, nil, start)
		b.Accept(k, placeOf(0), 0, start)
	}
	if b.HasRoom(keyOf("new", 1)) {
		t.Error("the book is full of accepted jobs and has room")
	}
	b.Expire(start.Add(24 * time.Hour))
	if len(b.jobs) < MaxJobs {
		t.Error("accepted jobs were forgotten before they ended")
	}
	for n := range MaxJobs {
		b.Finish(keyOf(fmt.Sprint("client", n), n), Outcome{}, start)
	}
	b.Expire(start.Add(24*time.Hour - 1))
	before := len(b.jobs)
	if !b.HasRoom(keyOf("new", 1)) {
		t.Error("jobs that are over make no room")
	}
	b.Expire(start.Add(24 * time.Hour))
	if before < MaxJobs || len(b.jobs) > MaxOfClient {
		t.Errorf("a day after their end: %d jobs, then %d", before, len(b.jobs))
	}
}

// TestJobIsText: a job that was saved and read is the same.
func TestJobIsText(t *testing.T) {
	b := &Book{}
	k := keyOf("c", 7)
	b.Offered(k, json.RawMessage(`{"price":1}`), start)
	b.Accept(k, placeOf(0), 0, start)
	b.Accept(k, placeOf(1), 0, start)
	b.Finish(k, Outcome{Type: envelope.TypeResult, Payload: json.RawMessage(`{"output":7}`)}, start)
	saved, _ := b.Job(k)
	text, err := json.Marshal(saved)
	var read Job
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	again := &Book{}
	again.Restore(read)
	if text2, err2 := json.Marshal(read); err != nil || err2 != nil || string(text2) != string(text) ||
		again.Accept(k, placeOf(1), 0, start) != Answer {
		t.Errorf("%s, %s, %v, %v", text, text2, err, err2)
	}
}
