package main

import "github.com/agora-relay/agora/testvectors"

type threadCase struct {
	name, history, state string
	message              testvectors.ThreadMessage
	want, reason         string
	elapsed              int64
}

type message = testvectors.ThreadMessage

// threadCases test what the table cells does not vary: recipients, request_ids, payloads, and the number of offers.
var threadCases = []threadCase{
	{name: "request-named", state: "OPEN", message: message{By: "client", Type: "REQUEST", To: "agent"}, want: "PENDING"},
	{name: "request-without-intent", state: "OPEN", message: message{By: "client", Type: "REQUEST", Payload: "incomplete"}, want: "400", reason: "A REQUEST needs an intent."},

	{name: "offer-to-the-client", history: opened, state: "PENDING", message: message{By: "agent", Type: "OFFER", To: "client"}, want: "PENDING"},
	{name: "offer-to-the-client-named", history: openedNamed, state: "PENDING", message: message{By: "agent", Type: "OFFER", To: "client"}, want: "PENDING"},
	{name: "offer-to-a-stranger", history: opened, state: "PENDING", message: message{By: "agent", Type: "OFFER", To: "stranger"}, want: "403", reason: "The recipient is not the sender's counterpart in this thread."},
	{name: "offer-other-request-id", history: opened, state: "PENDING", message: message{By: "agent", Type: "OFFER", RequestID: "other"}, want: "400", reason: "An OFFER must have the request_id of the REQUEST."},
	{name: "offer-no-request-id", history: opened, state: "PENDING", message: message{By: "agent", Type: "OFFER", RequestID: "none"}, want: "400", reason: "An OFFER must have the request_id of the REQUEST."},
	{name: "offer-again-by-the-same-agent", history: opened + ", agent OFFER", state: "PENDING", message: message{By: "agent", Type: "OFFER"}, want: "PENDING"},
	{name: "offer-again-after-withdrawing", history: opened + ", withdrawn OFFER, withdrawn ERROR", state: "PENDING", message: message{By: "withdrawn", Type: "OFFER"}, want: "PENDING"},

	{name: "accept-the-only-offer", history: opened + ", agent OFFER", state: "PENDING", message: message{By: "client", Type: "ACCEPT"}, want: "ACTIVE"},
	{name: "accept-the-only-offer-named", history: opened + ", agent OFFER", state: "PENDING", message: message{By: "client", Type: "ACCEPT", To: "agent"}, want: "ACTIVE"},
	{name: "accept-two-offers-of-one-agent", history: opened + ", agent OFFER, agent OFFER", state: "PENDING", message: message{By: "client", Type: "ACCEPT"}, want: "ACTIVE"},
	{name: "accept-what-is-left-after-a-withdrawal", history: opened + ", withdrawn OFFER, agent OFFER, withdrawn ERROR", state: "PENDING", message: message{By: "client", Type: "ACCEPT"}, want: "ACTIVE"},
	{name: "accept-two-agents-unnamed", history: bids, state: "PENDING", message: message{By: "client", Type: "ACCEPT"}, want: "409", reason: "Two agents have offered, and the ACCEPT names neither."},
	{name: "accept-the-rival", history: bids, state: "PENDING", message: message{By: "client", Type: "ACCEPT", To: "rival"}, want: "ACTIVE"},
	{name: "accept-no-offer-unnamed", history: opened, state: "PENDING", message: message{By: "client", Type: "ACCEPT"}, want: "409", reason: "Nobody has offered."},
	{name: "accept-who-has-not-offered", history: bids, state: "PENDING", message: message{By: "client", Type: "ACCEPT", To: "stranger"}, want: "409", reason: "The recipient has not offered."},
	{name: "accept-who-has-withdrawn", history: bids, state: "PENDING", message: message{By: "client", Type: "ACCEPT", To: "withdrawn"}, want: "409", reason: "The recipient has withdrawn its offer."},
	{name: "accept-who-is-named-but-has-not-offered", history: openedNamed, state: "PENDING", message: message{By: "client", Type: "ACCEPT", To: "agent"}, want: "409", reason: "The REQUEST names the recipient, but the recipient has not offered."},
	{name: "accept-the-only-one-withdrawn", history: opened + ", withdrawn OFFER, withdrawn ERROR", state: "PENDING", message: message{By: "client", Type: "ACCEPT"}, want: "409", reason: "The only offer was withdrawn."},
	{name: "accept-other-request-id", history: opened + ", agent OFFER", state: "PENDING", message: message{By: "client", Type: "ACCEPT", RequestID: "other"}, want: "400", reason: "An ACCEPT must have the request_id of the REQUEST."},
	{name: "accept-no-request-id", history: opened + ", agent OFFER", state: "PENDING", message: message{By: "client", Type: "ACCEPT", RequestID: "none"}, want: "400", reason: "An ACCEPT must have the request_id of the REQUEST."},
	{name: "accept-twice-the-same", history: working, state: "ACTIVE", message: message{By: "client", Type: "ACCEPT", To: "agent"}, want: "409", reason: "The thread already has an ACCEPT."},

	{name: "result-to-the-client", history: working, state: "ACTIVE", message: message{By: "agent", Type: "RESULT", To: "client"}, want: "COMPLETED"},
	{name: "result-to-a-stranger", history: working, state: "ACTIVE", message: message{By: "agent", Type: "RESULT", To: "stranger"}, want: "403", reason: "The recipient is not the sender's counterpart in this thread."},
	{name: "result-to-the-rival", history: working, state: "ACTIVE", message: message{By: "agent", Type: "RESULT", To: "rival"}, want: "403", reason: "The recipient is not the sender's counterpart in this thread."},
	{name: "result-without-status", history: working, state: "ACTIVE", message: message{By: "agent", Type: "RESULT", Payload: "incomplete"}, want: "400", reason: "A RESULT needs a status."},
	{name: "result-other-request-id", history: working, state: "ACTIVE", message: message{By: "agent", Type: "RESULT", RequestID: "other"}, want: "400", reason: "A RESULT must have the request_id of the REQUEST."},
	{name: "result-no-request-id", history: working, state: "ACTIVE", message: message{By: "agent", Type: "RESULT", RequestID: "none"}, want: "400", reason: "A RESULT must have the request_id of the REQUEST."},

	{name: "cancel-to-the-named-agent", history: openedNamed, state: "PENDING", message: message{By: "client", Type: "CANCEL", To: "agent"}, want: "ERROR"},
	{name: "cancel-to-the-accepted-agent", history: working, state: "ACTIVE", message: message{By: "client", Type: "CANCEL", To: "agent"}, want: "ERROR"},
	{name: "cancel-to-a-stranger", history: working, state: "ACTIVE", message: message{By: "client", Type: "CANCEL", To: "stranger"}, want: "403", reason: "The recipient is not the sender's counterpart in this thread."},
	{name: "cancel-no-request-id", history: opened, state: "PENDING", message: message{By: "client", Type: "CANCEL", RequestID: "none"}, want: "ERROR"},
	{name: "cancel-other-request-id", history: opened, state: "PENDING", message: message{By: "client", Type: "CANCEL", RequestID: "other"}, want: "400", reason: "If there is a request_id, it must be that of the REQUEST."},

	{name: "error-to-the-client", history: working, state: "ACTIVE", message: message{By: "agent", Type: "ERROR", To: "client"}, want: "ERROR"},
	{name: "error-to-a-stranger", history: working, state: "ACTIVE", message: message{By: "agent", Type: "ERROR", To: "stranger"}, want: "403", reason: "The recipient is not the sender's counterpart in this thread."},
	{name: "error-incomplete", history: working, state: "ACTIVE", message: message{By: "agent", Type: "ERROR", Payload: "incomplete"}, want: "400", reason: "An ERROR needs a code and a message."},
	{name: "error-no-request-id", history: working, state: "ACTIVE", message: message{By: "agent", Type: "ERROR", RequestID: "none"}, want: "ERROR"},
	{name: "error-other-request-id", history: working, state: "ACTIVE", message: message{By: "agent", Type: "ERROR", RequestID: "other"}, want: "400", reason: "If there is a request_id, it must be that of the REQUEST."},
	{name: "error-of-a-rival-takes-the-offer-back", history: bids + ", rival ERROR", state: "PENDING", message: message{By: "client", Type: "ACCEPT", To: "rival"}, want: "409", reason: "The recipient has withdrawn its offer."},
	{name: "error-of-a-rival-twice", history: working + ", rival ERROR", state: "ACTIVE", message: message{By: "rival", Type: "ERROR"}, want: "403", reason: "The sender has withdrawn its offer, so it may no longer send an ERROR to this thread."},
}

