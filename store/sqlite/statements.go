package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// statements are the prepared statements of the writer.
type statements struct {
	begin, commit, rollback  *sql.Stmt
	savepoint, undo, release *sql.Stmt

	// Identities.
	party, addParty, seen, dropParty *sql.Stmt

	// For ledger.Tx.
	knownRows, threadByNumber             *sql.Stmt
	threadsOf, openThreads, oldestThreads *sql.Stmt
	waiting, waitingOfAll, listed         *sql.Stmt
	addEvent, addManifest                 *sql.Stmt
	addThread, updateThread, dropThread   *sql.Stmt
	addRoles, addRole                     *sql.Stmt
	updateRole, dropRoles                 *sql.Stmt

	// For Expire.
	dueThreads, dropEvents, keepLast, dropManifests *sql.Stmt

	// For a full disk.
	cuttable, dropEvent, addBare, trimmable *sql.Stmt

	// For Remove.
	removeEvent, removeManifest *sql.Stmt

	// For the write-ahead log.
	logStatus, restartLog, truncateLog *sql.Stmt
}

// threadsOfParticipant selects the threads with an id in which a party takes part, other than as their client. Threads
// in which the party works come first, then the oldest. The order matters because the result has a limit.
const threadsOfParticipant = "SELECT " + threadColumns + " FROM thread_role r CROSS JOIN thread t ON t.n = r.thread " +
	"WHERE r.id = ? AND r.party = ? AND r.role > 2 ORDER BY r.role, r.thread LIMIT ?"

// openThreads selects the oldest threads with an id in which any agent may offer.
const openThreads = "SELECT " + threadColumns + " FROM thread_role r CROSS JOIN thread t ON t.n = r.thread " +
	"WHERE r.id = ? AND r.party = '' AND r.role = 1 ORDER BY r.thread LIMIT ?"

// oldestNumbers selects the numbers of the oldest threads with an id: up to one limit of threads that are not open to
// any agent, and up to a second limit of threads that are.
const oldestNumbers = "SELECT * FROM (SELECT thread FROM thread_role WHERE id = ? AND party = '' AND role = 0 " +
	"ORDER BY thread LIMIT ?) UNION ALL " +
	"SELECT * FROM (SELECT thread FROM thread_role WHERE id = ? AND party = '' AND role = 1 ORDER BY thread LIMIT ?)"

// threadOfClient selects the number of the thread with an id that belongs to a client.
const threadOfClient = "SELECT thread FROM thread_role WHERE id = ? AND party = ? AND role = 2"

// threadsWithID selects the numbers of the threads with an id.
const threadsWithID = "SELECT thread FROM thread_role WHERE id = ? AND party = ''"

// A statement that counts the messages in an inbox is put together from countWaiting, the condition for a message that
// still waits, and fromUnasked.
const (
	countWaiting = "ifnull(sum(waits), 0), ifnull(sum(iif(waits, charged, 0)), 0), min(iif(waits, expires, NULL)) " +
		"FROM (SELECT charged, expires, "
	fromUnasked = " AS waits FROM event INDEXED BY event_unasked WHERE recipient = ?1 AND charged > 0)"
)

// anyThread selects threads. A condition must follow it.
const anyThread = "SELECT " + threadColumns + " FROM thread t WHERE "

