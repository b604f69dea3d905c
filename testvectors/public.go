// Package testvectors provides test vectors to tests.
//
// The vectors of third parties are not part of this repository. Public, PublicDir and PublicList read them from the
// folder in the environment variable AGORA_VECTORS. If the variable is not set, the tests that need these vectors are
// skipped. In CI they fail instead, because CI must not skip tests silently. Only tests import this package.
package testvectors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Env is the name of the environment variable with the absolute path of the third-party vectors.
const Env = "AGORA_VECTORS"

// Public returns the third-party file with this slash-separated name, such as "strings/blns.json". It ends the test if
// the file does not exist or is empty.
func Public(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatalf("the folder in %s does not have the vectors that this test needs: %v", Env, err)
	}
	if len(data) == 0 {
		t.Fatalf("the vector file %s is empty", name)
	}
	return data
}

// PublicDir returns the contents of the files in a third-party folder, by their names. It leaves out folders inside,
// and ends the test if there are no files. The files may be empty, because an empty text is a valid test case for a
// parser.
func PublicDir(t testing.TB, name string) map[string][]byte {
	t.Helper()
	dir := filepath.Join(root(t), filepath.FromSlash(name))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("the folder in %s does not have the vectors that this test needs: %v", Env, err)
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

// PublicList returns the elements of the JSON array in a third-party file. If member is empty, the whole file is the
// array; otherwise the array is this member of the object in the file. It ends the test if there are no elements.
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
		t.Fatalf("the vector file %s has no vectors", name)
	}
	return list
}

func root(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(Env)
	switch {
	case dir == "" && os.Getenv("CI") == "true":
		t.Fatalf("%s is not set, and with CI=true no test may be skipped; "+
			"set it to the absolute path of the vectors", Env)
	case dir == "":
		t.Skipf("%s is not set; to run this test: %[1]s=/absolute/path/to/vectors go test ./...", Env)
	case !filepath.IsAbs(dir):
		t.Fatalf("%s must be an absolute path, because go test runs in each package's own folder; it is %q", Env, dir)
	}
	return dir
}
