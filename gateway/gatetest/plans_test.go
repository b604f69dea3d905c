package gatetest

import (
	"database/sql"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bounded has the statements that may count rows, sort them, or read a table to its end, and what bounds the rows. The key
// is a part of the statement. Add a row only if no
// client can make the statement slow.
var bounded = map[string]string{
	"FROM (SELECT 1 FROM a2a_task WHERE":                  "LIMIT within the parentheses",
	"COUNT(*) FROM a2a_endpoint WHERE deleted = 0":        "--a2a-endpoints; only when an endpoint is published",
	"COUNT(*) FROM a2a_task WHERE endpoint = ? AND":       "maxEnded and maxUnfinished of one endpoint",
	"FROM a2a_usage WHERE ended > ? OR bytes > ?":         "one row of each endpoint; only when one has too much",
	"FROM a2a_key WHERE endpoint = ? AND deleted = 0":     "maxKeys of one endpoint",
	"FROM a2a_turn WHERE endpoint = ? AND state = 1":      "deliver.Window of one endpoint",
	"FROM jobs_request WHERE principal = ? AND state = 1": "deliver.Window of one principal",
	"FROM a2a_endpoint e JOIN a2a_task t":                 "the deleted endpoints that were not swept yet",
	"FROM a2a_key k JOIN a2a_task t":                      "the deleted keys that were not swept yet",
	"FROM (SELECT 1 FROM channel_event WHERE channel = ?": "LIMIT within the parentheses",
	"FROM (SELECT 1 FROM channel_request WHERE inbox = ?": "LIMIT within the parentheses",
	"FROM (SELECT until FROM jobs_agent":                  "LIMIT within the parentheses",
	"FROM channel_channel WHERE deleted = 0":              "maxChannels; only when a channel is created",
	"FROM channel_channel WHERE deleted > 0":              "the deleted channels that were not swept yet",
	"channel_inbox i WHERE i.deleted > 0":                 "the deleted inboxes that were not swept yet",
	"FROM channel_party WHERE channel = ?":                "maxMembers and maxConnections of one channel",
	"FROM channel_event WHERE id = ?":                     "only the operator removes an event",
	"FROM hub_agent WHERE deleted = 0":                    "--hub-agents",
	"COUNT(*) FROM hub_message":                           "only when the hub starts",
	"COUNT(*) FROM hub_delivery WHERE state = ":           "only when the hub starts",
	"hub_delivery WHERE receiver = ? AND state = 0 AND":   "maxQueued of one agent",
	"COUNT(*) FROM hub_entry WHERE message = ?":           "the two sides of one message",
	"hub_delivery d JOIN hub_message m":                   "maxQueued of one agent",
	"hub_delivery WHERE receiver = ? AND message <= ?":    "maxQueued of one agent",
	"FROM hub_request WHERE did = ? AND state = 1":        "deliver.Window of one DID",
	"FROM (SELECT 1 FROM hub_message m":                   "LIMIT within the parentheses",
	"hub_message ORDER BY n DESC LIMIT 1":                 "one row, from the end of the index",
	"COUNT(*) FROM jobs_agent WHERE principal = ?":        "maxAgents and maxDeleted of one principal",
	"jobs_job WHERE agent = ? AND hirer = ? AND counted":  "maxCountedJobs of one pair",
	"COUNT(*) FROM jobs_job WHERE agent = ? AND state":    "maxAgentJobs of one agent",
	"COUNT(*) FROM jobs_job WHERE hirer = ? AND state":    "maxHirerJobs of one principal",
	"COUNT(*) FROM jobs_owner WHERE principal = ?":        "maxOwners of one principal",
	"FROM jobs_skill WHERE agent = ? ORDER BY position":   "maxSkills of one agent",
	"COUNT(*) FROM gate_outbox WHERE gateway = ?":         "the live and dead jobs of one lane, which have limits in each gateway",
	"SELECT COUNT(*) FROM gate_key) +":                    "only in agora check",
	"SELECT name, value FROM gate_counter":                "only when a backup was restored",
}

var countsRows = regexp.MustCompile(`(?i)\b(COUNT|SUM)\(`)

// gatewayFolders returns the folders of all gateways, and that of what they share: those with migrations.
func gatewayFolders(t testing.TB) (folders []string) {
	t.Helper()
	files, err := filepath.Glob("../*/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, "../x.sql") {
		if folder := filepath.Dir(name); !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	if len(folders) < 4 {
		t.Fatalf("found only the folders %q", folders)
	}
	return folders
}

// migrated returns a database with the tables of all gateways.
func migrated(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "plans.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, folder := range gatewayFolders(t) {
		files, err := filepath.Glob(filepath.Join(folder, "*.sql"))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(files)
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(string(text)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	return db
}

// G-34: a statement of a gateway finds its rows by an index. It reads no table to its end, sorts no rows, and takes totals
// from counters. The test reads the statements of every gateway, so it also covers those of the next one.
func TestStatementsUseIndexes(t *testing.T) {
	db := migrated(t)
	for _, folder := range gatewayFolders(t) {
		texts, err := statementsIn(folder, offline...)
		if err != nil {
			t.Error(err)
		}
		if len(texts) == 0 {
			t.Errorf("found no statements in %s", folder)
		}
		for _, text := range texts {
			wrong := planOf(t, db, text)
			if len(wrong) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(bounded)), func(part string) bool {
				return strings.Contains(text, part)
			}) {
				t.Errorf("%s: %q\n\t%s", folder, wrong, text)
			}
		}
	}
}

// planOf returns what takes longer the more rows there are.
func planOf(t testing.TB, db *sql.DB, text string) (wrong []string) {
	t.Helper()
	if countsRows.MatchString(text) && strings.HasPrefix(strings.TrimSpace(text), "SELECT") {
		wrong = append(wrong, "counts rows")
	}
	rows, err := db.Query("EXPLAIN QUERY PLAN "+text, make([]any, strings.Count(text, "?"))...)
	if err != nil {
		t.Errorf("%v\n\t%s", err, text)
		return nil
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Error(err)
		}
		if strings.HasPrefix(detail, "SCAN") && !strings.Contains(detail, "CONSTANT ROW") ||
			strings.Contains(detail, "TEMP B-TREE") && !strings.Contains(detail, "FOR LAST") { // it sorts rows of the same time

			wrong = append(wrong, detail)
		}
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
	return wrong
}
