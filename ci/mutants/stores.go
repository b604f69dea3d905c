package main

// The store.
var storage = []mutant{
	{"store: numbers are used twice after a removal", "store/sqlite writer.drop", "dropped", never, ofStores},
	{"store: numbers are used twice after a restart", "store/sqlite/schema LastNumber", "",
		swapSQL("UNION ALL SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'last')", ")"), ofStores},
	{"store: ids are unique without their sender", "store/sqlite/schema/0001_initial.sql event", "",
		swapSQL("UNIQUE (sender, id)", "UNIQUE (id)"), ofStores},
	{"store: a duplicate broadcast is not recognized", "store/ledger group.append", "known[]",
		when(`$ && m.Recipient != ""`), ofStores},
	{"store: a known id with other content is accepted", "store/ledger group.duplicate", "bytes.Equal()", never,
		ofStores},
	{"store: the rules of threads come before duplicates", "store/ledger group.append", "known[]",
		when("$ && m.Type != envelope.TypeAccept"), ofStores},
	{"store: every REQUEST begins a new thread", "store/ledger group.candidates", "RoleOpener",
		swap("return own", "return nil"), ofStores},
	{"store: threads that a group has begun are not found", "store/ledger group.putThread", "threads[]", drop,
		ofLedger},
	{"store: ids within a group are not known", "store/ledger group.add", "known[]", drop, ofLedger},
	{"store: threads that a group has loaded are not found", "store/ledger group.addRow", "byID[]", drop, ofLedger},
	{"store: events are published before the commit", "store/sqlite writer.appendGroup", "runGroup()",
		after("w.store.publish(posted)"), ofWriting},
	{"store: events are published after the answer", "store/sqlite writer.appendGroup", "",
		swap("_ = w.committed", "defer w.committed"), ofWriting},
	{"store: there is no fsync", "store/sqlite writePragmas", `"synchronous(FULL)"`, with(`"synchronous(OFF)"`),
		ofStores},
	{"store: there is no lock", "store/sqlite Open", "locked", never, ofStores},
	{"store: a cursor of another database is accepted", "store/sqlite Store.Read", "q.After.Epoch", without, ofStores},
	{"store: expired events are read", "store/sqlite selection.filter", "",
		swapSQL("+expires > ?", "+expires > ? - 1000000000000"), ofStores},
	{"store: notices of timeouts are stored twice", "store/ledger expiry.write", "isKnown()", never, ofStores},
	{"store: the umask decides who may read the database", "store/sqlite Store.prepare", "createPrivate()",
		with("error(nil)"), "./store/sqlite -run Private"},
	{"check: threads are not replayed", "store/sqlite/check checkHistory", "bytes.Equal()", never,
		"./store/sqlite/check"},
	{"threads: newer threads with the same id hide the sender's own", "store/ledger group.search", "own open", always,
		ofLedger},
	{"identities: they are never removed", "store/sqlite writer.removeParties", "eachRow() dropParty",
		before("if id > 0 { continue }"), "./store/sqlite -run Identities"},
	{"identities: they are removed while a message waits", "store/sqlite statements.all", "s.dropParty",
		swapSQL("AND NOT EXISTS (SELECT 1 FROM event WHERE recipient = ?1 AND charged > 0)", ""),
		"./store/sqlite -run Identities"},
	{"full: records of ended threads are kept", "store/sqlite writer.trim", "row.Record", never,
		"./store/sqlite -run Recovery"},
}

