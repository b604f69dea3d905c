package main

// Where the tests of these faults are.
const (
	ofBans   = "./relay -run Ban"
	ofAdmin  = "./relay/admin -run Bans|Socket"
	ofPolicy = "./relay/policycmd"
	ofScreen = "./relay -run Screen|Copies"
)

// What the operator does: bans, removal, the policy program, the admin socket and backups.
var governing = []mutant{
	{"bans: open streams and polls go on", "relay/admission Gate.SetBans", "g.banned()", drop, ofBans},
	{"bans: a stream that is just opened stays", "relay Relay.OpenStream", "mayStay()", never, ofBans},
	{"bans: a post that waits is stored", "relay Relay.appendEntry", "CheckSender()", never, ofBans},
	{"bans: a gateway writes for a banned client", "relay Relay.Update", "CheckPeer()", never, ofBans},
	{"bans: a gateway reads for a banned client", "relay Relay.View", "CheckPeer()", never, ofBans},
	{"bans: the stream of a hub does not say why it ends", "gateway/hub streamWriter.run", "",
		swap(`reason = "banned"`, `reason = "shutdown"`), "./gateway/hub -run Bans"},
	{"bans: a banned owner uses its callbacks", "gateway/channel Gateway.outToken", "CheckAgent()", drop,
		"./gateway/channel -run BannedOwner"},
	{"bans: a banned owner uses its tools", "gateway/channel Gateway.toolToken", "checkConnection()", drop,
		"./gateway/channel -run BannedOwner"},
	{"bans: a banned principal goes on by tokens", "gateway/jobs Gateway.checkBan", `p.did ""`, always,
		"./gateway/jobs -run Banned"},
	{"bans: they are not stored", "relay/admin Bans.Add", "tx.Exec()", with("0, error(nil)"), ofAdmin},
	{"bans: their rows stay", "relay/admin Bans.dropExpired", "expired", never, ofAdmin},
	{"bans: all end when the first one does", "relay/admin Bans.dropExpired", "drop()",
		swapSQL("expires <= ?", "? > 0"), ofAdmin},
	{"bans: nodes do not share them", "relay/admin Bans.dropExpired", "load()", with("error(nil)"), ofAdmin},

	{"remove: the content stays in the file", "store/sqlite writer.remove", "overwrite",
		swapSQL("secure_delete = ON", "secure_delete = OFF"), "./store/sqlite -run Removed"},
	{"remove: waiting polls still get it", "relay Relay.Remove", "hub.forget()", drop, "./relay -run RemovalReaches"},
	{"remove: the thread does not end", "relay Relay.RemoveThread", "EndThread()",
		with("func() error { _ = store; return nil }()"),
		"./relay -run RemoveThread"},
	{"remove: a webhook still gets it", "gateway/hub Hub.Remove", "o.change()", with("updateDelivery(o.ExtTx, d)"),
		"./gateway/hub -run Remove"},
	{"remove: the histories keep the text", "gateway/hub Hub.Remove", "updateEnvelope()", with("error(nil)"),
		"./gateway/hub -run Remove"},
	{"remove: an agent of a channel still gets it", "gateway/channel Gateway.Remove", "outbox.Remove()", drop,
		"./gateway/channel -run Remove"},
	{"remove: a channel keeps the status", "gateway/channel removeStatus", "setPresence()", with("error(nil)"),
		"./gateway/channel -run Remove"},
	{"remove: a job goes on", "gateway/jobs Gateway.removeJob", "g.end()", with("j, error(nil)"),
		"./gateway/jobs -run Remove"},
	{"remove: a removed job costs the agent its score", "gateway/jobs Gateway.judge", "out.removed", without,
		"./gateway/jobs -run Remove"},

	{"policy: it fails open", "relay/policycmd Command.Screen", "FailOpen", always, ofPolicy},
	{"policy: any number of questions waits", "relay/policycmd maxQueued", "", set("1 << 20"), ofPolicy + " -run Crowd"},
	{"policy: a decision takes any time", "relay/policycmd Command.ask", "WithTimeout()",
		with("context.WithTimeout(ctx, 25*time.Second)"), ofPolicy + " -run Slow"},
	{"policy: a silent program stays", "relay/policycmd session.giveUp", "silent", never,
		ofPolicy + " -run Faulty -timeout 1m"},
	{"policy: an answer to no question counts", "relay/policycmd Command.readAnswers", "s.answer()", never,
		ofPolicy + " -run Faulty -timeout 1m"},
	{"policy: its processes stay behind", "relay/policycmd process.kill", "KillGroup()", with("p.cmd.Process.Kill()"),
		ofPolicy + " -run ProcessGroup"},
	{"policy: its standard error floods the log", "internal/program EachLine", "passed LogLines", never,
		ofPolicy + " -run StandardError"},
	{"policy: a refusal controls the terminal", "relay/policycmd Answer.refusal", "safetext.Escape()",
		with("append(safetext.Escape(nil, \"\"), string(reason)...)"), ofPolicy + " -run HostileMessage"},
	{"policy: duplicates are asked about", "relay screening.known", "seq >", with("(false && $)"), ofScreen},
	{"policy: copies are asked about", "relay screening.join", "d ==", always, ofScreen},
	{"policy: gateways are not asked about", "relay Relay.screenNow", "r.screening", never, ofScreen},

	{"admin: other users may open the socket", "relay/admin Listen", "os.Chmod()", swap("0o600", "0o666"), ofAdmin},
	{"admin: every user is served", "relay/admin mayGovern", "user self", with("true"), ofAdmin},
	{"admin: nobody asks who connects", "relay/admin listener.Accept", "isOwn()", always, ofAdmin},
	{"admin: a file is replaced by the socket", "relay/admin checkAbandoned", "ModeSocket", never, ofAdmin},
	{"admin: the socket of a running relay is replaced", "relay/admin checkAbandoned", "errors.Join()",
		with("c.Close()"), ofAdmin},
	{"backups: one in the wrong order is removed", "relay/admin PruneBackups", "slices.Index()", never,
		"./relay/admin -run Prune"},
	{"backups: links in the folder are removed", "relay/admin listBackups", "e.IsDir()", without,
		"./relay/admin -run Schedule|Prune"},
	{"restore: any folder is replaced", "cmd/agora/internal/operate RestoreCmd.checkTarget", "has() Database", never,
		"./cmd/agora -run TestScripts/admin"},
}
