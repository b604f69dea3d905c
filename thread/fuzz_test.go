package thread_test

import (
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// FuzzSteps: whatever is said in whatever order, the code and the model of PROTOCOL §4 agree on every answer and on
// what holds afterwards. The first byte says whether the REQUEST names an agent, then four bytes make a message.
func FuzzSteps(f *testing.F) {
	f.Add([]byte{0, 2, 0, 0, 0, 0, 1, 4, 0, 2, 2, 1, 0}) // OFFER, ACCEPT, RESULT
	f.Add([]byte{1, 1, 0, 0, 0, 1, 4, 0, 0, 0, 3, 0, 0}) // a named agent offers and gives up
	f.Add([]byte{0, 2, 0, 0, 6, 0, 1, 4, 0})             // too late
	types := []envelope.Type{offer, accept, result, cancel, failure, request}
	pauses := []time.Duration{0, 0, 0, time.Second, time.Minute, 5*time.Minute - 1, 5 * time.Minute, time.Hour - 1, time.Hour}
	to1 := append([]didkey.DID{""}, people...)
	rules := thread.Rules{MaxOffers: modelOffers}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) == 0 || len(script) > 400 {
			return
		}
		now := noon
		begin := message(client, request)
		if script[0]%2 == 1 {
			begin = to(named, begin)
		}
		th, _, err := rules.Apply(nil, begin, now)
		if err != nil {
			t.Fatal(err)
		}
		m := model{thread.Pending, begin.Recipient, "", map[didkey.DID]bool{}, 0, now.Add(5 * time.Minute)}
		for script = script[1:]; len(script) >= 4; script = script[4:] {
			said := message(people[int(script[0])%len(people)], types[int(script[1])%len(types)])
			said = to(to1[int(script[2])%len(to1)], said)
			if which := script[3] / 64; which == 2 {
				said.RequestID = "other"
			} else if which == 3 {
				said.RequestID = ""
			}
			now = now.Add(pauses[int(script[3]%64)%len(pauses)])
			th = agree(t, rules, th, &m, said, now)
		}
	})
}
