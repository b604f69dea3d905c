package jobs_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// An account pays a limited number of transfers and jobs in a day, and so do all accounts of one address together. Repeats
// and refusals do not count. A large job counts more often. The limit has a name.
func TestDailyPayments(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, eve := f.user("alice"), f.user("bob"), f.user("eve")
		a := alice.agent(uuid(1), "")
		pay := func(from, to user, i int) answer {
			return from.do("POST", "/transfer", send(from.owner, to.owner, 0.001, "transfer_id", uuid(i)))
		}
		refused := func(got answer) {
			t.Helper()
			if f.want(got, 429); text(got, "limit") != "payments" || got.Header.Get("Retry-After") == "" {
				t.Errorf("refused by %v with %v", got, got.Header)
			}
		}
		for i := range 7 {
			f.want(pay(bob, alice, i), 200)
			f.want(pay(bob, alice, i), 200)                                                   // a repeat
			f.want(bob.do("POST", "/transfer", send("bob", "nobody", 0.001)), 404)            // a refusal
			f.want(bob.hire(a, uuid(100), "skill_name", "unknown", "job_id", uuid(100)), 200) // no job is made
		}
		f.want(bob.hire(a, uuid(101), "input_data", object{"text": strings.Repeat("x", 17<<10)}), 202) // counts three times
		refused(pay(bob, alice, 8))
		refused(bob.hire(a, uuid(102)))
		f.want(pay(bob, alice, 1), 200)
		for i := range 10 { // what another account of the address may still pay
			f.want(pay(alice, bob, 20+i), 200)
		}
		refused(pay(eve, bob, 40))
		f.pass(3 * 3600 * 1e9) // in this time, an account gets 1.25 more payments
		f.want(pay(eve, bob, 41), 200)
	}, func(f *fixture) { f.Public, f.options.Daily = true, 10 })
}

// The second migration fills counters, copies and lists from the rows of a database that has only run the first one.
// `agora check` finds nothing wrong, and answers are the same.
func TestCountersAreFilled(t *testing.T) {
	engine.OnlySQLite(t, "it copies a file")
	old := jobs.Extension
	old.Migrations = old.Migrations[:1]
	path := filepath.Join(t.TempDir(), "old.db")
	made := filepath.Join(t.TempDir(), "made.db")
	inBubble(t, func(t *testing.T, f *fixture) {
		tour(t, f)
		f.Stop()
		b, err := os.ReadFile(f.Path)
		f.must(err)
		f.must(os.WriteFile(made, b, 0o600))
	})
	open := func(x relay.Extension) *sqlite.Store {
		t.Helper()
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{Extensions: []relay.Extension{gateway.Extension, x}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := open(old).Close(); err != nil {
		t.Fatal(err)
	}
	copyRows(t, made, path)
	if err := open(jobs.Extension).Close(); err != nil {
		t.Fatal(err)
	}
	_, err := check.Database(t.Context(), path, check.Options{Extensions: []relay.Extension{gateway.Extension, jobs.Extension},
		Found: func(found check.Finding) { t.Errorf("check: %v", found) }})
	if err != nil {
		t.Fatal(err)
	}
	counters := []string{"jobs_count WHERE records > 0 ORDER BY kind, n", "jobs_figure", "jobs_skill ORDER BY agent, name",
		"jobs_skill_name ORDER BY name"}
	if got, want := dump(t, path, counters), dump(t, made, counters); got != want {
		t.Errorf("filled %s\nwant %s", got, want)
	}
}

// copyRows copies the rows of all tables of gateways that both databases have.
func copyRows(t *testing.T, from, to string) {
	t.Helper()
	db, err := sql.Open("sqlite", to)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	exec := func(text string, args ...any) {
		t.Helper()
		if _, err := db.Exec(text, args...); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	exec("ATTACH ? AS made", from)
	for _, table := range strings.Fields(dump(t, to, []string{"sqlite_schema WHERE type = 'table' AND (name GLOB 'jobs_*' OR name GLOB 'gate_*')"})) {
		if table, is := strings.CutPrefix(table, "table:"); is {
			columns := []string{}
			rows, err := db.Query("SELECT name FROM pragma_table_info(?) ORDER BY cid", table)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				name := ""
				if err := rows.Scan(&name); err != nil {
					t.Fatal(err)
				}
				columns = append(columns, name)
			}
			_ = rows.Close()
			list := strings.Join(columns, ", ")
			exec("DELETE FROM main." + table)
			exec("INSERT INTO main." + table + " (" + list + ") SELECT " + list + " FROM made." + table)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// dump returns the rows of tables. Of sqlite_schema it returns the names.
func dump(t *testing.T, path string, tables []string) string {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var all []string
	for _, table := range tables {
		what := "*"
		if strings.HasPrefix(table, "sqlite_schema") {
			what = "'table:' || name"
		}
		rows, err := db.Query("SELECT " + what + " FROM " + table)
		if err != nil {
			t.Fatal(err)
		}
		columns, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			values := make([]any, len(columns))
			into := make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			if err := rows.Scan(into...); err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(slices.Clone(values)...))
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(all, "\n")
}
