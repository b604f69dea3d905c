-- Times are nanoseconds since 1970, UTC. The types and statements are those that SQLite and PostgreSQL share.
-- Each row has the checksum of its other columns, so that `agora check` finds a changed row.

-- Who may call a gateway. Only the hash of a key is stored, so a copy of the database contains no key.
CREATE TABLE gate_key (
	hash     BYTEA  NOT NULL PRIMARY KEY, -- SHA-256
	kind     TEXT   NOT NULL, -- the first characters of the key
	owner    BIGINT NOT NULL, -- the number of the agent, channel, member, inbox or principal; 0: the operator
	only_for TEXT   NOT NULL, -- the only operation that the key may still do; empty: all
	expires  BIGINT NOT NULL, -- 0: never
	sum      BIGINT NOT NULL
);
CREATE INDEX gate_key_by_owner ON gate_key (kind, owner);
CREATE INDEX gate_key_by_expires ON gate_key (expires);

-- The numbers that gateways show to clients.
CREATE TABLE gate_counter (
	name  TEXT   NOT NULL PRIMARY KEY,
	value BIGINT NOT NULL, -- the last number that was given
	sum   BIGINT NOT NULL
);

-- What belongs to the whole database: the DID of gateway.key, and the epoch with which the counters were used last.
CREATE TABLE gate_meta (
	name  TEXT   NOT NULL PRIMARY KEY,
	value TEXT   NOT NULL,
	sum   BIGINT NOT NULL
);

-- The answers to requests with an Idempotency-Key, kept for 24 hours.
CREATE TABLE gate_answer (
	endpoint TEXT   NOT NULL, -- the method and the path
	caller   TEXT   NOT NULL,
	id       TEXT   NOT NULL, -- the Idempotency-Key
	body     BYTEA  NOT NULL, -- SHA-256 of the request's body in the form of RFC 8785
	ref      BIGINT NOT NULL, -- the number of what the request has created
	status   BIGINT NOT NULL, -- 0: the operation is stored, its answer is not yet
	answer   BYTEA  NOT NULL, -- the body of the answer, encrypted; empty while status is 0
	expires  BIGINT NOT NULL,
	sum      BIGINT NOT NULL,
	PRIMARY KEY (endpoint, caller, id)
);
CREATE INDEX gate_answer_by_expires ON gate_answer (expires);

-- Jobs: requests to other servers that are not done yet, or have failed for good. A lane is a queue: only its live job
-- with the lowest number is tried.
CREATE TABLE gate_outbox (
	n       BIGINT NOT NULL PRIMARY KEY,
	gateway TEXT   NOT NULL,
	lane    BIGINT NOT NULL,
	ref     BIGINT NOT NULL, -- the gateway's own number for what the job sends
	created BIGINT NOT NULL,
	attempt BIGINT NOT NULL, -- how many attempts were made
	due     BIGINT NOT NULL, -- when the next attempt is made; 0: at once
	dead    BIGINT NOT NULL, -- when the job died; 0: it is alive
	failure TEXT   NOT NULL, -- why the last attempt failed
	sum     BIGINT NOT NULL
);
CREATE INDEX gate_outbox_by_lane ON gate_outbox (gateway, lane, n) WHERE dead = 0;
CREATE INDEX gate_outbox_by_ref ON gate_outbox (gateway, ref) WHERE dead = 0;
CREATE INDEX gate_outbox_dead_by_lane ON gate_outbox (gateway, lane) WHERE dead > 0;
CREATE INDEX gate_outbox_by_dead ON gate_outbox (dead) WHERE dead > 0;
