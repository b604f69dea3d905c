-- Times are nanoseconds since 1970, UTC. Amounts are millionths of a credit. JSON is text in the form of RFC 8785. Each
-- row has a checksum of its other columns, see gateway.Sum. The types and statements are those that SQLite and
-- PostgreSQL share.

-- Those who own accounts and agents: the holder of a key, or a DID.
CREATE TABLE jobs_principal (
	n       BIGINT NOT NULL PRIMARY KEY,
	did     TEXT   NOT NULL, -- empty: it has a key
	issued  BIGINT NOT NULL, -- the initial balances that were paid to its accounts
	created BIGINT NOT NULL,
	sum     BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_principal_by_did ON jobs_principal (did) WHERE did <> '';

-- Accounts. Two of them belong to the relay: @issue has minus all credits that were ever issued, and @escrow has what is
-- held for running jobs.
CREATE TABLE jobs_owner (
	n         BIGINT NOT NULL PRIMARY KEY,
	id        TEXT   NOT NULL, -- owner_id
	principal BIGINT NOT NULL, -- 0: the relay
	balance   BIGINT NOT NULL,
	opened    BIGINT NOT NULL, -- 1: its initial balance was paid, which may be 0
	sum       BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_owner_by_id ON jobs_owner (id);
CREATE INDEX jobs_owner_by_principal ON jobs_owner (principal, n);

-- The records of the ledger. These rows never change.
CREATE TABLE jobs_record (
	n      BIGINT NOT NULL PRIMARY KEY,
	id     TEXT   NOT NULL, -- transfer_id or grant_id
	kind   TEXT   NOT NULL, -- initial, grant, hold, settle, refund or transfer
	payer  BIGINT NOT NULL,
	payee  BIGINT NOT NULL,
	behalf BIGINT NOT NULL, -- of a settle: the account whose hold it uses; else 0
	amount BIGINT NOT NULL,
	job    BIGINT NOT NULL, -- of a hold, its payment or its refund; 0: none
	job_id TEXT   NOT NULL, -- what the client has called the job; empty: none
	named  BIGINT NOT NULL, -- 1: the client has chosen the id
	ts     BIGINT NOT NULL,
	sum    BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_record_by_id ON jobs_record (id);
CREATE INDEX jobs_record_by_job ON jobs_record (job, n);
CREATE INDEX jobs_record_by_job_id ON jobs_record (job_id, n) WHERE job_id <> '';
CREATE INDEX jobs_record_by_behalf ON jobs_record (behalf, n) WHERE behalf > 0;
CREATE INDEX jobs_record_unnamed ON jobs_record (payer, payee, amount, job_id, ts) WHERE named = 0 AND kind = 'transfer';

-- The two entries of each record, which sum to zero.
CREATE TABLE jobs_entry (
	owner   BIGINT NOT NULL,
	record  BIGINT NOT NULL,
	amount  BIGINT NOT NULL, -- of the payer: negative
	balance BIGINT NOT NULL, -- of the account after the record
	sum     BIGINT NOT NULL,
	PRIMARY KEY (owner, record)
);
CREATE INDEX jobs_entry_by_record ON jobs_entry (record);

-- The transfer_ids that were answered with the payment of a job, so that they are not used for something else.
CREATE TABLE jobs_settled (
	id      TEXT   NOT NULL PRIMARY KEY, -- transfer_id
	content BYTEA  NOT NULL, -- SHA-256 of the transfer
	record  BIGINT NOT NULL, -- the payment
	balance BIGINT NOT NULL, -- of the payer when it was answered
	sum     BIGINT NOT NULL
);

-- One row: sums over jobs_record.
CREATE TABLE jobs_total (
	id      BIGINT NOT NULL PRIMARY KEY, -- 1
	records BIGINT NOT NULL,
	volume  TEXT   NOT NULL, -- the sum of all payments and transfers; it may be too large for a number
	sum     BIGINT NOT NULL
);

-- Agents. The row remains after DELETE, so that nobody else gets the agent_id, and its score is kept.
CREATE TABLE jobs_agent (
	n          BIGINT NOT NULL PRIMARY KEY,
	id         TEXT   NOT NULL, -- agent_id
	principal  BIGINT NOT NULL,
	owner      BIGINT NOT NULL,
	name       TEXT   NOT NULL,
	endpoint   BYTEA  NOT NULL, -- its URL, encrypted; empty: it pulls its jobs
	score      BIGINT NOT NULL, -- millionths of a point
	successes  BIGINT NOT NULL, -- that counted
	failures   BIGINT NOT NULL,
	registered BIGINT NOT NULL,
	heartbeat  BIGINT NOT NULL, -- 0: it never sent one
	active     BIGINT NOT NULL, -- when it was registered, or when its last job ended
	offline    BIGINT NOT NULL, -- 1: it could not be reached, and was not heard from since
	deleted    BIGINT NOT NULL, -- 0: not deleted
	sum        BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_agent_by_id ON jobs_agent (id);
CREATE INDEX jobs_agent_by_principal ON jobs_agent (principal, deleted);
CREATE INDEX jobs_agent_online ON jobs_agent (heartbeat, active) WHERE deleted = 0 AND offline = 0;

-- The skills of agents that are not deleted.
CREATE TABLE jobs_skill (
	agent       BIGINT NOT NULL,
	name        TEXT   NOT NULL,
	position    BIGINT NOT NULL, -- in the list of the agent
	cost        BIGINT NOT NULL, -- cost_per_call
	description TEXT   NOT NULL,
	input       TEXT   NOT NULL, -- JSON: input_schema
	output      TEXT   NOT NULL, -- JSON: output_schema
	sum         BIGINT NOT NULL,
	PRIMARY KEY (agent, name)
);
CREATE INDEX jobs_skill_by_name ON jobs_skill (name, agent);

-- Jobs.
CREATE TABLE jobs_job (
	n            BIGINT NOT NULL PRIMARY KEY, -- also its lane in the outboxes "jobs" and "jobresult"
	id           TEXT   NOT NULL, -- job_id
	hirer        BIGINT NOT NULL, -- a principal
	payer        BIGINT NOT NULL, -- an account of the hirer
	payee        BIGINT NOT NULL, -- the account of the agent
	agent        BIGINT NOT NULL,
	orchestrator TEXT   NOT NULL, -- orchestrator_id
	boss         BIGINT NOT NULL, -- the hirer's agent with that id; 0: there is none
	skill        TEXT   NOT NULL,
	price        BIGINT NOT NULL, -- cost_per_call when the job was made
	budget       BIGINT NOT NULL, -- what is held
	content      BYTEA  NOT NULL, -- SHA-256 of the request, to recognize repeats
	input        TEXT   NOT NULL, -- JSON: input_data; empty: forgotten
	callback     BYTEA  NOT NULL, -- the hirer's URL, encrypted; empty: none
	pull         BIGINT NOT NULL, -- 1: the agent pulls the job, 0: it is sent to the agent's endpoint
	appended     BIGINT NOT NULL, -- 1: the endpoint needs /jobs after its path
	created      BIGINT NOT NULL,
	dispatched   BIGINT NOT NULL, -- when the agent has got it; 0: not yet
	handed       BIGINT NOT NULL, -- when the agent has pulled it last, or the last attempt to send it began; 0: not yet
	due          BIGINT NOT NULL, -- when the job fails if nothing happens before
	state        BIGINT NOT NULL, -- 0: it runs, 1: SUCCESS, 2: FAILURE
	result       BYTEA  NOT NULL, -- SHA-256 of the result that has ended the job, to recognize repeats
	output       TEXT   NOT NULL, -- JSON: output_data; empty: none
	cost         BIGINT NOT NULL, -- what was paid
	millis       BIGINT NOT NULL, -- execution_time_ms
	code         TEXT   NOT NULL, -- error_code; empty: none
	message      TEXT   NOT NULL, -- error_message; empty: none
	ended        BIGINT NOT NULL, -- 0: not yet
	counted      BIGINT NOT NULL, -- 1: it has changed the agent's score
	sum          BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_job_by_id ON jobs_job (id);
CREATE INDEX jobs_job_by_due ON jobs_job (due) WHERE state = 0;
CREATE INDEX jobs_job_by_hirer ON jobs_job (hirer) WHERE state = 0;
CREATE INDEX jobs_job_by_agent ON jobs_job (agent, n) WHERE state = 0;
CREATE INDEX jobs_job_counted ON jobs_job (agent, hirer, ended) WHERE counted = 1;
CREATE INDEX jobs_job_by_ended ON jobs_job (ended) WHERE ended > 0 AND input <> '';
