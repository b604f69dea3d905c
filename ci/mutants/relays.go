package main

// Reading (§7) and private reads (§8).
var reading = []mutant{
	{"reads: a token for any relay is accepted", "relay Relay.checkToken", "Audience", never, ofPrivacy},
	{"reads: a token for any target is accepted", "relay Relay.checkToken", "read.Target", without, ofPrivacy},
	{"reads: a token for any method is accepted", "relay Relay.checkToken", "read.Method", without, ofPrivacy},
	{"calls: a token for any body is accepted", "relay Relay.VerifyCall", "Sum256()", never, "./relay -run Calls"},
	{"calls: a used token is accepted", "relay Relay.VerifyCall", "acceptOnce()", with("call.VerifyWith(r.keys.Parse)"),
		"./relay -run Calls"},
	{"calls: a relay without an origin accepts tokens", "relay Relay.checkToken", `"" ==`, without,
		"./relay -run Calls"},
	{"reads: a used token is accepted", "relay nonceMemory.Use", "isFresh isOld", swap("||", "&&"), ofPrivacy},
	{"reads: the older nonces are not searched", "relay nonceMemory.Use", "old[]", with("t.fresh[id]"), ofPrivacy},
	{"reads: nonces are forgotten to make room", "relay nonceMemory.Use", "t.max",
		before("if len(t.fresh) >= t.max { clear(t.fresh) }"), ofPrivacy},
	{"reads: tokens from before the start are accepted", "relay nonceMemory.acceptsTimeLocked", "started", without,
		ofPrivacy},
	{"reads: a clock set back makes used tokens valid", "relay nonceMemory.acceptsTimeLocked", "latest.Add() ReadSkew",
		with("now.Add(-ReadSkew)"), ofPrivacy},
	{"reads: a token is used up before it is verified", "relay Relay.acceptOnce", "VerifyWith()",
		before(`if read.VerifyWith(r.keys.Parse) != nil {
			_ = r.markReadUsed(ctx, sha256.Sum256(read.Once()), read.TS, now)
		}`), ofPrivacy},
	{"reads: another agent's inbox is shown", "relay Relay.checkInbox", "p.Recipient v.DID", with(`v.DID != ""`),
		ofPrivacy},
	{"reads: every signed reader sees everything", "relay Viewer.Sees", "sender recipient", with("true"), ofPrivacy},
	{"reads: hidden messages wake every poll", "relay Filter.Match", "Sees()", without, ofPrivacy},
	{"reads: the store shows everything", "store/sqlite selection.visible", "v.Limited", always,
		ofPrivacy + " ./store/sqlite"},
	{"reads: a reader examines all messages of a sender", "store/sqlite byAudience", "Viewer.Limited",
		with(`$ && q.Sender == ""`), "./store/sqlite"},
	{"reads: every signed reader sees every thread", "relay Relay.threadFor", "v.Limited",
		with(`(v.Limited && v.DID == "")`), ofPrivacy},
	{"reads: an agent sees the offers of others", "relay Viewer.visibleThread", "v.Limited", always, ofPrivacy},
	{"reads: the offers of others keep a thread open", "relay Viewer.visibleThread", "At() now", with("seen"),
		ofPrivacy},
	{"reads: refusals reveal hidden threads", "relay Relay.settle", "hideForeignThreads()", with("err"), ofPrivacy},
	{"reads: receipts reveal the state of threads", "relay Viewer.visibleReceipt", "r.Duplicate withdrawn",
		swap("||", "&&"), ofPrivacy},
	{"reads: the number of expired messages counts hidden ones", "relay Relay.Thread", "countsTransition()",
		with(`(step.ID != "")`), ofPrivacy},
	{"reads: cursors of one position are equal", "relay Relay.FormatCursor", "rand.Read()", drop, ofPrivacy},
	{"reads: a private message shows its sender online", "relay Relay.admitEntry", "entry.Unseen", set("false"),
		ofPrivacy},
	{"reads: everybody sees a directed manifest", "store/sqlite Store.search", "Viewer :=", never, ofPrivacy},
	{"reads: an open relay believes any token", "relay Relay.MarkPresent", "VerifyWith()", without,
		"./relay -run MarkPresence"},
	{"reads: one network fills the directory", "relay presence.hasRoom", "byNetwork[] maxReadersPerNetwork",
		with("true"), "./relay -run Presence"},

	{"poll: the waiter is registered after the query", "relay Relay.deliver", "hub.add()",
		with(`func() *waiter {
			w := &waiter{filter: p.Filter, woken: make(chan struct{}, 1)}
			go func() {
				time.Sleep(time.Second)
				r.hub.mu.Lock()
				defer r.hub.mu.Unlock()
				r.hub.waiters[p.Filter.keys()[0]] = map[*waiter]struct{}{w: {}}
			}()
			return w
		}()`), ofReading},
	{"poll: every event wakes every poll", "relay hub.publish", "Match()", never, "./relay -run Index|Publish"},
	{"since: it counts expired events", "relay Relay.takeSnapshot", "q.Limit", after("q.Expired = true"),
		"./relay -run ExpiredMail"},
	{"since: a page ends between events with the same ts", "relay Relay.mayEndPage", "later.Events ==",
		with("(true || $)"), "./relay -run SinceAmong"},
	{"since: it is only ts > since", "relay Relay.takeSnapshot", "isBookmark", set("false"), ofReading},
	{"since: a page may end anywhere", "relay Relay.takeSnapshot", "pageLength()",
		with("countFitting(page.Events, p.Limit)"), ofReading},
	{"since: it does not wait for events with the same ts", "relay settleAfter", "", set("0"), ofReading},
	{"since: each event with the same ts takes a snapshot", "relay pendingSnapshot.needsNewSnapshot",
		"sameTSArrival e.Received", before("return true, e.Received"), ofReading},
	{"page: all of it is in memory", "relay pieceBytes", "", set("64 << 20"), ofReading},
	{"cursor: other spellings are accepted", "relay ParseCursor", "c.String()", without, ofRelays},

	{"reads: one address takes all slots", "relay/admission NewTurns", "s.local", always,
		"./relay/admission -run TurnsOfNetworks"},
	{"reads: a source gets several turns", "internal/turns Queue.save", "isReady waiting", with("len(state.waiting) > 0"),
		"./internal/turns"},
	{"reads: they take as long as they want", "relay readJob.continues", "readBudget", always,
		"./relay -run ReadsAreSliced"},
	{"reads: they run in spite of debt", "relay/admission Gate.TakeRead", "reads.debt()", with("error(nil)"),
		"./relay -run DebtEnds"},
	{"reads: they go on after the client has left", "relay readJob.continues", "ctx.Err()", never,
		"./relay -run WhoLeave"},
	{"before: a position is off by one", "relay Query.Behind", "event -", with("event"), "./relay -run BeforeAnd"},
	{"before: another agent's inbox is shown", "relay Relay.EventsBefore", "admitReader()", with("error(nil)"),
		"./relay -run Before"},
	{"before: the oldest events come first", "store/sqlite direction", "q.Backward", never,
		"./store/sqlite -run Store/Read$"},
	{"before: a slice examines all events", "store/sqlite Store.bound", "q.After.Seq horizon >",
		after("return false, nil"), "./store/sqlite -run Store/Read$"},
	{"before: it takes a timeout", "relay/httpapi api.parseBefore", "given", never, "./relay/httpapi -run Before"},
	{"reads: they examine all events at once", "store/sqlite Store.bound", "q.Until horizon <",
		after("return false, nil"), "./store/sqlite -run Store/Read$"},
	{"reads: they sort all events with an id", "store/sqlite Store.bound", "scanAll true =",
		before("return false, nil"), "./store/sqlite -run Store/Read$"},
}

