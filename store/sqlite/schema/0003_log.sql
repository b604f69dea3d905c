-- The relay's logs (docs/PROOFS.md).
CREATE TABLE log (
	n         INTEGER PRIMARY KEY,  -- the newest log has the highest number
	origin    TEXT NOT NULL UNIQUE,
	start     TEXT NOT NULL,        -- the text of leaf 0
	published TEXT NOT NULL         -- the last checkpoint that was published; empty: none
) STRICT;
CREATE TABLE log_leaf (           -- leaves of one tile, see ledger.LogRow
	at     INTEGER PRIMARY KEY,     -- log.n << 40 | index of the first leaf
	latest INTEGER NOT NULL,        -- nanoseconds; the latest arrival in the log so far
	seq    INTEGER NOT NULL,        -- number of the last event
	hashes BLOB    NOT NULL         -- of the leaves, 32 bytes each
) STRICT;
CREATE TABLE log_node (           -- complete subtrees (C2SP tlog-tiles), from level 1
	at   INTEGER PRIMARY KEY,       -- log.n << 48 | level << 40 | n
	hash BLOB    NOT NULL
) STRICT;
