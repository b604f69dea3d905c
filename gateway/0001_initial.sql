-- Times are nanoseconds since 1970, UTC. The types and statements are those that SQLite and PostgreSQL share.

-- Who may call a gateway. Only the hash of a key is stored, so a copy of the database contains no key.
CREATE TABLE gate_key (
	hash     BYTEA  NOT NULL PRIMARY KEY, -- SHA-256
	kind     TEXT   NOT NULL, -- the first characters of the key
	owner    BIGINT NOT NULL, -- the number of the agent, channel, member, inbox or principal
	only_for TEXT   NOT NULL, -- the only operation that the key may still do; empty: all
	expires  BIGINT NOT NULL  -- 0: never
);
CREATE INDEX gate_key_by_owner ON gate_key (kind, owner);
CREATE INDEX gate_key_by_expires ON gate_key (expires);
