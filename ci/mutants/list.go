package main

// Where the tests of a fault are.
const (
	ofDIDs      = "./didkey"
	ofEnvelopes = "./envelope"
	ofTime      = "./replay ./relay -run Replay|Check|NoSecond|Window|Remember|Post"
	ofThreads   = "./thread"
	ofStores    = "./store/sqlite"
	ofWriting   = "./store/sqlite -run Store|Group|Failing"
	ofInboxes   = "./store/sqlite -run Store/Quota|Undone|FullInbox"
	ofMarks     = "./store/sqlite -run Mark|Gone|Copy|Fail|CutLog"
	ofReading   = "./relay -run Delivery|Poll|Since|Siblings|Broadcasts|Cut|Page|EqualTimestamps"
	ofRelays    = "./relay -run Signature|Post|Hostile|BlowUps|AtOnce|Timeout|Drain|NoSecond|Histories|View|Directory|Cursor|Poll"
	ofClocks    = "./relay -run Clock|Step"
	ofPrivacy   = "./relay -run Part|Invisible|Index|Token|Cursors|Presence|Private|Bidders|Expired"
	ofHTTP      = "./relay/httpapi"
	ofClients   = "./client"
)

// mutants are the faults, by what they break. Each is one that relays of this kind have had or could.
var mutants = []mutant{
	// Identities (PROTOCOL §2).
	{"did: low-order keys are allowed", "didkey/point.go", "if y == lowOrderY[i] {", "if false && y == lowOrderY[i] {", ofDIDs},
	{"did: non-canonical keys are allowed", "didkey/point.go", "if !belowP(y) {", "if false && !belowP(y) {", ofDIDs},
	{"did: points off the curve are allowed", "didkey/didkey.go", "	if !onCurve(pub) {\n		return \"\", errNoPoint\n	}\n	return DID(s), nil", "	_ = pub\n	return DID(s), nil", ofDIDs},
	{"did: the length is not looked at", "didkey/didkey.go", "len(s) != length || ", "", ofDIDs},
	{"did: any codec", "didkey/didkey.go", " || [2]byte(raw) != codec", "", ofDIDs + " ./envelope"},

	// Private reads (§8).
	{"reads: a member may be missing", "envelope/read.go", "if count != len(fields) {", "if false && count != len(fields) {", ofEnvelopes},
	{"reads: any typ", "envelope/read.go", "case typ != ReadType:", "case typ == \"\":", ofEnvelopes},
	{"reads: line breaks in the base64url", "envelope/read.go", `strings.ContainsAny(token, "\r\n")`, `strings.ContainsAny(token, "")`, ofEnvelopes},
	{"reads: other spellings of the base64url", "envelope/read.go", "base64.RawURLEncoding.Strict()", "base64.RawURLEncoding", ofEnvelopes},
	{"reads: the signature is not verified", "envelope/read.go", "if !ed25519.Verify(pub, withoutSig(r.canonical), sig) {", "if !ed25519.Verify(pub, withoutSig(r.canonical), sig) && len(sig) == 0 {", ofEnvelopes},
	{"reads: a token's length is not bounded", "envelope/read.go", "if len(token) > MaxReadToken {", "if len(token) > 100*MaxReadToken {", ofEnvelopes},
	{"reads: a token for any relay", "relay/viewer.go", "if read.Audience != r.Origin {", "if read.Audience == \"\" {", ofPrivacy},
	{"reads: a token for any target", "relay/viewer.go", "if read.Method != method || read.Target != target {", "if read.Method != method {", ofPrivacy},
	{"reads: a token for any method", "relay/viewer.go", "if read.Method != method || read.Target != target {", "if read.Target != target {", ofPrivacy},
	{"reads: a token is taken again", "relay/tokens.go", "if isFresh || isOld {", "if isFresh && isOld {", ofPrivacy},
	{"reads: the older generation is not asked", "relay/tokens.go", "_, isOld := t.old[id]", "_, isOld := t.fresh[id]", ofPrivacy},
	{"reads: nonces are forgotten to make room", "relay/tokens.go", "if len(t.fresh) >= t.max {", "if len(t.fresh) >= t.max {\n		clear(t.fresh)\n	}\n	if len(t.fresh) > t.max {", ofPrivacy},
	{"reads: tokens of before the start", "relay/tokens.go", "!ts.Before(t.started) && ", "", ofPrivacy},
	{"reads: a clock set back brings tokens back", "relay/tokens.go", "ts.After(t.latest.Add(-ReadSkew))", "ts.After(now.Add(-ReadSkew))", ofPrivacy},
	{"reads: remembered before it is verified", "relay/viewer.go", "	if err := read.Verify(); err != nil {\n		return \"\", err\n	}\n	if err := r.tokens.use(sha256.Sum256(read.Once()), read.TS, now); err != nil {\n		return \"\", err\n	}", "	if err := r.tokens.use(sha256.Sum256(read.Once()), read.TS, now); err != nil {\n		return \"\", err\n	}\n	if err := read.Verify(); err != nil {\n		return \"\", err\n	}", ofPrivacy},
	{"reads: another's inbox", "relay/viewer.go", "p.Recipient == \"\" || p.Recipient == v.DID", "p.Recipient == \"\" || v.DID != \"\"", ofPrivacy},
	{"reads: nobody sees what nobody sent", "relay/viewer.go", "recipient == \"\" || v.DID != \"\" && (v.DID == sender || v.DID == recipient)", "recipient == \"\" || v.DID != \"\"", ofPrivacy},
	{"reads: the index wakes everybody", "relay/store.go", " &&\n		f.Viewer.Sees(e.Sender.ID, e.Recipient)", "", ofPrivacy},
	{"reads: storage shows everything", "store/sqlite/viewer.go", "	case !v.Limited:\n	case", "	case true:\n	case", ofPrivacy + " ./store/sqlite"},
	{"reads: a stranger walks a sender's mail", "store/sqlite/viewer.go", "return q.Viewer.Limited && q.Recipient == \"\" &&", "return q.Viewer.Limited && q.Recipient == \"\" && q.Sender == \"\" &&", "./store/sqlite"},
	{"reads: any thread's record", "relay/threads.go", "	if !v.Limited {\n		return r.Store.Thread", "	if v.DID != \"\" || !v.Limited {\n		return r.Store.Thread", ofPrivacy},
	{"reads: others' offers are shown", "relay/viewer.go", "if !v.Limited || v.DID == t.Client || v.DID == t.Recipient {", "if true || v.DID == t.Client {", ofPrivacy},
	{"reads: posts tell of hidden threads", "relay/relay.go", "return receipt, r.hideThread(ctx, from, err, entry)", "return receipt, err", ofPrivacy},
	{"reads: receipts tell everybody", "relay/viewer.go", "if v.Limited && (r.Duplicate || withdrawn) {", "if v.Limited && r.Duplicate && withdrawn {", ofPrivacy},
	{"reads: others' offers keep a thread open", "relay/viewer.go", "	return rules.At(seen, now)\n", "	return t\n", ofPrivacy},
	{"reads: expired counts what is hidden", "relay/threads.go", "if !q.Viewer.counts(t, step) {", "if step.ID == \"\" {", ofPrivacy},
	{"reads: many strings are canonicalized", "envelope/read.go", "if depth(text) > 1 || stringsIn(text, maxReadStrings) > maxReadStrings {", "if depth(text) > MaxDepth {", ofEnvelopes},
	{"reads: cursors of one place are equal", "relay/viewer.go", "	rand.Read(salt[:]) // never fails (crypto/rand)\n", "	if salt[0] != 0 {\n		rand.Read(salt[:])\n	}\n", ofPrivacy},
	{"reads: a private message shows its sender online", "relay/relay.go", "r.Reads == ToParties && entry.Envelope.Recipient != \"\"", "false", ofPrivacy},
	{"reads: a directed manifest is everybody's", "store/sqlite/read.go", "if v := q.Viewer; v.Limited {", "if v := q.Viewer; v.Limited && v.DID == q.DID {", ofPrivacy},
	{"reads: two headers", "relay/httpapi/reading.go", "len(headers) > 1 || ", "", ofHTTP},
	{"reads: a broken token is nobody's", "relay/httpapi/reading.go", "		if err != nil {\n			return err\n		}\n		return h(w, r.WithContext", "		if err != nil {\n			return h(w, r)\n		}\n		return h(w, r.WithContext", ofHTTP},
	{"reads: no challenge", "relay/httpapi/answer.go", "w.Header().Set(\"WWW-Authenticate\", authScheme)", "_ = authScheme", ofHTTP},
	{"reads: an open relay looks at tokens", "relay/httpapi/reading.go", "if s.relay.Reads != relay.ToParties {", `if s.relay.Reads == relay.Visibility("never") {`, ofHTTP},
	{"reads: a client signs for whom the relay names", "client/reads.go", "case !sameOrigin(word.URL, base):", "case word.URL == \"\":", ofClients},
	{"reads: a client forgets that it signs", "client/reads.go", "r.audience != \"\" && !again || ", "", ofClients},
	{"reads: an open relay is good enough", "client/reads.go", "case word.Reads != \"parties\" && c.opts.RequireParties:", "case c.opts.RequireParties && failed != nil:", ofClients},
	{"reads: a 404 is a word for open", "client/reads.go", "if probe == nil {", "if probe == nil || probe != nil {", ofClients},
	{"reads: parties are asked for once", "client/reads.go", "r.audience != \"\" && !again || ", "r.audience != \"\" || ", ofClients},
	{"reads: tokens are dated ahead", "client/reads.go", "time.Since(r.corrected) < askAgain {", "time.Since(r.corrected) < 0 {", ofClients},
	{"reads: a token goes to another name", "client/reads.go", "c.own.Store(&base)", "_ = base", ofClients},
	{"reads: a used token is not mended", "client/reads.go", "case signed && reason == envelope.ReadUsed:", "case signed && reason == \"\":", ofClients},

	// Envelopes (§1).
	{"json: folded names are allowed", "envelope/parse.go", "if strings.EqualFold(name, known) {", "if name == strings.ToUpper(known) {", ofEnvelopes},
	{"json: depth is not bounded", "envelope/parse.go", "if depth(body) > MaxDepth {", "if depth(body) > 100*MaxDepth {", ofEnvelopes},
	{"json: the canonical form may be too large", "envelope/parse.go", "if len(canonical) > maxBytes {", "if len(canonical) > 5*maxBytes {", ofEnvelopes},
	{"arrange: members are not sorted", "envelope/arrange.go", "slices.SortFunc(members, byName)", "slices.Reverse(members)", ofEnvelopes},
	{"arrange: a name may be there twice", "envelope/arrange.go", "if bytes.Equal(members[n-1].name, members[n].name) {", "if false {", ofEnvelopes},
	{"arrange: something behind the value", "envelope/arrange.go", "ok && a.space(end) == len(text)", "ok", ofEnvelopes},
	{"arrange: depth is not bounded", "envelope/arrange.go", "func (a *arranger) array(i, depth int) (end int, ok bool) {\n	if depth > MaxDepth {", "func (a *arranger) array(i, depth int) (end int, ok bool) {\n	if depth > 100*MaxDepth {", ofEnvelopes},
	{"arrange: members of another object", "envelope/arrange.go", "a.members = a.members[:first]", "_ = first", ofEnvelopes},
	{"json: a quote behind two backslashes is escaped", "envelope/json.go", "if slashes%2 == 0 {", "if slashes == 0 {", ofEnvelopes},
	{"json: a wrapper with other members", "envelope/parse.go", "isObject(inner) && end == len(canonical)-1", "isObject(inner)", ofEnvelopes},
	{"time: any day from 1 to 31 of any month", "envelope/parse.go", "	t, err := time.Parse(time.RFC3339Nano, s)\n	return t, err == nil", "	t, err := time.Parse(time.RFC3339Nano, s)\n	if err != nil {\n		t, err = time.Parse(time.RFC3339Nano, s[:8]+\"01\"+s[10:])\n	}\n	return t, err == nil", ofEnvelopes},
	{"time: ten digits of a second", "envelope/parse.go", "digits > 1+9", "digits > 1+10", ofEnvelopes},
	{"time: an offset of 24 hours", "envelope/parse.go", `rest[1:3] > "23"`, `rest[1:3] > "24"`, ofEnvelopes},
	{"ttl: overflows", "envelope/parse.go", "const maxTTL = math.MaxInt64 / int64(time.Second)", "const maxTTL = math.MaxInt64 / 10", ofEnvelopes},
	{"ttl: 0 is allowed", "envelope/parse.go", "!ok || seconds < 1", "!ok || seconds < 0", ofEnvelopes},
	{"id: may start with a dot", "envelope/parse.go", "case i > 0 && strings.IndexByte", "case strings.IndexByte", ofEnvelopes},
	{"sig: is not part of what is cut out", "envelope/envelope.go", `if name == "sig" {`, `if name == "id" {`, ofEnvelopes},
	{"sig: other spellings are allowed", "envelope/envelope.go", "base64.RawURLEncoding.Strict()", "base64.RawURLEncoding", ofEnvelopes},
	{"sig: is not verified", "envelope/envelope.go", "if !ed25519.Verify(pub, e.signedPart(), sig) {", "if len(pub)+len(sig) == 0 {", ofEnvelopes},
	{"recipient: need not be a key", "envelope/envelope.go", "if _, err := didkey.Parse(string(e.Recipient)); err != nil {", "if _, err := didkey.Parse(string(e.Recipient)); err != nil && false {", ofEnvelopes},

	// The window and the memory (§1, §3).
	{"window: its edge is inside", "replay/replay.go", "!ts.After(now.Add(-w.Skew)) ||", "ts.Before(now.Add(-w.Skew)) ||", ofTime},
	{"window: a difference instead of a comparison", "replay/replay.go", "if !ts.After(now.Add(-w.Skew)) || !ts.Before(now.Add(w.Skew)) {", "if d := now.Sub(ts); max(d, -d) >= w.Skew {", ofTime},
	{"window: expired on arrival is taken", "replay/replay.go", "if !now.Before(w.Expires(ts, ttl)) {", "if false {", ofTime},
	{"memory: ten minutes", "replay/replay.go", "DefaultMemory = 30 * time.Minute", "DefaultMemory = 10 * time.Minute", "./relay -run NoSecond"},
	{"memory: ends with the ttl", "replay/replay.go", "	if expires.After(remember) {\n		return expires\n	}\n	return remember", "	_ = remember\n	return expires", "./relay -run NoSecond"},
	{"memory: a purge removes what has expired", "store/sqlite/write.go", "WHERE forget <= ? LIMIT", "WHERE expires <= ? LIMIT", "./relay -run NoSecond"},

	// Threads (§4).
	{"thread: the role is not checked", "thread/next.go", "	if !may {\n		return envelope", "	if !may && m == nil {\n		return envelope", ofThreads},
	{"thread: a second ACCEPT", "thread/next.go", "func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {\n	if t.State != Pending {", "func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {\n	if t.State != Pending && t.State != Active {", ofThreads},
	{"thread: a second ACCEPT, seen by racing clients", "thread/next.go", "func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {\n	if t.State != Pending {", "func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {\n	if t.State != Pending && t.State != Active {", "./relay -run Histories"},
	{"thread: ACCEPT of one who did not offer", "thread/next.go", "} else if !t.Offered(agent) {", "} else if false {", ofThreads},
	{"thread: RESULT before ACCEPT", "thread/next.go", "		if t.State == Active {\n			return t.step(Completed", "		if t.State == Active || t.State == Pending {\n			return t.step(Completed", ofThreads},
	{"thread: any agent's ERROR ends it", "thread/next.go", "if sender == t.Client || sender == t.Agent || sender == t.Recipient {", "if sender != \"\" {", ofThreads},
	{"thread: a copy may take a message", "thread/next.go", "!t.counterpart(client, m.Recipient)", "false", ofThreads},
	{"thread: the request_id is not compared", "thread/next.go", "if m.RequestID == t.RequestID || ", "if true || ", ofThreads},
	{"thread: a deadline's instant is still in time", "thread/thread.go", "if !ok || now.Before(deadline) {", "if !ok || !now.After(deadline) {", ofThreads},
	{"thread: offers without end", "thread/next.go", "t.OffersMade >= limit", "t.OffersMade > limit", ofThreads},

	// The store.
	{"store: numbers are given again after a removal", "store/sqlite/expire.go", "	_, err = w.stmts.keepLast.Exec(w.last)\n	return dropped, err", "	return dropped, err", ofStores},
	{"store: numbers are given again after a start", "store/sqlite/mark.go", "\"UNION ALL SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'last')\"", "\")\"", ofStores},
	{"store: ids without their sender", "store/sqlite/schema/0001_initial.sql", "	UNIQUE (sender, id)\n) STRICT;\nCREATE INDEX event_by_recipient", "	UNIQUE (id)\n) STRICT;\nCREATE INDEX event_by_recipient", ofStores},
	{"store: a duplicate is not looked for by sender", "store/sqlite/write.go", "FROM event WHERE sender = ? AND id = ?\"", "FROM event WHERE ?1 <> 0 AND id = ?2\"", ofStores},
	{"store: other content under a known id", "store/sqlite/append.go", "if !bytes.Equal(body, m.Canonical()) {", "if false && !bytes.Equal(body, m.Canonical()) {", ofStores},
	{"store: thread rules before duplicates", "store/sqlite/append.go", "	if !errors.Is(err, errKnown) && !isRefusal(err) {", "	if !errors.Is(err, errKnown) && !isRefusal(err) || e.Envelope.Type == envelope.TypeAccept {", ofStores},
	{"store: a REQUEST is judged as if its thread were new", "store/sqlite/append.go", "receipt, posted, err = w.put(e, false)", "receipt, posted, err = w.put(e, true)", ofStores},
	{"store: what is taken is not looked at again", "store/sqlite/append.go", "(errors.Is(err, errTaken) || isRefusal(err))", "isRefusal(err)", ofStores},
	{"store: a REQUEST whose id is known leaves its thread", "store/sqlite/append.go", "if _, failed := w.stmts.dropThread.Exec(n); failed != nil {", "if failed := error(nil); failed != nil {", ofStores},
	{"store: a refused REQUEST gives its recipient a number", "store/sqlite/append.go", "} else if recipient == 0 {", "} else if recipient < 0 {", ofStores},
	{"store: told before the commit", "store/sqlite/write.go", "					posted = append(posted, *p)\n", "					posted = append(posted, *p)\n					w.store.publish([]relay.Posted{*p})\n", ofWriting},
	{"store: published after the answer", "store/sqlite/write.go", "		_ = w.committed(posted, time.Time{})", "		defer w.committed(posted, time.Time{})", ofWriting},
	{"store: no fsync", "store/sqlite/sqlite.go", "\"synchronous(FULL)\"", "\"synchronous(OFF)\"", ofStores},
	{"store: no lock", "store/sqlite/sqlite.go", "	if !locked {\n", "	if false && !locked {\n", ofStores},
	{"store: a cursor of another database", "store/sqlite/read.go", "q.After.Epoch != s.epoch || ", "", ofStores},
	{"store: an expired event is read", "store/sqlite/select.go", "s.add(\"+expires > ?\", nanos(q.Now))", "s.add(\"+expires > ? - 1000000000000\", nanos(q.Now))", ofStores},
	{"store: the threads' notices come twice", "store/sqlite/expire.go", "		if errors.Is(err, errKnown) {\n			continue\n		}\n", "", ofStores},

	// The mark, the latch and the check.
	{"mark: written before the commit", "store/sqlite/write.go", "				changed += pages(j.entry)\n			}\n			return nil", "				changed += pages(j.entry)\n			}\n			if n := len(posted); n > 0 {\n				next := w.store.mark.mark\n				next.seq = posted[n-1].Seq\n				return w.store.mark.write(next)\n			}\n			return nil", ofMarks},
	{"mark: not written", "store/sqlite/write.go", "	if next != s.mark.mark {", "	if next.swept != s.mark.swept {", ofMarks},
	{"mark: a database that is gone", "store/sqlite/mark.go", "		return m, errors.Join(err, m.missing(m.epoch, 0))", "		return m, err", ofMarks},
	{"mark: agora check does not ask it", "store/sqlite/check.go", "if err := c.mark.missing(c.epoch, c.report.Seq); err != nil {", "if err := c.mark.missing(c.epoch, c.report.Seq); err != nil && c.epoch == 0 {", ofMarks},
	{"disk: one that failed is tried again", "store/sqlite/health.go", "	if s.refusing.Swap(errDiskFailed) != errDiskFailed {", "	if s.refusing.Load() != errDiskFailed {", ofMarks},

	// Inboxes.
	{"quota: not enforced", "store/sqlite/quota.go", "	if !full(b) {", "	if b.events >= 0 {", ofInboxes},
	{"quota: counts what has expired", "store/sqlite/write.go", "AND +expires > ? AND type", "AND +expires > ? - 1000000000000 AND type", ofInboxes},
	{"quota: what was undone is counted", "store/sqlite/write.go", "	clear(w.inboxes)\n	w.last", "	w.last", ofInboxes},
	{"quota: a full inbox is counted for each post", "store/sqlite/quota.go", " || now.Sub(b.counted).Abs() < countEvery", "", ofInboxes},
	{"quota: keeps out a thread's own", "store/sqlite/quota.go", "if e.Local || !unasked(m) ||", "if e.Local || !unasked(m) && m.Type == envelope.TypeError ||", ofInboxes},

	// Reading (§7).
	{"poll: the waiter comes after the query", "relay/events.go", "	w := r.hub.add(p.Filter)\n	defer r.hub.remove(w)\n	if !p.Since.IsZero() {", "	w := &waiter{filter: p.Filter, woken: make(chan struct{}, 1)}\n	go func() { time.Sleep(time.Second); r.hub.mu.Lock(); defer r.hub.mu.Unlock(); r.hub.waiters[p.Filter.keys()[0]] = map[*waiter]struct{}{w: {}} }()\n	defer r.hub.remove(w)\n	if !p.Since.IsZero() {", ofReading},
	{"poll: everybody is woken by everything", "relay/hub.go", "if !w.filter.Match(e.Envelope) {", "if false {", ofReading},
	{"since: counts what has expired", "relay/since.go", "	q.Headers = true\n	page, err", "	q.Headers, q.Expired = true, true\n	page, err", "./relay -run ExpiredMail"},
	{"limits: copies spend the sender's", "relay/relay.go", "if receipt.Duplicate {", "if receipt.Duplicate && from.Local {", "./relay -run Copies"},
	{"limits: debts are forgotten", "relay/buckets.go", "if bucket.TokensAt(now) < 0 &&", "if bucket.TokensAt(now) < -1e9 &&", "./relay -run Debts"},
	{"check: threads are not played again", "store/sqlite/check_rows.go", "if err == nil && !bytes.Equal(got, want) {", "if err == nil && len(got)+len(want) == 0 {", "./store/sqlite -run Check"},
	{"threads: copies of an id shadow", "store/sqlite/append.go", "w.records(w.stmts.threadsFor, m.Thread, string(m.Sender.ID))", "w.records(w.stmts.threadsWith, m.Thread)", "./relay -run CopiesOf"},
	{"since: is only ts > since", "relay/since.go", "if o.bookmark = len(first.Events) > 0; o.bookmark {", "if o.bookmark = false; o.bookmark {", ofReading},
	{"since: a page may end anywhere", "relay/since.go", "		o.cut = cut(o.pending, lastHolder, latest, p.Limit)", "		o.cut = fitting(o.pending, p.Limit)", ofReading},
	{"since: siblings do not settle", "relay/since.go", "settleAfter = time.Second", "settleAfter = 0", ofReading},
	{"since: reads again for each sibling", "relay/since.go", "			sibling = e.Received", "			return true, e.Received", ofReading},
	{"page: all of it in memory", "relay/events.go", "pieceBytes  = 256 << 10", "pieceBytes  = 256 << 20", ofReading},
	{"cursor: other spellings", "relay/store.go", "c.String() != s || ", "", ofRelays},

	// The clock for what cannot be undone.
	{"clock: a step is believed at once", "relay/clock.go", "		h.now, h.ahead = passed, monotonic", "		h.now, h.ahead = wall, monotonic", ofClocks},
	{"clock: a step is never believed", "relay/clock.go", "	default:\n		h.now, h.ahead = wall, time.Time{}", "	default:\n		h.now = passed", ofClocks},
	{"clock: the machine's own is compared with itself", "relay/clock.go", "	wall = wall.Round(0)\n", "", ofClocks},

	// The relay.
	{"relay: any number is parsed at once", "relay/relay.go", "newTurns[origin](max(2, runtime.GOMAXPROCS(0)))", "newTurns[origin](max(2000, runtime.GOMAXPROCS(0)))", ofRelays},
	{"relay: bound to another relay, and taken", "relay/relay.go", "if e.Relays != nil && !slices", "if len(e.Relays) > 0 && !slices", ofRelays},
	{"relay: the signature is not asked for", "relay/relay.go", "	if err := e.Verify(); err != nil {\n		return Entry{}, err\n	}\n", "", ofRelays},
	{"relay: sweeps once in a while", "relay/threads.go", "const sweepEvery = time.Second", "const sweepEvery = 20 * time.Second", "./relay -run TimeoutIsTold"},
	{"relay: takes posts while it shuts down", "relay/relay.go", "	if err := r.draining(); err != nil {\n		return Receipt{}, err\n	}\n", "", ofRelays},

	// HTTP (§5).
	{"http: redirects double slashes", "relay/httpapi/httpapi.go", "mux.NewRouter().SkipClean(true)", "mux.NewRouter()", ofHTTP},
	{"http: a malformed query is cut short", "relay/httpapi/params.go", "	if err != nil {\n		return nil, invalid(\"the query string", "	if err != nil && len(values) == 0 {\n		return nil, invalid(\"the query string", ofHTTP},
	{"http: parameters may come twice", "relay/httpapi/params.go", "if len(list) != 1 {", "if len(list) < 1 {", ofHTTP},
	{"http: unknown parameters are ignored", "relay/httpapi/params.go", "		if !slices.Contains(known, name) {\n", "		if !slices.Contains(known, name) && len(known) > 0 {\n			continue\n		}\n		if !slices.Contains(known, name) {\n", ofHTTP},
	{"http: the first Content-Encoding only", "relay/httpapi/handlers.go", "strings.Join(r.Header.Values(\"Content-Encoding\"), \"\") != \"\"", "strings.Join(r.Header.Values(\"Content-Encoding\")[:min(1, len(r.Header.Values(\"Content-Encoding\")))], \"\") != \"\"", ofHTTP},
	{"http: bodies without bound", "relay/httpapi/handlers.go", "http.MaxBytesReader(w, r.Body, int64(s.relay.MaxBody))", "r.Body", ofHTTP},
	{"http: a panic ends the connection", "relay/httpapi/httpapi.go", "			} else if p != nil {\n", "			} else if p != nil {\n				panic(p)\n", ofHTTP},
	{"http: no time limit for a body", "relay/httpapi/httpapi.go", "		ReadTimeout:       readTimeout,\n", "", ofHTTP},
	{"http: a shutdown waits for everybody", "relay/httpapi/httpapi.go", "		return errors.Join(err, s.Close())", "		return errors.Join(err)", ofHTTP},
	{"http: no time limit for idling", "relay/httpapi/httpapi.go", "		IdleTimeout:       idleTimeout,\n", "", ofHTTP},
	{"http: one time limit for a whole page", "relay/httpapi/answer.go", "			if sent {\n				s.extend(w)\n			} else {", "			if !sent {", ofHTTP},
	{"http: no time limit for an answer", "relay/httpapi/answer.go", "SetWriteDeadline(time.Now().Add(writeTimeout))", "SetWriteDeadline(time.Time{})", ofHTTP},
	{"http: the log tells queries", "relay/httpapi/httpapi.go", "s.log.Debug(\"request\", \"method\", r.Method, \"path\", r.URL.Path,", "s.log.Debug(\"request\", \"method\", r.Method, \"path\", r.URL.String(),", ofHTTP},
	{"http: the log tells tokens", "relay/httpapi/httpapi.go", "s.log.Debug(\"request\", \"method\", r.Method,", "s.log.Debug(\"request\", \"headers\", r.Header, \"method\", r.Method,", ofHTTP},
	{"http: /seed for everybody", "relay/httpapi/handlers.go", "if !s.options.Demo && !s.local(r) {", "if false {", ofHTTP},
	{"http: a request's place is not given back", "relay/httpapi/peer.go", "		defer leave()\n", "		_ = leave\n", ofHTTP},
	{"http: anybody's X-Forwarded-For", "relay/httpapi/peer.go", "more && s.trusts(addr)", "more", ofHTTP},
	{"http: events are encoded again", "relay/httpapi/answer.go", "			body.Write(e.Body)", "			var v any\n			if json.Unmarshal(e.Body, &v) == nil {\n				_ = json.NewEncoder(&body).Encode(v)\n			}", ofHTTP},

	// The client.
	{"client: takes events that do not verify", "client/follow.go", "	return e, e.Verify()", "	return e, nil", ofClients},
	{"client: polls in a hot loop", "client/follow.go", "	return f.pause.wait(ctx, 0, maxPause)\n}\n\n// recover", "	return nil\n}\n\n// recover", ofClients + " -run Follow"},
	{"client: waits for ever for an answer", "client/post.go", "context.WithTimeout(ctx, exchangeTimeout)", "context.WithCancel(ctx)", ofClients},
	{"client: a poll may hang", "client/follow.go", "context.WithTimeout(ctx, pollTimeout+exchangeTimeout)", "context.WithCancel(ctx)", ofClients},
	{"client: a question may hang", "client/read.go", "context.WithTimeout(ctx, exchangeTimeout)", "context.WithCancel(ctx)", ofClients},
	{"client: believes any Retry-After", "client/follow.go", "min(failed.retryAfter, readPatience)", "failed.retryAfter", ofClients},
	{"client: posts what is no longer fresh", "client/post.go", "min(failed.retryAfter, postPatience)", "failed.retryAfter", ofClients},
	{"client: a Retry-After that overflows", "client/exchange.go", "min(max(seconds, 0), math.MaxInt32)", "min(max(seconds, 0), math.MaxInt)", ofClients},

	// Sealed payloads (docs/SEALING.md).
	{"seal: clear members come out of the ciphertext", "envelope/seal.go", "if name == sealedMember || slices.Contains(clearMembers(t), name) {", "if name == sealedMember {", ofEnvelopes},
	{"seal: bound to no sender", "envelope/seal.go", "\"sender\": e.Sender.ID, ", "", ofEnvelopes},
	{"seal: bound to no id", "envelope/seal.go", "\"id\": e.ID, ", "", ofEnvelopes},
	{"seal: bound to no thread", "envelope/seal.go", "\"thread\": e.Thread, ", "", ofEnvelopes},
	{"seal: bound to no type", "envelope/seal.go", ", \"type\": e.Type}", "}", ofEnvelopes},
	{"seal: bound to no request", "envelope/seal.go", "if value := member(e.Payload, \"request_id\"); value != nil {", "if value := member(e.Payload, \"request_id\"); value != nil && false {", ofEnvelopes},
	{"seal: an empty request_id is none", "envelope/seal.go", "if value := member(e.Payload, \"request_id\"); value != nil {", "if value := member(e.Payload, \"request_id\"); len(value) > 2 {", "./testvectors -run Sealing"},
	{"seal: opened without a signature", "envelope/seal.go", " || e.Verify() != nil", "", ofEnvelopes},
	{"seal: opened by whoever has the key", "envelope/seal.go", "e.Recipient != opener.DID() || ", "", "./testvectors -run Sealing"},
	{"seal: other spellings are allowed", "envelope/seal.go", " && base64.RawURLEncoding.EncodeToString(ciphertext) == text", "", ofEnvelopes},
	{"seal: any version", "envelope/seal.go", "ok && standIn && versioned && ", "ok && standIn && (versioned || ok) && ", ofEnvelopes},
	{"seal: clear members beside the sealed ones", "envelope/seal.go", "\t\t\tdefault:\n\t\t\t\tok = false", "\t\t\tdefault:\n\t\t\t\tadd([]byte(`\"`+name+`\":`), value)", ofEnvelopes},
	{"seal: depth is not bounded", "envelope/seal.go", "if depth(plaintext) > MaxDepth {", "if depth(plaintext) > 100*MaxDepth {", ofEnvelopes},
	{"seal: an ERROR without a message", "envelope/seal.go", "return secret, t != TypeError || message != \"\"", "return secret, t != TypeError || len(message) >= 0", ofEnvelopes},
	{"seal: an ERROR with two messages", "envelope/seal.go", "name == \"message\" && string(value) == `\"`+sealedMessage+`\"`:", "name == \"message\":", ofEnvelopes},
	{"seal: the message of an ERROR stays clear", "envelope/seal.go", "add([]byte(`\"message\":\"` + sealedMessage + `\"`))", "add([]byte(`\"message\":`), member(e.Payload, \"message\"))", ofEnvelopes},
	{"seal: no padding", "envelope/seal.go", "sealedUnit    = 256", "sealedUnit    = 1", ofEnvelopes},
	{"seal: a broadcast goes out plain", "envelope/build.go", "\tif d.Seal {", "\tif d.Seal && d.Recipient != \"\" {", ofEnvelopes},
	{"seal: what is opened is not canonical", "envelope/seal.go", "opened.Payload, err = Canonicalize(join(clear, secret)); err != nil", "opened.Payload = join(clear, secret); err != nil", ofEnvelopes},
	{"seal: keys off the curve are converted", "didkey/x25519.go", "if _, err := Parse(string(d)); err != nil {", "if _, err := Decode(string(d)); err != nil {", ofDIDs},
	{"seal: the sign is part of y", "didkey/x25519.go", "\ty[len(y)-1] &= 0x7f // the sign", "\t// the sign", ofDIDs},
	{"seal: a plain answer is taken", "client/seal.go", "case call.Seal && !call.AllowPlain && !e.Sealed():", "case call.Seal && call.me == \"\":", ofClients + " -run Plain"},
	{"seal: a closed answer is read", "client/seal.go", "\tcase closed(e):\n\t\treturn fmt", "\tcase e == nil:\n\t\treturn fmt", ofClients + " -run Closed"},
	{"seal: the agent answers plain", "client/run.go", "Seal: r.seal})", "Seal: r.seal && r.agent == nil})", ofClients + " -run Seal"},
	{"seal: a closed REQUEST is a job", "client/run.go", "\tif closed(request) {", "\tif closed(request) && request.ID == \"\" {", ofClients + " -run Reason"},
	{"seal: a closed ACCEPT is accepted", "client/run.go", "\t\tcase closed(accept):", "\t\tcase closed(accept) && accept.ID == \"\":", ofClients + " -run Reason"},
	{"seal: Follow hands over what is closed", "client/seal.go", "if closed(e) && c.signer != nil &&", "if closed(e) && c.signer == nil &&", ofClients + " -run FollowOpens"},
	{"seal: a resumed call forgets it", "client/seal.go", "		call.Seal = request.Sealed()\n", "", ofClients + " -run Resume"},
	{"seal: a resumed call without its REQUEST tells in plain", "client/seal.go", "	call.private = true\n", "", ofClients + " -run Resume|Seal"},
	{"seal: a REQUEST goes out plain", "client/call.go", "TTL: opts.TTL, Seal: opts.Seal}", "TTL: opts.TTL}", ofClients + " -run Seal"},
	{"seal: an ACCEPT goes out plain", "client/call.go", "Thread: call.Thread, Seal: seal}, nil", "Thread: call.Thread}, nil", ofClients + " -run Seal"},
	{"seal: a CANCEL goes out plain", "client/call.go", "Recipient: recipient, Thread: call.Thread, Seal: seal,\n", "Recipient: recipient, Thread: call.Thread,\n", ofClients + " -run Seal|Resume"},
	{"seal: agora answers plain", "cmd/agora/seal.go", "	return false, errUnknown\n", "	return false, nil\n", "./cmd/agora -run Scripts/seal"},
	{"agora: a RESULT without the ACCEPT", "cmd/agora/part.go", "return e.RequestID == o.requestID })", "return true }) || true", "./cmd/agora -run WhoGetsAnAnswer"},
	{"agora: the first of several threads", "cmd/agora/part.go", "case len(left) == 1:", "case len(left) >= 1:", "./cmd/agora -run WhoGetsAnAnswer"},
	{"agora: offers of agents that were not asked", "cmd/agora/part.go", "request.Recipient != \"\" && e.Sender.ID != request.Recipient:", "request.Recipient != \"\" && e.Sender.ID == \"\":", "./cmd/agora -run WhoGetsAnAnswer"},
	{"agora: foreign text as it is", "cmd/agora/terminal.go", "w.Writer.Write(escape(p, \"\\n\\t\"))", "w.Writer.Write(p)", "./cmd/agora -run NothingHostile"},
	{"client: a call is resumed on the relay's word", "client/call.go", "	if !proven {", "	if !proven && me == \"\" {", "./client -run Resume"},
	{"store: the umask decides who reads", "store/sqlite/sqlite.go", "		if err := createPrivate(s.path); err != nil {", "		if err := error(nil); err != nil {", "./store/sqlite -run Private"},
	{"seal: agora shows plain answers", "cmd/agora/seal.go", "return slices.Contains(agents, e.Sender.ID)", "return slices.Contains(agents, p.me)", "./cmd/agora -run Scripts/seal"},
	{"seal: agora accepts without limits", "cmd/agora/seal.go", "case lost && c.MaxCost == nil:", "case call.Seal && c.MaxCost == nil && c.Agent != \"\":", "./cmd/agora -run Scripts/seal"},

	// Each fuzz target by itself, over the corpus that is kept.
	{"fuzz: a low-order key", "didkey/point.go", "if y == lowOrderY[i] {", "if false && y == lowOrderY[i] {", "./didkey -run FuzzParse"},
	{"fuzz: a name that is folded", "envelope/parse.go", "if strings.EqualFold(name, known) {", "if name == strings.ToUpper(known) {", "./envelope -run FuzzParse$"},
	{"fuzz: an offset of 24 hours", "envelope/parse.go", `rest[1:3] > "23"`, `rest[1:3] > "25"`, "./envelope -run FuzzParseTime"},
	{"fuzz: a signature that is not verified", "envelope/envelope.go", "if !ed25519.Verify(pub, e.signedPart(), sig) {", "if len(pub)+len(sig) == 0 {", "./envelope -run FuzzVerify"},
	{"fuzz: a clear member out of a ciphertext", "envelope/seal.go", "if name == sealedMember || slices.Contains(clearMembers(t), name) {", "if name == sealedMember {", "./envelope -run FuzzOpen"},
	{"fuzz: a cursor's other spelling", "relay/store.go", "c.String() != s || ", "", "./relay -run FuzzCursor"},
	{"fuzz: a second ACCEPT", "thread/next.go", "func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {\n	if t.State != Pending {", "func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {\n	if t.State != Pending && t.State != Active {", "./thread -run FuzzSteps"},
	{"fuzz: a recipient that is dropped", "relay/httpapi/params.go", "	if err != nil {\n		return nil, invalid(\"the query string", "	if err != nil && len(values) == 0 {\n		return nil, invalid(\"the query string", "./relay/httpapi -run FuzzQuery"},
	{"fuzz: events encoded again", "relay/httpapi/answer.go", "			body.Write(e.Body)", "			var v any\n			if json.Unmarshal(e.Body, &v) == nil {\n				_ = json.NewEncoder(&body).Encode(v)\n			}", "./relay/httpapi -run FuzzPost"},
	{"fuzz: a redirect", "relay/httpapi/httpapi.go", "mux.NewRouter().SkipClean(true)", "mux.NewRouter()", "./relay/httpapi -run FuzzConnection"},
}
