-- Times are nanoseconds since 1970, UTC. JSON is text in the form of RFC 8785. Each row has a checksum of its other
-- columns, see gateway.Sum. The types and statements are those that SQLite and PostgreSQL share.

-- The agents. An address that is registered again after a deletion gets a new row, and so a new number.
CREATE TABLE hub_agent (
	n          BIGINT NOT NULL PRIMARY KEY,
	address    TEXT   NOT NULL,
	culture    TEXT   NOT NULL, -- the card's user_culture; empty: there is no card
	card       TEXT   NOT NULL, -- JSON; empty: there is no card
	endpoint   BYTEA  NOT NULL, -- the URL of the webhook, encrypted; empty: there is none
	registered BIGINT NOT NULL,
	deleted    BIGINT NOT NULL, -- 0: not deleted
	sum        BIGINT NOT NULL
);
CREATE UNIQUE INDEX hub_agent_registered ON hub_agent (address) WHERE deleted = 0;
CREATE INDEX hub_agent_by_address ON hub_agent (address, n);
CREATE INDEX hub_agent_by_deleted ON hub_agent (deleted) WHERE deleted > 0;

-- What changes with an agent's messages. A row is removed with its agent.
CREATE TABLE hub_use (
	agent        BIGINT NOT NULL PRIMARY KEY,
	used         BIGINT NOT NULL, -- the last message, stream or webhook reply
	replied      BIGINT NOT NULL, -- the last webhook reply; 0: none
	framed       BIGINT NOT NULL, -- the last message on a stream; 0: none
	stream_ended BIGINT NOT NULL, -- when a stream was last closed; 0: never
	kept         BIGINT NOT NULL, -- messages in the agent's history
	kept_bytes   BIGINT NOT NULL,
	queued       BIGINT NOT NULL, -- messages to the agent that are queued
	queued_bytes BIGINT NOT NULL,
	sum          BIGINT NOT NULL
);
CREATE INDEX hub_use_by_used ON hub_use (used);

-- The messages. These rows do not change, except that the operator can remove the text of an envelope.
CREATE TABLE hub_message (
	n           BIGINT NOT NULL PRIMARY KEY, -- the id
	trace       TEXT   NOT NULL,
	sender      BIGINT NOT NULL,
	sender_id   TEXT   NOT NULL,
	receiver    BIGINT NOT NULL,
	receiver_id TEXT   NOT NULL,
	envelope    TEXT   NOT NULL, -- JSON
	ts          BIGINT NOT NULL, -- grows with n
	sum         BIGINT NOT NULL
);
CREATE UNIQUE INDEX hub_message_by_trace ON hub_message (trace);
CREATE INDEX hub_message_by_ts ON hub_message (ts);

-- One row: the timestamp of the newest message, as of when it was removed. The next timestamp must be later.
CREATE TABLE hub_clock (
	id  BIGINT NOT NULL PRIMARY KEY, -- 1
	ts  BIGINT NOT NULL,
	sum BIGINT NOT NULL
);

-- How far the delivery of each message is.
CREATE TABLE hub_delivery (
	message  BIGINT NOT NULL PRIMARY KEY,
	sender   BIGINT NOT NULL,
	receiver BIGINT NOT NULL,
	size     BIGINT NOT NULL, -- of the envelope, in bytes
	state    BIGINT NOT NULL, -- 0: queued, 1: sent, 2: delivered, 3: failed
	via      TEXT   NOT NULL, -- sse, poll or webhook; empty: it was never handed out
	handed   BIGINT NOT NULL, -- when it was last handed out; 0: never
	acked    BIGINT NOT NULL, -- when the receiver confirmed or refused it; 0: not yet
	result   TEXT   NOT NULL, -- JSON: what is known of the last attempt; empty: nothing
	sum      BIGINT NOT NULL
);
CREATE INDEX hub_delivery_queued ON hub_delivery (receiver, message) WHERE state = 0;
CREATE INDEX hub_delivery_sent ON hub_delivery (receiver, message) WHERE state = 1;

-- Which messages are in whose history. A message without such a row is removed.
CREATE TABLE hub_entry (
	agent   BIGINT NOT NULL,
	message BIGINT NOT NULL,
	sum     BIGINT NOT NULL,
	PRIMARY KEY (agent, message)
);
CREATE INDEX hub_entry_by_message ON hub_entry (message);
