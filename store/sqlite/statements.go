package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/agora-relay/agora/store/sqlite/schema"
)

// statements are the prepared statements of the writer.
type statements struct {
	begin, commit, rollback  *sql.Stmt
	savepoint, undo, release *sql.Stmt

	// Identities.
	party, partyDID, addParty, seen, dropParty *sql.Stmt

	// For ledger.Tx.
	knownRows, threadByNumber             *sql.Stmt
	threadsOf, openThreads, oldestThreads *sql.Stmt
	threadsByNumber                       *sql.Stmt
	waiting, waitingOfAll, listed         *sql.Stmt
	addEvent, addManifest                 *sql.Stmt
	addLeaves, addNode                    *sql.Stmt
	tileRows, dropLeaves, oldestRows      *sql.Stmt
	newestLog                             *sql.Stmt
	addThread, updateThread, dropThread   *sql.Stmt
	addRole, dropRoles                    *sql.Stmt

	// For Expire.
	dueThreads, dropDue, dropEvents, keepLast, dropManifests *sql.Stmt

	// For a full disk.
	cuttable, dropEvent, addBare, trimmable *sql.Stmt

	// For Remove.
	removeEvent, removeManifest *sql.Stmt

	// For the indexes of events.
	fill      [len(schema.Indexes)]*sql.Stmt
	setMerged *sql.Stmt

	// For the indexes of threads.
	fillDue, dropFormerRole, fillOwnRole, fillClient *sql.Stmt

	// For the write-ahead log.
	logStatus, restartLog, truncateLog *sql.Stmt
}

// threadsOfParticipant selects the threads with an id in which a party takes part, other than as their client. Threads
// in which the party works come first, then the oldest. The order matters because the result has a limit.
const threadsOfParticipant = "SELECT role, thread FROM thread_role WHERE id = ? AND party = ? AND role > 2 " +
	"ORDER BY role, thread LIMIT ?"

// openThreads selects the oldest threads with an id in which any agent may offer. The role may be out of date.
const openThreads = "SELECT 0, r.thread FROM thread_role r CROSS JOIN thread t ON t.n = r.thread " +
	"WHERE r.id = ? AND r.party = '' AND r.role = 1 AND t.open ORDER BY r.thread LIMIT ?"

// oldestNumbers selects the numbers of the oldest threads with an id: up to one limit of threads that are not open to
// any agent, and up to a second limit of threads that are.
const oldestNumbers = "SELECT * FROM (SELECT role, thread FROM thread_role WHERE id = ?1 AND party = '' AND role = 0 " +
	"ORDER BY thread LIMIT ?2) UNION ALL " +
	"SELECT * FROM (SELECT role, thread FROM thread_role WHERE id = ?1 AND party = '' AND role = 1 ORDER BY thread LIMIT ?2)"

// threadOfClient selects the number of the thread with an id that belongs to a client.
const threadOfClient = "SELECT thread FROM thread_role WHERE id = ? AND party = ? AND role = 2"

// threadsWithID selects the numbers of the threads with an id.
const threadsWithID = "SELECT thread FROM thread_role WHERE id = ? AND party = ''"

// A statement that counts the messages in an inbox is put together from countWaiting, the condition for a message that
// still waits, and fromUnasked. Its argument ?3 is the list of the inbox's events that are not merged.
const (
	countWaiting = "ifnull(sum(waits), 0), ifnull(sum(iif(waits, charged, 0)), 0), min(iif(waits, expires, NULL)) " +
		"FROM (SELECT charged, expires, "
	fromUnasked = " AS waits FROM (SELECT charged, expires, network FROM event_unasked WHERE recipient = ?1 AND seq <= " +
		schema.Merged + " UNION ALL SELECT charged, expires, network FROM event WHERE seq IN " +
		"(SELECT value FROM json_each(?3)) AND charged > 0))"
)