// all returns the SQL text of each statement.
func (s *statements) all() map[**sql.Stmt]string {
	return map[**sql.Stmt]string{
		&s.begin:    "BEGIN IMMEDIATE",
		&s.commit:   "COMMIT",
		&s.rollback: "ROLLBACK",

		&s.savepoint: "SAVEPOINT step",
		&s.undo:      "ROLLBACK TO step",
		&s.release:   "RELEASE step",

		&s.party:    "SELECT id FROM party WHERE did = ?",
		&s.addParty: "INSERT INTO party (did) VALUES (?)",
		&s.seen:     "UPDATE party SET seen = max(seen, ?) WHERE id = ?",
		&s.dropParty: "DELETE FROM party WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM event WHERE sender = ?1) " +
			"AND NOT EXISTS (SELECT 1 FROM event WHERE recipient = ?1 AND charged = 0) " +
			"AND NOT EXISTS (SELECT 1 FROM event WHERE recipient = ?1 AND charged > 0) " +
			"AND NOT EXISTS (SELECT 1 FROM manifest WHERE sender = ?1) RETURNING did",

		&s.knownRows:      knownRows,
		&s.threadByNumber: anyThread + "t.n = ?",
		&s.threadsOf:      threadsOfParticipant,
		&s.openThreads:    openThreads,
		&s.oldestThreads:  anyThread + "t.n IN (" + oldestNumbers + ") ORDER BY t.n",
		&s.waiting:        "SELECT count(*), " + countWaiting + "expires > ?2 AND network = ?3" + fromUnasked,
		&s.waitingOfAll:   "SELECT count(*), " + countWaiting + "expires > ?2" + fromUnasked,
		&s.listed:         "SELECT id, ts, expires FROM manifest WHERE sender = ? AND expires > ?",
		&s.addEvent: "INSERT INTO event (seq, sender, id, recipient, type, thread, ts, received, expires, forget, " +
			"body, charged, network) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		&s.addManifest: "INSERT INTO manifest (sender, id, seq, ts, expires, intents, text, recipient) " +
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sender, id) DO UPDATE " +
			"SET seq = excluded.seq, ts = excluded.ts, expires = excluded.expires, intents = excluded.intents, " +
			"text = excluded.text, recipient = excluded.recipient",
		&s.addThread:    "INSERT INTO thread (n, id, client, due, open, state, record) VALUES (?, ?, ?, ?, ?, ?, ?)",
		&s.updateThread: "UPDATE thread SET due = ?, open = ?, state = ?, record = ? WHERE n = ?",
		&s.dropThread:   "DELETE FROM thread WHERE n = ?",
		&s.addRoles:     "INSERT INTO thread_role (id, party, role, thread) VALUES (?1, '', ?2, ?3), (?1, ?4, 2, ?3)",
		&s.addRole:      "INSERT INTO thread_role (id, party, role, thread) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
		&s.updateRole:   "UPDATE thread_role SET role = ? WHERE id = ? AND party = '' AND role = ? AND thread = ?",
		&s.dropRoles:    "DELETE FROM thread_role WHERE id = ? AND party = ? AND role BETWEEN 0 AND 4 AND thread = ?",

		&s.dueThreads: anyThread + "t.due <= ? ORDER BY t.due LIMIT ?",
		&s.dropEvents: "DELETE FROM event WHERE seq IN (SELECT seq FROM event WHERE forget <= ? LIMIT ?) " +
			"RETURNING sender, recipient",
		&s.keepLast: "INSERT INTO meta (name, value) SELECT 'last', ?1 " +
			"WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = ?1) ON CONFLICT (name) DO UPDATE SET value = " +
			"excluded.value",
		&s.dropManifests: "DELETE FROM manifest WHERE n IN (SELECT n FROM manifest WHERE expires <= ? LIMIT ?) " +
			"RETURNING sender",

		&s.cuttable: "SELECT " + bareColumns + ", expires <= ? AND length(body) > 0 FROM event WHERE (forget, seq) > (?, ?) AND forget <= ? " +
			"ORDER BY forget, seq LIMIT ?",
		&s.dropEvent: "DELETE FROM event WHERE seq = ?",
		&s.addBare: "INSERT INTO event (" + bareColumns + ", expires, body, charged, network) " +
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, x'', 0, 0)",
		&s.trimmable: "SELECT t.n, t.id, t.client, t.due, t.open, t.state, " +
			"iif(EXISTS (SELECT 1 FROM event WHERE event.thread = t.n), x'', t.record) FROM thread t WHERE t.n > ? " +
			"ORDER BY t.n LIMIT ?",

		&s.removeEvent:    "DELETE FROM event WHERE seq = ? AND expires >= 0 RETURNING " + bareColumns,
		&s.removeManifest: "DELETE FROM manifest WHERE sender = (SELECT sender FROM event WHERE seq = ?1) AND seq = ?1",

		&s.logStatus:   "PRAGMA wal_checkpoint(NOOP)",
		&s.restartLog:  "PRAGMA wal_checkpoint(RESTART)",
		&s.truncateLog: "PRAGMA wal_checkpoint(TRUNCATE)",
	}
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
