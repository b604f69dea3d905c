package gatetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/relay"
)

// TestStatementsIn checks that statements are found wherever they are, and that their texts must be constant
// except in offline files.
func TestStatementsIn(t *testing.T) {
	find := func(source string) ([]string, error) {
		folder := t.TempDir()
		for name, text := range map[string]string{"a.go": source, "a_test.go": "package a\n\nvar _ = `SELECT 9`\n",
			"b.go":     "package a\n\nconst columns = `a, b`\n",
			"check.go": "package a\n\nfunc h(s string) { g(`UPDATE `+s, `SELECT `+s, `DELETE FROM x_u`) }\n"} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return statementsIn(folder)
	}
	got, err := find("package a\n\nconst one = \"SELECT \" + columns + ` FROM x_t `\n\n" +
		"func f() {\n\tg(one + \"WHERE a = ?\", one+`ORDER BY a`)\n\tg(\"unrelated\", `\n\tDELETE FROM x_t`)\n}\n")
	want := []string{"\n\tDELETE FROM x_t", "DELETE FROM x_u", "SELECT a, b FROM x_t ORDER BY a", "SELECT a, b FROM x_t WHERE a = ?"}
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, begin := range []string{"DELETE FROM x_t WHERE ", "SELECT "} {
		if _, err := find(fmt.Sprintf("package a\n\nfunc f(s string) string { return %q + s }\n", begin)); err == nil {
			t.Errorf("%s: a text that is not constant is accepted", begin)
		}
	}
}

// TestCheckText checks that a statement is refused if both databases accept it but understand it in different ways.
func TestCheckText(t *testing.T) {
	x := relay.Extension{Name: "x", Migrations: []string{
		"CREATE TABLE x_t (\n\tn BIGINT NOT NULL,\n\tname TEXT NOT NULL,\n\tid TEXT NOT NULL,\n\thash BYTEA NOT NULL\n)",
		"CREATE TABLE x_u (\n\tid BIGINT PRIMARY KEY\n)"}}
	columns := columnsOfType("TEXT", []relay.Extension{x})
	for text, want := range map[string]string{
		"SELECT name FROM x_t WHERE name = ? AND n > ? AND n <> 3 ORDER BY n DESC, x_t.hash LIMIT ?": "",
		"SELECT max(n), count(name) FROM x_t ORDER BY id":                                            "",
		"UPDATE x_t SET n = CAST(? AS BIGINT)":                                                       "",
		"SELECT n FROM x_t ORDER BY n, x_t.name DESC":                                                "texts such as name",
		"SELECT n FROM x_t WHERE n IN (SELECT n FROM x_t ORDER BY name LIMIT 1)":                     "texts such as name",
		"SELECT max(name) FROM x_t":                                                                  "texts such as name",
		"SELECT n FROM x_t WHERE x_t.name >= ?":                                                      "texts such as name",
		"SELECT n FROM x_t WHERE name LIKE ?":                                                        "ignores case",
		"SELECT n FROM x_t WHERE n = ?1":                                                             "has a number",
		"SELECT lower(name) FROM x_t":                                                                "ASCII",
		"SELECT n FROM x_t WHERE CAST(? AS INT)":                                                     "32 bits",
	} {
		err := checkText(text, columns)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
