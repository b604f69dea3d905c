-- Spans stand in for indexes in the order of time, which cost each event a page of the disk. Each span has the next
-- numbers behind the span before, about 256. It is written when all its numbers are used. Behind the last span there are
-- few numbers, and readers look at all of them.
ALTER TABLE head ADD COLUMN spanned BIGINT   NOT NULL DEFAULT 0;     -- last number of the last span
ALTER TABLE head ADD COLUMN threads BIGINT[] NOT NULL DEFAULT '{}';  -- how many threads have each state, by ledger.StateNumber
CREATE TABLE span (
	last       BIGINT NOT NULL PRIMARY KEY,
	first      BIGINT NOT NULL,
	min_ts     BIGINT,          -- of its events; NULL: it has none
	max_ts     BIGINT,
	latest     BIGINT NOT NULL, -- the latest ts and arrival of all events up to last
	min_forget BIGINT,          -- of the events that are stored; NULL: none
	max_forget BIGINT,          -- of the events whose ids are in the table message; NULL: none
	due        BIGINT           -- no thread that began here is due before; NULL: none is stored
);
CREATE INDEX span_by_latest ON span (latest, last);
CREATE INDEX span_by_forget ON span (max_forget) WHERE max_forget IS NOT NULL;
CREATE INDEX span_by_due ON span (due) WHERE due IS NOT NULL;
CREATE INDEX span_empty ON span (last) WHERE max_forget IS NULL AND due IS NULL;

-- Fills the table span and the counts of threads from the events and threads that are stored. A span never has events of
-- two partitions.
CREATE FUNCTION span_fill() RETURNS VOID LANGUAGE sql SET search_path FROM CURRENT AS $$
INSERT INTO span (first, last, min_ts, max_ts, latest, min_forget, max_forget, due)
SELECT coalesce(lag(last) OVER upto, 0) + 1, last, min_ts, max_ts, coalesce(max(latest) OVER upto, 0), min_forget, max_forget, due
FROM (SELECT least((seq / size + 1) * size, seq - seq % size % 256 + 256) - 1 AS last, min(ts) AS min_ts, max(ts) AS max_ts,
	max(greatest(ts, received)) AS latest, min(forget) AS min_forget, max(forget) AS max_forget, min(due) AS due
	FROM (SELECT seq, ts, received, forget, NULL::bigint AS due FROM event
		UNION ALL SELECT n, NULL, NULL, NULL, due FROM thread) rows CROSS JOIN (SELECT partition AS size FROM head) h
	GROUP BY 1) spans
WHERE last <= (SELECT last FROM head)
WINDOW upto AS (ORDER BY last);
UPDATE head SET spanned = coalesce((SELECT max(last) FROM span), 0), threads = coalesce((SELECT array_agg(coalesce(n, 0) ORDER BY i)
	FROM generate_series(0, (SELECT max(state) FROM thread)) i
	LEFT JOIN (SELECT state, count(*) AS n FROM thread GROUP BY state) s ON s.state = i), '{}');
$$;
SELECT span_fill();

DROP INDEX event_by_ts, event_by_forget, message_by_forget, thread_by_due;
-- The row of an id is as old as its event. It counts until event.forget.
ALTER TABLE message DROP COLUMN forget;
