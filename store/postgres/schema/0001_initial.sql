-- Times are nanoseconds since 1970, UTC. Texts from clients are BYTEA: they are equal if their bytes are, whatever the
-- collation of the database is, and they may contain U+0000. To read one, use convert_from(id, 'UTF8').

-- The only row of this table is locked by each transaction that stores something. So these transactions run one after
-- the other, on all nodes, and events become visible in the order of their numbers.
CREATE TABLE head (
	one       BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
	epoch     BIGINT  NOT NULL, -- see relay.Cursor
	last      BIGINT  NOT NULL, -- the highest number used; it may be that of an update without events
	swept     BIGINT  NOT NULL, -- events with forget up to this time count as removed
	partition BIGINT  NOT NULL  -- how many numbers a partition of the table event has
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- What all nodes share: 'policy', 'key', and 'extension.NAME', the number of the last migration of the extension NAME.
CREATE TABLE setting (
	name  TEXT COLLATE "C" PRIMARY KEY,
	value BYTEA NOT NULL
);

-- A row is a stored event. The partition event_pN has the numbers from N * head.partition. Partitions are dropped whole.
CREATE TABLE event (
	seq       BIGINT NOT NULL PRIMARY KEY,
	sender    BYTEA  NOT NULL, -- a DID
	id        BYTEA  NOT NULL,
	recipient BYTEA  NOT NULL, -- a DID; empty: a broadcast
	type      BYTEA  NOT NULL,
	thread    BIGINT NOT NULL, -- thread.n; 0: none
	ts        BIGINT NOT NULL,
	received  BIGINT NOT NULL,
	expires   BIGINT NOT NULL, -- negative: the operator removed the body at minus this time, before the relay was moved here
	forget    BIGINT NOT NULL,
	charged   BIGINT NOT NULL, -- bytes that count against the recipient's inbox; 0: the recipient asked for the event
	network   BIGINT NOT NULL, -- relay.Entry.Network
	body      BYTEA  NOT NULL  -- canonical JSON
) PARTITION BY RANGE (seq);
CREATE INDEX event_by_recipient ON event (recipient, seq);
CREATE INDEX event_unasked ON event (recipient, network, expires) INCLUDE (charged) WHERE charged > 0;
CREATE INDEX event_by_sender ON event (sender, seq);
CREATE INDEX event_by_thread ON event (thread, seq) WHERE thread > 0;
CREATE INDEX event_by_ts ON event (ts, recipient, seq);
CREATE INDEX event_by_forget ON event (forget);

-- The functions run as the owner of the tables. So the nodes can run as a role that may not create tables.
CREATE FUNCTION event_partition_add(number BIGINT) RETURNS VOID LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	size BIGINT := (SELECT partition FROM head);
BEGIN
	EXECUTE format('CREATE TABLE IF NOT EXISTS event_p%s PARTITION OF event FOR VALUES FROM (%s) TO (%s) '
		'WITH (autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.2)',
		number, number * size, (number + 1) * size);
END $$;
CREATE FUNCTION event_partition_drop(number BIGINT) RETURNS VOID LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	EXECUTE format('DROP TABLE IF EXISTS event_p%s', number);
END $$;
REVOKE ALL ON FUNCTION event_partition_add(BIGINT), event_partition_drop(BIGINT) FROM PUBLIC;

-- The memory of ids. A row keeps the id of a message from being used again. It is apart from the events, because a
-- unique index over all partitions of event is not possible.
CREATE TABLE message (
	sender BYTEA  NOT NULL,
	id     BYTEA  NOT NULL,
	seq    BIGINT NOT NULL, -- event.seq
	forget BIGINT NOT NULL,
	PRIMARY KEY (sender, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX message_by_forget ON message (forget);

CREATE TABLE thread (
	n      BIGINT   NOT NULL PRIMARY KEY, -- event.seq of its REQUEST
	id     BYTEA    NOT NULL,
	client BYTEA    NOT NULL, -- a DID
	due    BIGINT   NOT NULL, -- the deadline of a thread that has not ended; the time of removal of one that has
	open   BOOLEAN  NOT NULL, -- any agent may offer
	state  SMALLINT NOT NULL, -- ledger.StateNumber
	record BYTEA    NOT NULL, -- ledger.Row.Record
	UNIQUE (id, client)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX thread_by_id ON thread (id, open, n);
CREATE INDEX thread_by_due ON thread (due, state);

-- The parties of threads other than their clients.
CREATE TABLE participant (
	id     BYTEA    NOT NULL, -- thread.id
	party  BYTEA    NOT NULL, -- a DID
	role   SMALLINT NOT NULL, -- 0: its OFFER was accepted; 1: the REQUEST names it, or it has offered
	thread BIGINT   NOT NULL, -- thread.n
	PRIMARY KEY (id, party, role, thread)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- The newest manifest for each sender and manifest id. The signed envelope is in the table event.
CREATE TABLE manifest (
	n         BIGINT NOT NULL PRIMARY KEY, -- the seq of the first event that listed it
	sender    BYTEA  NOT NULL,
	id        BYTEA  NOT NULL,
	seq       BIGINT NOT NULL, -- event.seq
	ts        BIGINT NOT NULL,
	expires   BIGINT NOT NULL,
	recipient BYTEA  NOT NULL, -- event.recipient
	text      BYTEA  NOT NULL, -- text for searches, in lower case
	intents   BYTEA  NOT NULL, -- JSON array of their ids
	UNIQUE (sender, id)
);
CREATE INDEX manifest_by_expires ON manifest (expires);
CREATE INDEX manifest_by_recipient ON manifest (recipient, n);

-- Which manifests have an intent. An intent may be longer than an index allows, so it is identified by its hash.
CREATE TABLE manifest_intent (
	n         BIGINT NOT NULL REFERENCES manifest ON DELETE CASCADE,
	intent    BYTEA  NOT NULL, -- SHA-256 of the intent's id
	sender    BYTEA  NOT NULL, -- manifest.sender
	recipient BYTEA  NOT NULL, -- manifest.recipient
	PRIMARY KEY (n, intent)
);
CREATE INDEX manifest_intent_by_intent ON manifest_intent (intent, n);
CREATE INDEX manifest_intent_by_recipient ON manifest_intent (intent, recipient, n);

-- When the agents that have a manifest were last heard from.
CREATE TABLE agent (
	did  BYTEA  NOT NULL PRIMARY KEY,
	seen BIGINT NOT NULL
) WITH (fillfactor = 50);

-- What the nodes share besides messages: which signed reads were used, and what each node has seen since its last
-- report. Both are small and short-lived, and are not needed after a crash.
CREATE UNLOGGED TABLE nonce (
	id     BYTEA  NOT NULL PRIMARY KEY,
	forget BIGINT NOT NULL
);
CREATE INDEX nonce_by_forget ON nonce (forget);
CREATE UNLOGGED TABLE report (
	node   BYTEA  NOT NULL, -- random, new at each start of a node
	n      BIGINT NOT NULL, -- the reports of a node are numbered from 1
	forget BIGINT NOT NULL,
	body   BYTEA  NOT NULL, -- relay.Report in JSON
	PRIMARY KEY (node, n)
);
