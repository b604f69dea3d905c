-- The writer numbers the events itself. AUTOINCREMENT had SQLite write the last number down with each, also with those
-- that were refused; now that is done only when the newest event is removed, so that its number is not used again.
-- On disk the tables with and without it are the same.
INSERT INTO meta (name, value) SELECT 'last', seq FROM sqlite_sequence WHERE name = 'event';
DELETE FROM sqlite_sequence;
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, ' AUTOINCREMENT', '') WHERE name = 'event';
PRAGMA writable_schema = RESET;
