package gatetest

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bounded has the statements that may count rows, sort them, or read a table to its end, with what bounds the rows. The key is
// a part of the statement.
var bounded = map[string]string{}

// offline are the files whose statements run only in commands of the operator, while no client waits.
var offline = []string{"check.go", "fold.go"}

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
	used := map[string]bool{}
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
			for part := range bounded {
				if strings.Contains(text, part) {
					used[part] = true
					wrong = nil
				}
			}
			if len(wrong) > 0 {
				t.Errorf("%s: %q\n\t%s", folder, wrong, text)
			}
		}
	}
	for part := range bounded {
		if !used[part] {
			t.Errorf("no statement has %q any more", part)
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
		if strings.HasPrefix(detail, "SCAN") && !strings.Contains(detail, "CONSTANT ROW") || strings.Contains(detail, "TEMP B-TREE") {
			wrong = append(wrong, detail)
		}
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
	return wrong
}
