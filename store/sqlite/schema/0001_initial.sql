-- Times are nanoseconds since 1970, UTC. The tables of messages refer to identities and threads by small integers,
-- because the same few identities and threads occur in millions of rows and in every index. The tables of threads
-- hold identities as text, so a search for rows that refer to an identity need not read them.

-- Values of the whole database: 'epoch', see relay.Cursor; 'last', see the table event; and 'extension.NAME', the
-- number of the last migration of the extension NAME.
CREATE TABLE meta (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE party (
	id   INTEGER PRIMARY KEY, -- never 0: 0 is the missing recipient of a broadcast
	did  TEXT NOT NULL UNIQUE,
	seen INTEGER NOT NULL DEFAULT 0 -- updated only for parties with a manifest
) STRICT;

-- A row is the stored event, and it keeps the event's id from being used again. It is kept until `forget`, which is
-- never before `expires`. The writer numbers the events. The row 'last' of meta holds the highest number used, if the
-- event with that number is not stored: after the newest event was removed, or after an update that stored no event. So
-- no number is used twice.
CREATE TABLE event (
	seq       INTEGER PRIMARY KEY,
	sender    INTEGER NOT NULL, -- party.id
	id        TEXT    NOT NULL,
	recipient INTEGER NOT NULL, -- party.id; 0: a broadcast
	type      TEXT    NOT NULL,
	thread    INTEGER NOT NULL, -- thread.n; 0: none
	ts        INTEGER NOT NULL,
	received  INTEGER NOT NULL,
	expires   INTEGER NOT NULL, -- 0: the body was cut on a full disk; negative: the operator removed it at minus this time
	forget    INTEGER NOT NULL,
	body      BLOB    NOT NULL, -- canonical JSON; empty: cut or removed
	charged   INTEGER NOT NULL, -- bytes that count against the recipient's inbox; 0: the recipient asked for the event
	network   INTEGER NOT NULL, -- relay.Entry.Network
	UNIQUE (sender, id)
) STRICT;
-- An inbox uses two indexes, and each event is in one of them. event_asked has the events that the recipient asked for.
-- They are found in the order of seq, because every index ends with the row's key. event_unasked has the events that
-- count against the inbox, with all columns that the count needs.
CREATE INDEX event_asked ON event (recipient) WHERE charged = 0;
CREATE INDEX event_unasked ON event (recipient, seq, network, expires, charged) WHERE charged > 0;
CREATE INDEX event_by_thread ON event (thread);
CREATE INDEX event_by_ts ON event (ts, recipient);
CREATE INDEX event_by_forget ON event (forget);

CREATE TABLE thread (
	n      INTEGER PRIMARY KEY, -- event.seq of its REQUEST
	id     TEXT    NOT NULL,
	client TEXT    NOT NULL, -- a DID
	due    INTEGER NOT NULL, -- the deadline of a thread that has not ended; the time of removal of one that has
	open   INTEGER NOT NULL, -- 1: any agent may offer
	state  INTEGER NOT NULL, -- ledger.StateNumber: an index into the list `states` of store/ledger/record.go
	record BLOB    NOT NULL  -- ledger.Row.Record
) STRICT;
-- The index has the state, so that counting the threads by state reads nothing else.
CREATE INDEX thread_by_due ON thread (due, state);

-- Every search for a thread by its id uses this table. The rows of one thread are next to each other, so a new thread
-- changes one page of it. A search names a party, so other parties' threads with the same id do not make it slower.
CREATE TABLE thread_role (
	id     TEXT    NOT NULL, -- the thread's id
	party  TEXT    NOT NULL, -- a DID; '' in the row for the thread itself
	role   INTEGER NOT NULL, -- the party's role in the thread, see roles.go
	thread INTEGER NOT NULL, -- thread.n
	PRIMARY KEY (id, party, role, thread)
) STRICT, WITHOUT ROWID;

-- The newest manifest for each sender and manifest id. The signed envelope is in the table event.
CREATE TABLE manifest (
	n         INTEGER PRIMARY KEY,
	sender    INTEGER NOT NULL, -- party.id
	id        TEXT    NOT NULL,
	seq       INTEGER NOT NULL, -- event.seq
	ts        INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	intents   TEXT    NOT NULL, -- JSON array of their ids
	text      TEXT    NOT NULL, -- text for searches, in lower case
	recipient INTEGER NOT NULL, -- event.recipient
	UNIQUE (sender, id)
) STRICT;
CREATE INDEX manifest_by_expires ON manifest (expires);
-- The index ends with n. It finds the manifests for a recipient, and broadcasts, without reading any others.
CREATE INDEX manifest_by_recipient ON manifest (recipient);

-- Which manifests have an intent. The triggers below keep it in step with the table manifest.
CREATE TABLE manifest_intent (
	intent    TEXT    NOT NULL,
	n         INTEGER NOT NULL, -- manifest.n
	recipient INTEGER NOT NULL, -- manifest.recipient
	PRIMARY KEY (intent, n)
) STRICT, WITHOUT ROWID;
-- This index ends with n too.
CREATE INDEX manifest_intent_by_recipient ON manifest_intent (intent, recipient);
CREATE TRIGGER manifest_added AFTER INSERT ON manifest BEGIN
	INSERT INTO manifest_intent SELECT DISTINCT value, new.n, new.recipient FROM json_each(new.intents);
END;
CREATE TRIGGER manifest_changed AFTER UPDATE OF intents, recipient ON manifest BEGIN
	DELETE FROM manifest_intent WHERE n = old.n AND intent IN (SELECT value FROM json_each(old.intents));
	INSERT INTO manifest_intent SELECT DISTINCT value, new.n, new.recipient FROM json_each(new.intents);
END;
CREATE TRIGGER manifest_removed AFTER DELETE ON manifest BEGIN
	DELETE FROM manifest_intent WHERE n = old.n AND intent IN (SELECT value FROM json_each(old.intents));
END;