// The clock for operations that cannot be undone.
var clock = []mutant{
	{"clock: a step is followed at once", "relay sweepClock.advance", "",
		swap("expected, monotonic", "wall, monotonic"), ofClocks},
	{"clock: a step is never followed", "relay sweepClock.advance", "acceptStepAfter", always, ofClocks},
	{"clock: the monotonic clock is compared with itself", "relay sweepClock.advance", "wall.Round()", drop, ofClocks},
}

// The relay.
var relays = []mutant{
	{"relay: one source takes all slots for parsing", "relay/admission New", "cores /", with("cores"),
		"./relay -run Parsed|Flood"},
	{"relay: any number of bodies is parsed at once", "relay/admission New", "cores", set("max(2000, $)"), ofRelays},
	{"relay: an empty meta.relay allows every relay", "relay Relay.checkEnvelope", "e.Relays !=", with("len(e.Relays) > 0"),
		ofRelays},
	{"relay: the signature is not verified", "relay Relay.checkEnvelope", "VerifyWith()", never, ofRelays},
	{"relay: it sweeps every 20 seconds", "relay sweepEvery", "", set("20 * time.Second"),
		"./relay -run TimeoutNoticeIsPrompt"},
	{"relay: it accepts posts while it shuts down", "relay Relay.post", "draining()", never, ofRelays},
}

