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
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "m2", 1).to(alice).signed(), "PENDING", alice.did)
		s.accept(2, msg(alice, "ACCEPT", "m3", 2).to(bob).signed(), "ACTIVE", alice.did)
		s.accept(3, msg(bob, "RESULT", "m4", 3).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"happy-path-named", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).to(bob).signed(), "PENDING", alice.did)
		s.reject(1, msg(carol, "OFFER", "m2", 1).to(alice).signed(), forbidden, "The REQUEST names another agent.")
		s.accept(2, msg(bob, "OFFER", "m2", 2).to(alice).signed(), "PENDING", alice.did)
		s.accept(3, msg(alice, "ACCEPT", "m3", 3).signed(), "ACTIVE", alice.did)
		s.accept(4, msg(bob, "RESULT", "m4", 4).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"happy-path-by-request-id", func(s *script) {
		s.accept(0, wrapped(msg(alice, "REQUEST", "m1", 0).bare().signed()), "PENDING", alice.did)
		s.accept(1, wrapped(msg(bob, "OFFER", "m2", 1).bare().signed()), "PENDING", alice.did)
		s.accept(2, wrapped(msg(alice, "ACCEPT", "m3", 2).bare().signed()), "ACTIVE", alice.did)
		s.accept(3, wrapped(msg(bob, "RESULT", "m4", 3).bare().signed()), "COMPLETED", alice.did)
	}},
	{"request-with-thread-and-answers-without", func(s *script) {
		request := msg(alice, "REQUEST", "m1", 0).with("thread", `{"id":"req_1"}`)
		s.accept(0, request.signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "m2", 1).bare().signed(), "PENDING", alice.did)
		s.accept(2, msg(alice, "ACCEPT", "m3", 2).bare().to(bob).signed(), "ACTIVE", alice.did)
		s.reject(3, msg(bob, "RESULT", "m4", 3).signed(), notFound, "The thread's id is req_1, and this message has another thread id.")
		s.accept(4, msg(bob, "RESULT", "m5", 4).bare().signed(), "COMPLETED", alice.did)
	}},
	{"duplicate-in-another-spelling", func(s *script) {
		request, accept := msg(alice, "REQUEST", "m1", 0).signed(), msg(alice, "ACCEPT", "m3", 2).to(bob).signed()
		s.accept(0, request, "PENDING", alice.did)
		s.duplicate(0, request)
		s.duplicate(1, respelled(request))
		s.duplicate(1, wrapped(request))
		s.duplicate(1, string(canonical([]byte(request))))
		s.accept(1, msg(bob, "OFFER", "m2", 1).signed(), "PENDING", alice.did)
		s.accept(2, accept, "ACTIVE", alice.did)
		s.duplicate(3, accept)
		s.accept(4, msg(bob, "RESULT", "m4", 4).signed(), "COMPLETED", alice.did)
		s.duplicate(5, accept)
		s.duplicate(6, respelled(request))
	}},
	{"duplicate-id-other-content", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.reject(1, msg(alice, "REQUEST", "m1", 1).with("thread", `{"id":"th_2"}`).signed(), duplicateID, "The sender has used this id for another message.")
		s.reject(1, msg(alice, "REQUEST", "m1", 0).with("x", "1").signed(), duplicateID, "The sender has used this id for another message.")
		s.reject(2, msg(alice, "CANCEL", "m1", 2).signed(), duplicateID, "The sender has used this id for another message.")
		s.accept(3, msg(bob, "OFFER", "m2", 3).signed(), "PENDING", alice.did)
	}},
	{"same-id-by-another-sender", func(s *script) {
		s.accept(0, msg(mallory, "REQUEST", "m1", 0).with("thread", `{"id":"th_2"}`).signed(), "PENDING", mallory.did)
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "m1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(carol, "OFFER", "m1", 2).signed(), "PENDING", alice.did)
		s.duplicate(3, msg(alice, "REQUEST", "m1", 0).signed())
	}},
	{"refused-id-is-not-remembered", func(s *script) {
		early := msg(bob, "RESULT", "m4", 1).signed()
		s.reject(0, msg(bob, "OFFER", "m2", 0).signed(), notFound, "There is no thread yet.")
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "m2", 0).signed(), "PENDING", alice.did)
		s.reject(1, early, badTransition, "The offer has not been accepted yet.")
		s.accept(2, msg(alice, "ACCEPT", "m3", 2).signed(), "ACTIVE", alice.did)
		s.accept(3, early, "COMPLETED", alice.did)
		s.duplicate(4, early)
	}},
	{"stranger-moves-nothing", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "m2", 1).signed(), "PENDING", alice.did)
		s.reject(2, msg(mallory, "ACCEPT", "x1", 2).to(bob).signed(), forbidden, "Only the client may send an ACCEPT.")
		s.reject(2, msg(mallory, "CANCEL", "x2", 2).signed(), forbidden, "Only the client may send a CANCEL.")
		s.reject(2, msg(mallory, "ERROR", "x3", 2).signed(), forbidden, "A stranger may not end a thread.")
		s.accept(3, msg(alice, "ACCEPT", "m3", 3).to(bob).signed(), "ACTIVE", alice.did)
		s.reject(4, msg(mallory, "RESULT", "x4", 4).to(alice).signed(), forbidden,
			"Only the agent whose offer was accepted may send the RESULT.")
		s.accept(5, msg(bob, "RESULT", "m4", 5).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(mallory, "REQUEST", "x1", 1).signed(), "PENDING", mallory.did)
		s.accept(2, msg(bob, "OFFER", "m2", 2).signed(), "PENDING", alice.did)
		s.accept(3, msg(alice, "ACCEPT", "m3", 3).signed(), "ACTIVE", alice.did)
		s.accept(4, msg(mallory, "CANCEL", "x2", 4).signed(), "ERROR", mallory.did)
		s.accept(5, msg(bob, "RESULT", "m4", 5).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id-came-first", func(s *script) {
		s.accept(0, msg(mallory, "REQUEST", "x1", 0).to(carol).signed(), "PENDING", mallory.did)
		s.accept(1, msg(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(bob, "OFFER", "m2", 2).signed(), "PENDING", alice.did)
		s.accept(3, msg(alice, "ACCEPT", "m3", 3).signed(), "ACTIVE", alice.did)
		s.accept(4, msg(carol, "OFFER", "m2", 4).to(mallory).signed(), "PENDING", mallory.did)
		s.accept(5, msg(bob, "RESULT", "m4", 5).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id-recipient-decides", func(s *script) {
		s.accept(0, msg(mallory, "REQUEST", "x1", 0).signed(), "PENDING", mallory.did)
		s.accept(1, msg(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(bob, "OFFER", "m2", 2).to(alice).signed(), "PENDING", alice.did)
		s.accept(2, msg(bob, "OFFER", "m3", 2).to(mallory).signed(), "PENDING", mallory.did)
		s.accept(3, msg(alice, "ACCEPT", "m4", 3).to(bob).signed(), "ACTIVE", alice.did)
		s.reject(4, msg(bob, "RESULT", "m5", 4).to(mallory).signed(), badTransition, "No offer has been accepted in the thread of the recipient.")
		s.accept(5, msg(bob, "RESULT", "m6", 5).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"copied-thread-id-request-id-decides", func(s *script) {
		other := msg(mallory, "REQUEST", "x1", 0).with("payload", `{"request_id":"req_other","intent":"echo"}`)
		s.accept(0, other.signed(), "PENDING", mallory.did)
		s.accept(1, msg(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(bob, "OFFER", "m2", 2).signed(), "PENDING", alice.did)
		s.accept(3, msg(bob, "OFFER", "m3", 3).with("payload", `{"request_id":"req_other"}`).signed(), "PENDING", mallory.did)
	}},
	{"copied-thread-id-refusals", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "b1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(alice, "ACCEPT", "m2", 2).signed(), "ACTIVE", alice.did)
		s.accept(3, msg(mallory, "REQUEST", "x1", 3).to(carol).signed(), "PENDING", mallory.did)
		s.reject(4, msg(bob, "OFFER", "b2", 4).signed(), badTransition, "The first thread takes no more offers and the second names another agent, so the relay answers with the error about the first.")
		s.reject(5, msg(alice, "REQUEST", "m3", 5).signed(), badTransition, "The client already has a thread with this id.")
		s.reject(6, msg(mallory, "RESULT", "x2", 6).signed(), forbidden, "The sender is not an agent of either thread.")
		s.accept(7, msg(carol, "OFFER", "c1", 7).signed(), "PENDING", mallory.did)
	}},
	{"copied-thread-id-refusals-the-other-way-round", func(s *script) {
		s.accept(0, msg(mallory, "REQUEST", "x1", 0).to(carol).signed(), "PENDING", mallory.did)
		s.accept(1, msg(alice, "REQUEST", "m1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(bob, "OFFER", "b1", 2).signed(), "PENDING", alice.did)
		s.accept(3, msg(alice, "ACCEPT", "m2", 3).signed(), "ACTIVE", alice.did)
		s.reject(4, msg(bob, "OFFER", "b2", 4).signed(), badTransition, "The first thread names another agent and the second takes no more offers, so the relay answers with the error about the second.")
	}},
	{"two-offers-one-accepted", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(carol, "OFFER", "c1", 1).to(alice).signed(), "PENDING", alice.did)
		s.accept(2, msg(bob, "OFFER", "b1", 2).to(alice).signed(), "PENDING", alice.did)
		s.reject(3, msg(alice, "ACCEPT", "m2", 3).signed(), badTransition, "Two agents have offered, and the ACCEPT names neither.")
		s.reject(3, msg(alice, "ACCEPT", "m2", 3).to(mallory).signed(), badTransition,
			"The agent that the ACCEPT names has not offered.")
		s.accept(4, msg(alice, "ACCEPT", "m2", 4).to(bob).signed(), "ACTIVE", alice.did)
		s.reject(5, msg(alice, "ACCEPT", "m3", 5).to(carol).signed(), badTransition, "The thread already has an ACCEPT.")
		s.reject(6, msg(carol, "RESULT", "c2", 6).to(alice).signed(), forbidden, "Another agent's offer was accepted.")
		s.accept(7, msg(carol, "ERROR", "c3", 7).to(alice).signed(), "ACTIVE", alice.did)
		s.accept(8, msg(bob, "RESULT", "b2", 8).to(alice).signed(), "COMPLETED", alice.did)
	}},
	{"withdrawn-offer", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(carol, "OFFER", "c1", 1).to(alice).signed(), "PENDING", alice.did)
		s.accept(2, msg(carol, "ERROR", "c2", 2).to(alice).signed(), "PENDING", alice.did)
		s.reject(3, msg(alice, "ACCEPT", "m2", 3).to(carol).signed(), badTransition, "The agent has withdrawn the offer.")
		s.reject(3, msg(alice, "ACCEPT", "m2", 3).signed(), badTransition, "There is no open offer.")
		s.accept(4, msg(bob, "OFFER", "b1", 4).to(alice).signed(), "PENDING", alice.did)
		s.accept(5, msg(alice, "ACCEPT", "m2", 5).signed(), "ACTIVE", alice.did)
		s.reject(6, msg(carol, "ERROR", "c3", 6).signed(), forbidden, "The sender has withdrawn its offer, so it may no longer send an ERROR to this thread.")
		s.accept(7, msg(bob, "RESULT", "b2", 7).signed(), "COMPLETED", alice.did)
	}},
	{"named-agent-declines", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).to(bob).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "ERROR", "b1", 1).to(alice).signed(), "ERROR", alice.did)
		s.reject(2, msg(bob, "OFFER", "b2", 2).to(alice).signed(), badTransition, "The thread has ended.")
	}},
	{"cancelled", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "b1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(alice, "CANCEL", "m2", 2).signed(), "ERROR", alice.did)
		s.reject(3, msg(alice, "ACCEPT", "m3", 3).signed(), badTransition, "The thread has ended.")
		s.reject(4, msg(alice, "REQUEST", "m4", 4).signed(), badTransition, "The thread has ended, and its client may not use the thread's id again yet.")
	}},
	{"pending-timeout", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(299, msg(bob, "OFFER", "b1", 299).signed(), "PENDING", alice.did)
		s.accept(598, msg(carol, "OFFER", "c1", 598).signed(), "PENDING", alice.did)
		s.reject(898, msg(alice, "ACCEPT", "m2", 898).to(bob).signed(), badTransition,
			"The last OFFER was five minutes ago, so the thread has timed out.")
		s.reject(899, msg(bob, "OFFER", "b2", 899).signed(), badTransition, "The thread has timed out.")
	}},
	{"pending-timeout-not-put-off-by-a-withdrawal", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(100, msg(bob, "OFFER", "b1", 100).signed(), "PENDING", alice.did)
		s.accept(200, msg(bob, "ERROR", "b2", 200).signed(), "PENDING", alice.did)
		s.reject(400, msg(carol, "OFFER", "c1", 400).signed(), badTransition, "The last OFFER was five minutes ago, and withdrawing it did not extend the time.")
	}},
	{"active-timeout", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(100, msg(bob, "OFFER", "b1", 100).signed(), "PENDING", alice.did)
		s.accept(200, msg(alice, "ACCEPT", "m2", 200).signed(), "ACTIVE", alice.did)
		s.reject(3800, msg(bob, "RESULT", "b2", 3800).signed(), badTransition,
			"The ACCEPT was an hour ago, so the thread has timed out.")
	}},
	{"active-timeout-just-in-time", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(100, msg(bob, "OFFER", "b1", 100).signed(), "PENDING", alice.did)
		s.accept(200, msg(alice, "ACCEPT", "m2", 200).signed(), "ACTIVE", alice.did)
		s.accept(3799, msg(bob, "RESULT", "b2", 3799).signed(), "COMPLETED", alice.did)
	}},
	{"error-after-completed", func(s *script) {
		s.accept(0, msg(alice, "REQUEST", "m1", 0).signed(), "PENDING", alice.did)
		s.accept(1, msg(bob, "OFFER", "b1", 1).signed(), "PENDING", alice.did)
		s.accept(2, msg(alice, "ACCEPT", "m2", 2).signed(), "ACTIVE", alice.did)
		s.accept(3, msg(bob, "RESULT", "b2", 3).signed(), "COMPLETED", alice.did)
		s.accept(4, msg(alice, "ERROR", "m3", 4).to(bob).signed(), "ERROR", alice.did)
		s.reject(5, msg(bob, "ERROR", "b3", 5).signed(), badTransition, "The thread has ended with an ERROR.")
	}},
	{"replay-after-expiry", func(s *script) {
		short := msg(alice, "REQUEST", "m1", 0).with("meta", `{"ttl":60}`).signed()
		s.accept(0, short, "PENDING", alice.did)
		s.duplicate(59, short)
		s.reject(60, short, expired, "The ttl of 60 seconds is over.")
	}},
	{"replay-after-the-window", func(s *script) {
		long := msg(alice, "REQUEST", "m1", 0).signed()
		s.accept(0, long, "PENDING", alice.did)
		s.duplicate(299, long)
		s.reject(300, long, stale, "The ts is five minutes or more before the relay's clock.")
		s.reject(86399, long, stale, "The ts is five minutes or more before the relay's clock.")
	}},
	{"replay-after-the-clock-was-set-back", func(s *script) {
		request := msg(alice, "REQUEST", "m1", 0).signed()
		s.accept(0, request, "PENDING", alice.did)
		s.reject(600, request, stale, "The ts is five minutes or more before the relay's clock.")
		s.duplicate(-240, request)
		s.duplicate(240, request)
	}},
	{"manifests", func(s *script) {
		announce := func(id string, seconds int, auth string) draft {
			return msg(bob, "MANIFEST", id, seconds).with("thread", "").with("payload",
				`{"id":"cap_1","name":"Translation","intents":[{"id":"translation.en_zh"}],"auth":{"methods":["ed25519"]`+auth+`}}`)
		}
		s.accept(0, announce("m1", 0, "").signed(), "", "")
		s.duplicate(1, announce("m1", 0, "").signed())
		s.accept(2, announce("m2", 2, `,"public_key":"`+bob.did[8:]+`"`).signed(), "", "")
		s.reject(3, announce("m3", 3, `,"public_key":"`+carol.did[8:]+`"`).signed(), badRequest, "The manifest has the public key of another identity.")
	}},
}
