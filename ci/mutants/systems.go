package main

// Faults that simulations of whole systems must find (ci/sim), with a quarter of the seeds of make simulate.
var systems = []mutant{
	{"sim: ids are forgotten at a restart", "store/ledger group.loadNamed", "g.known[]",
		before("if g.lastEnd == (relay.Cursor{}) { continue }"), ofSystems},
	{"sim: a known message is stored again", "store/ledger group.append", "g.known[]",
		when("$ && k.thread != nil"), ofSystems},
	{"sim: a page skips an event", "store/sqlite Store.read", "page.Cursor.Seq q.Behind()", after("page.Cursor.Seq++"),
		ofSystems},
	{"sim: a poll is not woken", "relay hub.publish", "w.wake()", drop, ofSystems},

	{"sim: a client does not continue a silent job", "internal/deal Order.Due", "silent.IsZero()", never, ofSystems},
	{"sim: a client does not notice a lost thread", "client NetworkCall.fatal", "CodeThreadNotFound", never, ofSystems},
	{"sim: a continuation asks every agent", "client NetworkCall.move", "j.order.For()", drop, ofSystems},
	{"sim: a thread with an ACCEPT is cancelled", "internal/deal Order.MayCancel", "l.Decided", without, ofSystems},
	{"sim: a follower is not told of an unknown cursor", "client/internal/follow Follower.recover", "f.cursor Oldest", drop,
		ofSystems},
	{"sim: repeats are delivered", "client Network.fresh", "shownByHome", never, ofSystems},

	{"sim: the state is not synced", "client/internal/statefile File.Sync", "fsync.File()", with("error(nil)"), ofSystems},
	{"sim: jobs are forgotten at a restart", "client/internal/journal Journal.readLine", "s.book.Restore()", drop, ofSystems},
	{"sim: each continuation is worked on", "client desk.take", "d.working[] t =", drop, ofSystems},
	{"sim: the outcome goes to the first thread only", "internal/deal Book.Accept", "j.Outcome !=", never, ofSystems},
	{"sim: an agent asks for a new price", "client run.quote", "known", never, ofSystems},
	{"sim: threads do not time out", "thread Rules.At", "deadline", always, ofSystems},

	{"sim: a mirror stays at an unknown cursor", "relay/mirror peer.copyPage", "errUnknownCursor", never, ofSystems},
	{"sim: a mirror stores its cursor without the messages", "relay/mirror peer.store", "tx.Append()",
		before("if len(checked) > 1 { break }"), ofSystems},
}

// Other faults of the list that they must find too.
var inSystems = []repetition{
	{"sim: a relay answers before the fsync", "store: there is no fsync", ofSystems},
	{"sim: expired events are delivered", "store: expired events are read", ofSystems},
	{"sim: anybody accepts", "thread: the role is not checked", ofSystems},
	{"sim: a thread takes two ACCEPTs", "thread: a second ACCEPT is accepted", ofSystems},
}

// Faults that the model of the rules of clients must find (ci/sim/model).
var models = []mutant{
	{"model: attempts are not counted", "internal/deal Book.Begin", "attempts", never, ofModel},
	{"model: an accepted job makes room", "internal/deal Book.oldest", "j.Accepted j.Over", without, ofModel},
	{"model: the end of an older thread stops the work", "internal/deal Book.Ended", "same()", without, ofModel},
	{"model: a later ACCEPT gets no outcome", "internal/deal Book.Accept", "j.Outcome !=", never, ofModel},
	{"model: an outcome is not recorded", "internal/deal Book.Finish", "j.Outcome =", drop, ofModel},
	{"model: a lost thread stays", "internal/deal Order.Due", "l.Lost", never, ofModel},
	{"model: silence is not noticed", "internal/deal Leg.silent", "l.unread.IsZero()", never, "./internal/deal"},
	{"model: a job is continued for ever", "internal/deal Order.Due", "MaxContinued", never, ofModel},
	{"model: a higher price is accepted", "internal/deal Order.Decide", "price > o.Price", never, ofModel},
	{"model: a refused REQUEST gets another ACCEPT", "internal/deal Order.Decide", "l.Refused", never, ofModel},
	{"model: a continuation asks every agent", "internal/deal Order.For", "o.Agent", never, ofModel},
	{"model: a thread with an ACCEPT is cancelled", "internal/deal Order.MayCancel", "l.Decided", without, ofModel},
}
