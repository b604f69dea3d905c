// Package testvectors is where tests get their vectors from.
//
// Vectors of third parties are not part of this repository. Public and its relatives read them from the folder that
// the environment variable AGORA_VECTORS names; without it their tests are skipped, except in CI, where nothing may be
// left out in silence. Only tests import this package.
package testvectors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Env names the environment variable that holds the absolute path of the third-party vectors.
const Env = "AGORA_VECTORS"

// Public returns the third-party file of that slash-separated name, such as "strings/blns.json". It ends the test if
// there is none, or if the file is empty.
func Public(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatalf("%s does not hold the vectors this test needs: %v", Env, err)
	}
	if len(data) == 0 {
		t.Fatalf("the vector file %s is empty", name)
	}
	return data
}

// PublicDir returns the contents of the files in a third-party folder by their names; folders inside are left out. It
// ends the test if there are no files. A file may be empty here: for a parser that is a case like any other.
func PublicDir(t testing.TB, name string) map[string][]byte {
	t.Helper()
	dir := filepath.Join(root(t), filepath.FromSlash(name))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("%s does not hold the vectors this test needs: %v", Env, err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		if files[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if len(files) == 0 {
		t.Fatalf("the vector folder %s has no files", name)
	}
	return files
}

// PublicList returns the elements of the JSON array in a third-party file: the whole file, or one member of the object
// it holds if member is not empty. It ends the test if there are no elements.
func PublicList[T any](t testing.TB, name, member string) []T {
	t.Helper()
	data := Public(t, name)
	if member != "" {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(data, &object); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data = object[member]
	}
	var list []T
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(list) == 0 {
		t.Fatalf("%s holds no vectors", name)
	}
	return list
}

func root(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(Env)
	switch {
	case dir == "" && os.Getenv("CI") == "true":
		t.Fatalf("%s is not set, and CI=true allows no test to be skipped; set it to the absolute path of the vectors", Env)
	case dir == "":
		t.Skipf("third-party vectors are not here; to run this test: %s=/absolute/path/to/vectors go test ./...", Env)
	case !filepath.IsAbs(dir):
		t.Fatalf("%s must be an absolute path (go test runs in each package's own folder), not %q", Env, dir)
	}
	return dir
}
