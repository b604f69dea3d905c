package thread_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// timed is a message and the time when it arrives, counted from noon.
type timed struct {
	at time.Duration
	m  *envelope.Envelope
}

// playTimed returns the thread after messages that arrive at different times.
func playTimed(t *testing.T, rules thread.Rules, messages []timed) (th thread.Thread) {
	t.Helper()
	var candidates []thread.Thread
	for _, step := range messages {
		next, _, err := rules.Apply(candidates, step.m, noon.Add(step.at))
		if err != nil {
			t.Fatalf("%s at %v: %v", step.m.ID, step.at, err)
		}
		th, candidates = next, []thread.Thread{next}
	}
	return th
}

func TestTimeouts(t *testing.T) {
	const m, h = time.Minute, time.Hour
	open := timed{0, message(client, request)}
	first, second := timed{3 * m, message(offered, offer)}, timed{4 * m, message(accepted, offer)}
	acceptance := timed{6 * m, to(accepted, message(client, accept))}
	short := thread.Rules{PendingTimeout: time.Second, ActiveTimeout: time.Minute}
	for _, c := range []struct {
		name     string
		rules    thread.Rules
		play     []timed
		deadline time.Duration // from noon; 0: never
	}{
		{"REQUEST", thread.Rules{}, []timed{open}, 5 * m},
		{"OFFER extends", thread.Rules{}, []timed{open, first}, 8 * m},
		{"the last OFFER counts", thread.Rules{}, []timed{open, first, second}, 9 * m},
		{"a withdrawal does not extend", thread.Rules{},
			[]timed{open, first, {7 * m, message(offered, failure)}}, 8 * m},
		{"an OFFER that was withdrawn extends", thread.Rules{},
			[]timed{open, first, second, {5 * m, message(accepted, failure)}}, 9 * m},
		{"ACCEPT", thread.Rules{}, []timed{open, first, second, acceptance}, 6*m + h},
		{"a withdrawal while active", thread.Rules{},
			[]timed{open, first, second, acceptance, {30 * m, message(offered, failure)}}, 6*m + h},
		{"COMPLETED", thread.Rules{},
			[]timed{open, first, second, acceptance, {30 * m, message(accepted, result)}}, 0},
		{"COMPLETED with a withdrawal", thread.Rules{},
			[]timed{open, first, second, acceptance,
				{30 * m, message(accepted, result)}, {40 * m, message(offered, failure)}}, 0},
		{"cancelled", thread.Rules{}, []timed{open, {m, message(client, cancel)}}, 0},
		{"own rules, pending", short, []timed{open}, time.Second},
		{"own rules, active", short, []timed{open, {1, message(offered, offer)}, {2, message(client, accept)}}, 2 + m},
	} {
		t.Run(c.name, func(t *testing.T) {
			th := playTimed(t, c.rules, c.play)
			before := text(t, th)
			deadline, ends := c.rules.Deadline(th)
			if ends != (c.deadline != 0) || ends && !deadline.Equal(noon.Add(c.deadline)) {
				t.Fatalf("Deadline = %v, %v; want %v", deadline, ends, c.deadline)
			}
			if !ends {
				if text(t, c.rules.At(th, noon.AddDate(1000, 0, 0))) != before || th.TimedOut() {
					t.Error("At changed a thread that has ended")
				}
				return
			}
			if at := c.rules.At(th, deadline.Add(-1)); text(t, at) != before || at.TimedOut() {
				t.Errorf("1ns before the deadline the state is %s, want no change", at.State)
			}
			for _, late := range []time.Duration{0, 1, 1000 * h} {
				at := c.rules.At(th, deadline.Add(late))
				want := thread.Transition{From: th.State, To: thread.Failed, Type: thread.TypeTimeout, At: deadline}
				if at.State != thread.Failed || !at.TimedOut() || at.Transitions[len(at.Transitions)-1] != want {
					t.Errorf("%v after the deadline: state %s, transitions %v; want the last one %v",
						late, at.State, at.Transitions, want)
				}
				if text(t, c.rules.At(at, deadline.Add(2000*h))) != text(t, at) {
					t.Error("the thread timed out twice")
				}
			}
			if text(t, th) != before {
				t.Error("At changed its argument")
			}
		})
	}
}

