-- The relay's logs (docs/PROOFS.md).
ALTER TABLE event ADD COLUMN leaf BIGINT; -- index of its leaf; NULL: none
ALTER TABLE event ADD COLUMN salt BYTEA;  -- of the leaf; NULL: none, or erased
CREATE TABLE log (
	n         BIGINT NOT NULL PRIMARY KEY, -- the newest log has the highest number
	origin    TEXT   NOT NULL UNIQUE,
	start     TEXT   NOT NULL,             -- the text of leaf 0
	published TEXT   NOT NULL              -- the last checkpoint that was published; empty: none
);
CREATE TABLE log_leaf (                  -- leaves of one tile, see ledger.LogRow
	log    BIGINT NOT NULL,                -- log.n
	first  BIGINT NOT NULL,                -- index of the first leaf
	latest BIGINT NOT NULL,                -- nanoseconds; the latest arrival in the log so far
	seq    BIGINT NOT NULL,                -- number of the last event
	hashes BYTEA  NOT NULL,                -- of the leaves, 32 bytes each
	PRIMARY KEY (log, first)
);
CREATE TABLE log_node (                  -- complete subtrees (C2SP tlog-tiles), from level 1
	log   BIGINT   NOT NULL,
	level SMALLINT NOT NULL,
	n     BIGINT   NOT NULL,
	hash  BYTEA    NOT NULL,
	PRIMARY KEY (log, level, n)
);
