package main

// Where the tests of deliveries to agents with a DID are.
const (
	ofBridgedHub  = "./gateway/hub -run "
	ofBridgedJobs = "./gateway/jobs -run "
)

// deliveries are faults in how gateways hand work to agents with a DID.
var deliveries = []mutant{
	{"bridge: an OFFER counts twice", "gateway/deliver Deliveries.prepare", "offer Sent", without,
		"./gateway/deliver -run LateAnswers"},
	{"bridge: two answers in a thread are prepared together", "gateway/deliver together", "! threads[]", without,
		"./gateway/deliver -run StoredTogether"},
	{"bridge: what is opened meanwhile is not canceled", "gateway/deliver Deliveries.End", "signed", never,
		"./gateway/deliver -run EndTriesAgain"},
	{"bridge: what ends otherwise is not canceled", "gateway/deliver Deliveries.cancelEnded", "now.open()", always,
		ofBridgedJobs + "CanceledJobs"},
	{"bridge: a post is no presence", "gateway/deliver mailbox.put", "posters.add()", drop, ofBridgedJobs + "Presence"},
	{"bridge: a signed read is no presence", "gateway/deliver Deliveries.LastSeen", "After()", never,
		ofBridgedHub + "Presence"},

	{"jobs: anybody registers a DID as endpoint", "gateway/jobs caller.mayBridge", "endpoint did", never,
		ofBridgedJobs + "Bridged"},
	{"jobs: intents of the gateways are skills", "gateway/jobs Gateway.parseRegistration", "IsGatewayIntent()", never,
		ofBridgedJobs + "Bridged"},
	{"jobs: there is no window", "gateway/jobs hasRoom", "sent Window", with("sent >= 0"),
		ofBridgedJobs + "TestWindow"},
	{"jobs: an OFFER above the price is accepted", "gateway/jobs job.offered", "price j.price >", never,
		ofBridgedJobs + "TestOffers"},
	{"jobs: an OFFER in another currency is accepted", "gateway/jobs job.offered", "Currency currency", never,
		ofBridgedJobs + "TestOffers"},
	{"jobs: the skill's price is paid, and not the accepted one", "gateway/jobs Gateway.ending", "r.state Accepted", never,
		ofBridgedJobs + "TestOffers"},
	{"jobs: a busy agent loses its jobs", "gateway/jobs Gateway.expireRequest", "heard", never,
		ofBridgedJobs + "SilentWorker"},
	{"jobs: an output may have any size", "gateway/jobs resultOf", "canonical maxData", never,
		ofBridgedJobs + "AnswersOfWorkers"},

	{"hub: anybody registers a DID as endpoint", "gateway/hub Hub.postRegister", "signer q.did", never,
		ofBridgedHub + "Bridged"},
	{"hub: the operator changes the agent of a DID", "gateway/hub Hub.postAgent", "a.live() a.did", never,
		ofBridgedHub + "Bridged"},
	{"hub: there is no window", "gateway/hub hasRoom", "sent Window", with("sent >= 0"),
		ofBridgedHub + "OrderAndWindow"},
	{"hub: a pair has two REQUESTs at a time", "gateway/hub Hub.Next", "", swap("pairIsFree", `"1 = 1"`),
		ofBridgedHub + "OrderAndWindow"},
	{"hub: a message is streamed and a REQUEST", "gateway/hub Hub.mayRequest", "streams.has()", never,
		ofBridgedHub + "StreamOfWorker"},
	{"hub: an acknowledgement confirms a REQUEST", "gateway/hub op.confirmTraces", "",
		swapSQL("m.receiver = ? AND", "m.receiver = ? OR"),
		ofBridgedHub + "MessageAsRequest"},
	{"hub: replies never end", "gateway/hub op.refusal", "maxDepth", never, ofBridgedHub + "LoopOfWorkers"},
	{"hub: any number of replies is sent", "gateway/hub op.refusal", "recent maxReplies", never,
		ofBridgedHub + "RepliesInAMinute"},
	{"hub: a reply has the depth of its message", "gateway/hub op.reply", "depth 1 +", with("x.original.depth"),
		ofBridgedHub + "LoopOfWorkers"},
	{"hub: a message waits for a RESULT for ever", "gateway/hub Hub.sweepOnce", "",
		swap("h.expireRequests, h.recordPresence", "h.recordPresence"),
		ofBridgedHub + "TimeoutOfMessages"},
}
