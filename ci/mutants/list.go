package main

import "slices"

// Where the tests of a fault are.
const (
	ofDIDs      = "./didkey"
	ofEnvelopes = "./envelope"
	ofTime      = "./replay ./relay -run Replay|Check|NoSecond|Window|Remember|Post"
	ofThreads   = "./thread"
	ofStores    = "./store/sqlite"
	ofMerges    = "./store/sqlite -run Merge|Tail"
	ofLedger    = "./store/ledger"
	ofUpdates   = "./store/sqlite -run Update|Migration|MarkCovers"
	ofWriting   = "./store/sqlite -run Store|Group|Failing"
	ofInboxes   = "./store/sqlite -run Store/Quota|Undone|FullInbox"
	ofMarks     = "./store/sqlite -run Mark|Gone|Copy|Fail|CutLog"
	ofReading   = "./relay -run Delivery|Poll|Since|Siblings|Broadcasts|Cut|Page|EqualTimestamps"
	ofRelays    = "./relay -run Signature|Post|Hostile|AtOnce|Timeout|Drain|NoSecond|Histories|View|" +
		"Directory|Cursor|Poll"
	ofClocks  = "./relay -run Clock|Step"
	ofPrivacy = "./relay -run Part|Invisible|Index|Token|Cursors|Presence|Private|Bidders|Expired"
	ofBulk    = "./relay -run Bulk"
	ofHTTP    = "./relay/httpapi"

	ofBulkHTTP = "./relay/httpapi -run Bulk"
	ofClients  = "./client"

	ofSystems = "./ci/sim -run TestSystems -systems 50"
	ofModel   = "./ci/sim/model"

	ofSettings = "./cmd/agora -run Precedence|WrongSettings|PrintConfig"
	ofReloads  = "./cmd/agora -run TestReload"
	ofTLS      = "./cmd/agora ./cmd/agora/internal/serve -run " +
		"ServeTLS|CertificateFiles|ACMEHandshakes|UnixSocket|AbandonedSocket"
)

// topics are the faults, by what they break. Relays of this kind have had such faults, or could have them.
var topics = [][]mutant{
	identities, signedReads, envelopes, sealing, window, threads,
	storage, marks, updates, inboxes,
	reading, clock, relays, limits, web, internet, governing,
	clients, serving, agora, outbox, deliveries, hubs, channels, registries, a2aTasks,
	systems, models,
}

// repetitions are for tests that must find a fault by themselves, such as the fuzz targets over their stored inputs.
var repetitions = slices.Concat(inSystems, []repetition{
	{"thread: a second ACCEPT, from racing clients", "thread: a second ACCEPT is accepted", "./relay -run Histories"},
	{"fuzz: low-order keys are accepted", "did: low-order keys are accepted", "./didkey -run FuzzParse"},
	{"fuzz: signatures are not verified", "sig: it is not verified", "./envelope -run FuzzVerify"},
	{"fuzz: member names in other case are accepted", "json: member names in other case are accepted",
		"./envelope -run FuzzParse$"},
	{"fuzz: an offset of 24 hours is accepted", "time: an offset of 24 hours is accepted",
		"./envelope -run FuzzParseTime"},
	{"fuzz: a ciphertext may hold clear members", "seal: a ciphertext may hold clear members",
		"./envelope -run FuzzOpen"},
	{"fuzz: other spellings of a cursor are accepted", "cursor: other spellings are accepted",
		"./relay -run FuzzCursor"},
	{"fuzz: a second ACCEPT is accepted", "thread: a second ACCEPT is accepted", "./thread -run FuzzSteps"},
	{"fuzz: a malformed query is answered", "http: a malformed query is answered", "./relay/httpapi -run FuzzQuery"},
	{"fuzz: events are encoded again", "http: events are encoded again", "./relay/httpapi -run FuzzPost"},
	{"fuzz: double slashes are redirected", "http: double slashes are redirected",
		"./relay/httpapi -run FuzzConnection"},
})
