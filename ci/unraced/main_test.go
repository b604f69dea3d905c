package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTestsOf(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		want   []string
	}{
		"none":         {`func TestA(t *testing.T) { help() }; func help() {}`, nil},
		"direct":       {`func TestA(t *testing.T) { if raceDetector { return } }; func TestB(t *testing.T) {}`, []string{"TestA"}},
		"by a helper":  {`func TestA(t *testing.T) { x := func() { one() }; x() }; func one() { two() }; func two() { one(); _ = raceDetector }`, []string{"TestA"}},
		"fewer checks": {`func TestMain(m *testing.M) { _ = raceDetector }; func TestA(t *testing.T) { rapid.Check(t, nil) }; func TestB(t *testing.T) {}`, []string{"TestA"}},
		"all checks":   {`func TestA(t *testing.T) { rapid.Check(t, nil) }`, nil},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte("package a\n"+c.source), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := testsOf(dir); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
}

// The tests that this project has must be found: an empty list would mean that some run nowhere.
func TestFindsTheProjectsTests(t *testing.T) {
	all, err := find("../..")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(p tested) bool { return filepath.ToSlash(p.dir) == "../../store/sqlite" })
	if i < 0 || !slices.Contains(all[i].tests, "TestStore") || len(all) < 5 {
		t.Errorf("found %v", all)
	}
}
