package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSignedSums signs the checksums of a folder with a key that is thrown away, and verifies them with the command that
// docs/INSTALL.md shows. A changed file, changed checksums and another key are noticed.
func TestSignedSums(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	folder, keys := t.TempDir(), t.TempDir()
	for _, name := range []string{"release", "other"} {
		shell(t, keys, "ssh-keygen -q -t ed25519 -N '' -C '' -f "+name)
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sign := func(key string) {
		t.Helper()
		if err := writeSums(folder); err != nil {
			t.Fatal(err)
		}
		if err := signSums(folder, filepath.Join(keys, key)); err != nil {
			t.Fatal(err)
		}
	}
	put("agora.tar.gz", "the files")
	sign("release")
	sign("release") // again, which signs neither the signature nor the key
	verify := verifyCommand(t)
	if out, err := attempt(folder, verify); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	published, err := os.ReadFile(filepath.Join(folder, signersName)) // where an attacker cannot change it
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(){
		"a changed file":    func() { put("agora.tar.gz", "other files") },
		"changed checksums": func() { put(sumsName, strings.Repeat("0", 64)+"  agora.tar.gz\n") },
		"another key":       func() { sign("other"); put(signersName, string(published)) },
	} {
		put("agora.tar.gz", "the files")
		sign("release")
		change()
		if out, err := attempt(folder, verify); err == nil {
			t.Errorf("%s is not noticed: %s", what, out)
		}
	}
	if err := signSums(folder, filepath.Join(folder, sumsName)); err == nil {
		t.Error("a file that is no key signs")
	}
}

// verifyCommand returns the commands of docs/INSTALL.md that verify a release.
func verifyCommand(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sourceFolder(t), "docs/INSTALL.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Verify the files")
	_, block, _ := strings.Cut(section, "```text\n")
	block, _, ok := strings.Cut(block, "```")
	if !ok || !strings.Contains(block, "ssh-keygen -Y verify") {
		t.Fatal("docs/INSTALL.md does not say how a signature is verified")
	}
	return "set -e\n" + block + "sha256sum --check --ignore-missing --strict SHA256SUMS\n"
}

func attempt(folder, command string) (output string, err error) {
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func shell(t *testing.T, folder, command string) {
	t.Helper()
	if out, err := attempt(folder, command); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
