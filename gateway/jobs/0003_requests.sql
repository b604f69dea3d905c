-- Agents whose endpoint is a DID get their jobs as REQUESTs of the gateways' DID.

-- 1: the endpoint of the agent is agora: and the DID of its principal.
ALTER TABLE jobs_agent ADD COLUMN bridged BIGINT NOT NULL DEFAULT 0;
CREATE INDEX jobs_agent_bridged ON jobs_agent (n) WHERE bridged = 1 AND deleted = 0;

-- The REQUESTs of running jobs. A row is removed when its job ends. In jobs_job, pull is 2 for such a job.
CREATE TABLE jobs_request (
	job       BIGINT NOT NULL PRIMARY KEY,
	id        TEXT   NOT NULL, -- job_…, the id of the REQUEST and of its thread
	principal BIGINT NOT NULL, -- that of the agent, whose DID the REQUEST goes to
	state     BIGINT NOT NULL, -- 0: the REQUEST waits for room, 1: it is sent, 2: its OFFER is accepted
	price     BIGINT NOT NULL, -- of the accepted OFFER
	sum       BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_request_by_id ON jobs_request (id);
CREATE INDEX jobs_request_waiting ON jobs_request (principal, job) WHERE state = 0;
CREATE INDEX jobs_request_sent ON jobs_request (principal) WHERE state = 1;

-- One row: the last event of the relay whose effects are stored.
CREATE TABLE jobs_position (
	id  BIGINT NOT NULL PRIMARY KEY, -- 1
	seq BIGINT NOT NULL,
	sum BIGINT NOT NULL
);
