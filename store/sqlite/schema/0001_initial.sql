-- Times are nanoseconds since 1970, UTC. In the tables of messages, identities and threads are small integers, because
-- the same few stand in millions of rows and in every index. The tables of threads hold identities as text: no search
-- for what refers to an identity has to look there.

-- What belongs to the database as a whole: its epoch, see relay.Cursor, and the number of the last event there was.
CREATE TABLE meta (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE party (
	id   INTEGER PRIMARY KEY, -- 0 is nobody: the recipient of a broadcast
	did  TEXT NOT NULL UNIQUE,
	seen INTEGER NOT NULL DEFAULT 0 -- kept for parties with a manifest
) STRICT;

-- One row is the stored event and the memory of its id; it stays until `forget`, which is never before `expires`.
-- The writer numbers the events. When the newest event is removed, meta's 'last' keeps its number, so that no number is
-- used again.
CREATE TABLE event (
	seq       INTEGER PRIMARY KEY,
	sender    INTEGER NOT NULL,
	id        TEXT    NOT NULL,
	recipient INTEGER NOT NULL,
	type      TEXT    NOT NULL,
	thread    INTEGER NOT NULL, -- thread.n; 0: none
	ts        INTEGER NOT NULL,
	received  INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	forget    INTEGER NOT NULL,
	body      BLOB    NOT NULL, -- canonical JSON
	charged   INTEGER NOT NULL, -- bytes that it counts against its recipient's inbox; 0: the recipient asked for it
	network   INTEGER NOT NULL, -- relay.Entry.Network
	UNIQUE (sender, id)
) STRICT;
-- An inbox is in two indexes, and each event in one of them. What its recipient asked for is found in the order of seq,
-- as every index ends in the row's key. The index of what counts against the inbox has all that the count needs.
CREATE INDEX event_asked ON event (recipient) WHERE charged = 0;
CREATE INDEX event_unasked ON event (recipient, seq, network, expires, charged) WHERE charged > 0;
CREATE INDEX event_by_thread ON event (thread);
CREATE INDEX event_by_ts ON event (ts, recipient);
CREATE INDEX event_by_forget ON event (forget);

CREATE TABLE thread (
	n      INTEGER PRIMARY KEY, -- event.seq of its REQUEST
	id     TEXT    NOT NULL,
	client TEXT    NOT NULL, -- a DID
	due    INTEGER NOT NULL, -- when the clock moves it next: its deadline while it lives, then its removal
	open   INTEGER NOT NULL, -- 1: any agent may offer
	record BLOB    NOT NULL  -- ledger.Row.Record
) STRICT;
CREATE INDEX thread_by_due ON thread (due);

-- Every search for a thread by its id goes through this table. The rows of one thread are neighbours, so that a new
-- thread changes one page here. The party bounds the search, however many threads of others have the same id.
CREATE TABLE thread_role (
	id     TEXT    NOT NULL, -- the thread's
	party  TEXT    NOT NULL, -- a DID; '' in the row that each thread has for itself
	role   INTEGER NOT NULL, -- what the party is in the thread, see roles.go
	thread INTEGER NOT NULL, -- thread.n
	PRIMARY KEY (id, party, role, thread)
) STRICT, WITHOUT ROWID;

-- Each sender's newest manifest by the manifest's own id; the signed envelope is the event.
CREATE TABLE manifest (
	n         INTEGER PRIMARY KEY,
	sender    INTEGER NOT NULL,
	id        TEXT    NOT NULL,
	seq       INTEGER NOT NULL,
	ts        INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	intents   TEXT    NOT NULL, -- JSON array of their ids
	text      TEXT    NOT NULL, -- what a search looks through, in lower case
	recipient INTEGER NOT NULL, -- the event's
	UNIQUE (sender, id)
) STRICT;
CREATE INDEX manifest_by_expires ON manifest (expires);
CREATE INDEX manifest_by_recipient ON manifest (recipient); -- and n: what a reader may see, without a look at the rest

-- Which manifests have an intent. It follows the table manifest by itself.
CREATE TABLE manifest_intent (
	intent    TEXT    NOT NULL,
	n         INTEGER NOT NULL, -- manifest.n
	recipient INTEGER NOT NULL, -- the manifest's
	PRIMARY KEY (intent, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX manifest_intent_by_recipient ON manifest_intent (intent, recipient); -- and n
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
