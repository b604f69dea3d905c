package thread_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// cells is the table of PROTOCOL §4. For each state, role and message type, it has the next state or the status of the
// error. "new" means that the message opens a new thread whose client is the sender. "stays" means that the state does
// not change and the sender's offer is withdrawn.
//
// The messages are valid and name no recipient. PROTOCOL §4 does not say which error a RESULT gets if its sender may
// still be accepted, or could have been accepted before the thread timed out. This table has 409 (right party, wrong
// time) for it, not 403 (wrong party).
const cells = `
state             role      REQUEST  OFFER    ACCEPT  CANCEL  RESULT     ERROR

none              stranger  new      404      404     404     404        404

pending           client    409      403      ACTIVE  ERROR   403        ERROR
pending           offered   new      PENDING  403     403     409        stays
pending           withdrew  new      PENDING  403     403     403        403
pending           stranger  new      PENDING  403     403     403        403

pending-named     client    409      403      409     ERROR   403        ERROR
pending-named     named     new      PENDING  403     403     409        ERROR
pending-named     stranger  new      403      403     403     403        403

offered-named     client    409      403      ACTIVE  ERROR   403        ERROR
offered-named     named     new      PENDING  403     403     409        ERROR
offered-named     stranger  new      403      403     403     403        403

active            client    409      403      409     ERROR   403        ERROR
active            accepted  new      409      403     403     COMPLETED  ERROR
active            offered   new      409      403     403     403        stays
active            withdrew  new      409      403     403     403        403
active            stranger  new      409      403     403     403        403

active-named      client    409      403      409     ERROR   403        ERROR
active-named      named     new      409      403     403     COMPLETED  ERROR
active-named      stranger  new      403      403     403     403        403

completed         client    409      403      409     409     403        ERROR
completed         accepted  new      409      403     403     409        ERROR
completed         offered   new      409      403     403     403        stays
completed         withdrew  new      409      403     403     403        403
completed         stranger  new      409      403     403     403        403

completed-named   client    409      403      409     409     403        ERROR
completed-named   named     new      409      403     403     409        ERROR
completed-named   stranger  new      403      403     403     403        403

cancelled         client    409      403      409     409     403        409
cancelled         accepted  new      409      403     403     409        409
cancelled         offered   new      409      403     403     403        409
cancelled         withdrew  new      409      403     403     403        403
cancelled         stranger  new      409      403     403     403        403

timed-out         client    409      403      409     409     403        409
timed-out         offered   new      409      403     403     409        409
timed-out         withdrew  new      409      403     403     403        403
timed-out         stranger  new      409      403     403     403        403

timed-out-named   client    409      403      409     409     403        409
timed-out-named   named     new      409      403     403     409        409
timed-out-named   stranger  new      403      403     403     403        403
`

// situation is a value of the column "state": how a thread gets into it, and the roles that it has.
type situation struct {
	state thread.State
	play  []*envelope.Envelope // the messages that lead to it
	after time.Duration        // the time between these messages and the message of the cell
	roles []didkey.DID
}

func situations() map[string]situation {
	open := []*envelope.Envelope{message(client, request)}
	openNamed := []*envelope.Envelope{to(named, message(client, request))}
	bids := slices.Concat(open, []*envelope.Envelope{
		message(withdrew, offer), message(offered, offer), message(withdrew, failure)})
	bidsNamed := slices.Concat(openNamed, []*envelope.Envelope{message(named, offer)})
	active := slices.Concat(bids, []*envelope.Envelope{message(accepted, offer), to(accepted, message(client, accept))})
	activeNamed := slices.Concat(bidsNamed, []*envelope.Envelope{message(client, accept)})
	done := slices.Concat(active, []*envelope.Envelope{message(accepted, result)})
	doneNamed := slices.Concat(activeNamed, []*envelope.Envelope{message(named, result)})
	cancelled := slices.Concat(active, []*envelope.Envelope{message(client, cancel)})

	bidders := []didkey.DID{client, offered, withdrew, stranger}
	working := []didkey.DID{client, accepted, offered, withdrew, stranger}
	pair := []didkey.DID{client, named, stranger}
	return map[string]situation{
		"pending":         {thread.Pending, bids, 0, bidders},
		"pending-named":   {thread.Pending, openNamed, 0, pair},
		"offered-named":   {thread.Pending, bidsNamed, 0, pair},
		"active":          {thread.Active, active, 0, working},
		"active-named":    {thread.Active, activeNamed, 0, pair},
		"completed":       {thread.Completed, done, 0, working},
		"completed-named": {thread.Completed, doneNamed, 0, pair},
		"cancelled":       {thread.Failed, cancelled, 0, working},
		"timed-out":       {thread.Failed, bids, time.Hour, bidders},
		"timed-out-named": {thread.Failed, bidsNamed, time.Hour, pair},
	}
}