// timeoutCases test times just before and after the timeouts. All messages in history are at the same instant.
var timeoutCases = []threadCase{
	{name: "offer-after-299s", history: opened, elapsed: 299, state: "PENDING", message: message{By: "agent", Type: "OFFER"}, want: "PENDING"},
	{name: "offer-after-300s", history: opened, elapsed: 300, state: "ERROR", message: message{By: "agent", Type: "OFFER"}, want: "409", reason: "The pending-timeout has ended the thread."},
	{name: "offer-after-301s", history: opened, elapsed: 301, state: "ERROR", message: message{By: "agent", Type: "OFFER"}, want: "409", reason: "The pending-timeout has ended the thread."},
	{name: "accept-after-299s", history: opened + ", agent OFFER", elapsed: 299, state: "PENDING", message: message{By: "client", Type: "ACCEPT"}, want: "ACTIVE"},
	{name: "accept-after-300s", history: opened + ", agent OFFER", elapsed: 300, state: "ERROR", message: message{By: "client", Type: "ACCEPT"}, want: "409", reason: "The pending-timeout has ended the thread."},
	{name: "cancel-after-299s", history: opened, elapsed: 299, state: "PENDING", message: message{By: "client", Type: "CANCEL"}, want: "ERROR"},
	{name: "cancel-after-300s", history: opened, elapsed: 300, state: "ERROR", message: message{By: "client", Type: "CANCEL"}, want: "409", reason: "The pending-timeout has ended the thread."},
	{name: "offer-named-after-300s", history: openedNamed, elapsed: 300, state: "ERROR", message: message{By: "agent", Type: "OFFER"}, want: "409", reason: "The pending-timeout has ended the thread."},
	{name: "result-after-301s", history: working, elapsed: 301, state: "ACTIVE", message: message{By: "agent", Type: "RESULT"}, want: "COMPLETED"},
	{name: "result-after-3599s", history: working, elapsed: 3599, state: "ACTIVE", message: message{By: "agent", Type: "RESULT"}, want: "COMPLETED"},
	{name: "result-after-3600s", history: working, elapsed: 3600, state: "ERROR", message: message{By: "agent", Type: "RESULT"}, want: "409", reason: "The active-timeout has ended the thread."},
	{name: "cancel-after-3599s", history: working, elapsed: 3599, state: "ACTIVE", message: message{By: "client", Type: "CANCEL"}, want: "ERROR"},
	{name: "cancel-after-3600s", history: working, elapsed: 3600, state: "ERROR", message: message{By: "client", Type: "CANCEL"}, want: "409", reason: "The active-timeout has ended the thread."},
	{name: "error-after-3600s", history: working, elapsed: 3600, state: "ERROR", message: message{By: "agent", Type: "ERROR"}, want: "409", reason: "The active-timeout has ended the thread."},
	{name: "completed-knows-no-timeout", history: done, elapsed: 7200, state: "COMPLETED", message: message{By: "client", Type: "ERROR"}, want: "ERROR"},
	{name: "result-twice-after-3600s", history: done, elapsed: 3600, state: "COMPLETED", message: message{By: "agent", Type: "RESULT"}, want: "409", reason: "The thread already has a RESULT."},
	{name: "request-again-after-the-timeout", history: opened, elapsed: 300, state: "ERROR", message: message{By: "client", Type: "REQUEST"}, want: "409", reason: "The client has a thread with this id, and may use the id again only after the relay has removed that thread."},
}
