package relay

import (
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// conversation is one thread with its participants. Checks write its messages as moves, for example
// "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT".
//
// A move is the sender, a dot and the type of the message. After > it may name the recipient. c is the client, a and b
// are agents, and s is a stranger to the thread. ">-" means no recipient. Without >, a REQUEST and all messages of the
// client have no recipient, and all other messages have the client as recipient.
type conversation struct {
	p               *relayProbe
	actors          map[string]kit.Actor
	thread, request string
}

func (p *relayProbe) conversation() *conversation {
	return &conversation{p: p, thread: kit.NewID("thread"), request: kit.NewID("req"), actors: map[string]kit.Actor{
		"c": p.Actor("the client"), "a": p.Actor("agent A"), "b": p.Actor("agent B"), "s": p.Actor("a stranger")}}
}

// message returns the message of a move, not signed yet, and its sender.
func (t *conversation) message(move string) (kit.Message, kit.Actor) {
	move, to, named := strings.Cut(move, ">")
	from, typ, ok := strings.Cut(move, ".")
	sender, known := t.actors[from]
	if !ok || !known {
		panic("conformance: invalid move: " + move)
	}
	var recipient kit.Actor
	switch {
	case named:
		recipient = t.actors[to]
	case from != "c" && typ != "REQUEST":
		recipient = t.actors["c"]
	}
	return t.p.Message(typ, sender, recipient, t.thread, t.request), sender
}

// signed returns the signed message of a move.
func (t *conversation) signed(move string) kit.SignedMessage {
	m, sender := t.message(move)
	signed := m.Sign(sender)
	signed.What = fmt.Sprintf("%s in thread %s", signed.What, t.thread)
	if _, to, _ := strings.Cut(move, ">"); t.actors[to].Name != "" {
		signed.What += " to " + t.actors[to].Name
	}
	return signed
}

// play posts the messages of moves and returns them. The relay must accept each.
func (t *conversation) play(moves string) (messages []kit.SignedMessage) {
	for move := range strings.FieldsSeq(moves) {
		signed := t.signed(move)
		a := t.p.Post(signed.What+t.after(messages, moves), signed.Body)
		t.p.CheckAccepted(a, signed)
		messages = append(messages, signed)
	}
	return messages
}

// after describes the messages that were posted before, for the report.
func (t *conversation) after(done []kit.SignedMessage, moves string) string {
	return afterMoves(strings.Join(strings.Fields(moves)[:len(done)], " "))
}

// afterMoves describes moves that were posted before, for the report.
func afterMoves(moves string) string {
	if moves == "" {
		return ""
	}
	return ", after " + moves + " (c: client, a and b: agents, s: stranger, >: recipient)"
}

// refuse posts the messages of moves. The relay must refuse each. The moves of setup were posted before; they only
// appear in the report.
func (t *conversation) refuse(want kit.Refusal, setup, moves string) {
	for move := range strings.FieldsSeq(moves) {
		signed := t.signed(move)
		t.p.PostRefused(want, signed.What+afterMoves(setup), signed.Body)
	}
}

// threadRule is a row of a table that describes rules of the state machine of threads.
type threadRule struct {
	number, title, cites string
	setup                string // moves that the relay must accept
	refused              string // moves that the relay must then refuse, each of them
	want                 kit.Refusal
	then                 string // moves that the relay must accept after the refusals
}

func threadChecks(list []threadRule) []relayCheck {
	var checks []relayCheck
	for _, rule := range list {
		checks = append(checks, relayCheck{Number: rule.number, Title: rule.title, Cites: rule.cites, run: rule.run})
	}
	return checks
}

func (rule threadRule) run(p *relayProbe) {
	t := p.conversation()
	t.play(rule.setup)
	t.refuse(rule.want, rule.setup, rule.refused)
	t.play(rule.then)
}

// poller is a poll that runs in the background while its check continues.
type poller struct {
	done    chan struct{}
	answer  kit.Answer
	started time.Time
	ended   time.Time
}

// pollInBackground starts a poll and waits half a second, so that the poll reaches the relay.
func (p *relayProbe) pollInBackground(pairs ...string) *poller {
	poll := &poller{done: make(chan struct{}), started: time.Now()}
	p.Tasks.Go(func() {
		defer close(poll.done)
		poll.answer = p.Poll(pairs...)
		poll.ended = time.Now()
	})
	p.Sleep(time.Second / 2)
	return poll
}

// wait waits for the answer to the poll and returns it. It ends because each request of a run has a time limit.
func (poll *poller) wait() kit.Answer {
	<-poll.done
	return poll.answer
}

// checkStillWaiting ends the check if the poll has already been answered.
func (p *relayProbe) checkStillWaiting(poll *poller, why string) {
	select {
	case <-poll.done:
		p.Expect("the poll is still held: %s", why)
		p.Failf("the poll was answered after %v: %s", poll.ended.Sub(poll.started).Round(time.Millisecond), poll.answer)
	default:
	}
}