// TestEveryCell checks every cell of the table, and that the table has a row for every situation and role.
func TestEveryCell(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(cells), "\n")
	types := strings.Fields(lines[0])[2:]
	all := situations()
	seen := map[string]int{}
	for _, line := range lines[1:] {
		row := strings.Fields(line)
		if len(row) == 0 {
			continue
		}
		seen[row[0]+" "+row[1]]++
		for i, want := range row[2:] {
			m := message(didkey.DID(row[1]), envelope.Type(types[i]))
			t.Run(row[0]+"/"+row[1]+"/"+types[i], func(t *testing.T) {
				var candidates []thread.Thread
				now := noon
				if s, ok := all[row[0]]; ok {
					candidates = []thread.Thread{play(t, s.play...)}
					now = now.Add(s.after)
					if got := (thread.Rules{}).At(candidates[0], now).State; got != s.state {
						t.Fatalf("the thread is %s before the message, want %s", got, s.state)
					}
				}
				checkCell(t, candidates, m, now, want)
			})
		}
	}
	for name, s := range all {
		for _, role := range s.roles {
			if n := seen[name+" "+string(role)]; n != 1 {
				t.Errorf("the table has %d rows for the state %s and the role %s, want 1", n, name, role)
			}
		}
	}
}

// checkCell applies m to the candidates and checks the result. want is the text of a cell.
func checkCell(t *testing.T, candidates []thread.Thread, m *envelope.Envelope, now time.Time, want string) {
	t.Helper()
	var rules thread.Rules
	var before thread.Thread // the candidate at now
	var snapshot string
	if len(candidates) > 0 {
		before, snapshot = rules.At(candidates[0], now), text(t, candidates[0])
	}
	next, chosen, err := rules.Apply(candidates, m, now)
	if len(candidates) > 0 && text(t, candidates[0]) != snapshot {
		t.Error("Apply changed its argument")
	}

	if code, refused := strconv.Atoi(want); refused == nil {
		if got := status(t, err); got != code {
			t.Fatalf("status %d (error %v), state %s; want status %d", got, err, next.State, code)
		}
		if chosen != -1 || next.State != "" {
			t.Errorf("Apply returned an error together with thread %d, %v", chosen, next)
		}
		if refusal := err.(*envelope.Error); code == 409 && refusal.Details["state"] != before.State {
			t.Errorf("details.state = %v, want %s", refusal.Details["state"], before.State)
		}
		return
	}
	if err != nil {
		t.Fatalf("error %v; want %s", err, want)
	}
	state, by := thread.State(want), m.Sender.ID
	from := before.State
	switch want {
	case "new":
		state, from = thread.Pending, thread.Open
		if chosen != -1 || next.Client != by || len(next.Transitions) != 1 {
			t.Errorf("got thread %d, %v; want a new thread of the sender", chosen, next)
		}
	case "stays":
		state = before.State
		if !before.Offered(by) || next.Offered(by) {
			t.Error("the offer was not withdrawn")
		}
		fallthrough
	default:
		if chosen != 0 || next.Client != client || len(next.Transitions) != len(before.Transitions)+1 {
			t.Errorf("got thread %d, %v; want the candidate with one more transition", chosen, next)
		}
	}
	if next.State != state {
		t.Errorf("state %s, want %s", next.State, state)
	}
	step := thread.Transition{From: from, To: state, Type: m.Type, By: by, ID: m.ID, At: now}
	if got := next.Transitions[len(next.Transitions)-1]; got != step {
		t.Errorf("the last transition is %v, want %v", got, step)
	}
}