// The mark, and what happens after errors of the disk.
var marks = []mutant{
	{"mark: it is written before the commit", "store/sqlite writer.appendGroup", "runGroup()",
		after(`if n := len(posted); n > 0 {
			next := w.store.care.mark.Mark
			next.Seq = posted[n-1].Seq
			return w.store.care.mark.write(next)
		}`), ofMarks},
	{"mark: it is not written", "store/sqlite care.updateMark", "c.mark.Mark ==", with("next.Swept == c.mark.Swept"),
		ofMarks},
	{"mark: a missing database is not noticed", "store/sqlite checkLoss", "Missing() 0", with("error(nil)"), ofMarks},
	{"mark: agora check does not compare it", "store/sqlite/check checker.sequence", "Missing()", never,
		"./store/sqlite/check -run Mark"},
	{"disk: one that failed is used again", "store/sqlite care.handleError", "state.Swap()", with("c.state.Load()"),
		ofMarks},
	{"disk: a full one stays full", "store/sqlite care.tick", "makeRoom()", with("errDiskFull"),
		"./store/sqlite -run Care"},
	{"disk: the mark is never synced", "store/sqlite care.checkDisk", "syncMark()", with("error(nil)"),
		"./store/sqlite -run Care|Mark"},
}

// Updates and extensions.
var updates = []mutant{
	{"updates: an error undoes nothing", "store/sqlite writer.runUpdate", "stmts.undo", drop, ofUpdates},
	{"updates: the mark does not cover them", "store/sqlite writer.runUpdate", "tx.wrote", never, ofUpdates},
	{"updates: they may take any time", "store/sqlite updateTx.run", "t.ctx.Done", with("context.Background().Done"),
		ofUpdates},
	{"updates: the function may ignore a failing engine", "store/sqlite writer.runUpdate", "tx.failed", never,
		ofUpdates},
	{"updates: a late statement is run", "store/sqlite updateTx.use", "t.over", with("error(nil)"), ofUpdates},
	{"updates: their time costs nothing", "relay Relay.Update", "ChargeWork()", drop, "./relay -run Update"},
	{"updates: an unchecked envelope is stored", "relay ExtTx.Append", "e.Envelope ==", never, "./relay -run Update"},
	{"extensions: they store U+0000", "relay checkTexts", "strings.IndexByte()", without, "./relay -run RefusedTexts"},
	{"extensions: a client who leaves spoils a connection", "store/sqlite Store.view", "beginView",
		swap("context.Background(), beginView", "ctx, beginView"), "./store/sqlite -run ViewsOfClients"},
	{"extensions: a failed migration is committed", "store/sqlite/schema inTx", "", swap("Rollback", "Commit"),
		ofUpdates},
	{"terms: they are lost", "store/ledger group.move", "next.Terms", drop, "./relay -run Update"},
}

// Inboxes and the notices of timeouts.
var inboxes = []mutant{
	{"quota: it is not enforced", "store/ledger group.checkInbox", "retryAfter", always, ofInboxes},
	{"quota: it counts expired messages", "store/sqlite statements.all", "s.waitingOfAll",
		swapSQL("expires > ?2", "expires > ?2 - 1000000000000"), ofInboxes},
	{"quota: it counts what was undone", "store/ledger Ledger.Undo", "delete()", drop, ofInboxes},
	{"quota: a full inbox is counted for each post", "store/ledger inbox.staysFull", "recountAfter", without,
		ofInboxes},
	{"quota: it counts answers that were asked for", "store/ledger inboxCharge", "Unasked()", without, ofInboxes},
	{"quota: closing messages count for nothing", "store/ledger inboxCharge", "Unasked()",
		when("t.State == thread.Failed || $"), ofInboxes},
	{"quota: a full inbox refuses closing messages", "store/ledger group.checkInbox", "usesReserve()", without,
		ofInboxes},
	{"quota: networks share one bound", "store/ledger group.boundedInboxes", "e.Network ==", always, ofInboxes},
	{"quota: many networks have no common bound", "store/ledger group.boundedInboxes", "OfAll()", swap(", 2", ", 1"),
		ofInboxes},
	{"quota: a refusal reveals when hidden messages expire", "store/ledger group.fullFor", "j", never, ofInboxes},

	{"notices: they use the last disk space", "store/ledger Ledger.Expire", "room", never,
		"./store/sqlite -run NoticesLeave"},
	{"notices: they live as long as any message", "relay Relay.timeoutNotices", "TTL",
		set("max($, envelope.DefaultTTL)"), "./relay -run NoticesLive"},
	{"notices: agents that need none get one", "relay Relay.timeoutNotices", "Unasked()", never,
		"./relay -run NoticesLive"},
}
