package postgres

import (
	"github.com/agora-relay/agora/store/ledger"
)

// The table span stands in for indexes of events and threads in the order of time. The writer adds a span when about
// spanSize numbers behind the last one are used, and always when the numbers of a partition are used up.
const spanSize = 256

// The statements of spans. They join spans with rows by LATERAL and OFFSET 0, so that PostgreSQL first reads the spans, and
// then only their rows. By itself it would expect many spans where there is none, and read a whole table first.
const (
	addSpan = "INSERT INTO span (first, last, min_ts, max_ts, latest, min_forget, max_forget, due) " +
		"SELECT $1, $2, min(ts), max(ts), greatest(max(ts), max(received), " +
		"coalesce((SELECT latest FROM span ORDER BY last DESC LIMIT 1), 0)), min(forget), max(forget), " +
		"(SELECT min(due) FROM thread WHERE n BETWEEN $1 AND $2) FROM event WHERE seq BETWEEN $1 AND $2"
	// hurrySpans is for threads that are due earlier than before.
	hurrySpans = "UPDATE span s SET due = k.due FROM (SELECT (SELECT last FROM span WHERE last >= n ORDER BY last LIMIT 1), " +
		"min(due) FROM unnest($1::bigint[], $2::bigint[]) k (n, due) GROUP BY 1) k (last, due) " +
		"WHERE s.last = k.last AND (s.due > k.due OR s.due IS NULL)"
	// dueSpans are those with threads that may be due at $1. The threads behind the last span may be due, too.
	dueSpans   = "SELECT first, last FROM span WHERE due <= $1 ORDER BY due LIMIT $2"
	dueThreads = "SELECT 1::bigint, " + threadColumns + " FROM ((" + dueSpans + ") UNION ALL SELECT spanned + 1, last FROM head) s " +
		"CROSS JOIN LATERAL (SELECT * FROM thread WHERE n BETWEEN s.first AND s.last AND due <= $1 OFFSET 0) t LIMIT $3"
	// eventsOfSpans are the events of the spans k, and idsOfSpans the rows of their ids. An id that was used again belongs to
	// a later event.
	eventsOfSpans = "FROM k CROSS JOIN LATERAL (SELECT seq, sender, id, forget FROM event WHERE seq BETWEEN k.first AND k.last " +
		"OFFSET 0) e "
	idsOfSpans = "SELECT m.ctid " + eventsOfSpans + "CROSS JOIN LATERAL (SELECT ctid FROM message WHERE key = " +
		"pair_key((SELECT did FROM party WHERE id = e.sender), e.id) AND seq = e.seq OFFSET 0) m"
	delaySpans = "UPDATE span s SET due = (SELECT min(due) FROM thread WHERE n BETWEEN s.first AND s.last) " +
		"FROM (" + dueSpans + ") k WHERE s.last = k.last"
	// forgetSpans removes the ids of spans whose ids are all due.
	forgetSpans = "WITH k AS (SELECT first, last FROM span WHERE max_forget <= $1 ORDER BY max_forget LIMIT $2), " +
		"gone AS (DELETE FROM message WHERE ctid = ANY(ARRAY(" + idsOfSpans + "))) " +
		"UPDATE span s SET max_forget = NULL FROM k WHERE s.last = k.last"
	// ofPartition are the spans with events of a partition. Its number is $1 and its size is $2.
	ofPartition = "last >= $1::bigint * $2::bigint AND first < ($1::bigint + 1) * $2::bigint AND last <= coalesce((SELECT last " +
		"FROM span WHERE last >= ($1::bigint + 1) * $2::bigint - 1 ORDER BY last LIMIT 1), 9223372036854775807)"
	forgetOfPartition = "SELECT max(max_forget) FROM span WHERE " + ofPartition
	// removeDue removes events of a partition that are due at $3. It looks at $4 spans, those with the earliest first.
	removeDue = "WITH k AS (SELECT first, last FROM span WHERE " + ofPartition + " AND min_forget <= $3 ORDER BY min_forget " +
		"LIMIT $4), ids AS (DELETE FROM message WHERE ctid = ANY(ARRAY(" + idsOfSpans + " WHERE e.forget <= $3))), " +
		"gone AS (DELETE FROM event WHERE seq = ANY(ARRAY(SELECT e.seq " + eventsOfSpans + "WHERE e.forget <= $3))) " +
		"UPDATE span s SET min_forget = (SELECT min(forget) FROM event WHERE seq BETWEEN s.first AND s.last AND forget > $3) " +
		"FROM k WHERE s.last = k.last"
	// dropSpans removes spans before $1 that have no event, id or thread.
	dropSpans = "DELETE FROM span WHERE last IN (SELECT last FROM span WHERE max_forget IS NULL AND due IS NULL AND last < $1 " +
		"ORDER BY last LIMIT $2)"
)

// Conditions of reads on the range of the sequence. The head is h.
const (
	// behindNews: up to the end of this span all events and arrivals are older than the argument, or equal.
	behindNews = "seq > coalesce((SELECT last FROM span WHERE latest <= ? ORDER BY latest DESC, last DESC LIMIT 1), 0)"
	// untilSettled: behind this span no event has a ts that is longer ago than the argument.
	lastWithin   = "coalesce((SELECT last FROM span WHERE latest > ? ORDER BY latest, last LIMIT 1), h.last)"
	untilSettled = "seq <= " + lastWithin
	// fromInstant: a span before this one has no event with this ts.
	fromInstant = "seq >= coalesce((SELECT first FROM span WHERE last > coalesce((SELECT last FROM span WHERE latest < ? " +
		"ORDER BY latest DESC, last DESC LIMIT 1), 0) AND first <= " + lastWithin + " AND min_ts <= ? AND max_ts >= ? " +
		"ORDER BY last LIMIT 1), h.spanned + 1)"
)

// queueSpan queues the statement that adds a span, if it is time.
func (w *writer) queueSpan() {
	size, last := w.store.sweeper.size, int64(w.last)
	if last-w.spanned < spanSize && (last+1)/size == (w.spanned+1)/size {
		return
	}
	w.batch.Queue(addSpan, w.spanned+1, last)
	w.spanned = last
}

// countThreads counts the threads by state, and queues the statement for those that are due earlier than before.
func (w *writer) countThreads(changes []ledger.Change, removed []ledger.Removal) {
	if missing := len(ledger.States()) - len(w.threads); missing > 0 {
		w.threads = append(w.threads, make([]int64, missing)...)
	}
	w.counted = w.counted || len(changes)+len(removed) > 0
	var earlier, dues []int64
	for _, t := range changes {
		w.threads[ledger.StateNumber(t.State)]++
		if t.New {
			continue
		}
		w.threads[ledger.StateNumber(t.Was.State)]--
		if t.Due.Before(t.Was.Due) && t.Number <= w.spanned {
			earlier, dues = append(earlier, t.Number), append(dues, nanos(t.Due))
		}
	}
	for _, t := range removed {
		w.threads[ledger.StateNumber(t.State)]--
	}
	if len(earlier) > 0 {
		w.batch.Queue(hurrySpans, earlier, dues)
	}
}
