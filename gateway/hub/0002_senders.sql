-- Who fills the queue and the history of an agent. Messages are counted by the source of their sender: the network that has
-- registered it. See gateway.Core.Source.

-- The sources of agents. An agent without a row counts alone, with its number: one that was registered on the
-- relay's own machine, by the operator, or by version 0.1.0.
CREATE TABLE hub_origin (
	agent  BIGINT NOT NULL PRIMARY KEY,
	source BIGINT NOT NULL,
	sum    BIGINT NOT NULL
);

-- What an agent has to do with a source.
CREATE TABLE hub_peer (
	agent      BIGINT NOT NULL,
	source     BIGINT NOT NULL,
	known      BIGINT NOT NULL, -- 0: no, 1: the agent was handed a message of it, 2: the agent has sent a message to it
	queued     BIGINT NOT NULL, -- messages from it that are queued
	kept       BIGINT NOT NULL, -- messages from it in the agent's history
	kept_bytes BIGINT NOT NULL,
	used       BIGINT NOT NULL, -- when a message was sent last, to the hour
	sum        BIGINT NOT NULL,
	PRIMARY KEY (agent, source)
);
CREATE INDEX hub_peer_by_used ON hub_peer (used) WHERE queued = 0 AND kept = 0;

-- The messages that an agent has received, as long as they are in its history, with their sources.
CREATE TABLE hub_received (
	agent   BIGINT NOT NULL,
	message BIGINT NOT NULL,
	source  BIGINT NOT NULL,
	sum     BIGINT NOT NULL,
	PRIMARY KEY (agent, message)
);
CREATE INDEX hub_received_by_source ON hub_received (agent, source, message);

-- Agents that never sent or received a message.
CREATE INDEX hub_use_idle ON hub_use (used) WHERE kept = 0 AND framed = 0 AND replied = 0;
