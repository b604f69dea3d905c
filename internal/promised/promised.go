// Package promised compares what this version has with what earlier versions had: lists of names in the folders of
// testvectors/fixtures. Tests use it.
package promised

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Variable names the folder of a new fixture. If it is set, Keep writes the list of this version there.
const Variable = "AGORA_FIXTURE"

// Keep checks that this version has all lines that the file name.txt.gz of each fixture has, except those in gone. root is
// the folder of the module.
func Keep(t testing.TB, root, name string, now, gone []string) {
	t.Helper()
	if to := os.Getenv(Variable); to != "" {
		write(t, filepath.Join(to, name+".txt.gz"), now)
		return
	}
	files, err := filepath.Glob(filepath.Join(root, "testvectors", "fixtures", "*", name+".txt.gz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixture has a list %s (%v)", name, err)
	}
	for _, file := range files {
		then := read(t, file)
		if len(then) < 10 {
			t.Errorf("%s has only %q", file, then)
		}
		for _, line := range then {
			if !slices.Contains(now, line) && !slices.Contains(gone, line) {
				t.Errorf("%s has %q, which this version does not have", file, line)
			}
		}
	}
}

func read(t testing.TB, file string) []string {
	t.Helper()
	compressed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func write(t testing.TB, file string, lines []string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(strings.Join(lines, "\n") + "\n"))
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		err = os.WriteFile(file, b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