// Limits and charges.
var limits = []mutant{
	{"limits: writing costs nothing", "relay Relay.appendEntry", "ChargeWork()", drop, "./relay -run WritesAre"},
	{"limits: a write of any length is charged in full", "relay/admission Gate.ChargeWork", "min()", with("units"),
		"./relay -run Standstill"},
	{"limits: a read of any length is charged in full", "relay/admission Gate.ReleaseRead", "min()", with("units"),
		"./relay -run Standstill"},
	{"limits: refused bodies cost nothing", "relay/admission Gate.Checking", "ChargeWork()", drop, "./relay -run Charged"},
	{"limits: duplicates are charged to their sender", "relay Relay.settle", "receipt.Duplicate", never,
		"./relay -run Copies"},
	{"limits: debts are forgotten", "relay/admission buckets.bucketFor", "TokensAt()", never,
		"./relay/admission -run Debts"},
	{"limits: an IPv6 /48 is not counted", "relay/admission widths", "", swap("48, 16", "48, 1 << 20"),
		"./relay -run Networks"},
	{"limits: broadcasts are not counted", "relay/admission Gate.AdmitMessage", "isBroadcastRequest()", always,
		"./relay -run Broadcasts"},
	{"limits: large bodies are parsed in spite of debt", "relay/admission Gate.ChargeBody", "CheckPostDebt()", never,
		"./relay -run LargeBodies"},
	{"bulk: lines do not count", "relay/admission Gate.AdmitLine", "Admit()", never, ofBulk},
	{"bulk: the first line counts twice", "relay/admission Gate.AdmitLine", "first", always, ofBulk},
	{"bulk: a spared address may be banned", "relay/admission Gate.AdmitLine", "CheckPeer()", with("error(nil)"), ofBulk},
	{"bulk: all lines are written at once", "relay/admission Gate.WriteBatch", "min()", with("n"), ofBulk},
	{"bulk: any number of lines is in memory", "relay bulkQueue.add", "bulkBatchLines", never, ofBulk},
	{"bulk: any number of bytes is in memory", "relay bulkQueue.add", "",
		swap("q.size+len(l.body) > bulkBatchBytes", "false"), ofBulk},
	{"bulk: a failed store answers the lines behind", "relay bulk.storeBatch", "l.Decided()", never, ofBulk},
	{"bulk: a line after the shutdown is read", "relay bulk.next", "draining()", with("error(nil)"), ofBulk},
	{"bulk: a request may last for hours", "relay Relay.PostAll", "WithTimeout()", with("context.WithCancel(ctx)"),
		ofBulk},
	{"bulk: a ban waits for the next request", "relay bulk.append", "CheckSender()", with("error(nil)"), ofBulk},
	{"bulk: a wait for a line has no end", "relay/httpapi bodyLines.Next", "setDeadline() Add()", drop, ofBulkHTTP},
	{"bulk: a panic ends the process", "relay catch", "recover()", with("any(nil)"), ofBulk},
	{"bulk: half a line is a line", "relay/httpapi bodyLines.Next", "",
		swap("err == nil, err == io.EOF && len(line) > 0", "err == nil, err != bufio.ErrBufferFull && len(line) > 0"),
		ofBulkHTTP},
	{"bulk: dropped bytes are free", "relay/httpapi bodyLines.drop", "ChargeTraffic()", with("error(nil)"),
		ofBulkHTTP},
	{"limits: each refusal is logged", "relay/admission refusals.note", "before", never, "./relay -run RefusalsAre"},
}

