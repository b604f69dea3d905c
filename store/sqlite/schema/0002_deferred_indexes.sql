-- The writer stores an event and its thread at once. It fills most indexes later, in sorted slices, so that a post changes
-- few pages. So these indexes are tables, see indexes.go. The row 'merged' of meta has the number of an event. The indexes
-- of events have exactly their rows for the events up to that number. They may have some rows for later events, which
-- readers ignore. The tables thread_role and thread_due have their rows for all threads without a later event.
CREATE TABLE event_rebuilt (
	seq       INTEGER PRIMARY KEY,
	sender    INTEGER NOT NULL, -- party.id
	id        TEXT    NOT NULL, -- a sender uses an id once; the writer sees to that
	recipient INTEGER NOT NULL, -- party.id; 0: a broadcast
	type      TEXT    NOT NULL,
	thread    INTEGER NOT NULL, -- thread.n; 0: none
	ts        INTEGER NOT NULL,
	received  INTEGER NOT NULL,
	expires   INTEGER NOT NULL, -- 0: the body was cut on a full disk; negative: the operator removed it at minus this time
	forget    INTEGER NOT NULL,
	charged   INTEGER NOT NULL, -- bytes that count against the recipient's inbox; 0: the recipient asked for the event
	network   INTEGER NOT NULL, -- relay.Entry.Network
	leaf      INTEGER,          -- index of the event's leaf in the log; NULL: none
	salt      BLOB,             -- of the leaf; NULL: none, or erased
	body      BLOB    NOT NULL  -- canonical JSON; empty: cut or removed. The last column, so that the others are read without it
) STRICT;
INSERT INTO event_rebuilt SELECT seq, sender, id, recipient, type, thread, ts, received, expires, forget, charged, network, NULL, NULL, body
	FROM event ORDER BY seq;
DROP TABLE event;
ALTER TABLE event_rebuilt RENAME TO event;

CREATE TABLE event_sent (
	sender INTEGER NOT NULL,
	id     TEXT    NOT NULL,
	seq    INTEGER NOT NULL,
	PRIMARY KEY (sender, id)
) STRICT, WITHOUT ROWID;
-- An inbox uses two indexes, and each event is in one of them. event_asked has the events that the recipient asked for.
-- event_unasked has the events that count against the inbox, with all columns that the count needs.
CREATE TABLE event_asked (
	recipient INTEGER NOT NULL,
	seq       INTEGER NOT NULL,
	PRIMARY KEY (recipient, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE event_unasked (
	recipient INTEGER NOT NULL,
	seq       INTEGER NOT NULL,
	network   INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	charged   INTEGER NOT NULL,
	PRIMARY KEY (recipient, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE event_thread (
	thread INTEGER NOT NULL,
	seq    INTEGER NOT NULL,
	PRIMARY KEY (thread, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE event_ts (
	ts        INTEGER NOT NULL,
	recipient INTEGER NOT NULL,
	seq       INTEGER NOT NULL,
	PRIMARY KEY (ts, recipient, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE event_forget (
	forget INTEGER NOT NULL,
	seq    INTEGER NOT NULL,
	PRIMARY KEY (forget, seq)
) STRICT, WITHOUT ROWID;
-- Whatever removes an event removes it from the indexes too.
CREATE TRIGGER event_removed AFTER DELETE ON event BEGIN
	DELETE FROM event_sent WHERE sender = old.sender AND id = old.id;
	DELETE FROM event_asked WHERE recipient = old.recipient AND seq = old.seq;
	DELETE FROM event_unasked WHERE recipient = old.recipient AND seq = old.seq;
	DELETE FROM event_thread WHERE thread = old.thread AND seq = old.seq;
	DELETE FROM event_ts WHERE ts = old.ts AND recipient = old.recipient AND seq = old.seq;
	DELETE FROM event_forget WHERE forget = old.forget AND seq = old.seq;
END;

-- A row wakes Expire at the time due, to look at a thread. Each thread has a row for its due time or an earlier one. It may
-- have further rows: a change of the due time adds a row and removes none.
CREATE TABLE thread_due (
	due    INTEGER NOT NULL,
	thread INTEGER NOT NULL,
	PRIMARY KEY (due, thread)
) STRICT, WITHOUT ROWID;
DROP INDEX thread_by_due;
-- For counting the threads by state.
CREATE INDEX thread_by_state ON thread (state);
