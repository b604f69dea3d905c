package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

// TestModuleCanBePublished makes the files that a proxy for Go modules has of this module, from the last commit, and lets
// the go command find and download the module there. docs/PUBLISHING.md describes it.
func TestModuleCanBePublished(t *testing.T) {
	root := t.TempDir()
	command := exec.Command("bash", "-c", `set -o pipefail; git archive HEAD | tar -x -C "$1"`, "bash", root)
	command.Dir = sourceFolder(t)
	if out, err := command.CombinedOutput(); err != nil && os.Getenv("CI") != "true" {
		t.Skipf("this is no git checkout: %v\n%s", err, out) // a source archive
	} else if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	version, err := os.ReadFile(filepath.Join(root, "VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	m := module.Version{Path: "github.com/agora-relay/agora", Version: "v" + strings.TrimSpace(string(version))}
	proxy := filepath.Join(t.TempDir(), m.Path, "@v")
	if err := os.MkdirAll(proxy, 0o755); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(proxy, m.Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	if err := modzip.CreateFromDir(archive, m, root); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := copyFile(filepath.Join(proxy, m.Version+".mod"), filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	info := `{"Version":"` + m.Version + `"}`
	for name, text := range map[string]string{"list": m.Version + "\n", m.Version + ".info": info} {
		if err := os.WriteFile(filepath.Join(proxy, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	downloaded := ask(t, strings.TrimSuffix(proxy, filepath.Join(m.Path, "@v")), m)
	for _, name := range []string{"LICENSE", "VERSION", "client/client.go"} {
		if _, err := os.Stat(filepath.Join(downloaded, name)); err != nil {
			t.Error(err)
		}
	}
}

// sourceFolder returns the folder of the module. TestMain of the other tests may have changed to it.
func sourceFolder(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if _, here := os.Stat("VERSION"); here == nil {
		root, err = filepath.Abs(".")
	}
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// ask asks the proxy in a folder for a module, and returns the folder to which the go command has downloaded it.
func ask(t *testing.T, folder string, m module.Version) string {
	t.Helper()
	run := func(args ...string) (answer struct{ Path, Version, Dir string }) {
		cmd := exec.Command("go", args...)
		cmd.Dir = t.TempDir() // a folder without a module
		cmd.Env = append(os.Environ(), "GOPROXY=file://"+folder, "GOSUMDB=off", "GONOPROXY=none", "GOPRIVATE=",
			"GOFLAGS=-modcacherw", "GOMODCACHE="+filepath.Join(folder, "cache"), "GOTOOLCHAIN=local", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return answer
	}
	if found := run("list", "-m", "-json", m.Path+"@latest"); found.Path != m.Path || found.Version != m.Version {
		t.Errorf("found %+v, want %+v", found, m)
	}
	return run("mod", "download", "-json", m.Path+"@"+m.Version).Dir
}
