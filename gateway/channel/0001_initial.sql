-- Times are nanoseconds since 1970, UTC. JSON is text in the form of RFC 8785. Each row has a checksum of its other
-- columns, see gateway.Sum. The types and statements are those that SQLite and PostgreSQL share.

-- The service: channels, and who takes part in them.
CREATE TABLE channel_channel (
	n       BIGINT NOT NULL PRIMARY KEY,
	id      TEXT   NOT NULL, -- ch_…
	name    TEXT   NOT NULL,
	context TEXT   NOT NULL,
	created BIGINT NOT NULL,
	deleted BIGINT NOT NULL, -- 0: not deleted
	sum     BIGINT NOT NULL
);
CREATE UNIQUE INDEX channel_channel_by_id ON channel_channel (id);
CREATE INDEX channel_channel_by_deleted ON channel_channel (deleted) WHERE deleted > 0;

-- Members and connections. They share one set of names. The row is removed with its member or connection.
CREATE TABLE channel_party (
	n       BIGINT NOT NULL PRIMARY KEY, -- of a connection: also its lane in the outbox "channel"
	channel BIGINT NOT NULL,
	name    TEXT   NOT NULL,
	agent   BIGINT NOT NULL, -- 1: a connection, 0: a member
	url     BYTEA  NOT NULL, -- of a connection: its connection string, encrypted
	host    TEXT   NOT NULL, -- of a connection: the host of that URL
	mcp     TEXT   NOT NULL, -- of a connection: object, array or none
	version BIGINT NOT NULL, -- grows with each new URL
	revoked BIGINT NOT NULL, -- when the agent answered that it is gone; 0: the connection is active
	sum     BIGINT NOT NULL
);
CREATE UNIQUE INDEX channel_party_by_name ON channel_party (channel, name);

-- What a party has last shown of itself.
CREATE TABLE channel_presence (
	party  BIGINT NOT NULL PRIMARY KEY,
	status TEXT   NOT NULL, -- of an agent: its last status or lifecycle
	seen   BIGINT NOT NULL,
	sum    BIGINT NOT NULL
);

-- All that was said or reported in the channels. These rows do not change, except that the operator can remove the texts
-- of a body.
CREATE TABLE channel_event (
	channel BIGINT NOT NULL,
	seq     BIGINT NOT NULL,
	id      TEXT   NOT NULL, -- msg_…
	ts      BIGINT NOT NULL,
	party   BIGINT NOT NULL,
	sender  TEXT   NOT NULL, -- the name of the party at that time
	agent   BIGINT NOT NULL, -- 1: the party is a connection
	type    TEXT   NOT NULL,
	via     TEXT   NOT NULL, -- api, callback or mcp
	depth   BIGINT NOT NULL, -- 0 for what a member says; the answer to a message of depth d has d+1
	body    TEXT   NOT NULL, -- JSON: the event as it was posted
	sum     BIGINT NOT NULL,
	PRIMARY KEY (channel, seq)
);
CREATE INDEX channel_event_by_ts ON channel_event (ts);
CREATE INDEX channel_event_messages ON channel_event (channel, seq) WHERE type = 'message';
CREATE INDEX channel_event_by_agents ON channel_event (channel, ts) WHERE agent = 1 AND type = 'message';

-- Which message goes to which connection. The row is the job's ref in the outbox "channel".
CREATE TABLE channel_delivery (
	n       BIGINT NOT NULL PRIMARY KEY,
	channel BIGINT NOT NULL,
	seq     BIGINT NOT NULL,
	party   BIGINT NOT NULL,
	depth   BIGINT NOT NULL, -- of the message
	created BIGINT NOT NULL,
	sum     BIGINT NOT NULL
);
CREATE INDEX channel_delivery_by_created ON channel_delivery (created);
CREATE INDEX channel_delivery_by_event ON channel_delivery (channel, seq);

-- The attempts of deliveries. The callback token and the MCP token of an attempt belong to this row.
CREATE TABLE channel_attempt (
	n        BIGINT NOT NULL PRIMARY KEY,
	delivery BIGINT NOT NULL,
	made     BIGINT NOT NULL,
	used     BIGINT NOT NULL, -- the last event that came with a token of this attempt; 0: none
	sum      BIGINT NOT NULL
);
CREATE INDEX channel_attempt_by_made ON channel_attempt (made);

-- The addresses of agents.
CREATE TABLE channel_inbox (
	n       BIGINT NOT NULL PRIMARY KEY,
	id      TEXT   NOT NULL, -- in_…
	owner   TEXT   NOT NULL, -- a DID
	label   TEXT   NOT NULL,
	created BIGINT NOT NULL,
	deleted BIGINT NOT NULL, -- 0: not deleted
	sum     BIGINT NOT NULL
);
CREATE UNIQUE INDEX channel_inbox_by_id ON channel_inbox (id);
CREATE INDEX channel_inbox_by_owner ON channel_inbox (owner, n) WHERE deleted = 0;
CREATE INDEX channel_inbox_by_deleted ON channel_inbox (deleted) WHERE deleted > 0;

-- The deliveries that inboxes got. Each was handed to the owner as a REQUEST. The contents are in that envelope only.
CREATE TABLE channel_request (
	n        BIGINT NOT NULL PRIMARY KEY, -- also the lane in the outbox "callback"
	id       TEXT   NOT NULL, -- dlv_…, the id of the envelope and of its thread
	inbox    BIGINT NOT NULL,
	subject  BYTEA  NOT NULL, -- SHA-256 of the service's ids of the channel and of the message
	callback BYTEA  NOT NULL, -- the service's URL, encrypted
	version  BIGINT NOT NULL, -- grows with each new callback
	created  BIGINT NOT NULL,
	state    BIGINT NOT NULL, -- of the thread: 0: pending, 1: accepted, 2: over
	answered BIGINT NOT NULL, -- 1: the agent has shown itself, or the service was told that it has not
	idle     BIGINT NOT NULL, -- 1: the agent is done
	ended    BIGINT NOT NULL, -- when the service refused the callback; 0: it has not
	sum      BIGINT NOT NULL
);
CREATE UNIQUE INDEX channel_request_by_id ON channel_request (id);
CREATE INDEX channel_request_by_subject ON channel_request (inbox, subject, n);
CREATE INDEX channel_request_open ON channel_request (inbox, created) WHERE idle = 0;
CREATE INDEX channel_request_silent ON channel_request (created) WHERE answered = 0;
CREATE INDEX channel_request_threads ON channel_request (inbox, n) WHERE state < 2;
CREATE INDEX channel_request_by_created ON channel_request (created);

-- The events that wait to be sent to services. The row is the job's ref in the outbox "callback".
CREATE TABLE channel_out (
	n         BIGINT NOT NULL PRIMARY KEY,
	id        TEXT   NOT NULL, -- msg_…
	request   BIGINT NOT NULL,
	lifecycle BIGINT NOT NULL, -- 1: services of version 0.1 may refuse this event
	body      BYTEA  NOT NULL, -- the event, encrypted
	created   BIGINT NOT NULL,
	sum       BIGINT NOT NULL
);
CREATE INDEX channel_out_by_request ON channel_out (request);
CREATE INDEX channel_out_by_created ON channel_out (created);

-- One row: the last event of the relay whose effects are stored here.
CREATE TABLE channel_position (
	id  BIGINT NOT NULL PRIMARY KEY, -- 1
	seq BIGINT NOT NULL,
	sum BIGINT NOT NULL
);
