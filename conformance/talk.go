package conformance

import (
	"fmt"
	"strings"
	"time"
)

// talk is a conversation that checks write as moves: who, a dot, the type, and after > whom the message names as its
// recipient. c is the client, a and b agents, s a stranger to the thread; "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT" is a
// whole conversation. Without > agents write to the client, the client to nobody in particular; >- is nobody.
type talk struct {
	p               *probe
	who             map[string]actor
	thread, request string
}

func (p *probe) talk() *talk {
	return &talk{p: p, thread: newID("thread"), request: newID("req"), who: map[string]actor{
		"c": p.actor("the client"), "a": p.actor("agent A"), "b": p.actor("agent B"), "s": p.actor("a stranger")}}
}

// message returns a move before it is signed.
func (t *talk) message(move string) (message, actor) {
	move, to, named := strings.Cut(move, ">")
	from, typ, ok := strings.Cut(move, ".")
	sender, known := t.who[from]
	if !ok || !known {
		panic("conformance: no such move: " + move)
	}
	var recipient actor
	switch {
	case named:
		recipient = t.who[to]
	case from != "c" && typ != "REQUEST":
		recipient = t.who["c"]
	}
	return t.p.message(typ, sender, recipient, t.thread, t.request), sender
}

// letter returns a move, signed.
func (t *talk) letter(move string) letter {
	m, sender := t.message(move)
	l := m.sign(sender)
	l.what = fmt.Sprintf("%s (of thread %s)", l.what, t.thread)
	if _, to, _ := strings.Cut(move, ">"); t.who[to].name != "" {
		l.what += " for " + t.who[to].name
	}
	return l
}

// play posts moves, each of which must be accepted, and returns them.
func (t *talk) play(moves string) (letters []letter) {
	for move := range strings.FieldsSeq(moves) {
		l := t.letter(move)
		a := t.p.post(l.what+t.after(letters, moves), l.body)
		t.p.accepted(a, l)
		letters = append(letters, l)
	}
	return letters
}

func (t *talk) after(done []letter, moves string) string {
	if len(done) == 0 {
		return ""
	}
	return ", after " + strings.Join(strings.Fields(moves)[:len(done)], " ")
}

// refuse posts moves, each of which must be refused.
func (t *talk) refuse(want refusal, after, moves string) {
	for move := range strings.FieldsSeq(moves) {
		l := t.letter(move)
		t.p.refuse(want, l.what+", after "+after, l.body)
	}
}

// turn is a rule of the state machine as a table holds it.
type turn struct {
	number, title, cites string
	after                string // moves that are accepted
	refused              string // moves that then are not, each for itself
	how                  refusal
	then                 string // moves that are accepted still
}

func turns(list []turn) []Check {
	var checks []Check
	for _, turn := range list {
		checks = append(checks, Check{Number: turn.number, Title: turn.title, Cites: turn.cites, run: turn.run})
	}
	return checks
}

func (turn turn) run(p *probe) {
	t := p.talk()
	t.play(turn.after)
	t.refuse(turn.how, turn.after, turn.refused)
	t.play(turn.then)
}

// poller is a client that reads in the background while its check goes on.
type poller struct {
	done    chan struct{}
	answer  answer
	started time.Time
	ended   time.Time
}

// pollBehind starts a poll and gives it time to reach the relay.
func (p *probe) pollBehind(pairs ...string) *poller {
	l := &poller{done: make(chan struct{}), started: time.Now()}
	p.tasks.Go(func() {
		defer close(l.done)
		l.answer = p.poll(pairs...)
		l.ended = time.Now()
	})
	p.sleep(second / 2)
	return l
}

// wait returns what came, once it has; the requests of a run are bounded in time.
func (l *poller) wait() answer {
	<-l.done
	return l.answer
}

// waiting ends the check if the poll has been answered already.
func (p *probe) waiting(l *poller, why string) {
	select {
	case <-l.done:
		p.expect("the poll is held: %s", why)
		p.failf("it was answered after %v: %s", l.ended.Sub(l.started).Round(time.Millisecond), l.answer)
	default:
	}
}
