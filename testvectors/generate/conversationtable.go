package main

const (
	notFound      = "THREAD_NOT_FOUND"
	badTransition = "INVALID_TRANSITION"
	duplicateID   = "DUPLICATE_ID"
)

var conversationTable = []struct {
	name string
	play func(s *script)
}{
	{"happy-path", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "m2", 1).to(alice).signed(), "PENDING", alice.did)
		s.took(2, say(alice, "ACCEPT", "m3", 2).to(bob).signed(), "ACTIVE", alice.did)
		s.took(3, say(bob, "RESULT", "m4", 3).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"happy-path-named", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).to(bob).signed(), "PENDING", alice.did)
		s.refused(1, say(carol, "OFFER", "m2", 1).to(alice).signed(), forbidden, "The REQUEST names another agent.")
		s.took(2, say(bob, "OFFER", "m2", 2).to(alice).signed(), "PENDING", alice.did)
		s.took(3, say(alice, "ACCEPT", "m3", 3).signed(), "ACTIVE", alice.did)
		s.took(4, say(bob, "RESULT", "m4", 4).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"happy-path-by-request-id", func(s *script) {
		s.took(0, wrapped(say(alice, "REQUEST", "m1", 0).bare().signed()), "PENDING", alice.did)
		s.took(1, wrapped(say(bob, "OFFER", "m2", 1).bare().signed()), "PENDING", alice.did)
		s.took(2, wrapped(say(alice, "ACCEPT", "m3", 2).bare().signed()), "ACTIVE", alice.did)
		s.took(3, wrapped(say(bob, "RESULT", "m4", 3).bare().signed()), "COMPLETED", alice.did)
	}},
	{"request-with-thread-and-answers-without", func(s *script) {
		request := say(alice, "REQUEST", "m1", 0).with("thread", `{"id":"req_1"}`)
		s.took(0, request.signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "m2", 1).bare().signed(), "PENDING", alice.did)
		s.took(2, say(alice, "ACCEPT", "m3", 2).bare().to(bob).signed(), "ACTIVE", alice.did)
		s.refused(3, say(bob, "RESULT", "m4", 3).signed(), notFound, "The thread's id is req_1, and this message names another.")
		s.took(4, say(bob, "RESULT", "m5", 4).bare().signed(), "COMPLETED", alice.did)
	}},
	{"duplicate-in-another-spelling", func(s *script) {
		request, accept := say(alice, "REQUEST", "m1", 0).signed(), say(alice, "ACCEPT", "m3", 2).to(bob).signed()
		s.took(0, request, "PENDING", alice.did)
		s.knew(0, request)
		s.knew(1, respelled(request))
		s.knew(1, wrapped(request))
		s.knew(1, string(canonical([]byte(request))))
		s.took(1, say(bob, "OFFER", "m2", 1).signed(), "PENDING", alice.did)
		s.took(2, accept, "ACTIVE", alice.did)
		s.knew(3, accept)
		s.took(4, say(bob, "RESULT", "m4", 4).signed(), "COMPLETED", alice.did)
		s.knew(5, accept)
		s.knew(6, respelled(request))
	}},
	{"duplicate-id-other-content", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.refused(1, say(alice, "REQUEST", "m1", 1).with("thread", `{"id":"th_2"}`).signed(), duplicateID, "The sender has used this id for another message.")
		s.refused(1, say(alice, "REQUEST", "m1", 0).with("x", "1").signed(), duplicateID, "The sender has used this id for another message.")
		s.refused(2, say(alice, "CANCEL", "m1", 2).signed(), duplicateID, "The sender has used this id for another message.")
		s.took(3, say(bob, "OFFER", "m2", 3).signed(), "PENDING", alice.did)
	}},
	{"same-id-by-another-sender", func(s *script) {
		s.took(0, say(mallory, "REQUEST", "m1", 0).with("thread", `{"id":"th_2"}`).signed(), "PENDING", mallory.did)
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "m1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(carol, "OFFER", "m1", 2).signed(), "PENDING", alice.did)
		s.knew(3, say(alice, "REQUEST", "m1", 0).signed())
	}},
	{"refused-id-is-not-remembered", func(s *script) {
		early := say(bob, "RESULT", "m4", 1).signed()
		s.refused(0, say(bob, "OFFER", "m2", 0).signed(), notFound, "There is no thread yet.")
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "m2", 0).signed(), "PENDING", alice.did)
		s.refused(1, early, badTransition, "The offer has not been accepted yet.")
		s.took(2, say(alice, "ACCEPT", "m3", 2).signed(), "ACTIVE", alice.did)
		s.took(3, early, "COMPLETED", alice.did)
		s.knew(4, early)
	}},
	{"stranger-moves-nothing", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "m2", 1).signed(), "PENDING", alice.did)
		s.refused(2, say(mallory, "ACCEPT", "x1", 2).to(bob).signed(), forbidden, "Only the client accepts.")
		s.refused(2, say(mallory, "CANCEL", "x2", 2).signed(), forbidden, "Only the client cancels.")
		s.refused(2, say(mallory, "ERROR", "x3", 2).signed(), forbidden, "A stranger may not end a thread.")
		s.took(3, say(alice, "ACCEPT", "m3", 3).to(bob).signed(), "ACTIVE", alice.did)
		s.refused(4, say(mallory, "RESULT", "x4", 4).to(alice).signed(), forbidden, "Only the accepted agent delivers.")
		s.took(5, say(bob, "RESULT", "m4", 5).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(mallory, "REQUEST", "x1", 1).signed(), "PENDING", mallory.did)
		s.took(2, say(bob, "OFFER", "m2", 2).signed(), "PENDING", alice.did)
		s.took(3, say(alice, "ACCEPT", "m3", 3).signed(), "ACTIVE", alice.did)
		s.took(4, say(mallory, "CANCEL", "x2", 4).signed(), "ERROR", mallory.did)
		s.took(5, say(bob, "RESULT", "m4", 5).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id-came-first", func(s *script) {
		s.took(0, say(mallory, "REQUEST", "x1", 0).to(carol).signed(), "PENDING", mallory.did)
		s.took(1, say(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(bob, "OFFER", "m2", 2).signed(), "PENDING", alice.did)
		s.took(3, say(alice, "ACCEPT", "m3", 3).signed(), "ACTIVE", alice.did)
		s.took(4, say(carol, "OFFER", "m2", 4).to(mallory).signed(), "PENDING", mallory.did)
		s.took(5, say(bob, "RESULT", "m4", 5).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id-recipient-decides", func(s *script) {
		s.took(0, say(mallory, "REQUEST", "x1", 0).signed(), "PENDING", mallory.did)
		s.took(1, say(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(bob, "OFFER", "m2", 2).to(alice).signed(), "PENDING", alice.did)
		s.took(2, say(bob, "OFFER", "m3", 2).to(mallory).signed(), "PENDING", mallory.did)
		s.took(3, say(alice, "ACCEPT", "m4", 3).to(bob).signed(), "ACTIVE", alice.did)
		s.refused(4, say(bob, "RESULT", "m5", 4).to(mallory).signed(), badTransition, "In the thread of the recipient nothing was accepted.")
		s.took(5, say(bob, "RESULT", "m6", 5).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id-request-id-decides", func(s *script) {
		other := say(mallory, "REQUEST", "x1", 0).with("payload", `{"request_id":"req_other","intent":"echo"}`)
		s.took(0, other.signed(), "PENDING", mallory.did)
		s.took(1, say(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(bob, "OFFER", "m2", 2).signed(), "PENDING", alice.did)
		s.took(3, say(bob, "OFFER", "m3", 3).with("payload", `{"request_id":"req_other"}`).signed(), "PENDING", mallory.did)
	}},
	{"copied-thread-id-refusals", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "b1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(alice, "ACCEPT", "m2", 2).signed(), "ACTIVE", alice.did)
		s.took(3, say(mallory, "REQUEST", "x1", 3).to(carol).signed(), "PENDING", mallory.did)
		s.refused(4, say(bob, "OFFER", "b2", 4).signed(), badTransition, "One thread is past offers, and the other is not this agent's; the first answer is the nearer one.")
		s.refused(5, say(alice, "REQUEST", "m3", 5).signed(), badTransition, "The client has a thread of this id.")
		s.refused(6, say(mallory, "RESULT", "x2", 6).signed(), forbidden, "Neither thread is this sender's to complete.")
		s.took(7, say(carol, "OFFER", "c1", 7).signed(), "PENDING", mallory.did)
	}},
	{"copied-thread-id-refusals-the-other-way-round", func(s *script) {
		s.took(0, say(mallory, "REQUEST", "x1", 0).to(carol).signed(), "PENDING", mallory.did)
		s.took(1, say(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(bob, "OFFER", "b1", 2).signed(), "PENDING", alice.did)
		s.took(3, say(alice, "ACCEPT", "m2", 3).signed(), "ACTIVE", alice.did)
		s.refused(4, say(bob, "OFFER", "b2", 4).signed(), badTransition, "One thread is not this agent's, and the other is past offers; the second answer is the nearer one.")
	}},
	{"two-offers-one-accepted", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(carol, "OFFER", "c1", 1).to(alice).signed(), "PENDING", alice.did)
		s.took(2, say(bob, "OFFER", "b1", 2).to(alice).signed(), "PENDING", alice.did)
		s.refused(3, say(alice, "ACCEPT", "m2", 3).signed(), badTransition, "Two agents have offered, and the ACCEPT names neither.")
		s.refused(3, say(alice, "ACCEPT", "m2", 3).to(mallory).signed(), badTransition, "The one it names has not offered.")
		s.took(4, say(alice, "ACCEPT", "m2", 4).to(bob).signed(), "ACTIVE", alice.did)
		s.refused(5, say(alice, "ACCEPT", "m3", 5).to(carol).signed(), badTransition, "There is one ACCEPT in a thread.")
		s.refused(6, say(carol, "RESULT", "c2", 6).to(alice).signed(), forbidden, "Another agent's offer was accepted.")
		s.took(7, say(carol, "ERROR", "c3", 7).to(alice).signed(), "ACTIVE", alice.did)
		s.took(8, say(bob, "RESULT", "b2", 8).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"withdrawn-offer", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(carol, "OFFER", "c1", 1).to(alice).signed(), "PENDING", alice.did)
		s.took(2, say(carol, "ERROR", "c2", 2).to(alice).signed(), "PENDING", alice.did)
		s.refused(3, say(alice, "ACCEPT", "m2", 3).to(carol).signed(), badTransition, "The offer has been taken back.")
		s.refused(3, say(alice, "ACCEPT", "m2", 3).signed(), badTransition, "No offer stands.")
		s.took(4, say(bob, "OFFER", "b1", 4).to(alice).signed(), "PENDING", alice.did)
		s.took(5, say(alice, "ACCEPT", "m2", 5).signed(), "ACTIVE", alice.did)
		s.refused(6, say(carol, "ERROR", "c3", 6).signed(), forbidden, "Who has taken the offer back is a stranger to the thread.")
		s.took(7, say(bob, "RESULT", "b2", 7).signed(), "COMPLETED", alice.did)
	}},
	{"named-agent-declines", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).to(bob).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "ERROR", "b1", 1).to(alice).signed(), "ERROR", alice.did)
		s.refused(2, say(bob, "OFFER", "b2", 2).to(alice).signed(), badTransition, "The thread has ended.")
	}},
	{"cancelled", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "b1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(alice, "CANCEL", "m2", 2).signed(), "ERROR", alice.did)
		s.refused(3, say(alice, "ACCEPT", "m3", 3).signed(), badTransition, "The thread has ended.")
		s.refused(4, say(alice, "REQUEST", "m4", 4).signed(), badTransition, "The thread has ended, and its id is in use by its client.")
	}},
	{"pending-timeout", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(299, say(bob, "OFFER", "b1", 299).signed(), "PENDING", alice.did)
		s.took(598, say(carol, "OFFER", "c1", 598).signed(), "PENDING", alice.did)
		s.refused(898, say(alice, "ACCEPT", "m2", 898).to(bob).signed(), badTransition, "The last OFFER was five minutes ago.")
		s.refused(899, say(bob, "OFFER", "b2", 899).signed(), badTransition, "The thread has timed out.")
	}},
	{"pending-timeout-not-put-off-by-a-withdrawal", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(100, say(bob, "OFFER", "b1", 100).signed(), "PENDING", alice.did)
		s.took(200, say(bob, "ERROR", "b2", 200).signed(), "PENDING", alice.did)
		s.refused(400, say(carol, "OFFER", "c1", 400).signed(), badTransition, "The last OFFER was five minutes ago, also if it was taken back.")
	}},
	{"active-timeout", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(100, say(bob, "OFFER", "b1", 100).signed(), "PENDING", alice.did)
		s.took(200, say(alice, "ACCEPT", "m2", 200).signed(), "ACTIVE", alice.did)
		s.refused(3800, say(bob, "RESULT", "b2", 3800).signed(), badTransition, "The ACCEPT was an hour ago.")
	}},
	{"active-timeout-just-in-time", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(100, say(bob, "OFFER", "b1", 100).signed(), "PENDING", alice.did)
		s.took(200, say(alice, "ACCEPT", "m2", 200).signed(), "ACTIVE", alice.did)
		s.took(3799, say(bob, "RESULT", "b2", 3799).signed(), "COMPLETED", alice.did)
	}},
	{"error-after-completed", func(s *script) {
		s.took(0, say(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.took(1, say(bob, "OFFER", "b1", 1).signed(), "PENDING", alice.did)
		s.took(2, say(alice, "ACCEPT", "m2", 2).signed(), "ACTIVE", alice.did)
		s.took(3, say(bob, "RESULT", "b2", 3).signed(), "COMPLETED", alice.did)
		s.took(4, say(alice, "ERROR", "m3", 4).to(bob).signed(), "ERROR", alice.did)
		s.refused(5, say(bob, "ERROR", "b3", 5).signed(), badTransition, "The thread has ended with an ERROR.")
	}},
	{"replay-after-expiry", func(s *script) {
		short := say(alice, "REQUEST", "m1", 0).with("meta", `{"ttl":60}`).signed()
		s.took(0, short, "PENDING", alice.did)
		s.knew(59, short)
		s.refused(60, short, expired, "The ttl of 60 seconds is over.")
	}},
	{"replay-after-the-window", func(s *script) {
		long := say(alice, "REQUEST", "m1", 0).signed()
		s.took(0, long, "PENDING", alice.did)
		s.knew(299, long)
		s.refused(300, long, stale, "The window of five minutes has passed it by.")
		s.refused(86399, long, stale, "The window of five minutes has passed it by.")
	}},
	{"replay-after-the-clock-was-set-back", func(s *script) {
		request := say(alice, "REQUEST", "m1", 0).signed()
		s.took(0, request, "PENDING", alice.did)
		s.refused(600, request, stale, "The window of five minutes has passed it by.")
		s.knew(-240, request)
		s.knew(240, request)
	}},
	{"manifests", func(s *script) {
		announce := func(id string, seconds int, auth string) draft {
			return say(bob, "MANIFEST", id, seconds).with("thread", "").with("payload",
				`{"id":"cap_1","name":"Translation","intents":[{"id":"translation.en_zh"}],"auth":{"methods":["ed25519"]`+auth+`}}`)
		}
		s.took(0, announce("m1", 0, "").signed(), "", "")
		s.knew(1, announce("m1", 0, "").signed())
		s.took(2, announce("m2", 2, `,"public_key":"`+bob.did[8:]+`"`).signed(), "", "")
		s.refused(3, announce("m3", 3, `,"public_key":"`+carol.did[8:]+`"`).signed(), badRequest, "The manifest announces another's key.")
	}},
}
