package gatetest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	createsTable = regexp.MustCompile(`(?m)^CREATE TABLE (\w+)`)
	keptRow      = regexp.MustCompile("(?m)^\\| (`\\w+`(?:, `\\w+`)*) \\| (\\w+) \\| ([^|]+) \\|$")
)

// G-36: what strangers can store expires, or costs them something, or is bounded. The table in docs/GATEWAYS.md says so for
// each table of every gateway. Rows that expire must be deleted by a statement.
func TestEveryTableIsBounded(t *testing.T) {
	text, err := os.ReadFile("../../docs/GATEWAYS.md")
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]string{}
	for _, m := range keptRow.FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(strings.Trim(m[1], "`"), "`, `") {
			described[name] = m[2]
		}
	}
	var deletes string
	tables := map[string]bool{}
	for _, folder := range gatewayFolders(t) {
		files, err := filepath.Glob(filepath.Join(folder, "*.sql"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range createsTable.FindAllStringSubmatch(string(text), -1) {
				tables[m[1]] = true
			}
		}
		texts, err := statementsIn(folder)
		if err != nil {
			t.Fatal(err)
		}
		deletes += strings.Join(texts, "\n")
	}
	for table := range tables {
		switch bound := described[table]; {
		case !slices.Contains([]string{"expires", "limited", "paid", "fixed"}, bound):
			t.Errorf("docs/GATEWAYS.md does not say what bounds %s; it is %q", table, bound)
		case bound != "fixed" && bound != "limited" && !strings.Contains(deletes, "DELETE FROM "+table+" "):
			t.Errorf("no statement removes rows of %s, which docs/GATEWAYS.md calls %s", table, bound)
		}
	}
	for table := range described {
		if !tables[table] {
			t.Errorf("docs/GATEWAYS.md describes %s, which does not exist", table)
		}
	}
}
