package deal

import (
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// TestDue checks when a job is to be continued at another relay (RELAYS R-15).
func TestDue(t *testing.T) {
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	const agent, bad = didkey.DID("agent"), didkey.DID("bad")
	for name, c := range map[string]struct {
		change func(o *Order, l *Leg)
		want   int // seconds after start; -1: never
		reason string
	}{
		"all is answered":                     {func(*Order, *Leg) {}, -1, ""},
		"reads are not answered":              {func(_ *Order, l *Leg) { l.Read(at(3), false); l.Read(at(9), false) }, 33, "is silent"},
		"reads are answered again":            {func(_ *Order, l *Leg) { l.Read(at(3), false); l.Read(at(9), true) }, -1, ""},
		"a post is not answered":              {func(_ *Order, l *Leg) { l.Sent(at(2)) }, 32, "is silent"},
		"a post is not answered, reads are":   {func(_ *Order, l *Leg) { l.Sent(at(2)); l.Read(at(9), true) }, 32, "is silent"},
		"a post is answered again":            {func(_ *Order, l *Leg) { l.Sent(at(2)); l.Sent(time.Time{}) }, -1, ""},
		"first a post, then reads":            {func(_ *Order, l *Leg) { l.Sent(at(2)); l.Read(at(5), false) }, 32, "is silent"},
		"first reads, then a post":            {func(_ *Order, l *Leg) { l.Read(at(2), false); l.Sent(at(5)) }, 32, "is silent"},
		"the home was caught":                 {func(_ *Order, l *Leg) { l.Home = bad }, 10, "was caught"},
		"the home has lost the thread":        {func(_ *Order, l *Leg) { l.Lost = "has lost the thread" }, 10, "has lost the thread"},
		"the named agent offers nothing":      {func(o *Order, _ *Leg) { o.Recipient = agent }, 60, "shows no offer"},
		"the same, and the job ends soon":     {func(o *Order, _ *Leg) { o.Recipient, o.Ends = agent, at(100) }, 25, "shows no offer"},
		"the same, and the job has ended":     {func(o *Order, _ *Leg) { o.Recipient, o.Ends = agent, start }, 1, "shows no offer"},
		"the named agent has offered":         {func(o *Order, l *Leg) { o.Recipient, l.Offered = agent, true }, -1, ""},
		"the job was continued often enough":  {func(o *Order, l *Leg) { l.Lost = "x"; o.Legs = []*Leg{{}, {}, {}, l} }, -1, ""},
		"the job can be continued once again": {func(o *Order, l *Leg) { l.Lost = "x"; o.Legs = []*Leg{{}, {}, l} }, 10, "x"},
	} {
		l := &Leg{Opened: start}
		o := &Order{Silence: 30 * time.Second, OfferWait: time.Minute, Ends: at(1000), Legs: []*Leg{l}}
		c.change(o, l)
		due, reason := o.Due(at(10), func(did didkey.DID) bool { return did == bad })
		want := time.Time{}
		if c.want >= 0 {
			want = at(c.want)
		}
		if !due.Equal(want) || reason != c.reason {
			t.Errorf("%s: due at %v, %q; want %v, %q", name, due.Sub(start), reason, want.Sub(start), c.reason)
		}
	}
}
