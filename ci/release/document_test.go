package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the version of the file VERSION into docs/INSTALL.md")

// named matches the name of a file of a release, up to its version.
var named = regexp.MustCompile(`(agora[-_])(\d+\.\d+\.\d+)`)

// TestDocumentVersions checks that docs/INSTALL.md has the names of the version that make release builds. The section
// about upgrades also has the names of the next version.
func TestDocumentVersions(t *testing.T) {
	root := "../../"
	if _, err := os.Stat("VERSION"); err == nil { // TestMain of the other tests has changed the folder
		root = ""
	}
	text, err := os.ReadFile(root + "VERSION")
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimSpace(string(text))
	next, err := nextVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile(root + "docs/INSTALL.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range named.FindAllSubmatch(document, -1) {
		found = append(found, string(name[2]))
	}
	want := map[bool]string{true: version, false: next}
	current := func(v string) bool { return v == found[0] } // the first one in the document
	if len(found) < 8 || len(slices.Compact(slices.Sorted(slices.Values(found)))) != 2 {
		t.Fatalf("docs/INSTALL.md has the versions %v, want two", found)
	}
	updated := named.ReplaceAllStringFunc(string(document), func(name string) string {
		parts := named.FindStringSubmatch(name)
		return parts[1] + want[current(parts[2])]
	})
	if updated == string(document) {
		return
	}
	if !*update {
		t.Fatal("docs/INSTALL.md has another version than the file VERSION; run: go test ./ci/release -run Versions -update")
	}
	if err := os.WriteFile(root+"docs/INSTALL.md", []byte(updated), 0o644); err != nil {
		t.Fatal(err)
	}
}

// nextVersion returns the version after one, for tests of upgrades.
func nextVersion(version string) (string, error) {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return "", fmt.Errorf("VERSION: %w", err)
	}
	return fmt.Sprintf("%d.%d.%d", major, minor, patch+1), nil
}
