package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// statements are the writer's, prepared once.
type statements struct {
	begin, commit, rollback  *sql.Stmt
	savepoint, undo, release *sql.Stmt

	// Identities.
	party, addParty, seen, dropParty *sql.Stmt

	// What ledger.Tx needs.
	knownRows, threadByNumber             *sql.Stmt
	threadsOf, openThreads, oldestThreads *sql.Stmt
	waiting, waitingOfAll, listed         *sql.Stmt
	addEvent, addManifest                 *sql.Stmt
	addThread, updateThread, dropThread   *sql.Stmt
	addParticipant, dropParticipant       *sql.Stmt

	// The clock's work.
	dueThreads, dropEvents, keepLast, dropManifests *sql.Stmt

	// A full disk.
	cuttable, dropEvent, addCut, trimmable *sql.Stmt

	// The write-ahead log.
	lookAtLog, restartLog, truncateLog *sql.Stmt
}

// threadsOfParticipant selects the threads with an id in which a party takes part: those in which it works first, then
// by age. The order matters because the list may be cut off.
const threadsOfParticipant = "SELECT " + threadColumns + " FROM participant a CROSS JOIN thread t ON t.n = a.thread " +
	"CROSS JOIN party p ON p.id = t.client WHERE a.id = ? AND a.party = ? ORDER BY a.rank, a.thread LIMIT ?"

// oldestNumbers selects the numbers of the oldest threads with an id, so many of those that are open to any agent and of
// the others.
const oldestNumbers = "SELECT n FROM (SELECT n FROM thread WHERE id = ? AND open = 0 ORDER BY n LIMIT ?) " +
	"UNION ALL SELECT n FROM (SELECT n FROM thread WHERE id = ? AND open = 1 ORDER BY n LIMIT ?)"

// anyThread selects threads by a condition that follows.
const anyThread = "SELECT " + threadColumns + " FROM thread t CROSS JOIN party p ON p.id = t.client WHERE "

// all are the texts of the statements.
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
			"AND NOT EXISTS (SELECT 1 FROM event WHERE recipient = ?1) AND NOT EXISTS (SELECT 1 FROM thread WHERE client = ?1) " +
			"AND NOT EXISTS (SELECT 1 FROM participant WHERE party = ?1) AND NOT EXISTS (SELECT 1 FROM manifest WHERE sender = ?1) RETURNING did",

		&s.knownRows:      knownRows,
		&s.threadByNumber: anyThread + "t.n = ?",
		&s.threadsOf:      threadsOfParticipant,
		&s.openThreads:    anyThread + "t.id = ? AND t.open = 1 ORDER BY t.n LIMIT ?",
		&s.oldestThreads:  anyThread + "t.n IN (" + oldestNumbers + ") ORDER BY t.n",
		&s.waiting: "SELECT count(*), ifnull(sum(charged), 0), min(expires) FROM (SELECT charged, expires FROM event " +
			"INDEXED BY event_by_inbox WHERE recipient = ? AND network = ? AND expires > ? AND charged > 0 LIMIT ?)",
		&s.waitingOfAll: "SELECT count(*), ifnull(sum(charged), 0), min(expires) FROM (SELECT charged, expires FROM event " +
			"INDEXED BY event_by_inbox WHERE recipient = ? AND expires > ? AND charged > 0 LIMIT ?)",
		&s.listed: "SELECT id, ts, expires FROM manifest WHERE sender = ? AND expires > ?",
		&s.addEvent: "INSERT INTO event (seq, sender, id, recipient, type, thread, ts, received, expires, forget, body, charged, network) " +
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		&s.addManifest: "INSERT INTO manifest (sender, id, seq, ts, expires, intents, text, recipient) VALUES (?, ?, ?, ?, ?, ?, ?, ?) " +
			"ON CONFLICT (sender, id) DO UPDATE SET seq = excluded.seq, ts = excluded.ts, expires = excluded.expires, " +
			"intents = excluded.intents, text = excluded.text, recipient = excluded.recipient",
		&s.addThread:       "INSERT INTO thread (n, id, client, due, open, record) VALUES (?, ?, ?, ?, ?, ?)",
		&s.updateThread:    "UPDATE thread SET due = ?, open = ?, record = ? WHERE n = ?",
		&s.dropThread:      "DELETE FROM thread WHERE n = ?",
		&s.addParticipant:  "INSERT INTO participant (party, id, rank, thread) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
		&s.dropParticipant: "DELETE FROM participant WHERE party = ? AND id = ? AND rank IN (0, 1) AND thread = ?",

		&s.dueThreads: anyThread + "t.due <= ? ORDER BY t.due LIMIT ?",
		&s.dropEvents: "DELETE FROM event WHERE seq IN (SELECT seq FROM event WHERE forget <= ? LIMIT ?) RETURNING sender, recipient",
		&s.keepLast: "INSERT INTO meta (name, value) SELECT 'last', ?1 WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = ?1) " +
			"ON CONFLICT (name) DO UPDATE SET value = excluded.value",
		&s.dropManifests: "DELETE FROM manifest WHERE n IN (SELECT n FROM manifest WHERE expires <= ? LIMIT ?) RETURNING sender",

		&s.cuttable: "SELECT seq, sender, id, recipient, type, thread, ts, received, forget, expires <= ? AND length(body) > 0 FROM event " +
			"WHERE (forget, seq) > (?, ?) AND forget <= ? ORDER BY forget, seq LIMIT ?",
		&s.dropEvent: "DELETE FROM event WHERE seq = ?",
		&s.addCut: "INSERT INTO event (seq, sender, id, recipient, type, thread, ts, received, forget, expires, body, charged, network) " +
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, x'', 0, 0)",
		&s.trimmable: "SELECT t.n, t.id, p.did, t.due, t.open, iif(EXISTS (SELECT 1 FROM event WHERE event.thread = t.n), x'', t.record) " +
			"FROM thread t CROSS JOIN party p ON p.id = t.client WHERE t.n > ? ORDER BY t.n LIMIT ?",

		&s.lookAtLog:   "PRAGMA wal_checkpoint(NOOP)",
		&s.restartLog:  "PRAGMA wal_checkpoint(RESTART)",
		&s.truncateLog: "PRAGMA wal_checkpoint(TRUNCATE)",
	}
}

// prepare prepares the statements.
func (s *statements) prepare(ctx context.Context, conn *sql.Conn) (err error) {
	for stmt, text := range s.all() {
		if *stmt, err = conn.PrepareContext(ctx, text); err != nil {
			return fmt.Errorf("prepare %q: %w", text, err)
		}
	}
	return nil
}

// close closes those that were prepared.
func (s *statements) close() (errs []error) {
	for stmt := range s.all() {
		if *stmt != nil {
			errs = append(errs, (*stmt).Close())
		}
	}
	return errs
}
