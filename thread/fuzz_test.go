package thread_test

import (
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// FuzzSteps checks that the code and the model of PROTOCOL §4 agree on the answer to every message and on the thread
// after it. The first byte of a script decides whether the REQUEST names an agent. Every four bytes after it make a
// message.
func FuzzSteps(f *testing.F) {
	f.Add([]byte{0, 2, 0, 0, 0, 0, 1, 4, 0, 2, 2, 1, 0}) // "a" offers, an ACCEPT names "b", "a" sends a RESULT
	f.Add([]byte{1, 1, 0, 0, 0, 1, 4, 0, 0, 0, 3, 0, 0}) // the named agent offers and sends an ERROR; a CANCEL
	f.Add([]byte{0, 2, 0, 0, 6, 0, 1, 4, 0})             // an OFFER at the deadline, then an ACCEPT
	types := []envelope.Type{offer, accept, result, cancel, failure, request}
	pauses := []time.Duration{
		0, 0, 0, time.Second, time.Minute, 5*time.Minute - 1, 5 * time.Minute, time.Hour - 1, time.Hour,
	}
	recipients := append([]didkey.DID{""}, parties...)
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
			sent := message(parties[int(script[0])%len(parties)], types[int(script[1])%len(types)])
			sent = to(recipients[int(script[2])%len(recipients)], sent)
			if which := script[3] / 64; which == 2 {
				sent.RequestID = "other"
			} else if which == 3 {
				sent.RequestID = ""
			}
			now = now.Add(pauses[int(script[3]%64)%len(pauses)])
			th = stepBoth(t, rules, th, &m, sent, now)
		}
	})
}
