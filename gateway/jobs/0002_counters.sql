-- Totals that answers show are read from counters, and pages from an index. The counters are filled from the rows that
-- exist. They have no checksum: `agora check` counts the rows again.

-- How many records there are of an account (kind 1: it pays, is paid, or its hold is used) and of a principal (kind 2:
-- one of its accounts does).
CREATE TABLE jobs_count (
	kind    BIGINT NOT NULL,
	n       BIGINT NOT NULL, -- of the account or of the principal
	records BIGINT NOT NULL,
	PRIMARY KEY (kind, n)
);
INSERT INTO jobs_count (kind, n, records)
	SELECT 1, s.owner, COUNT(*) FROM (SELECT owner, record FROM jobs_entry
		UNION SELECT behalf, n FROM jobs_record WHERE behalf > 0) AS s GROUP BY s.owner;
INSERT INTO jobs_count (kind, n, records)
	SELECT 2, w.principal, COUNT(DISTINCT s.record) FROM (SELECT owner, record FROM jobs_entry
		UNION SELECT behalf, n FROM jobs_record WHERE behalf > 0) AS s JOIN jobs_owner w ON w.n = s.owner
	WHERE w.principal > 0 GROUP BY w.principal;

-- Records between two accounts, payments between two accounts, and transfers with a job_id.
CREATE INDEX jobs_record_by_pair ON jobs_record (payer, payee, n);
CREATE INDEX jobs_record_by_payment ON jobs_record (behalf, payee, n) WHERE behalf > 0;
CREATE INDEX jobs_record_paid_for ON jobs_record (payer, job_id, n) WHERE kind = 'transfer' AND job_id <> '';
CREATE INDEX jobs_record_got_for ON jobs_record (payee, job_id, n) WHERE kind = 'transfer' AND job_id <> '';

-- When an agent stops to be online if nothing is heard from it. 0: it is not online.
ALTER TABLE jobs_agent ADD COLUMN until BIGINT NOT NULL DEFAULT 0;
UPDATE jobs_agent SET until = CASE WHEN heartbeat > 0 THEN heartbeat + 90000000000 ELSE active + 86400000000000 END
	WHERE deleted = 0 AND offline = 0;
CREATE INDEX jobs_agent_by_until ON jobs_agent (until) WHERE until > 0;
DROP INDEX jobs_agent_online;

-- Copies of what the agent's row has, so that an index finds the best agents with a skill.
ALTER TABLE jobs_skill ADD COLUMN score BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs_skill ADD COLUMN online BIGINT NOT NULL DEFAULT 0; -- 1: the agent's until is not 0
UPDATE jobs_skill SET score = (SELECT a.score FROM jobs_agent a WHERE a.n = jobs_skill.agent),
	online = (SELECT CASE WHEN a.until > 0 THEN 1 ELSE 0 END FROM jobs_agent a WHERE a.n = jobs_skill.agent);
CREATE INDEX jobs_skill_best ON jobs_skill (name, score DESC, cost, agent) WHERE online = 1;

-- The names of skills.
CREATE TABLE jobs_skill_name (
	name   TEXT   NOT NULL PRIMARY KEY,
	agents BIGINT NOT NULL, -- how many agents have it
	online BIGINT NOT NULL  -- how many of these are online
);
INSERT INTO jobs_skill_name (name, agents, online) SELECT name, COUNT(*), SUM(online) FROM jobs_skill GROUP BY name;
CREATE INDEX jobs_skill_name_online ON jobs_skill_name (online DESC) WHERE online > 0;
CREATE INDEX jobs_skill_name_unused ON jobs_skill_name (agents) WHERE agents = 0;

-- One row: how many there are of everything that GET /health and GET /economy count.
CREATE TABLE jobs_figure (
	id       BIGINT NOT NULL PRIMARY KEY, -- 1
	accounts BIGINT NOT NULL, -- without those of the relay
	online   BIGINT NOT NULL, -- agents
	skills   BIGINT NOT NULL  -- names
);
INSERT INTO jobs_figure (id, accounts, online, skills)
	SELECT 1, (SELECT COUNT(*) FROM jobs_owner WHERE principal > 0), (SELECT COUNT(*) FROM jobs_agent WHERE until > 0),
		(SELECT COUNT(*) FROM jobs_skill_name)
	WHERE EXISTS (SELECT 1 FROM jobs_owner); -- no row in an empty database, because agora migrate copies rows into one

-- What the operator has folded: the records and the jobs are gone, and these rows have their sums.
CREATE TABLE jobs_folded (
	owner   BIGINT NOT NULL PRIMARY KEY,
	amount  BIGINT NOT NULL, -- the sum of the folded entries of the account
	initial BIGINT NOT NULL, -- the part of it that is initial credits
	sum     BIGINT NOT NULL
);
CREATE TABLE jobs_folded_total (
	id      BIGINT NOT NULL PRIMARY KEY, -- 1
	records BIGINT NOT NULL, -- folded
	volume  TEXT   NOT NULL, -- of them, as in jobs_total
	sum     BIGINT NOT NULL
);
CREATE TABLE jobs_folded_agent (
	agent     BIGINT NOT NULL PRIMARY KEY,
	successes BIGINT NOT NULL, -- of folded jobs that counted
	failures  BIGINT NOT NULL,
	sum       BIGINT NOT NULL
);
CREATE INDEX jobs_settled_by_record ON jobs_settled (record);
CREATE INDEX jobs_record_by_age ON jobs_record (ts, n);
CREATE INDEX jobs_job_by_end ON jobs_job (ended, n) WHERE ended > 0;
