-- Agents with a DID get their messages as REQUESTs of the gateways' DID.

ALTER TABLE hub_agent ADD COLUMN did TEXT NOT NULL DEFAULT ''; -- empty: the agent has a key
CREATE INDEX hub_agent_by_did ON hub_agent (did, n) WHERE did <> '';

-- How many replies of agents with a DID came before the message. 0: a client has posted it.
ALTER TABLE hub_message ADD COLUMN depth BIGINT NOT NULL DEFAULT 0;
CREATE INDEX hub_message_reply ON hub_message (sender, receiver, ts) WHERE depth > 0;

-- The messages to agents with a DID that are queued, or that an agent works on. A row is removed when a stream or a poll
-- hands the message out, and with the end of the delivery.
CREATE TABLE hub_request (
	message  BIGINT NOT NULL PRIMARY KEY,
	id       TEXT   NOT NULL, -- hub_…, the id of the REQUEST and of its thread
	did      TEXT   NOT NULL, -- of the receiver
	sender   BIGINT NOT NULL,
	receiver BIGINT NOT NULL,
	state    BIGINT NOT NULL, -- 0: the REQUEST waits for room, 1: it is sent, 2: its OFFER is accepted
	made     BIGINT NOT NULL, -- when the message was stored
	sum      BIGINT NOT NULL
);
CREATE UNIQUE INDEX hub_request_by_id ON hub_request (id);
CREATE INDEX hub_request_waiting ON hub_request (receiver, message) WHERE state = 0;
CREATE INDEX hub_request_open ON hub_request (receiver, sender) WHERE state > 0;
CREATE INDEX hub_request_sent ON hub_request (did) WHERE state = 1;
CREATE INDEX hub_request_by_age ON hub_request (made, message);

-- One row: the last event of the relay whose effects are stored.
CREATE TABLE hub_position (
	id  BIGINT NOT NULL PRIMARY KEY, -- 1
	seq BIGINT NOT NULL,
	sum BIGINT NOT NULL
);