// TestTerms checks that the Terms of a thread override the Rules.
func TestTerms(t *testing.T) {
	th := play(t, message(client, request))
	th.Terms = thread.Terms{PendingTimeout: time.Hour, ActiveTimeout: time.Minute}
	if deadline, _ := (thread.Rules{}).Deadline(th); !deadline.Equal(noon.Add(time.Hour)) {
		t.Errorf("the deadline while PENDING is %v, want noon plus an hour", deadline)
	}
	for _, m := range []*envelope.Envelope{message(offered, offer), message(client, accept)} {
		next, err := (thread.Rules{}).Next(th, m, noon.Add(59*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		th = next
	}
	if deadline, _ := (thread.Rules{}).Deadline(th); !deadline.Equal(noon.Add(time.Hour)) {
		t.Errorf("the deadline while ACTIVE is %v, want noon plus an hour", deadline)
	}
}

// TestMovesAtTheDeadline checks that Next itself enforces the deadline, without a call of Expire.
func TestMovesAtTheDeadline(t *testing.T) {
	pending := play(t, message(client, request), message(offered, offer))
	active := play(t, message(client, request), message(offered, offer), message(client, accept))
	for _, c := range []struct {
		in    thread.Thread
		limit time.Duration
		m     *envelope.Envelope
	}{
		{pending, thread.DefaultPendingTimeout, message(client, accept)},
		{pending, thread.DefaultPendingTimeout, message(offered, offer)},
		{pending, thread.DefaultPendingTimeout, message(offered, failure)},
		{active, thread.DefaultActiveTimeout, message(offered, result)},
		{active, thread.DefaultActiveTimeout, message(client, cancel)},
	} {
		if _, err := (thread.Rules{}).Next(c.in, c.m, noon.Add(c.limit-1)); err != nil {
			t.Errorf("%s from %s, 1ns before the deadline: %v", c.m.Type, c.m.Sender.ID, err)
		}
		_, err := (thread.Rules{}).Next(c.in, c.m, noon.Add(c.limit))
		if status(t, err) != 409 || err.(*envelope.Error).Details["state"] != thread.Failed {
			t.Errorf("%s from %s at the deadline: error %v, want 409", c.m.Type, c.m.Sender.ID, err)
		}
		want := "timed out at " + envelope.FormatTime(noon.Add(c.limit)) + " and is ERROR"
		if !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "ask again with a REQUEST in a new thread") {
			t.Errorf("%s from %s at the deadline: the error %q lacks the time or the advice", c.m.Type, c.m.Sender.ID, err)
		}
	}
}

// TestTimeoutIsHiddenFromOtherAgents checks that an agent whose offer was not accepted does not learn when an ACTIVE
// thread timed out.
func TestTimeoutIsHiddenFromOtherAgents(t *testing.T) {
	active := play(t, message(client, request), message(offered, offer), message(accepted, offer),
		to(accepted, message(client, accept)))
	_, err := (thread.Rules{}).Next(active, message(offered, offer), noon.Add(thread.DefaultActiveTimeout))
	if status(t, err) != 409 || strings.Contains(err.Error(), "timed out") || !strings.Contains(err.Error(), " is ERROR") {
		t.Errorf("the error is %v, want one without the timeout", err)
	}
}

func TestRulesDefaults(t *testing.T) {
	want := thread.Rules{PendingTimeout: 5 * time.Minute, ActiveTimeout: time.Hour, MaxOffers: 100}
	if got := (thread.Rules{}).WithDefaults(); got != want {
		t.Errorf("the zero Rules are %v, want %v", got, want)
	}
	own := thread.Rules{PendingTimeout: 1, ActiveTimeout: 2, MaxOffers: 3}
	if got := own.WithDefaults(); got != own {
		t.Errorf("WithDefaults changed rules that were given: %v", got)
	}
}