// HTTP (§5).
var web = []mutant{
	{"reads: two Authorization headers are accepted", "relay/httpapi tokenOf", "headers >", without, ofHTTP},
	{"reads: an invalid token counts as none", "relay/httpapi api.withReader", "VerifyRead()", never, ofHTTP},
	{"reads: there is no challenge", "relay/httpapi ErrorAnswer.Write", `"WWW-Authenticate"`, drop, ofHTTP},
	{"reads: an open relay refuses tokens", "relay/httpapi api.withReader", "ToParties", never, ofHTTP},

	{"http: a trailing slash is redirected", "relay/httpapi Routes", "SkipClean()",
		with("mux.NewRouter().StrictSlash(true)"), ofHTTP},
	{"http: double slashes are redirected", "relay/httpapi Routes", "router.Match()",
		before(`if strings.Contains(r.URL.Path, "//") {
			http.Redirect(w, r, strings.ReplaceAll(r.URL.Path, "//", "/"), http.StatusMovedPermanently)
			return nil
		}`), ofHTTP},
	{"http: a malformed query is answered", "relay/httpapi parseParams", "err", when("$ && len(values) == 0"), ofHTTP},
	{"http: parameters may be given twice", "relay/httpapi parseParams", "list", swap("!=", "<"), ofHTTP},
	{"http: unknown parameters are ignored", "relay/httpapi parseParams", "known name slices.Contains()",
		before("if !slices.Contains(known, name) && len(known) > 0 { continue }"), ofHTTP},
	{"http: only the first Content-Encoding counts", "relay/httpapi checkPlain", "strings.Join()",
		with(`r.Header.Get("Content-Encoding")`), ofHTTP},
	{"http: a body may have any length", "relay/httpapi ReadBody", "MaxBytesReader()", with("r.Body"), ofHTTP},
	{"http: a panic ends the connection", "relay/httpapi site.serve", "s.log.Error()", before("panic(p)"), ofHTTP},
	{"http: a body may take any time", "relay/httpapi Front.newServer", "ReadTimeout", set("0"), ofHTTP},
	{"http: an idle connection may stay open", "relay/httpapi Front.newServer", "IdleTimeout", set("0"), ofHTTP},
	{"http: a shutdown waits for every request", "relay/httpapi Front.shutDown", "server.Close()", with("error(nil)"),
		ofHTTP},
	{"http: a whole page has one time limit", "relay/httpapi WriteList", "ExtendWrite() SetHeader()",
		swap("ExtendWrite(w)", ""), ofHTTP},
	{"http: an answer may take any time", "relay/httpapi ExtendWrite", "Add()", with("time.Time{}"), ofHTTP},
	{"http: the log shows queries", "relay/httpapi Front.loggedPath", "",
		swap("return r.URL.Path", "return r.URL.String()"), ofHTTP},
	{"http: the log shows keys in paths", "relay/httpapi Front.loggedPath", "Redact ==", always, ofHTTP},
	{"http: the log shows tokens", "relay/httpapi site.logAccess", "loggedPath()",
		with(`s.loggedPath(r) + r.Header.Get("Authorization")`), ofHTTP},
	{"http: everybody may use /seed", "relay/httpapi api.postSeed", "maySeed()", never, ofHTTP},
	{"seed: a page of another origin may use it", "relay/httpapi fromSameOrigin", "r.Host ==", without,
		"./relay/httpapi -run Seed"},
	{"seed: Sec-Fetch-Site does not matter", "relay/httpapi fromSameOrigin", `site[] "same-origin"`, never,
		"./relay/httpapi -run Seed"},
	{"seed: a page over a Unix socket may use it", "relay/httpapi site.fromHere", "fromSameOrigin() s.trusted",
		swap("!s.trusted &&", ""), "./relay/httpapi -run Seed"},
	{"seed: a page has no limits", "relay/httpapi site.peer", "p.Local", after("p.Local = p.Local || p.OwnPage"),
		"./relay/httpapi -run OwnPage"},
	{"http: the slot of a request is not freed", "relay/httpapi site.admit", "defer leave()", drop, ofHTTP},
	{"http: any Host is accepted on loopback", "relay/httpapi site.guard", "ownName()",
		when(`$ && r.Header.Get("Origin") != ""`), ofHTTP},
	{"http: foreign pages may post", "relay/httpapi site.guard", "foreignPage()", never, ofHTTP},
	{"http: HTTP/1.0 counts as local", "relay/httpapi site.fromHere", "ProtoAtLeast()", without, ofHTTP},
	{"http: /health is limited", "relay/httpapi site.admit", "Unlimited", always, ofHTTP},
	{"http: everybody's X-Forwarded-For is believed", "relay/httpapi site.fromProxy", "trusts()", with("true"), ofHTTP},
	{"http: events are encoded again", "relay/httpapi api.answerEvents", "e.Body",
		with(`func() []byte {
			var v any
			_ = json.Unmarshal(e.Body, &v)
			text, _ := json.Marshal(v)
			return text
		}()`), ofHTTP},
}
