-- The bans that the operator has set with agora admin ban. Times are nanoseconds since 1970, UTC.
CREATE TABLE admin_ban (
	subject TEXT   NOT NULL PRIMARY KEY, -- a DID, or a network in the form of netip.Prefix
	reason  TEXT   NOT NULL,
	created BIGINT NOT NULL,
	expires BIGINT NOT NULL -- 0: never
);
