-- Do commits wait for a standby? Want at least one row with sync_state = quorum. The role needs pg_monitor.
SELECT application_name, state, sync_state, replay_lag FROM pg_stat_replication;
-- Events, the end, and when the last sweep was.
SELECT last, to_timestamp(swept / 1e9) AS swept, to_hex(epoch) AS epoch FROM agora.head;
-- The partitions of events, the oldest first.
SELECT c.relname, pg_size_pretty(pg_total_relation_size(c.oid)) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'agora.event'::regclass ORDER BY c.oid;
-- Who has sent most of the last 100,000 messages?
SELECT convert_from(did, 'UTF8') AS did, count(*), pg_size_pretty(sum(length(body))) AS size FROM agora.event e
JOIN agora.party p ON p.id = e.sender WHERE seq > (SELECT last - 100000 FROM agora.head)
GROUP BY did ORDER BY count(*) DESC LIMIT 10;
-- Who waits for whom? A node that holds the lock of head for long slows all down.
SELECT pid, state, wait_event, now() - xact_start AS since, left(query, 60) FROM pg_stat_activity WHERE application_name = 'agora';
