package main

const (
	ofA2A  = "./gateway/a2a -run "
	ofA2As = "./gateway/a2a ./client/internal/a2aprogress -run "
)

// The A2A gateway, and the agents that answer its callers.
var a2aTasks = []mutant{
	// Each message is one turn.
	{"a2a: a task with an open turn takes another message", "gateway/a2a task.takesTurn", "t.open", never,
		ofA2A + "TestTurns$"},
	{"a2a: a task that has ended takes another message", "gateway/a2a task.takesTurn", "t.state.Terminal()", never,
		ofA2A + "TestTurns$"},
	{"a2a: a turn is sent although too many wait", "gateway/a2a operation.hand", "before.hasRoom()", without,
		ofA2A + "TurnsTakeTurns"},
	{"a2a: one caller takes all places before the OFFER", "gateway/a2a ahead.hasRoom", "maxSentOfOne", without,
		ofA2A + "TurnsTakeTurns"},

	// Streams continue where they were.
	{"a2a: a stream resumes at its end", "gateway/a2a operation.subscribe", "min()", with("max($, t.seq)"),
		ofA2A + "StreamResumes"},
	{"a2a: a stream repeats its last event", "gateway/a2a eventsAfter", "", swapSQL("seq > ?", "seq >= ?"),
		ofA2A + "StreamResumes"},

	// A task belongs to its caller.
	{"a2a: tasks of other callers are shown", "gateway/a2a operation.findTask", "t.caller", without,
		ofA2A + "TasksOfOthers"},
	{"a2a: callers share a conversation", "gateway/a2a sharedContext", "",
		swapSQL("AND caller = ?", "AND (caller = ? OR 1 = 1)"), ofA2A + "TestContexts"},
	{"a2a: a key is good for every endpoint", "gateway/a2a Gateway.findCaller", "k.endpoint", without,
		ofA2A + "ForeignKeys"},

	// Progress.
	{"a2a: another agent sends progress", "gateway/a2a turnFor", "e.did", without, ofA2A + "TestStreams$"},
	{"a2a: progress comes after the end", "gateway/a2a Gateway.progress", "deliver.Accepted", never, ofA2A + "TestStreams$"},
	{"a2a: a repeated artifact is added to the old one", "gateway/a2a task.addArtifact", "p.base t.seq",
		swap("t.seq + 1", "max(p.base, 1)"), ofA2A + "Progress|Repeats"},

	// Proofs.
	{"a2a: a false proof is kept", "gateway/a2a Gateway.checkProof", "Verify()", with("error(nil)"),
		ofA2A + "FalseProof"},
	{"a2a: a proof may be over another task", "internal/a2a Proven.Verify", "bytes.Equal() want signed", always,
		ofA2A + "FalseProof"},

	// Agents.
	{"serve a2a: a turn sends signed calls to another server", "client Client.readTurn", "t.Work base", never,
		ofA2A + "ForeignWork"},
	{"serve a2a: a later turn replaces artifacts", "client A2AJob.Artifact", "Sprintf()",
		with(`fmt.Sprint(j.artifacts)`), ofA2A + "ServeA2AAsks"},
	{"serve a2a: a repeated run proves only its own artifacts", "client A2AJob.prove", "j.again", without,
		ofA2A + "ServeA2ARepeats"},
	{"serve a2a: what was lost is not sent again", "client/internal/a2aprogress Sender.run", "s.again()", drop,
		ofA2A + "ServeA2ARepeats"},
	{"serve a2a: requests do not wait for each other", "client/internal/a2aprogress Sender.run", "time.Until()",
		with("0 * $"), ofA2A + "TestServeA2A$"},
	{"serve a2a: the end does not wait for what was sent", "client a2aServer.work", "j.finish() sent", drop,
		ofA2A + "TestServeA2A$"},
	{"serve a2a: any number of bytes wait", "client/internal/a2aprogress Sender.Send", "s.size maxBytes", with("true"),
		ofA2As + "SenderIsBounded"},
	{"serve a2a: a program's last lines are lost", "internal/program Run", "r.passing.Load()", with("false"),
		"./internal/program -run Lines"},
	{"outbox: a lane is not woken at its time", "gateway Outbox.WakeAt", "l.again l.at at", drop, "./gateway -run WakeAt"},
}