// listedThreads are the threads with the numbers of a list.
const listedThreads = " FROM json_each(?) k CROSS JOIN thread t ON t.n = k.value"

// anyThread selects threads. A condition must follow it.
const anyThread = "SELECT " + threadColumns + " FROM thread t WHERE "

// all returns the SQL text of each statement.
func (s *statements) all() map[**sql.Stmt]string {
	all := map[**sql.Stmt]string{
		&s.begin:    "BEGIN IMMEDIATE",
		&s.commit:   "COMMIT",
		&s.rollback: "ROLLBACK",

		&s.savepoint: "SAVEPOINT step",
		&s.undo:      "ROLLBACK TO step",
		&s.release:   "RELEASE step",

		&s.party:    "SELECT id FROM party WHERE did = ?",
		&s.partyDID: "SELECT did FROM party WHERE id = ?",
		&s.addParty: "INSERT INTO party (did) VALUES (?)",
		&s.seen:     "UPDATE party SET seen = max(seen, ?) WHERE id = ?",
		&s.dropParty: "DELETE FROM party WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM event_sent WHERE sender = ?1) " +
			"AND NOT EXISTS (SELECT 1 FROM event_asked WHERE recipient = ?1) " +
			"AND NOT EXISTS (SELECT 1 FROM event_unasked WHERE recipient = ?1) " +
			"AND NOT EXISTS (SELECT 1 FROM manifest WHERE sender = ?1) RETURNING did",

		&s.knownRows:      knownRows,
		&s.threadByNumber: anyThread + "t.n = ?",
		&s.threadsOf:      threadsOfParticipant,
		&s.openThreads:    openThreads,
		&s.oldestThreads:  oldestNumbers,

		&s.threadsByNumber: "SELECT " + threadColumns + listedThreads,
		&s.waiting:         "SELECT count(*), " + countWaiting + "expires > ?2 AND network = ?4" + fromUnasked,
		&s.waitingOfAll:    "SELECT count(*), " + countWaiting + "expires > ?2" + fromUnasked,
		&s.listed:          "SELECT id, ts, expires FROM manifest WHERE sender = ? AND expires > ?",
		&s.addEvent: "INSERT INTO event (seq, sender, id, recipient, type, thread, ts, received, expires, forget, " +
			"charged, network, leaf, salt, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		&s.addLeaves:  "INSERT INTO log_leaf (at, latest, seq, hashes) VALUES (?, ?, ?, ?)",
		&s.tileRows:   "SELECT hashes FROM log_leaf WHERE at >= ? AND at < ? ORDER BY at",
		&s.dropLeaves: "DELETE FROM log_leaf WHERE at >= ? AND at < ?",
		&s.oldestRows: "SELECT at, latest, length(hashes) FROM log_leaf WHERE at >= ? AND at < ? ORDER BY at LIMIT 128",
		&s.newestLog:  "SELECT n FROM log ORDER BY n DESC LIMIT 1",
		&s.addNode:    "INSERT INTO log_node (at, hash) VALUES (?, ?)",
		&s.addManifest: "INSERT INTO manifest (sender, id, seq, ts, expires, intents, text, recipient) " +
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sender, id) DO UPDATE " +
			"SET seq = excluded.seq, ts = excluded.ts, expires = excluded.expires, intents = excluded.intents, " +
			"text = excluded.text, recipient = excluded.recipient",
		&s.addThread:    "INSERT INTO thread (n, id, client, due, open, state, record) VALUES (?, ?, ?, ?, ?, ?, ?)",
		&s.updateThread: "UPDATE thread SET due = ?, open = ?, state = ?, record = ? WHERE n = ?",
		&s.dropThread:   "DELETE FROM thread WHERE n = ?",
		// The thread may have been removed since it got the role.
		&s.addRole: "INSERT OR IGNORE INTO thread_role (id, party, role, thread) SELECT ?1, ?2, ?3, ?4 " +
			"WHERE EXISTS (SELECT 1 FROM thread WHERE n = ?4)",
		&s.dropRoles: "DELETE FROM thread_role WHERE id = ? AND party = ? AND role BETWEEN 0 AND 4 AND thread = ?",

		&s.dueThreads: "SELECT due, thread FROM thread_due WHERE due <= ? ORDER BY due, thread LIMIT ?",
		&s.dropDue:    "DELETE FROM thread_due WHERE due = ? AND thread = ?",
		&s.dropEvents: "DELETE FROM event WHERE seq IN (SELECT seq FROM event_forget WHERE forget <= ? AND seq <= " + schema.Merged +
			" LIMIT ?) RETURNING sender, recipient",
		&s.keepLast: "INSERT INTO meta (name, value) SELECT 'last', ?1 " +
			"WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = ?1) ON CONFLICT (name) DO UPDATE SET value = " +
			"excluded.value",
		&s.dropManifests: "DELETE FROM manifest WHERE n IN (SELECT n FROM manifest WHERE expires <= ? LIMIT ?) " +
			"RETURNING sender",

		&s.cuttable: "SELECT " + bareColumns + ", expires <= ? AND length(body) > 0 FROM (SELECT forget AS due, seq AS at " +
			"FROM event_forget WHERE (forget, seq) > (?, ?) AND forget <= ? AND seq <= " + schema.Merged +
			" ORDER BY forget, seq LIMIT ?) CROSS JOIN event ON seq = at ORDER BY due, at",
		&s.dropEvent: "DELETE FROM event WHERE seq = ?",
		&s.addBare: "INSERT INTO event (" + bareColumns + ", expires, body, charged, network) " +
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, x'', 0, 0)",
		&s.trimmable: "SELECT t.n, t.id, t.client, t.due, t.open, t.state, " +
			"iif(EXISTS (SELECT 1 FROM event_thread WHERE thread = t.n), x'', t.record) FROM thread t WHERE t.n > ? " +
			"ORDER BY t.n LIMIT ?",

		&s.removeEvent:    "DELETE FROM event WHERE seq = ? AND expires >= 0 RETURNING " + bareColumns,
		&s.removeManifest: "DELETE FROM manifest WHERE sender = (SELECT sender FROM event WHERE seq = ?1) AND seq = ?1",

		&s.setMerged: schema.SetMerged,

		&s.fillDue: "INSERT OR IGNORE INTO thread_due SELECT t.due, t.n" + listedThreads,
		&s.dropFormerRole: "DELETE FROM thread_role WHERE (id, party, role, thread) IN " +
			"(SELECT t.id, '', 1 - t.open, t.n" + listedThreads + ")",
		&s.fillOwnRole: "INSERT OR IGNORE INTO thread_role (id, party, role, thread) SELECT t.id, '', t.open, t.n" + listedThreads,
		&s.fillClient:  "INSERT OR IGNORE INTO thread_role (id, party, role, thread) SELECT t.id, t.client, 2, t.n" + listedThreads,

		&s.logStatus:   "PRAGMA wal_checkpoint(NOOP)",
		&s.restartLog:  "PRAGMA wal_checkpoint(RESTART)",
		&s.truncateLog: "PRAGMA wal_checkpoint(TRUNCATE)",
	}
	for i, x := range schema.Indexes {
		all[&s.fill[i]] = x.Fill()
	}
	return all
}

// prepare prepares all statements.
func (s *statements) prepare(ctx context.Context, conn *sql.Conn) (err error) {
	for stmt, text := range s.all() {
		if *stmt, err = conn.PrepareContext(ctx, text); err != nil {
			return fmt.Errorf("prepare %q: %w", text, err)
		}
	}
	return nil
}

// close closes the statements that were prepared.
func (s *statements) close() (errs []error) {
	for stmt := range s.all() {
		if *stmt != nil {
			errs = append(errs, (*stmt).Close())
		}
	}
	return errs
}
