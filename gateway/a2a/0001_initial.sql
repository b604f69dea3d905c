-- Times are nanoseconds since 1970, UTC. JSON is text in the form of RFC 8785. Each row has a checksum of its other
-- columns, see gateway.Sum. The types and statements are those that SQLite and PostgreSQL share.

-- The endpoints of agents.
CREATE TABLE a2a_endpoint (
	n           BIGINT NOT NULL PRIMARY KEY,
	did         TEXT   NOT NULL, -- of the agent
	card        BYTEA  NOT NULL, -- as it was published
	url         TEXT   NOT NULL, -- the base URL in the card
	facts       TEXT   NOT NULL, -- JSON: what requests need to know of the card
	name        TEXT   NOT NULL, -- of the card
	description TEXT   NOT NULL, -- of the card
	access      TEXT   NOT NULL, -- public or keys
	mode        TEXT   NOT NULL, -- message or params
	intent      TEXT   NOT NULL, -- of the REQUESTs in the mode params
	listed      BIGINT NOT NULL, -- 1: strangers can find it
	created     BIGINT NOT NULL,
	changed     BIGINT NOT NULL, -- when the card was published
	seen        BIGINT NOT NULL, -- when the relay last looked whether the agent had been heard from
	deleted     BIGINT NOT NULL, -- 0: not deleted
	sum         BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_endpoint_by_did ON a2a_endpoint (did) WHERE deleted = 0;
CREATE INDEX a2a_endpoint_listed ON a2a_endpoint (n) WHERE deleted = 0 AND listed = 1;
CREATE INDEX a2a_endpoint_by_seen ON a2a_endpoint (seen) WHERE deleted = 0;
CREATE INDEX a2a_endpoint_by_deleted ON a2a_endpoint (deleted) WHERE deleted > 0;

-- How much of its limits an endpoint uses.
CREATE TABLE a2a_usage (
	endpoint BIGINT NOT NULL PRIMARY KEY,
	ended    BIGINT NOT NULL, -- tasks in a terminal state
	bytes    BIGINT NOT NULL, -- of all tasks
	sum      BIGINT NOT NULL
);

-- The keys of callers. gate_key has their hashes.
CREATE TABLE a2a_key (
	n        BIGINT NOT NULL PRIMARY KEY,
	endpoint BIGINT NOT NULL,
	name     TEXT   NOT NULL,
	created  BIGINT NOT NULL,
	deleted  BIGINT NOT NULL, -- 0: not deleted
	sum      BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_key_by_name ON a2a_key (endpoint, name) WHERE deleted = 0;
CREATE INDEX a2a_key_by_deleted ON a2a_key (deleted) WHERE deleted > 0;

-- Conversations: what callers name with a contextId.
CREATE TABLE a2a_context (
	n        BIGINT NOT NULL PRIMARY KEY,
	id       TEXT   NOT NULL, -- cv_…, the name that the agent sees
	endpoint BIGINT NOT NULL,
	caller   TEXT   NOT NULL, -- as in a2a_task
	name     TEXT   NOT NULL, -- the contextId
	shared   BIGINT NOT NULL, -- 1: another task with this contextId belongs here; 0: an anonymous caller chose the name
	sum      BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_context_by_name ON a2a_context (endpoint, caller, name) WHERE shared = 1;

CREATE TABLE a2a_task (
	n          BIGINT NOT NULL PRIMARY KEY,
	id         TEXT   NOT NULL, -- tsk_…
	endpoint   BIGINT NOT NULL, -- 0: the task is being removed, and exists for nobody
	caller     TEXT   NOT NULL, -- who sees the task: k and the number of a key, a DID, or empty: an anonymous caller
	payer      TEXT   NOT NULL, -- whose limits it counts for: as caller, but for an anonymous caller s and its gateway.Core.Source
	context    BIGINT NOT NULL,
	state      TEXT   NOT NULL, -- TASK_STATE_…
	status_at  BIGINT NOT NULL,
	status_seq BIGINT NOT NULL, -- the event with the present status
	seq        BIGINT NOT NULL, -- the newest event
	turn       BIGINT NOT NULL, -- the number of the newest turn
	open       BIGINT NOT NULL, -- 1: the newest turn has not ended
	artifacts  BIGINT NOT NULL,
	bytes      BIGINT NOT NULL, -- of its events
	direct     BIGINT NOT NULL, -- 1: the agent has answered with only a message
	created    BIGINT NOT NULL,
	ended      BIGINT NOT NULL, -- when the state became terminal; 0: it is not
	sum        BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_task_by_id ON a2a_task (id);
CREATE INDEX a2a_task_by_status ON a2a_task (endpoint, caller, status_at, n, state, context);
CREATE INDEX a2a_task_by_context ON a2a_task (context);
CREATE INDEX a2a_task_open_by_payer ON a2a_task (payer) WHERE ended = 0;
CREATE INDEX a2a_task_open_by_caller ON a2a_task (endpoint, caller, n) WHERE ended = 0;
CREATE INDEX a2a_task_ended ON a2a_task (endpoint, ended, n) WHERE ended > 0;
CREATE INDEX a2a_task_old ON a2a_task (ended) WHERE ended > 0;
CREATE INDEX a2a_task_interrupted ON a2a_task (status_at) WHERE ended = 0 AND open = 0;

-- The turns of tasks: each is a REQUEST to the agent.
CREATE TABLE a2a_turn (
	n        BIGINT NOT NULL PRIMARY KEY,
	id       TEXT   NOT NULL, -- trn_…, the id of the REQUEST and of its thread
	endpoint BIGINT NOT NULL,
	task     BIGINT NOT NULL,
	turn     BIGINT NOT NULL, -- from 1 on
	payer    TEXT   NOT NULL, -- of the task
	state    BIGINT NOT NULL, -- 0: the REQUEST waits for room, 1: it is sent, 2: its OFFER is accepted, 3: the turn is over
	message  BIGINT NOT NULL, -- the event with the caller's message
	options  TEXT   NOT NULL, -- JSON: what the caller has sent beside the message
	asked    BIGINT NOT NULL, -- when the message came
	accepted BIGINT NOT NULL, -- when the OFFER was accepted; 0: it was not
	proof    TEXT   NOT NULL, -- JSON: the agent's signature over the turn; may be empty
	sum      BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_turn_by_id ON a2a_turn (id);
CREATE INDEX a2a_turn_by_task ON a2a_turn (task, turn);
CREATE INDEX a2a_turn_waiting ON a2a_turn (endpoint, payer, n) WHERE state = 0;
CREATE INDEX a2a_turn_sent ON a2a_turn (endpoint, payer) WHERE state = 1;
CREATE INDEX a2a_turn_silent ON a2a_turn (asked) WHERE state < 2;
CREATE INDEX a2a_turn_slow ON a2a_turn (accepted) WHERE state = 2;

-- What happened in tasks, in order. These rows do not change, except that the operator can remove their texts.
CREATE TABLE a2a_event (
	task     BIGINT NOT NULL,
	seq      BIGINT NOT NULL, -- from 1 on
	turn     BIGINT NOT NULL,
	kind     BIGINT NOT NULL, -- 0: a message of the caller, 1: a status, 2: a part of an artifact
	at       BIGINT NOT NULL,
	state    TEXT   NOT NULL, -- of a status
	said     BIGINT NOT NULL, -- 1: body is a message
	artifact BIGINT NOT NULL, -- of a part of an artifact: a2a_artifact.place; otherwise 0
	flags    BIGINT NOT NULL, -- bits. 1: the part is appended, 2: it is the last one, 4: the status ends the turn
	body     TEXT   NOT NULL, -- JSON: the message without contextId and taskId, or the artifact without its parts; may be empty
	parts    TEXT   NOT NULL, -- JSON: the parts of the artifact, with commas between them
	sum      BIGINT NOT NULL,
	PRIMARY KEY (task, seq)
);
CREATE INDEX a2a_event_said ON a2a_event (task, seq) WHERE said = 1;
CREATE INDEX a2a_event_artifact ON a2a_event (task, artifact, seq) WHERE artifact > 0;

-- The artifacts of tasks, in the order in which they came.
CREATE TABLE a2a_artifact (
	task  BIGINT NOT NULL,
	place BIGINT NOT NULL, -- from 1 on
	id    TEXT   NOT NULL, -- the agent's
	base  BIGINT NOT NULL, -- the first event of its present content
	sum   BIGINT NOT NULL,
	PRIMARY KEY (task, place)
);
CREATE UNIQUE INDEX a2a_artifact_by_id ON a2a_artifact (task, id);

-- Where callers want the events of tasks to be sent. A row has at most one job in the outbox. When that is done, the next
-- events become a job.
CREATE TABLE a2a_push (
	n       BIGINT NOT NULL PRIMARY KEY, -- also its lane in the outbox "a2a"
	task    BIGINT NOT NULL,
	id      TEXT   NOT NULL, -- the caller's
	config  BYTEA  NOT NULL, -- JSON: the URL, the token and the key, encrypted
	version BIGINT NOT NULL, -- grows with each new config
	begins  BIGINT NOT NULL, -- the event in whose place the task is sent; 0: none
	done    BIGINT NOT NULL, -- the last event that was sent, or could not be
	until   BIGINT NOT NULL, -- the job sends the events after done, up to this one; done: there is no job
	sum     BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_push_by_id ON a2a_push (task, id);

-- The addresses to which A2A servers push events for agents that nobody can reach. gate_key has the hashes of their keys.
CREATE TABLE a2a_hook (
	n       BIGINT NOT NULL PRIMARY KEY,
	id      TEXT   NOT NULL, -- hk_…
	owner   TEXT   NOT NULL, -- a DID
	label   TEXT   NOT NULL,
	created BIGINT NOT NULL,
	sum     BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_hook_by_id ON a2a_hook (id);
CREATE INDEX a2a_hook_by_owner ON a2a_hook (owner, n);

-- What hooks got. Each event was handed to the owner as a REQUEST. The contents are in that envelope only.
CREATE TABLE a2a_notice (
	n       BIGINT NOT NULL PRIMARY KEY,
	id      TEXT   NOT NULL, -- ntf_…, the id of the REQUEST and of its thread
	hook    BIGINT NOT NULL,
	subject BYTEA  NOT NULL, -- SHA-256 of the Idempotency-Key and the body
	source  BIGINT NOT NULL, -- which network sent it, see gateway.Core.Source
	created BIGINT NOT NULL,
	done    BIGINT NOT NULL, -- 1: the owner has answered
	sum     BIGINT NOT NULL
);
CREATE UNIQUE INDEX a2a_notice_by_id ON a2a_notice (id);
CREATE INDEX a2a_notice_by_subject ON a2a_notice (hook, subject);
CREATE INDEX a2a_notice_open ON a2a_notice (hook, created) WHERE done = 0;
CREATE INDEX a2a_notice_done ON a2a_notice (hook, source) WHERE done = 1;
CREATE INDEX a2a_notice_by_created ON a2a_notice (created);

-- One row: the last event of the relay whose effects are stored here.
CREATE TABLE a2a_position (
	id  BIGINT NOT NULL PRIMARY KEY, -- 1
	seq BIGINT NOT NULL,
	sum BIGINT NOT NULL
);
